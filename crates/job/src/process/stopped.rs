//! Programs that a signal has stopped (`SIGSTOP`, `SIGTSTP`), as batch systems suspend jobs.
//!
//! A program answers its supervisor by a thread of its own, which is stopped with it. So the program is continued for the time in
//! which it is quiesced, and then stopped again. The rule: whatever happens to the checkpoint, a program that was stopped before
//! it is stopped after it.
//!
//! CRIU stops a restored process with `SIGSTOP`, whatever had stopped it. The original signal is in CRIU's file of the process,
//! and is sent again: a shell tells its user which it was.

#![expect(unsafe_code, reason = "a signal is queued, by which a supervisor knows that it alone is meant")]

use std::fs;
use std::path::Path;
use std::ptr;
use std::slice;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::criu::files_img::{bounded_if_any, messages};
use crate::criu::protobuf::Fields;
use crate::process::tree;
use crate::process::tree::Process;
use crate::supervisor::folder::FoundJob;
use crate::sync::lock;

/// The second magic number of `core-PID.img`; `core_entry.tc`, `task_core_entry.stop_signo`.
const CORE_MAGIC: [u8; 4] = [0x47, 0x38, 0x05, 0x55];
const PSTREE_PROCESS_FIELD: u64 = 3;
const CORE_STOP_SIGNAL_FIELD: u64 = 21;
/// How long a process may take to stop by its signal before it gets `SIGSTOP`. The kernel drops a terminal's signals if no shell
/// could let the process go on.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks whether it has stopped.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Stopped processes of a supervisor that run for the time of a request. Dropping the value stops those that live again. If all
/// of them were stopped, it also stops what the supervisor has started meanwhile.
#[derive(Debug)]
pub struct WokenProcesses {
    processes: StoppedProcesses,
    /// The supervisor and its start time; `None` if not all were stopped.
    suspended: Option<(Supervisor, u64)>,
}

/// A supervisor as its job describes it, and the job's owner, who may have described any process.
#[derive(Debug, Clone, Copy)]
struct Supervisor {
    pid: u32,
    owner: u32,
}

/// Continues a stopped supervisor, with its guard, server and workers, but not its program. A batch system suspends the whole
/// job, and its supervisor has to answer. A process that is not the job's owner's is left as it is.
#[must_use]
pub fn wake(job: &FoundJob) -> WokenProcesses {
    let supervisor = Supervisor { pid: job.entry.supervisor, owner: job.user };
    let (own, processes) = (own_processes(supervisor), StoppedProcesses::default());
    let is_suspended = !own.is_empty() && own.iter().all(|process| process.state == tree::STOPPED_STATE);
    let began = tree::started(supervisor.pid).filter(|_| is_suspended);
    processes.go_on_by(&own, |_| true, continue_alone);
    WokenProcesses { processes, suspended: began.map(|began| (supervisor, began)) }
}

/// A supervisor, and the processes below it that run the same executable: its guard and its workers. All are the owner's, but
/// root's workers may be other users. None if the supervisor is another user's process.
fn own_processes(Supervisor { pid, owner }: Supervisor) -> Vec<Process> {
    if !tree::is_of_user(pid, owner) {
        return Vec::new();
    }
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let own = program(pid);
    let may_be_own = |pid: u32| owner == 0 || tree::is_of_user(pid, owner);
    let is_own = |process: &Process| own.is_some() && program(process.pid) == own && may_be_own(process.pid);
    tree::tree(pid).unwrap_or_default().into_iter().filter(is_own).collect()
}

/// Continues a process by a queued signal. A supervisor passes an ordinary one on to its program, but not a queued one.
fn continue_alone(process: &Process) {
    let Some(pid) = tree::raw(process.pid) else { return };
    let nothing = libc::sigval { sival_ptr: ptr::null_mut() };
    // SAFETY: it takes numbers alone. It fails only if the process has ended.
    let _ = unsafe { libc::sigqueue(pid.as_raw_nonzero().get(), libc::SIGCONT, nothing) };
}

impl WokenProcesses {
    /// Lets the processes run on: the program has ended, and they end with it.
    pub fn run_on(mut self) {
        lock(&self.processes.0).clear();
        self.suspended = None;
    }
}

impl Drop for WokenProcesses {
    fn drop(&mut self) {
        self.processes.stop();
        if let Some((supervisor, began)) = self.suspended
            && tree::started(supervisor.pid) == Some(began)
        {
            tree::signal(&own_processes(supervisor), Signal::STOP);
        }
    }
}

/// The terminal's signal that had stopped the process `id` of a dump; `None` if `SIGSTOP` had, or nothing.
pub(crate) fn terminal_signal(folder: &Path, id: u32) -> Option<Signal> {
    let core = bounded_if_any(&folder.join(format!("core-{id}.img"))).ok()?;
    of_terminal(messages(&core, CORE_MAGIC).next()?)
}

