//! Whether the sessions of a checkpoint come back, before it counts: workers rebuild each of them beside the program, from
//! what was written, as a restore does, but without contents.
//!
//! The rule: what a restore would accept is accepted, and what it would refuse keeps the job alive. Where nothing could be
//! found out (no worker, no memory on the device), a checkpoint that leaves the job running is taken with a warning, and
//! one that would end it is not.

use std::path::Path;

use katydid_image::{Manifest, Writer};
use katydid_wire::handshake::SessionKind;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::fault_injection;
use crate::checkpoint::quiesce::{Participant, QuiescedJob, address, in_parallel};
use crate::checkpoint::request::{CRIU_FOLDER, keeps_stopped};
use crate::supervisor::companion::{Catalogue, Companion, CompanionError, Progress, Rebuild};
use crate::supervisor::state::JobState;
use crate::supervisor::view::{ProgressStep, Request};

/// Rehearses all sessions, those of CUDA and of OpenCL. What comes back is a warning for who asked for the checkpoint.
///
/// # Errors
///
/// [`CheckpointError::Rehearsal`], or what is wrong with the image.
pub(crate) fn rehearse(
    job: &JobState,
    request: &Request,
    stop: &QuiescedJob<'_>,
    (writer, manifest): (&Writer, &Manifest),
    tell: &(dyn Fn(&ProgressStep) + Sync),
) -> Result<Option<String>, CheckpointError> {
    let participants: Vec<&Participant> =
        stop.participants.iter().filter(|participant| participant.member.session != SessionKind::NVML).collect();
    if request.device_only || participants.is_empty() {
        return Ok(None);
    }
    tell(&ProgressStep::Rehearse);
    fault_injection::inject(&ProgressStep::Rehearse)?;
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
        let rebuilt = Companion::rebuild(&server, &participant.companion.session, &plan, &Progress::default());
        rebuilt.map(drop).map_err(CheckpointError::Companion)
    });
    match rehearsed.into_iter().collect::<Result<(), CheckpointError>>() {
        Ok(()) => Ok(None),
        Err(CheckpointError::Companion(cause)) => judge(request, cause),
        Err(other) => Err(other),
    }
}

/// What a failed rehearsal means.
fn judge(request: &Request, cause: CompanionError) -> Result<Option<String>, CheckpointError> {
    let is_unknown = matches!(cause, CompanionError::NoRoom { .. } | CompanionError::Connect(_));
    if request.force {
        return Ok(Some(format!("a rehearsal of the restore failed, and --force was given: {cause}")));
    }
    if is_unknown && !keeps_stopped(request) {
        return Ok(Some(format!("the restore could not be rehearsed, so this checkpoint may not come back: {cause}")));
    }
    Err(CheckpointError::Rehearsal(cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> Request {
        serde_json::from_str(json).unwrap()
    }

    fn elsewhere() -> CompanionError {
        CompanionError::Elsewhere { session: "p1".to_owned(), text: "variable v lies at 2 and lay at 1".to_owned() }
    }

    fn no_room() -> CompanionError {
        CompanionError::NoRoom { session: "p1".to_owned(), text: "no memory".to_owned() }
    }

    #[test]
    fn a_job_that_would_not_come_back_goes_on_unless_it_is_forced() {
        let ending = request(r#"{"image":"/i"}"#);
        let refused = judge(&ending, elsewhere()).unwrap_err().to_string();
        assert!(refused.contains("variable v lies at 2") && refused.contains("--force"), "{refused}");
        assert!(judge(&request(r#"{"image":"/i","leave_running":true}"#), elsewhere()).is_err(), "it is worth nothing");
        let forced = judge(&request(r#"{"image":"/i","force":true}"#), elsewhere()).unwrap().unwrap();
        assert!(forced.contains("variable v lies at 2"), "{forced}");
    }

    #[test]
    fn what_could_not_be_rehearsed_ends_no_job_and_is_told_of_one_that_goes_on() {
        assert!(judge(&request(r#"{"image":"/i"}"#), no_room()).is_err());
        let warning = judge(&request(r#"{"image":"/i","leave_running":true}"#), no_room()).unwrap().unwrap();
        assert!(warning.contains("could not be rehearsed"), "{warning}");
    }
}
