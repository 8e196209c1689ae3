//! Whether a starting worker makes progress, however slow the machine is.
//!
//! A worker makes progress while it computes, waits for a processor that others have, or reads. The rule: the server ends a
//! worker only if it makes no progress, or has computed for longer than any driver needs.

use std::fs;
use std::time::Duration;

/// Time of computing, or of waiting for a processor, that counts as progress.
const MIN_PROGRESS_TIME: Duration = Duration::from_millis(250);
/// Bytes read that count as progress.
const MIN_PROGRESS_BYTES: u64 = 1 << 20;
/// More processor time than any driver needs to start.
const MAX_START_WORK: Duration = Duration::from_secs(1200);
/// A tick of `/proc/PID/stat`.
const PROCESSOR_TICK: Duration = Duration::from_millis(10);

/// The work of a worker since its start.
#[derive(Debug, Clone, Copy, Default)]
struct StartEffort {
    /// Processor time, including that of its ended children.
    used: Duration,
    /// Time in which its threads waited for a processor.
    delayed: Duration,
    /// Bytes that it has read; 0 where the server may not see that.
    bytes: u64,
}

impl StartEffort {
    /// Measures a process. One that is gone has done nothing.
    fn of(pid: u32) -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let delayed = threads.filter_map(|thread| delay(&fs::read_to_string(thread.path().join("schedstat")).ok()?));
        let delayed = delayed.sum();
        Self { used: processor_time(&read("stat")), delayed, bytes: bytes_read(&read("io")) }
    }

    /// Returns whether it has done enough since `earlier`.
    fn has_progressed_since(&self, earlier: &Self) -> bool {
        // Ended threads take their delays with them.
        let work = self.used.saturating_sub(earlier.used) + self.delayed.saturating_sub(earlier.delayed);
        work >= MIN_PROGRESS_TIME || self.bytes.saturating_sub(earlier.bytes) >= MIN_PROGRESS_BYTES
    }
}

/// A starting worker, from one check to the next.
#[derive(Debug)]
pub(crate) struct StartProgress {
    pid: u32,
    looked: StartEffort,
}

impl StartProgress {
    pub(crate) fn new(pid: u32) -> Self {
        Self { pid, looked: StartEffort::of(pid) }
    }

    /// Returns whether it has made progress since the last check, and may continue.
    pub(crate) fn makes_progress(&mut self) -> bool {
        let now = StartEffort::of(self.pid);
        let earlier = std::mem::replace(&mut self.looked, now);
        now.has_progressed_since(&earlier) && now.used < MAX_START_WORK
    }
}

/// Returns the time in user and kernel mode, of the process and of children that it has waited for. Its name may contain
/// anything.
fn processor_time(stat: &str) -> Duration {
    let words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks: u64 = words.skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum();
    PROCESSOR_TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Parses `5034 1290 17`: nanoseconds on a processor, nanoseconds of waiting for one, time slices.
fn delay(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}

/// Returns the bytes read by calls, and those that a disk provided for mappings.
fn bytes_read(io: &str) -> u64 {
    let counted = |line: &str| line.strip_prefix("rchar: ").or(line.strip_prefix("read_bytes: "))?.parse::<u64>().ok();
    io.lines().filter_map(counted).sum()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use katydid_tests::deadline::hang::until;

    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdin(Stdio::null()).spawn().unwrap()
    }

    #[test]
    fn work_waiting_for_a_processor_and_reading_show_that_a_worker_makes_progress() {
        let none = StartEffort::default();
        assert!(!none.has_progressed_since(&none));
        assert!(StartEffort { used: MIN_PROGRESS_TIME, ..none }.has_progressed_since(&none));
        assert!(StartEffort { delayed: MIN_PROGRESS_TIME, ..none }.has_progressed_since(&none));
        assert!(StartEffort { bytes: MIN_PROGRESS_BYTES, ..none }.has_progressed_since(&none));
        assert!(!StartEffort { used: MIN_PROGRESS_TIME / 4, bytes: 4096, ..none }.has_progressed_since(&none));
    }

    #[test]
    fn kernel_figures_are_read() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3 4 20 0 1 0 9 1 1";
        assert_eq!(processor_time(stat), Duration::from_millis(1270));
        assert_eq!(delay("5034 1290 17\n"), Some(Duration::from_nanos(1290)));
        assert_eq!(bytes_read("rchar: 5\nwchar: 9\nread_bytes: 4096\nwrite_bytes: 1\n"), 4101);
        assert_eq!((processor_time(""), delay(""), bytes_read("")), (Duration::ZERO, None, 0));
    }

    #[test]
    fn a_process_that_computes_makes_progress_and_one_that_sleeps_does_not() {
        let mut computes = shell("while :; do :; done");
        let mut progress = StartProgress::new(computes.id());
        until("a process makes progress", || {
            let earlier = progress.looked;
            progress.makes_progress() || {
                progress.looked = earlier;
                false
            }
        });
        computes.kill().unwrap();
        computes.wait().unwrap();
        assert!(!progress.makes_progress(), "it is gone");
        let mut sleeps = shell("exec sleep 600");
        let asleep = format!("/proc/{}/wchan", sleeps.id());
        until("it sleeps", || fs::read_to_string(&asleep).is_ok_and(|wchan| wchan.contains("sleep")));
        let mut progress = StartProgress::new(sleeps.id());
        assert!(!progress.makes_progress());
        sleeps.kill().unwrap();
        sleeps.wait().unwrap();
    }
}