fn of_terminal(core: &[u8]) -> Option<Signal> {
    let number = Fields(Fields(core).bytes_in(PSTREE_PROCESS_FIELD)?).number_in(CORE_STOP_SIGNAL_FIELD)?;
    [Signal::TSTP, Signal::TTIN, Signal::TTOU].into_iter().find(|signal| u64::try_from(signal.as_raw()) == Ok(number))
}

/// Stops a process by a terminal's signal instead of `SIGSTOP`. It may run for a moment.
pub(crate) fn stop_by(process: &Process, signal: Signal) {
    let process_alone = slice::from_ref(process);
    tree::signal(process_alone, Signal::CONT);
    tree::signal(process_alone, signal);
    let deadline = Instant::now() + STOP_TIMEOUT;
    while !tree::is_stopped(process.pid) {
        if tree::has_ended(process.pid) || Instant::now() > deadline {
            return tree::signal(process_alone, Signal::STOP);
        }
        thread::sleep(STOP_POLL_INTERVAL);
    }
}

/// Programs of one checkpoint that were stopped before it. Dropping the value stops those that live again.
#[derive(Debug, Default)]
pub(crate) struct StoppedProcesses(Mutex<Vec<StoppedProcess>>);

#[derive(Debug)]
struct StoppedProcess {
    process: Process,
    /// Process id, in the process's own namespace.
    own_pid: u32,
    began: Option<u64>,
}

impl StoppedProcesses {
    /// Continues those of `processes` that are stopped and whose ids, in their own namespace, `has_session` knows.
    pub(crate) fn go_on(&self, processes: &[Process], has_session: impl Fn(u32) -> bool) {
        self.go_on_by(processes, has_session, |process| tree::signal(slice::from_ref(process), Signal::CONT));
    }

    fn go_on_by(&self, processes: &[Process], has_session: impl Fn(u32) -> bool, continues: impl Fn(&Process)) {
        let mut stopped = lock(&self.0);
        for process in processes.iter().filter(|process| process.state == tree::STOPPED_STATE) {
            let own_pid = tree::pid_in_own_namespace(process.pid);
            if has_session(own_pid) {
                stopped.push(StoppedProcess { process: process.clone(), own_pid, began: tree::started(process.pid) });
                continues(process);
            }
        }
    }

    /// Process ids, in the processes' own namespace.
    pub(crate) fn ids(&self) -> Vec<u32> {
        lock(&self.0).iter().map(|one| one.own_pid).collect()
    }

    /// Stops the processes again, except those that have ended.
    pub(crate) fn stop(&self) {
        for StoppedProcess { process, began, .. } in lock(&self.0).drain(..) {
            if began.is_some() && tree::started(process.pid) == began {
                tree::signal(&[process], Signal::STOP);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rustix::process::{WaitOptions, waitpid};

    use super::*;
    use crate::criu::protobuf::Message;
    use crate::supervisor::folder::JobEntry;

    #[test]
    fn a_job_wakes_no_process_of_another_user() {
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let process = tree::tree(child.id()).unwrap();
        tree::signal(&process, Signal::STOP);
        while !tree::is_stopped(child.id()) {}
        let us = rustix::process::geteuid().as_raw();
        let entry = JobEntry { name: "train".into(), supervisor: child.id(), program: 0, command: String::new() };
        let job = |user| FoundJob { entry: entry.clone(), user, folder: "/none".into() };
        let woken = wake(&job(us + 1));
        assert!(tree::is_stopped(child.id()) && woken.suspended.is_none());
        drop(woken);
        let woken = wake(&job(us));
        assert!(!tree::is_stopped(child.id()) && woken.suspended.is_some());
        drop(woken);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_signal_is_read_from_a_dump() {
        let core = |signal| {
            let task = Message::default().number(1, 3).number(CORE_STOP_SIGNAL_FIELD, signal).encoded();
            Message::default().number(1, 1).bytes(PSTREE_PROCESS_FIELD, &task).encoded()
        };
        assert_eq!(of_terminal(&core(20)), Some(Signal::TSTP));
        assert_eq!(of_terminal(&core(19)), None);
        assert_eq!(of_terminal(b"no core"), None);
    }

    #[test]
    fn a_process_is_stopped_by_the_signal_of_a_terminal() {
        let mut child = Command::new("/bin/sleep").arg("1000").process_group(0).spawn().unwrap();
        let process = Process { pid: child.id(), parent: std::process::id(), state: 'T' };
        tree::signal(slice::from_ref(&process), Signal::STOP);
        while !tree::is_stopped(child.id()) {}
        stop_by(&process, Signal::TSTP);
        let wait_result = waitpid(tree::raw(child.id()), WaitOptions::UNTRACED).unwrap();
        assert_eq!(wait_result.and_then(|(_, status)| status.stopping_signal()), Some(Signal::TSTP.as_raw()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
