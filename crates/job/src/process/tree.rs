//! The processes of a job: the program and its descendants, as `/proc` shows them.
//!
//! The rule: a process is only signalled while it is known to be in the tree: it, or an ancestor that is this process's child,
//! has not been reaped. So its id cannot belong to another process.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, waitpid};

/// The state letter of a process that a signal has stopped.
pub(crate) const STOPPED_STATE: char = 'T';
/// The state letters of a thread that has ended.
const ENDED_STATES: [char; 2] = ['Z', 'X'];
/// `PF_EXITING` in the flags of `/proc/PID/stat`: the process is ending (`include/linux/sched.h`).
const PF_EXITING: u64 = 0x4;
/// How long a parent may take to reap a process that has ended.
const REAP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks whether it has.
const REAP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A process of a tree, with its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id, in this process's own namespace.
    pub pid: u32,
    /// Process id of its parent.
    pub parent: u32,
    /// The state letter of `/proc/PID/stat`: `Z` has ended, `T` was stopped by a signal.
    pub state: char,
}

/// The process `root` and all its descendants, parents before their children.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn tree(root: u32) -> io::Result<Vec<Process>> {
    let mut children: BTreeMap<u32, Vec<Process>> = BTreeMap::new();
    let mut processes = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that ended between the two readings is not in the tree any more.
        let Some(process) = stat(pid) else { continue };
        if pid == root {
            processes.push(process);
        } else {
            children.entry(process.parent).or_default().push(process);
        }
    }
    let mut next = 0;
    while let Some(process) = processes.get(next) {
        processes.extend(children.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    Ok(processes)
}

/// Reads `/proc/PID/stat`; `None` for a process that is gone.
fn stat(pid: u32) -> Option<Process> {
    parse_stat(pid, &proc_text(pid, "stat")?)
}

/// The text of `/proc/PID/FILE`; `None` for a process that is gone. A process may give itself a name of any bytes.
fn proc_text(pid: u32, file: &str) -> Option<String> {
    fs::read(format!("/proc/{pid}/{file}")).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The name in parentheses may hold anything, even parentheses and blanks: the last parenthesis ends it.
fn parse_stat(pid: u32, text: &str) -> Option<Process> {
    let (_, rest) = text.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?.chars().next()?;
    Some(Process { pid, parent: words.next()?.parse().ok()?, state })
}

/// The value of a line of `/proc/PID/status` or `/proc/PID/fdinfo/N`; `name` ends in a colon.
pub(crate) fn proc_field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// Bytes of private memory and of shared memory without a file that these processes have, according to the kernel.
pub(crate) fn memory(processes: &[Process]) -> u64 {
    let of = |process: &Process| {
        let status = proc_text(process.pid, "status").unwrap_or_default();
        let kibibytes = |name| proc_field(&status, name)?.split_whitespace().next()?.parse::<u64>().ok();
        ["RssAnon:", "RssShmem:"].into_iter().filter_map(kibibytes).sum::<u64>().saturating_mul(1024)
    };
    processes.iter().map(of).sum()
}

/// The parent of a process; none for one that is gone.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid).map(|process| process.parent)
}

/// Whether a process is a user's own: neither has it another user's rights, as one that runs a setuid program, nor did another
/// user start it.
pub(crate) fn is_of_user(pid: u32, user: u32) -> bool {
    let status = proc_text(pid, "status").unwrap_or_default();
    let mut users = proc_field(&status, "Uid:").unwrap_or_default().split_ascii_whitespace().map(str::parse);
    users.next() == Some(Ok(user)) && users.next() == Some(Ok(user))
}

/// Ids of the threads of a process, in this process's namespace; empty for one that is gone.
pub(crate) fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The children of a process, from the lists of its threads, which any kernel that CRIU works with has.
#[must_use]
pub fn children(parent: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// Processor time of a process and of its reaped children, in ticks of 10 ms; 0 for one that is gone.
#[must_use]
pub fn ticks(pid: u32) -> u64 {
    let text = proc_text(pid, "stat").unwrap_or_default();
    let words = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    // User and system time of the process, then of its children.
    words.skip(11).take(4).filter_map(|word| word.parse::<u64>().ok()).sum()
}

/// Start time of a process, in ticks since boot; `None` for one that is gone.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    stat_number(pid, 19)
}

/// A number of `/proc/PID/stat`, by its position after the name, where the state has 0; `None` for a process that is gone.
fn stat_number(pid: u32, position: usize) -> Option<u64> {
    let text = proc_text(pid, "stat")?;
    text.rsplit_once(") ")?.1.split(' ').nth(position)?.parse().ok()
}

/// Process group and session of a process; 0 stands for one that was made outside of this process's PID namespace. `None` for a
/// process that is gone.
#[must_use]
pub fn group_and_session(pid: u32) -> Option<(u32, u32)> {
    let text = proc_text(pid, "stat")?;
    let mut words = text.rsplit_once(") ")?.1.split(' ').skip(2);
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// The device of a process's controlling terminal; 0 is none.
pub(crate) fn terminal(pid: u32) -> Option<u64> {
    stat_number(pid, 4)
}

/// The process group of a process, in its own namespace; `None` for one that is gone.
pub(crate) fn seen_group(pid: u32) -> Option<u32> {
    let status = proc_text(pid, "status")?;
    proc_field(&status, "NSpgid:").and_then(innermost)
}

/// The id of a process in its own PID namespace. For a process that is gone, returns `pid`.
#[must_use]
pub fn pid_in_own_namespace(pid: u32) -> u32 {
    let status = proc_text(pid, "status").unwrap_or_default();
    proc_field(&status, "NSpid:").and_then(innermost).unwrap_or(pid)
}

/// Ids of a process and its threads, in their own PID namespace.
#[must_use]
pub fn ids(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let threads = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    threads.map(pid_in_own_namespace).collect()
}

/// The kernel lists ids from the outermost namespace to the innermost.
fn innermost(list: &str) -> Option<u32> {
    list.split_whitespace().next_back()?.parse().ok()
}

/// The name of a process; empty for one that is gone.
#[must_use]
pub fn name(pid: u32) -> String {
    proc_text(pid, "comm").unwrap_or_default().trim_end().to_owned()
}

/// Whether a process with this id exists, dead or alive.
#[must_use]
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Whether a process has ended, reaped or not.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    stat(pid).is_none_or(|process| matches!(process.state, 'Z' | 'X'))
}

/// Whether a process is about to end, or has ended: the kernel sets that before it closes the process's sockets.
pub(crate) fn is_ending(pid: u32) -> bool {
    stat_number(pid, 6).is_none_or(|flags| flags & PF_EXITING != 0)
}

/// Whether a thread of a process still runs, perhaps only to its end. Once none does, the process's files are closed.
pub(crate) fn has_live_thread(pid: u32) -> bool {
    let state =
        |thread: u32| parse_stat(thread, &proc_text(pid, &format!("task/{thread}/stat"))?).map(|process| process.state);
    threads(pid).into_iter().filter_map(state).any(|state| !ENDED_STATES.contains(&state))
}

/// Whether a signal has stopped a process.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|process| process.state == STOPPED_STATE)
}

