//! What the system says of a process: whether it lives, what it used, what it holds. And waiting for a state.
//!
//! Waits have a limit that only a hang reaches; how long something took never decides a test.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Long enough for anything that happens by itself, on a busy machine too.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A state that did not come.
#[derive(Debug, thiserror::Error)]
#[error("not after {limit:?}: {what}")]
pub struct NeverCame {
    /// The state.
    pub what: String,
    /// How long it was waited for.
    pub limit: Duration,
}

/// Waits until `state` holds.
///
/// # Errors
///
/// [`NeverCame`] after a minute.
pub fn until(what: &str, mut state: impl FnMut() -> bool) -> Result<(), NeverCame> {
    let started = Instant::now();
    while !state() {
        if started.elapsed() > PATIENCE {
            return Err(NeverCame { what: what.to_owned(), limit: PATIENCE });
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Whether a process exists, as a zombie too: one that nobody has reaped is still there.
pub fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Processor time that a process has used, in ticks of 10 ms; 0 for one that is gone.
pub fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may contain anything; user and system time are fields 14 and 15.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split(' ').collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    number(11) + number(12)
}

/// Resident memory of a process in KiB; 0 for one that is gone.
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Descriptors of a process that are memory files (`memfd_create`).
pub fn memory_files(pid: u32) -> usize {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("/memfd:")).count()
}

/// Children of a process, zombies included.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_exists_and_holds_no_memory_files() {
        let me = std::process::id();
        assert!(exists(me) && resident_kib(me) > 0);
        assert_eq!(memory_files(me), 0);
    }

    #[test]
    fn a_state_that_holds_is_not_waited_for() {
        until("the truth", || true).unwrap();
    }
}
