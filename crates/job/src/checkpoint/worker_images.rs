//! Saves sessions that no replay brings back as the processes of their workers: with the driver's own state, at its addresses.
//!
//! ```text
//! checkpoint, its programs stopped and its sessions written:
//!   keeper  ask the server for a process with its rights           refused: nothing has changed
//!   suspend the worker gives up memory in arenas, registrations    its companion leaves
//!   keep    driver's own checkpoint, CRIU's dump of the worker      the worker is stopped
//!   commit, and the worker is ended; or it is freed and refilled
//! restore:
//!   revive  CRIU makes the worker anew, the driver restores it
//!   refill  memory in arenas has its contents again                 the session waits for its program, paused
//! ```
//!
//! The rule: if anything fails before the commit, the session goes on in its worker.

use std::os::fd::BorrowedFd;

use katydid_image::{Manifest, Session, WorkerImage, Writer};
use katydid_transport::Address;
use katydid_wire::handshake::SessionKind;
use katydid_wire::key::SessionKey;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::fault_injection;
use crate::checkpoint::quiesce::{Participant, QuiescedJob, address};
use crate::checkpoint::rehearsal::NoReplay;
use crate::supervisor::companion::{Catalogue, Companion, CompanionError, Progress};
use crate::supervisor::view::StageProgress;

/// Saves the workers of the sessions in `lost` as processes, and notes that in the manifest.
///
/// # Errors
///
/// [`CheckpointError::WorkerImage`]; all sessions are as before, unless undoing failed too.
pub(crate) fn take(
    stop: &mut QuiescedJob<'_>,
    (writer, manifest): (&Writer, &mut Manifest),
    lost: Vec<NoReplay>,
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> Result<Vec<String>, CheckpointError> {
    notify(&StageProgress::KeepWorkers);
    let mut warnings = Vec::new();
    for NoReplay { session, cause } in lost {
        if let Err(error) = keep(stop, writer, manifest, &session) {
            let error = CheckpointError::WorkerImage { cause, also: Box::new(error) };
            return Err(give_back(stop, writer, manifest, error));
        }
        warnings
            .push(format!("{session} is kept as the process of its worker, since no replay brings it back: {cause}"));
    }
    match fault_injection::inject(&StageProgress::KeepWorkers) {
        Ok(()) => Ok(warnings),
        Err(error) => Err(give_back(stop, writer, manifest, error.into())),
    }
}

fn keep(
    stop: &mut QuiescedJob<'_>,
    writer: &Writer,
    manifest: &mut Manifest,
    session: &str,
) -> Result<(), CheckpointError> {
    let found = stop.participants.iter_mut().find(|participant| participant.companion.session == session);
    let participant = found.ok_or(CheckpointError::ThreadFailed)?;
    let refused = |text: &str| {
        let (session, text) = (session.to_owned(), text.to_owned());
        CheckpointError::Companion(CompanionError::Refused { session, text })
    };
    if participant.member.session != SessionKind::CUDA {
        return Err(refused("the worker of a session of OpenCL cannot be kept as a process"));
    }
    if participant.shares() {
        return Err(refused("it shares memory or events with other programs, which no image of a worker has"));
    }
    let mut keeper = Companion::keeper(&address(&participant.member.address)?, participant.member.key, session)?;
    let suspended = participant.companion.suspend();
    // From here on the worker must be refilled in any case.
    participant.is_suspended = true;
    suspended?;
    fault_injection::inject_at("suspend")?;
    // The worker is saved without a companion: this ends the connection to it.
    std::mem::swap(&mut participant.companion, &mut keeper);
    drop(keeper);
    participant.is_kept = true;
    let worker = participant.companion.keep(writer)?;
    let part = manifest.sessions.iter_mut().find(|part| part.name == session);
    part.ok_or(CheckpointError::ThreadFailed)?.worker = Some(worker);
    Ok(())
}

/// Lets all saved workers go on, with their memory. Returns `cause`, with the error of that if it fails too.
pub(crate) fn give_back(
    stop: &mut QuiescedJob<'_>,
    writer: &Writer,
    manifest: &mut Manifest,
    cause: CheckpointError,
) -> CheckpointError {
    manifest.sessions.iter_mut().for_each(|session| session.worker = None);
    match refill_all(stop, writer, manifest) {
        Ok(()) => cause,
        Err(also) => CheckpointError::Undo { cause: Box::new(cause), also: Box::new(also) },
    }
}

fn refill_all(stop: &mut QuiescedJob<'_>, writer: &Writer, manifest: &Manifest) -> Result<(), CheckpointError> {
    if !stop.participants.iter().any(|participant| participant.is_suspended) {
        return Ok(());
    }
    let reader = writer.draft(manifest.clone())?;
    let catalogue = Catalogue::new(&reader);
    let suspended = stop.participants.iter_mut().filter(|participant| participant.is_suspended);
    let refilled: Vec<_> = suspended.map(|participant| refill(participant, &catalogue)).collect();
    refilled.into_iter().collect()
}

fn refill(participant: &mut Participant, catalogue: &Catalogue<'_>) -> Result<(), CheckpointError> {
    if std::mem::take(&mut participant.is_kept) {
        // A keeper that failed to save the worker has freed it already.
        let _ = participant.companion.free();
        let (address, session) = (address(&participant.member.address)?, participant.companion.session.clone());
        participant.companion = Companion::connect(&address, participant.member.key, &session)?;
    }
    participant.companion.refill(catalogue, None, participant.member.key, &participant.progress)?;
    participant.is_suspended = false;
    Ok(())
}

/// Ends the saved workers; returns the first failure.
pub(crate) fn end(stop: &mut QuiescedJob<'_>) -> Result<(), CompanionError> {
    let to_end = stop.participants.iter_mut().filter(|participant| participant.is_kept);
    let ended: Vec<_> = to_end.map(|participant| participant.companion.end()).collect();
    ended.into_iter().collect()
}

/// Restores the worker of a session that was saved as a process. The session then waits for its program, paused, as long as the
/// companion lasts.
///
/// # Errors
///
/// The error of the server, the keeper or the worker.
pub(crate) fn revive(
    server: &Address,
    (session, worker): (&Session, &WorkerImage),
    (catalogue, directory): (&Catalogue<'_>, Option<BorrowedFd<'_>>),
    progress: &Progress,
) -> Result<Companion, CompanionError> {
    let mut keeper = Companion::keeper(server, SessionKey::NONE, &session.name)?;
    keeper.revive(catalogue, session, worker, progress)?;
    let key = keeper.key;
    drop(keeper);
    let mut companion = Companion::connect(server, key, &session.name)?;
    companion.key = key;
    companion.refill(catalogue, directory, key, progress)?;
    Ok(companion)
}