/// Sends `signal` to every process of the tree. Processes that are gone are skipped.
pub fn signal(tree: &[Process], signal: Signal) {
    for pid in tree.iter().filter_map(|process| raw(process.pid)) {
        // It can only fail because the process has ended.
        let _ = kill_process(pid, signal);
    }
}

/// Returns the processes with the states that they had in `earlier`; a process that is not in there counts as running.
#[must_use]
pub fn with_states_of(tree: Vec<Process>, earlier: &[Process]) -> Vec<Process> {
    let state = |pid| earlier.iter().find(|process| process.pid == pid).map_or('S', |process| process.state);
    tree.into_iter().map(|process| Process { state: state(process.pid), ..process }).collect()
}

/// Ids, in their own namespace, of the tree's processes that a signal had stopped when it was listed.
#[must_use]
pub fn stopped(tree: &[Process]) -> Vec<u32> {
    tree.iter()
        .filter(|process| process.state == STOPPED_STATE)
        .map(|process| pid_in_own_namespace(process.pid))
        .collect()
}

/// Lets a stopped tree go on, except processes whose listed state says that they had been stopped before.
pub fn go_on(tree: &[Process]) {
    let stopped: Vec<Process> = tree.iter().filter(|process| process.state != STOPPED_STATE).cloned().collect();
    signal(&stopped, Signal::CONT);
}

/// Kills the tree, which is frozen or stopped, and reaps all of it but the root, which its parent reaps elsewhere. In between,
/// `release` lets go of the dead processes.
///
/// # Errors
///
/// This process cannot become a subreaper.
pub fn kill(tree: &[Process], release: impl FnOnce()) -> io::Result<()> {
    // Descendants whose parents die become this process's children, so that it can wait for them: their ids are free again
    // afterwards. This stays set; a supervisor needs it anyway (`supervisor/guard.rs`).
    set_child_subreaper(raw(std::process::id()))?;
    let began: Vec<(u32, Option<u64>)> =
        tree.iter().skip(1).map(|process| (process.pid, started(process.pid))).collect();
    signal(tree, Signal::KILL);
    release();
    let deadline = Instant::now() + REAP_TIMEOUT;
    began.into_iter().for_each(|(pid, began)| reap(pid, began, deadline));
    Ok(())
}

