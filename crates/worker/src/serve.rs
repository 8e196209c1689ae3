//! One program, from the hand-over to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use katydid_session::device_memory::DeviceMemory;
use katydid_session::{Capture, Session, SessionError, Setup, Usage};
use katydid_transport::{AcceptError, Pending, WorkerLink};
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused};

use crate::control;
use crate::log::Log;
use crate::memory::{self, Arenas};
use crate::monitor::{self, leave};
use crate::warm::Warm;

/// Exit status of a session that its program broke.
const BROKEN: i32 = 1;

/// Why a program was turned away.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    /// The system does not let the worker prepare.
    #[error("the worker cannot {what}: {source}")]
    System {
        /// What it tried.
        what: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
    /// The handshake failed; the program was told.
    #[error(transparent)]
    Accept(#[from] AcceptError),
}

/// Serves the program that was handed over, and leaves the process with it. `note` is the daemon's: the most device
/// memory that it allows the session.
pub(crate) fn serve(warm: Warm, program: Pending, note: &[u8], build: &Build, control: OwnedFd) -> ExitCode {
    let name = format!("{} (pid {})", program.hello().program, program.hello().pid);
    let quota = quota(program.hello().memory_quota, note);
    let fitting = memory::agree(&warm.driver, warm.facts.devices.len(), &program.hello().arenas, program.pinned());
    let arenas = match fitting {
        Ok(arenas) => arenas,
        Err(error) => {
            control::refused(control.as_fd(), &error);
            program.refuse(build, &Refused::new(RefusalCode::NO_ARENA, error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    match begin(warm, program, arenas, quota, build, &control) {
        Ok((session, link, log)) => end(&log, &name, session.serve(link)),
        Err(error) => {
            control::refused(control.as_fd(), &error);
            ExitCode::FAILURE
        }
    }
}

/// Opens the link and starts what accompanies a session.
fn begin(
    warm: Warm,
    program: Pending,
    arenas: Arenas,
    quota: u64,
    build: &Build,
    control: &OwnedFd,
) -> Result<(Session, Box<dyn WorkerLink>, Log), ServeError> {
    let socket = program.socket().try_clone_to_owned();
    let socket = socket.map_err(|source| ServeError::System { what: "watch the program", source })?;
    let watched = control.try_clone().map_err(|source| ServeError::System { what: "watch the server", source })?;
    let Arenas { ranges, map, host } = arenas;
    let ready = Ready { worker_pid: std::process::id(), driver: warm.name, arenas: ranges };
    let link = program.open(build, &ready)?;
    let usage = Arc::new(Usage::default());
    monitor::start(socket, watched, Arc::clone(&usage))
        .map_err(|source| ServeError::System { what: "start a thread", source })?;
    let (capture, real) = Capture::start().map_err(|source| ServeError::System { what: "take its output", source })?;
    let device = DeviceMemory::new(map.clone(), &warm.facts, quota);
    let (driver, facts, warm) = (warm.driver, warm.facts, warm.contexts);
    let session = Session::new(Setup { driver, facts, map, device, host, capture, warm, usage }, &*link);
    Ok((session, link, Log::kept(real)))
}

/// Says how it ended, and leaves without waiting for anything.
fn end(log: &Log, name: &str, outcome: Result<(), SessionError>) -> ! {
    match outcome {
        Ok(()) => leave(0),
        Err(error) => {
            log.line(format_args!("the session of {name} was ended: {error}"));
            leave(BROKEN)
        }
    }
}

/// The lower of what the program and the daemon (`memory BYTES`) allow; 0 when neither says anything.
fn quota(program: u64, note: &[u8]) -> u64 {
    let said = std::str::from_utf8(note).ok().and_then(|note| note.strip_prefix("memory ")?.parse().ok());
    match (program, said.unwrap_or(0)) {
        (0, other) | (other, 0) => other,
        (program, daemon) => program.min(daemon),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_quota_counts() {
        assert_eq!(quota(0, b""), 0);
        assert_eq!(quota(5, b""), 5);
        assert_eq!(quota(0, b"memory 7"), 7);
        assert_eq!(quota(5, b"memory 7"), 5);
        assert_eq!(quota(9, b"memory 7"), 7);
    }

    #[test]
    fn a_note_that_says_something_else_is_passed_over() {
        for note in [&b"memory"[..], b"memory x", b"mem 7", b"\xff", b"memory 7 8"] {
            assert_eq!(quota(5, note), 5);
        }
    }
}
