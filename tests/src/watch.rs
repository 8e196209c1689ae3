//! State of processes as the system reports it: whether they live, what they used, what they hold. Also waits for a state.
//!
//! Waits have a limit that only a hang reaches ([`Deadline`]); durations never decide a test.

use std::fs;
use std::io;
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::deadline::{Deadline, WaitFailure};
use crate::paths::Paths;

/// Longest time without progress of a test's processes: longer than any intended wait.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Interval between two checks of a state.
const CONDITION_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// An awaited state did not occur.
#[derive(Debug, thiserror::Error)]
#[error("{description}: not so, and the processes {failure}\n--- processes\n{stacks}")]
pub struct NeverCame {
    /// Description of the awaited state.
    pub description: String,
    /// Why the wait was given up.
    pub failure: WaitFailure,
    /// What the processes of the test were doing.
    pub stacks: String,
}

/// Waits until `state` holds.
///
/// # Errors
///
/// [`NeverCame`] if the test's processes made no progress for [`WAIT_TIMEOUT`].
pub fn until(description: &str, mut state: impl FnMut() -> bool) -> Result<(), NeverCame> {
    let mut deadline = Deadline::after(WAIT_TIMEOUT);
    while !state() {
        if let Some(failure) = deadline.over() {
            return Err(NeverCame { description: description.to_owned(), failure, stacks: deadline.stacks() });
        }
        deadline.pause(CONDITION_POLL_INTERVAL);
    }
    Ok(())
}

/// Returns whether a process exists, including a zombie that is not reaped yet.
pub fn exists(pid: u32) -> bool {
    fs::metadata(format!("/proc/{pid}")).is_ok()
}

/// Returns whether a process runs, and is not only a zombie. Its threads share everything, so the first one may have ended before
/// the others.
pub fn runs(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.any(|stat| stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X'])))
}

/// Returns whether a signal has stopped a process.
pub fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
}

/// Returns the processor time of a process in ticks of 10 ms; 0 if it is gone.
pub fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything; user and system time are fields 14 and 15.
    let after_name = stat.rsplit(") ").next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split(' ').collect();
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    number(11) + number(12)
}

/// Returns the resident memory of a process in KiB; 0 if it is gone.
pub fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()).and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns the number of a process's descriptors that are memory files (`memfd_create`).
pub fn memory_files(pid: u32) -> usize {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("/memfd:")).count()
}

/// Returns the number of a process's open descriptors.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().count()
}

/// Returns the number of a process's threads.
pub fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().count()
}

/// Returns the children of a process, including zombies.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Returns a process and its descendants, the process first.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut processes = vec![pid];
    let mut next = 0;
    while next < processes.len() {
        processes.extend(children(processes[next]));
        next += 1;
    }
    processes
}

/// Returns the id of a process in its own PID namespace; `None` if the process is gone.
pub fn pid_in_own_namespace(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// Kills a process; one that is gone needs no kill.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// Stops a process.
pub fn stand_still(pid: u32) {
    signal(pid, Signal::STOP);
}

/// Continues a stopped process.
pub fn go_on(pid: u32) {
    signal(pid, Signal::CONT);
}

/// Signals that batch systems and terminals send to all processes of a job.
const END_REQUESTS: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2, Signal::XCPU];

/// Sends all signals that ask programs to end, one after the other, to processes that must survive them.
///
/// # Errors
///
/// One of the processes has ended.
pub fn ask_to_end(processes: &[u32]) -> io::Result<()> {
    for signal in END_REQUESTS {
        for pid in processes {
            let target = i32::try_from(*pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
            kill_process(target, signal)
                .map_err(|error| io::Error::other(format!("process {pid} is gone before {signal:?}: {error}")))?;
        }
    }
    Ok(())
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Returns why no process can be saved here, as reported by `katydid doctor`: no CRIU, or one without the needed rights or
/// kernel. `None`: processes can be saved.
pub fn why_no_checkpoint(paths: &Paths) -> Option<String> {
    let output = Command::new(paths.katydid()).args(["doctor", "--json"]).output();
    let findings: Value =
        output.ok().and_then(|output| serde_json::from_slice(&output.stdout).ok()).unwrap_or_default();
    let finding = findings.as_array().into_iter().flatten().find(|finding| finding["check"] == "checkpoints");
    match finding {
        Some(finding) if finding["status"] == "ok" => None,
        Some(finding) => Some(finding["detail"].to_string()),
        None => Some("katydid doctor says nothing of checkpoints".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_exists_and_holds_no_memory_files() {
        let me = std::process::id();
        assert!(exists(me) && runs(me) && !runs(u32::MAX) && resident_kib(me) > 0);
        assert_eq!(memory_files(me), 0);
    }

    #[test]
    fn a_process_runs_as_long_as_one_of_its_threads() {
        // The first thread ends alone (system call 60), and the second one sleeps.
        let script = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(600,)).start()\n\
            ctypes.CDLL(None).syscall(60, 0)";
        let mut child = Command::new("python3").args(["-c", script]).spawn().unwrap();
        let pid = child.id();
        let first = || fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        until("the first thread has ended", || first().contains(") Z ")).unwrap();
        assert!(runs(pid));
        kill(pid);
        until("the process has ended", || !runs(pid)).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_tree_begins_with_its_root() {
        assert_eq!(tree(std::process::id())[0], std::process::id());
    }

    #[test]
    fn a_state_that_holds_is_not_waited_for() {
        until("the truth", || true).unwrap();
    }
}
