//! Processes between their dump and their end or release: they are stopped, under the control of the CRIU that dumped them.
//!
//! While CRIU holds them, the dump can be undone. CRIU then sets up their TCP connections again, which it keeps silent, and lets
//! them run. The rule: dropping the value lets them go on.

use std::io;

use rustix::process::Signal;

use crate::criu::tool::{CriuError, Dumper};
use crate::process::tree::{self, Process};

/// The frozen processes of a job; dropping the value lets them go on.
#[derive(Debug)]
pub(crate) struct FrozenProcesses {
    dumper: Dumper,
    processes: Vec<Process>,
    /// Whether SIGSTOP keeps them stopped without CRIU too.
    is_stopped: bool,
    /// Whether any of them has a TCP connection to a process outside the job.
    has_others: bool,
}

impl FrozenProcesses {
    /// Takes over the processes of a dump. With `is_stopped` they are to be killed later: SIGSTOP keeps them from running even if
    /// supervisor and CRIU die first. `has_others` says whether any of them has a TCP connection to a process outside the job.
    pub(crate) fn new(dumper: Dumper, processes: Vec<Process>, is_stopped: bool, has_others: bool) -> Self {
        if is_stopped {
            tree::signal(&processes, Signal::STOP);
        }
        Self { dumper, processes, is_stopped, has_others }
    }

    /// Notes that the names that the dump gave to files are removed.
    pub(crate) fn on_names_removed(&mut self) {
        self.dumper.on_names_removed();
    }

    /// Lets the processes go on. Dropping the value waits for CRIU, which has cleaning up to do.
    ///
    /// # Errors
    ///
    /// CRIU could not let them go.
    pub(crate) fn go_on(&mut self) -> Result<(), CriuError> {
        self.dumper.let_go()
    }

    /// Kills the processes, and waits until all but the first are gone. Connections to other processes stay silent until this
    /// dump is restored, so that their peers do not notice. Without such connections the silence ends at once.
    ///
    /// # Errors
    ///
    /// As [`tree::kill`].
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.is_stopped = false;
        let Self { dumper, processes, has_others, .. } = &mut self;
        // A process is gone only once CRIU is done with it, and CRIU cannot clean up in dead processes.
        let killed = tree::kill(processes, || drop(dumper.let_go()));
        if !*has_others {
            dumper.end_silence();
        }
        killed
    }
}

impl Drop for FrozenProcesses {
    fn drop(&mut self) {
        if self.is_stopped {
            // SIGCONT undoes the SIGSTOP before the processes notice.
            tree::go_on(&self.processes);
        }
    }
}
