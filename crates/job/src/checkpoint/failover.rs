//! Rebuilds the session of a program whose worker died from the last checkpoint, if that holds exactly the lost session.
//!
//! The rule: nothing may have been sent to the worker since the checkpoint. Otherwise the program has seen, or waits for, results
//! that the image lacks. Then its calls fail, and its standard error has the reason.

use std::os::fd::AsFd;

use katydid_image::CheckpointReader;
use katydid_wire::job::ToProgram;
use katydid_wire::sharing::EXPORTS_NOTE;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::fault_injection;
use crate::checkpoint::quiesce::{Rejoin, address, answer_during, rejoin, session_name};
use crate::checkpoint::recovery::Recovery;
use crate::supervisor::companion::{Catalogue, Companion, Progress, Rebuild};
use crate::supervisor::members::{Member, MemberState};
use crate::supervisor::state::JobState;
use crate::sync::lock;

/// Most workers that one rebuild starts, one after another.
const MAX_REBUILD_WORKERS: u32 = 3;

impl JobState {
    /// Rebuilds the session of a member whose worker is gone, or tells the program that the session is lost.
    pub(crate) fn rebuild_lost_session(&self, id: u64) {
        // Waits for a checkpoint in progress: it fails, or becomes the one to go back to.
        let exclusive = lock(&self.exclusive);
        let Some(member) = self.members.list().into_iter().find(|member| member.id == id) else { return };
        if member.state != MemberState::WorkerLost {
            return;
        }
        let outcome = self.recovery_of(&member).and_then(|recovery| {
            // What killed the last worker may kill the next one too, or kill it as it starts.
            let mut attempts = (0..MAX_REBUILD_WORKERS).map(|_| self.rebuild(&member, &recovery));
            let first = attempts.next().unwrap_or(Ok(()));
            let outcome = first.or_else(|first| attempts.find_map(Result::ok).ok_or(first));
            outcome.map_err(|error| format!("cannot be rebuilt: {error}"))
        });
        if let Err(reason) = outcome {
            let text = format!("its worker is gone, and {reason}");
            self.locked_processes.fail(&member, self.started(member.pid));
            // A program that has ended meanwhile needs no telling.
            let _ = self.members.send(id, &ToProgram::GiveUp { text });
        }
        drop(exclusive);
    }

    /// Returns the checkpoint that holds exactly the session that the member lost.
    fn recovery_of(&self, member: &Member) -> Result<Recovery, String> {
        let recovery = lock(&self.recovery).clone().ok_or("the job has no checkpoint to rebuild it from")?;
        let (_, frames) = *recovery
            .frames
            .iter()
            .find(|(id, _)| *id == member.id)
            .ok_or("it began to use the GPU after the last checkpoint")?;
        if member.frames != frames {
            let since = member.frames.saturating_sub(frames);
            return Err(format!("{since} messages were sent to it since checkpoint {}", recovery.number));
        }
        Ok(recovery)
    }

    /// Gives the member a worker with the session that it lost.
    fn rebuild(&self, member: &Member, recovery: &Recovery) -> Result<(), CheckpointError> {
        let reader = recovery.reader()?;
        let part = reader.manifest().sessions.iter().find(|part| part.name == session_name(member));
        if part.is_some_and(|part| part.notes.contains_key(EXPORTS_NOTE)) {
            let what = "has exported memory or events to other programs, which go on with those of the lost worker";
            return Err(CheckpointError::Shared { program: member.program.clone(), pid: member.pid, what });
        }
        let how = if self.locked_processes.has(member.id) { Rejoin::Held } else { Rejoin::Free };
        self.give_worker(member, &reader, how, &self.locked_processes.devices(member.id))
    }

    /// Starts a worker on the server of a member that waits for one, with the member's session from a checkpoint, on `devices` in
    /// place of its own.
    pub(crate) fn give_worker(
        &self,
        member: &Member,
        reader: &CheckpointReader,
        rejoin_mode: Rejoin,
        devices: &str,
    ) -> Result<(), CheckpointError> {
        let server = address(&member.address)?;
        let directory = reader.directory()?;
        let catalogue = Catalogue::new(reader);
        let plan = Rebuild {
            catalogue: &catalogue,
            directory: directory.as_ref().map(AsFd::as_fd),
            device_only: true,
            rehearsal: false,
            memory: None,
            generations: &self.generations,
            devices,
        };
        let mut companion = Companion::rebuild(&server, &session_name(member), &plan, &Progress::default())?;
        fault_injection::inject_at("rejoin")?;
        let home = (member.address.as_str(), companion.key);
        answer_during(&mut companion, &catalogue, || rejoin(&self.members, member, home, rejoin_mode, &|| false))?;
        Ok(())
    }
}
