//! One program, from the hand-over to its end.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use katydid_session::device_memory::DeviceMemory;
use katydid_session::{Session, Setup};
use katydid_session_core::{Capture, Checkpointable, Control, Failure, Usage};
use katydid_transport::{AcceptError, Pending, WorkerLink};
use katydid_wire::handshake::{Build, Ready, RefusalCode, Refused, SessionKind};
use katydid_wire::note::Note;

use crate::attach::AttachPoint;
use crate::companion::CompanionSlot;
use crate::control;
use crate::memory::{self, Arenas};
use crate::monitor::{self, UsageReporter, leave};
use crate::opencl;
use crate::os::log::Log;
use crate::peers::SessionPeers;
use crate::snapshot::PendingSnapshots;
use crate::warm::WarmDriver;

/// Exit status of a session that its program broke.
pub(crate) const BROKEN: i32 = 1;

/// Why a program was turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
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

/// Serves the program that was handed over, and leaves the process with it.
pub(crate) fn serve(warm: WarmDriver, program: Pending, note: &Note, build: &Build, control: OwnedFd) -> ExitCode {
    if program.hello().session == SessionKind::OPENCL {
        return opencl::serve(warm, program, note, build, control);
    }
    let name = format!("{} (pid {})", program.hello().program, program.hello().pid);
    let fitting = memory::agree(&warm.driver, warm.facts.devices.len(), &program.hello().arenas, program.pinned());
    let arenas = match fitting {
        Ok(arenas) => arenas,
        Err(error) => {
            control::refused(control.as_fd(), &error);
            program.refuse(build, &Refused::new(RefusalCode::NO_ARENA, error.to_string()));
            return ExitCode::FAILURE;
        }
    };
    match begin(warm, program, arenas, note, build, &control) {
        Ok(begun) => run(begun, &name),
        Err(error) => {
            control::refused(control.as_fd(), &error);
            ExitCode::FAILURE
        }
    }
}

/// Opens the link and starts what accompanies a session.
fn begin(
    warm: WarmDriver,
    program: Pending,
    arenas: Arenas,
    note: &Note,
    build: &Build,
    control: &OwnedFd,
) -> Result<RunningSession, ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let quota = lower(program.hello().memory_quota, note.memory);
    let (capture, real) = Capture::start().map_err(failed("take its output"))?;
    let Arenas { ranges, map, host } = arenas;
    let device = DeviceMemory::new(map.clone(), &warm.facts, quota);
    let usage = Arc::new(Usage::default());
    let devices = SessionPeers::addresses(&warm.facts);
    let (driver, facts, carrier, contexts) = (warm.driver, warm.facts, warm.carrier, warm.contexts);
    let shared = Arc::clone(&usage);
    let setup = Setup { driver, facts, map, device, host, capture, warm: contexts, carrier, usage: shared };
    let session = Box::leak(Box::new(Session::without_program(setup)));
    if !warm.has_journal {
        session.keep_no_journal();
    }
    let ready = Ready { worker_pid: std::process::id(), key: note.key, driver: warm.name, arenas: ranges };
    let link = program.open(build, &ready, 0)?;
    session.connect(&*link);
    // Without it programs send their images each time.
    if let Some(store) = warm.images {
        session.use_store(store);
    }
    let usage = Arc::new(move || (usage.memory(), usage.calls()));
    let concerns = ServerView { usage, neighbourhood: SessionPeers::new(session.reclaim(), devices) };
    accompany(session, link, ready, build, control, CompanionSlot::default(), Log::kept(real), concerns)
}

/// Tells bytes of device memory that a session holds, and its calls so far.
pub(crate) type UsageOf = Arc<dyn Fn() -> (u64, u64) + Send + Sync>;

/// What of a session concerns the server.
pub(crate) struct ServerView {
    pub(crate) usage: UsageOf,
    pub(crate) neighbourhood: SessionPeers,
}

/// A session with its program, and what accompanies it. It is never dropped: the driver may use its memory until the process ends.
pub(crate) struct RunningSession {
    session: &'static mut dyn Checkpointable,
    link: Box<dyn WorkerLink>,
    log: Arc<Log>,
    under_way: PendingSnapshots,
    meter: UsageReporter,
    /// For companions; none where there can be none.
    pub(crate) session_control: Option<Control>,
}

/// Starts the monitor and opens the door to visitors.
///
/// # Errors
///
/// What the system refuses.
#[expect(clippy::too_many_arguments, reason = "the parts of a worker come together here")]
pub(crate) fn accompany(
    session: &'static mut dyn Checkpointable,
    link: Box<dyn WorkerLink>,
    ready: Ready,
    build: &Build,
    control: &OwnedFd,
    seat: CompanionSlot,
    log: Log,
    concerns: ServerView,
) -> Result<RunningSession, ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let ServerView { usage, neighbourhood } = concerns;
    let log = Arc::new(log);
    let under_way = seat.under_way.clone();
    let mut session_control = None;
    if let Some(link_control) = link.link_control() {
        let again = || control.try_clone().map_err(failed("watch the server"));
        let settle = under_way.clone();
        let meter = UsageReporter::new(again()?, Arc::clone(&usage));
        monitor::start(link_control.clone(), meter, move || settle.settle()).map_err(failed("start a thread"))?;
        let (control, build, controlled) = (again()?, build.clone(), session.control(link_control));
        session_control = Some(controlled.clone());
        neighbourhood.connect(again()?);
        let door =
            AttachPoint { control, build, ready, session: controlled, seat, neighbourhood, log: Arc::clone(&log) };
        door.open().map_err(failed("start a thread"))?;
    }
    let meter = UsageReporter::new(control.try_clone().map_err(failed("watch the server"))?, usage);
    Ok(RunningSession { session, link, log, under_way, meter, session_control })
}

/// Serves to the end, and leaves the process with it; snapshots that are being written are finished first.
pub(crate) fn run(begun: RunningSession, name: &str) -> ! {
    let outcome = begun.session.serve(Box::leak(begun.link));
    begun.under_way.settle();
    begun.meter.tell_end();
    end(&begun.log, name, outcome)
}

/// Says how it ended, and leaves without waiting for anything.
fn end(log: &Log, name: &str, outcome: Result<(), Failure>) -> ! {
    match outcome {
        Ok(()) => leave(0),
        Err(error) => {
            log.line(format_args!("the session of {name} was ended: {error}"));
            leave(BROKEN)
        }
    }
}

/// The lower of two limits, of which 0 is none.
pub(crate) fn lower(program: u64, daemon: u64) -> u64 {
    match (program, daemon) {
        (0, other) | (other, 0) => other,
        (program, daemon) => program.min(daemon),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_limit_counts() {
        assert_eq!([lower(0, 0), lower(5, 0), lower(0, 7), lower(5, 7), lower(9, 7)], [0, 5, 7, 5, 7]);
    }
}
