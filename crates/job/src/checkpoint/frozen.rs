//! Processes between their dump and what becomes of them: they are stopped, under the control of the CRIU that dumped them.
//!
//! As long as it has them, all of it can be undone: CRIU sets up their connections over TCP again, which it keeps silent,
//! and lets them run. The rule: dropped, they go on.

use std::io;

use rustix::process::Signal;

use crate::criu::tool::{CriuError, Dumper};
use crate::process::tree::{self, Process};

/// The frozen processes of a job; dropped, they go on.
#[derive(Debug)]
pub(crate) struct FrozenProcesses {
    dumper: Dumper,
    processes: Vec<Process>,
    /// They would be stopped without CRIU too.
    is_stopped: bool,
    /// Any of them has a connection over TCP to another process.
    has_others: bool,
}

impl FrozenProcesses {
    /// They are to be killed later on, if `is_stopped`: then they do not run on either should we, and CRIU with us, be
    /// gone before. `has_others` says that any of them has a connection over TCP to another process.
    pub(crate) fn new(dumper: Dumper, processes: Vec<Process>, is_stopped: bool, has_others: bool) -> Self {
        if is_stopped {
            tree::signal(&processes, Signal::STOP);
        }
        Self { dumper, processes, is_stopped, has_others }
    }

    /// The names that the dump gave files are gone.
    pub(crate) fn on_names_removed(&mut self) {
        self.dumper.on_names_removed();
    }

    /// Lets them go on. CRIU, which has cleaning up to do, is waited for when the value is dropped.
    ///
    /// # Errors
    ///
    /// CRIU has failed at that.
    pub(crate) fn go_on(&mut self) -> Result<(), CriuError> {
        self.dumper.let_go()
    }

    /// Kills them, and waits until all but the first are gone. Connections to others stay silent until this dump is
    /// restored, so that these do not hear of it. Without others they need not.
    ///
    /// # Errors
    ///
    /// As [`tree::kill`].
    pub(crate) fn kill(mut self) -> io::Result<()> {
        self.is_stopped = false;
        let Self { dumper, processes, has_others, .. } = &mut self;
        // A process is not gone before CRIU is done with it, which cannot do with the dead what it wanted to.
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
            // What was sent to stop them is taken back before they notice.
            tree::go_on(&self.processes);
        }
    }
}
