//! A session with its program: the threads beside it, and how it ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use katydid_session_core::{Checkpointable, Control, Failure, Restorable};
use katydid_transport::{AcceptError, WorkerLink};
use katydid_wire::handshake::{ArenaRange, Build, Ready};

use crate::attach::AttachPoint;
use crate::companion::CompanionSlot;
use crate::companion::snapshot::PendingSnapshots;
use crate::monitor::{self, UsageOf, UsageReporter};
use crate::os::exit::{BROKEN_SESSION_STATUS, leave};
use crate::os::log::Log;
use crate::peers::SessionPeers;

/// Why a program was turned away.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// The system does not let the worker prepare.
    #[error("the worker cannot {what}: {source}")]
    System {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// Error that the system returned.
        source: std::io::Error,
    },
    /// The handshake failed; the program has received the reason.
    #[error(transparent)]
    Accept(#[from] AcceptError),
}

/// What the server needs to know of a session.
pub(crate) struct ServerView {
    pub(crate) usage: UsageOf,
    pub(crate) peers: SessionPeers,
}

/// A session with its program, and its threads. It is never dropped: the driver may use its memory until the process ends.
pub(crate) struct RunningSession {
    session: &'static mut dyn Checkpointable,
    link: Box<dyn WorkerLink>,
    log: Arc<Log>,
    under_way: PendingSnapshots,
    meter: UsageReporter,
    /// For companions; none where there can be none.
    pub(crate) session_control: Option<Control>,
}

/// An empty session, and what belongs to it. It is never dropped: if rebuilding fails, the driver may still be copying contents.
pub(crate) struct EmptySession {
    pub(crate) session: &'static mut dyn Restorable,
    pub(crate) ranges: Vec<ArenaRange>,
    /// The name that its driver reports.
    pub(crate) driver: String,
    pub(crate) log: Log,
    pub(crate) concerns: ServerView,
}

/// Starts the monitor and lets connections attach.
///
/// # Errors
///
/// The error of the system.
#[expect(clippy::too_many_arguments, reason = "the parts of a worker come together here")]
pub(crate) fn accompany(
    session: &'static mut dyn Checkpointable,
    link: Box<dyn WorkerLink>,
    ready: Ready,
    build: &Build,
    control: &OwnedFd,
    slot: CompanionSlot,
    log: Log,
    concerns: ServerView,
) -> Result<RunningSession, ServeError> {
    let failed = |what| move |source| ServeError::System { what, source };
    let ServerView { usage, peers } = concerns;
    let log = Arc::new(log);
    let under_way = slot.under_way.clone();
    let mut session_control = None;
    if let Some(link_control) = link.link_control() {
        let again = || control.try_clone().map_err(failed("watch the server"));
        let snapshots = under_way.clone();
        let meter = UsageReporter::new(again()?, Arc::clone(&usage));
        monitor::start(link_control.clone(), meter, move || snapshots.wait_until_released())
            .map_err(failed("start a thread"))?;
        let (control, build, controlled) = (again()?, build.clone(), session.control(link_control));
        session_control = Some(controlled.clone());
        peers.connect(again()?);
        let attach_point =
            AttachPoint { control, build, ready, session: controlled, slot, peers, log: Arc::clone(&log) };
        attach_point.open().map_err(failed("start a thread"))?;
    }
    let meter = UsageReporter::new(control.try_clone().map_err(failed("watch the server"))?, usage);
    Ok(RunningSession { session, link, log, under_way, meter, session_control })
}

/// Serves to the end, and ends the process then. Snapshots that are being written are finished first.
pub(crate) fn run(running_session: RunningSession, name: &str) -> ! {
    let outcome = running_session.session.serve(Box::leak(running_session.link));
    running_session.under_way.wait_until_released();
    running_session.meter.tell_end();
    end(&running_session.log, name, outcome)
}

/// Reports how the session ended, and exits without waiting for anything.
fn end(log: &Log, name: &str, outcome: Result<(), Failure>) -> ! {
    match outcome {
        Ok(()) => leave(0),
        Err(error) => {
            log.line(format_args!("the session of {name} was ended: {error}"));
            leave(BROKEN_SESSION_STATUS)
        }
    }
}

/// Returns the lower of two limits; none is no limit.
pub(crate) fn lower(program: Option<u64>, server: Option<u64>) -> Option<u64> {
    program.into_iter().chain(server).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_limit_counts() {
        assert_eq!((lower(None, None), lower(Some(5), None), lower(None, Some(7))), (None, Some(5), Some(7)));
        assert_eq!((lower(Some(5), Some(7)), lower(Some(9), Some(7))), (Some(5), Some(7)));
    }
}
