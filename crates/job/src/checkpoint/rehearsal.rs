//! Tests whether the sessions of a checkpoint come back, before it counts. Workers rebuild each session beside the program, from
//! what was written, as a restore does, but without contents.
//!
//! The rule: what a restore would accept passes, and what it would refuse keeps the job alive. Sometimes the rehearsal finds
//! nothing out (no worker, no memory on the device). Then a checkpoint that leaves the job running is taken with a warning, and
//! one that would end the job is not. A job that is to end is not lost by a refusal either: its workers are saved as processes
//! (`worker_images.rs`).

use std::path::Path;

use katydid_image::{Manifest, Writer};
use katydid_wire::handshake::SessionKind;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::fault_injection;
use crate::checkpoint::quiesce::{Participant, QuiescedJob, address, in_parallel};
use crate::checkpoint::request::{CRIU_FOLDER, keeps_stopped};
use crate::supervisor::companion::{Catalogue, Companion, CompanionError, Progress, Rebuild};
use crate::supervisor::state::JobState;
use crate::supervisor::view::{Request, StageProgress};

/// A session that no replay brings back.
#[derive(Debug)]
pub(crate) struct NoReplay {
    /// Name of the session, as messages show it.
    pub(crate) session: String,
    /// What differs from the original session.
    pub(crate) cause: CompanionError,
}

/// The outcome of a rehearsal.
#[derive(Debug)]
pub(crate) enum RehearsalOutcome {
    /// The checkpoint can be taken, perhaps with a warning for the requester.
    Passed(Option<String>),
    /// The job is to end, and these sessions of it do not come back.
    NoReplay(Vec<NoReplay>),
}

/// Rehearses all sessions, those of CUDA and of OpenCL.
///
/// # Errors
///
/// [`CheckpointError::Rehearsal`], or what is wrong with the image.
pub(crate) fn rehearse(
    job: &JobState,
    request: &Request,
    stop: &QuiescedJob<'_>,
    (writer, manifest): (&Writer, &Manifest),
    notify: &(dyn Fn(&StageProgress) + Sync),
) -> Result<RehearsalOutcome, CheckpointError> {
    let participants: Vec<&Participant> =
        stop.participants.iter().filter(|participant| participant.member.session != SessionKind::NVML).collect();
    if request.device_only || participants.is_empty() {
        return Ok(RehearsalOutcome::Passed(None));
    }
    notify(&StageProgress::Rehearse);
    fault_injection::inject(&StageProgress::Rehearse)?;
    let reader = writer.draft(manifest.clone())?;
    let (catalogue, memory) = (Catalogue::new(&reader), writer.folder(CRIU_FOLDER)?);
    let generations = job.generations.clone().and_next();
    let plan = Rebuild {
        catalogue: &catalogue,
        directory: None,
        device_only: false,
        rehearsal: true,
        memory: Some(Path::new(&memory)),
        generations: &generations,
        devices: "",
    };
    let rehearsed = in_parallel(participants, |participant: &Participant| {
        let server = address(&participant.member.address)?;
        let session = &participant.companion.session;
        let rebuilt = match fault_injection::has_no_replay() {
            false => Companion::rebuild(&server, session, &plan, &Progress::default()).map(drop),
            true => Err(CompanionError::AddressMismatch { session: session.clone(), text: NO_REPLAY_TEXT.to_owned() }),
        };
        Ok(rebuilt.err().map(|cause| NoReplay { session: session.clone(), cause }))
    });
    let lost = rehearsed.into_iter().collect::<Result<Vec<Option<NoReplay>>, CheckpointError>>()?;
    decide(request, lost.into_iter().flatten().collect())
}

/// Text of the error that tests without replay get.
const NO_REPLAY_TEXT: &str = "KATYDID_FAULT wants that no replay brings it back";

/// Decides what follows from sessions that do not come back.
fn decide(request: &Request, lost: Vec<NoReplay>) -> Result<RehearsalOutcome, CheckpointError> {
    let is_unknown =
        |cause: &CompanionError| matches!(cause, CompanionError::OutOfDeviceMemory { .. } | CompanionError::Connect(_));
    let is_certain = lost.iter().all(|session| matches!(session.cause, CompanionError::AddressMismatch { .. }));
    let Some(NoReplay { cause, .. }) = lost.first() else { return Ok(RehearsalOutcome::Passed(None)) };
    if request.force {
        let warning = format!("a rehearsal of the restore failed, and --force was given: {cause}");
        return Ok(RehearsalOutcome::Passed(Some(warning)));
    }
    if lost.iter().all(|session| is_unknown(&session.cause)) && !keeps_stopped(request) {
        let warning = format!("the restore could not be rehearsed, so this checkpoint may not come back: {cause}");
        return Ok(RehearsalOutcome::Passed(Some(warning)));
    }
    if is_certain && keeps_stopped(request) {
        return Ok(RehearsalOutcome::NoReplay(lost));
    }
    let mut causes: Vec<CompanionError> = lost.into_iter().map(|session| session.cause).collect();
    // Prefers a cause that says more than that the rehearsal found nothing out.
    let informative = causes.iter().position(|cause| !is_unknown(cause)).unwrap_or(0);
    Err(CheckpointError::Rehearsal(causes.swap_remove(informative)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> Request {
        serde_json::from_str(json).unwrap()
    }

    fn judged(json: &str, cause: CompanionError) -> Result<RehearsalOutcome, CheckpointError> {
        decide(&request(json), vec![NoReplay { session: "p1".to_owned(), cause }])
    }

    fn warning(rehearsed: Result<RehearsalOutcome, CheckpointError>) -> String {
        let Ok(RehearsalOutcome::Passed(Some(warning))) = rehearsed else { panic!("{rehearsed:?}") };
        warning
    }

    fn elsewhere() -> CompanionError {
        CompanionError::AddressMismatch {
            session: "p1".to_owned(),
            text: "variable v lies at 2 and lay at 1".to_owned(),
        }
    }

    fn no_room() -> CompanionError {
        CompanionError::OutOfDeviceMemory { session: "p1".to_owned(), text: "no memory".to_owned() }
    }

    #[test]
    fn a_job_that_would_not_come_back_goes_on_or_keeps_its_workers_unless_it_is_forced() {
        let ending = judged(r#"{"image":"/i"}"#, elsewhere());
        assert!(matches!(ending, Ok(RehearsalOutcome::NoReplay(lost)) if lost.len() == 1));
        let refused = judged(r#"{"image":"/i","leave_running":true}"#, elsewhere()).unwrap_err().to_string();
        assert!(refused.contains("variable v lies at 2") && refused.contains("--force"), "{refused}");
        let forced = warning(judged(r#"{"image":"/i","force":true}"#, elsewhere()));
        assert!(forced.contains("variable v lies at 2"), "{forced}");
    }

    #[test]
    fn rehearsal_without_space_refuses_the_checkpoint_or_warns_if_the_job_goes_on() {
        assert!(judged(r#"{"image":"/i"}"#, no_room()).is_err());
        let warning = warning(judged(r#"{"image":"/i","leave_running":true}"#, no_room()));
        assert!(warning.contains("could not be rehearsed"), "{warning}");
    }
}
