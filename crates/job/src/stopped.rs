//! Programs that a signal has stopped (`SIGSTOP`, `SIGTSTP`), as batch systems suspend jobs.
//!
//! A program answers its supervisor by a thread of its own, which stands still with it. So it is continued for the time in
//! which it is brought to rest, and stopped again once that is over. The rule: whatever becomes of the checkpoint, a program
//! that was stopped before it is stopped after it.

use std::fs;
use std::sync::Mutex;

use rustix::process::Signal;

use crate::job::lock;
use crate::tree::{self, Process};

/// Processes of a supervisor that were stopped, and run for the time of a request. Dropped: those that live are stopped again.
#[derive(Debug)]
pub struct Woken(Stopped);

/// Continues a supervisor that is stopped, with its guard, server and workers, but not its program: a batch system suspends
/// all of a job, and its supervisor has to answer.
#[must_use]
pub fn wake(supervisor: u32) -> Woken {
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let ours = program(supervisor);
    let is_ours = |process: &Process| ours.is_some() && program(process.pid) == ours;
    let processes = tree::tree(supervisor).unwrap_or_default();
    let woken = Stopped::default();
    woken.go_on(&processes.into_iter().filter(is_ours).collect::<Vec<_>>(), |_| true);
    Woken(woken)
}

impl Woken {
    /// They run on: the program has ended, and they end with it.
    pub fn run_on(self) {
        lock(&self.0.0).clear();
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Programs of one checkpoint that were stopped before it. Dropped: those that live are stopped again.
#[derive(Debug, Default)]
pub(crate) struct Stopped(Mutex<Vec<One>>);

#[derive(Debug)]
struct One {
    process: Process,
    /// Its id, as it sees itself.
    seen: u32,
    began: Option<u64>,
}

impl Stopped {
    /// Continues those of `processes` that are stopped and whose ids, as they see themselves, `has_session` knows.
    pub(crate) fn go_on(&self, processes: &[Process], has_session: impl Fn(u32) -> bool) {
        let mut stopped = lock(&self.0);
        for process in processes.iter().filter(|process| process.state == tree::STOPPED) {
            let seen = tree::seen_by_itself(process.pid);
            if has_session(seen) {
                stopped.push(One { process: process.clone(), seen, began: tree::started(process.pid) });
                tree::signal(std::slice::from_ref(process), Signal::CONT);
            }
        }
    }

    /// Their ids, as they see themselves.
    pub(crate) fn ids(&self) -> Vec<u32> {
        lock(&self.0).iter().map(|one| one.seen).collect()
    }

    /// Stops them again. One that has ended is nobody's any more.
    pub(crate) fn stop(&self) {
        for One { process, began, .. } in lock(&self.0).drain(..) {
            if began.is_some() && tree::started(process.pid) == began {
                tree::signal(&[process], Signal::STOP);
            }
        }
    }
}
