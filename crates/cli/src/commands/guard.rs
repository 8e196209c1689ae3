//! The hidden command that runs a job's guard (`katydid_job::supervisor::guard`).
//!
//! Signals from a terminal or shell to the supervisor's process group also reach the guard, until it leaves the group. They are
//! meant for the program: the guard catches and drops them. Signals that the caller ignored stay ignored in the program.

#![expect(unsafe_code, reason = "the descriptors that a process is started with belong to no code until it takes them")]

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use katydid_job::supervisor::guard;
use katydid_job::supervisor::guard::GuardDescriptors;
use rustix::pipe::{PipeFlags, pipe_with};
use signal_hook::consts::{SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGXCPU};

use crate::args::flags::GuardFlags;
use crate::ignored_signals::is_ignored;
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Signals that are meant for the program.
const DROPPED_SIGNALS: [i32; 9] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGTSTP, SIGCONT];

/// Runs the command; it ends with the job.
pub(crate) fn main(flags: &GuardFlags) -> Outcome {
    // SAFETY: this process has parsed its arguments and done nothing else.
    let descriptors = unsafe { GuardDescriptors::take(flags.link) }.map_err(Failure::usage)?;
    let ended = set_signals().map_err(Failure::work)?;
    let (program, arguments) = flags.command.split_first().ok_or_else(|| Failure::usage("no program given"))?;
    let mut command = Command::new(program);
    command.args(arguments);
    guard::keep(descriptors, flags.supervisor, command, flags.name.clone(), &ended).map_err(Failure::work)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a descriptor that becomes readable when a child ends. Started programs get the default handling of all signals.
fn set_signals() -> io::Result<OwnedFd> {
    drop_signals()?;
    let (ended, write_end) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    signal_hook::low_level::pipe::register(SIGCHLD, write_end)?;
    Ok(ended)
}

/// Makes signals that are meant for the program do nothing in this process from now on. A started program gets the default
/// handling, and ignores what the caller ignored.
pub(crate) fn drop_signals() -> io::Result<()> {
    let dropped = Arc::new(AtomicBool::new(false));
    for signal in DROPPED_SIGNALS.into_iter().filter(|&signal| !is_ignored(signal)) {
        signal_hook::flag::register(signal, Arc::clone(&dropped))?;
    }
    Ok(())
}