/// Waits until a killed process is gone: reaped by its parent, while that lived, or by this process. Below a root that does not
/// descend from this process (`supervisor/ranks.rs`), it falls to process 1, which in some containers never reaps. Then the wait
/// ends at the `deadline`. A process with this id that `began` at another time is another one.
fn reap(pid: u32, began: Option<u64>, deadline: Instant) {
    let Some(number) = raw(pid) else { return };
    while began.is_some() && started(pid) == began {
        match waitpid(Some(number), WaitOptions::empty()) {
            Err(rustix::io::Errno::CHILD) if has_ended(pid) && Instant::now() > deadline => return,
            // Its parent has not died yet, so it is not yet this process's child.
            Err(rustix::io::Errno::CHILD) => thread::sleep(REAP_POLL_INTERVAL),
            Err(rustix::io::Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// A process id for system calls; `None` for 0, which would mean a whole group.
pub(crate) fn raw(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_may_be_of_any_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff) \xfe"));
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("1000").spawn().unwrap();
        let pid = child.id();
        assert_eq!((parent(pid), pid_in_own_namespace(pid)), (Some(std::process::id()), pid));
        let us = rustix::process::geteuid().as_raw();
        assert_eq!(name(pid).as_str(), "\u{fffd}) \u{fffd}");
        assert!(is_of_user(pid, us) && !is_of_user(pid, us + 1));
        assert!(started(pid).is_some() && group_and_session(pid).is_some() && has_live_thread(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!has_live_thread(pid));
    }

    #[test]
    fn a_name_may_hold_parentheses() {
        let process = parse_stat(7, "7 (a) b (c)) S 3 7 7 0").unwrap();
        assert_eq!(process, Process { pid: 7, parent: 3, state: 'S' });
        assert_eq!(parse_stat(7, "7 (cut"), None);
    }

    #[test]
    fn groups_and_sessions_are_those_that_the_system_knows() {
        let us = std::process::id();
        let mut child = Command::new("/bin/sleep").arg("1000").process_group(0).spawn().unwrap();
        let session = group_and_session(us).unwrap().1;
        assert_eq!(group_and_session(child.id()), Some((child.id(), session)));
        assert!(children(us).contains(&child.id()) && parent(child.id()) == Some(us));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(group_and_session(child.id()), None);
        assert!(!children(us).contains(&child.id()));
    }

    #[test]
    fn a_process_is_ending_before_its_parent_reaps_it() {
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        assert!(!is_ending(child.id()) && !is_ending(std::process::id()));
        child.kill().unwrap();
        while !has_ended(child.id()) {
            thread::yield_now();
        }
        assert!(is_ending(child.id()));
        child.wait().unwrap();
        assert!(is_ending(child.id()));
    }

    #[test]
    fn this_process_sees_itself_and_its_threads() {
        assert_eq!(pid_in_own_namespace(std::process::id()), std::process::id());
        assert!(ids(std::process::id()).contains(&std::process::id()));
        assert_eq!(innermost("\t812\t9\t1"), Some(1));
    }

    #[test]
    fn a_process_that_was_stopped_before_stays_so() {
        let process = |pid, state| Process { pid, parent: 1, state };
        let now = with_states_of(
            vec![process(7, 'T'), process(8, 'T'), process(9, 'T')],
            &[process(7, 'T'), process(8, 'R')],
        );
        assert_eq!(now.iter().map(|process| process.state).collect::<String>(), "TRS");
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let mut child_process = stat(child.id()).unwrap();
        signal(&[child_process.clone()], Signal::STOP);
        let until = |state| while stat(child.id()).unwrap().state != state {};
        until('T');
        assert_eq!(stopped(&tree(child.id()).unwrap()), [child.id()]);
        assert!(stopped(&tree(std::process::id()).unwrap()[..1]).is_empty());
        child_process.state = 'S';
        go_on(&[child_process]);
        until('S');
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_began_before_its_children_did() {
        let own_start = started(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let child_start = started(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own_start > 0 && child_start >= own_start, "{own_start} {child_start}");
    }

    #[test]
    fn a_tree_is_found_and_killed_whole() {
        use std::io::Read;
        let script = "sleep 1000 & (sleep 1000 & echo; wait) & wait";
        let mut root = Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        // The parent writes the line after it has started the grandchild.
        root.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let found = loop {
            let found = tree(root.id()).unwrap();
            if found.len() == 4 {
                break found;
            }
        };
        assert_eq!(found[0].pid, root.id());
        assert!(found[1..].iter().all(|process| found.iter().any(|parent| parent.pid == process.parent)));
        kill(&found, || {}).unwrap();
        assert_eq!(root.wait().unwrap().signal(), Some(9));
        assert!(found.iter().all(|process| !exists(process.pid)));
    }
}
