//! Waits in tests of a single process, such as those of the crates. They wait for their own threads, which finish sooner or
//! later. So no wait has a limit of its own: a busy machine would reach it.
//!
//! A watchdog ends the process when the whole of it has made no progress ([`Deadline`]). It prints what the process waited for,
//! and the stacks of its threads.

use std::process;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::watched_processes::ProcessUsage;
use super::{Deadline, WaitFailure, poll_interval};

/// Stands for no limit in functions that require one.
const LONGER_THAN_ANY_TEST: Duration = Duration::from_secs(24 * 3600);
/// Longest time without progress of the whole process: longer than any intended wait of a test.
const STANDSTILL_TIMEOUT: Duration = Duration::from_secs(180);
/// Interval between two checks of a state.
const HANG_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Interval between two checks of the watchdog.
const WATCHDOG_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Descriptions of the states for which this process waits now.
static RUNNING_WAITS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// Usage so far of threads that only poll: waits between two checks, and watchdogs.
static POLLED: Mutex<ProcessUsage> = Mutex::new(ProcessUsage::NOTHING);

/// Returns a limit for a function under test that only a hang reaches: the watchdog acts first.
pub fn hang_limit() -> Duration {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| {
        // Without a watchdog, a hang lasts until the tests are ended from outside.
        let _ = thread::Builder::new().name("watchdog".to_owned()).spawn(|| watch(STANDSTILL_TIMEOUT));
    });
    LONGER_THAN_ANY_TEST
}

/// Waits until `state` holds.
pub fn until(description: &str, mut state: impl FnMut() -> bool) {
    hang_limit();
    if state() {
        return;
    }
    let entry = format!("{description} (thread {})", thread::current().name().unwrap_or("?"));
    let waits = || RUNNING_WAITS.lock().unwrap_or_else(PoisonError::into_inner);
    waits().push(entry.clone());
    let start = Instant::now();
    while !state() {
        sleep_between_polls(poll_interval(start.elapsed(), HANG_POLL_INTERVAL));
    }
    let mut waits = waits();
    if let Some(at) = waits.iter().position(|known| *known == entry) {
        waits.swap_remove(at);
    }
}

/// Sleeps, and records the usage of that: a thread that wakes up waits for a processor on a busy machine.
fn sleep_between_polls(interval: Duration) {
    let before = ProcessUsage::of_this_thread();
    thread::sleep(interval);
    note_polled(&before);
}

/// Records the calling thread's usage since `before`; returns its present usage, and that of all polling threads.
fn note_polled(before: &ProcessUsage) -> (ProcessUsage, ProcessUsage) {
    let now = ProcessUsage::of_this_thread();
    let mut polled = POLLED.lock().unwrap_or_else(PoisonError::into_inner);
    *polled = polled.with(&now.without(before));
    (now, *polled)
}

/// Ends the process once it has made no progress for the limit.
fn watch(limit: Duration) {
    let begin = || Deadline::of_process(process::id(), limit);
    let mut deadline = begin();
    let (mut before, mut seen) = note_polled(&ProcessUsage::of_this_thread());
    loop {
        let polled;
        (before, polled) = note_polled(&before);
        deadline.add_polled(&polled.without(&seen));
        seen = polled;
        match deadline.over() {
            Some(why @ WaitFailure::Still { .. }) => {
                let waits = RUNNING_WAITS.lock().unwrap_or_else(PoisonError::into_inner).join(", ");
                eprintln!("the tests of this process {why}; they wait for: {waits}\n{}", deadline.stacks());
                process::abort();
            }
            // A process of many tests may work for a long time.
            Some(_) => deadline = begin(),
            None => thread::sleep(WATCHDOG_POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_state_that_comes_is_waited_for_and_forgotten() {
        let looks = AtomicUsize::new(0);
        until("the third look", || looks.fetch_add(1, Ordering::Relaxed) >= 2);
        assert_eq!(looks.load(Ordering::Relaxed), 3);
        assert!(RUNNING_WAITS.lock().unwrap().iter().all(|wait| !wait.starts_with("the third look")));
    }

    #[test]
    fn hung_process_is_ended_with_what_it_waits_for() {
        const ALONE: &str = "KATYDID_TEST_ALONE";
        if std::env::var_os(ALONE).is_some() {
            thread::spawn(|| until("what never comes", || false));
            return watch(Duration::from_secs(1));
        }
        let mut command = process::Command::new(std::env::current_exe().unwrap());
        let name = "deadline::hang::tests::hung_process_is_ended_with_what_it_waits_for";
        let output = command.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains("what never comes") && stderr.contains("thread"),
            "{stderr}"
        );
    }
}
