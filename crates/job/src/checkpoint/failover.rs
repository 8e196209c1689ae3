//! What becomes of a program whose worker died: its session is rebuilt from the last checkpoint, if that is exactly the
//! session it lost.
//!
//! The rule: nothing may have been sent to the worker since the checkpoint, for then the program has seen, or waits for,
//! what the image does not know. Otherwise its calls fail, and its standard error has the reason.

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

/// Workers that are started for one rebuild, one after another.
const MAX_WORKERS: u32 = 3;

impl JobState {
    /// The worker of a member is gone.
    pub(crate) fn rebuild_lost_session(&self, id: u64) {
        // A checkpoint in progress ends first: it fails, or it is the one to go back to.
        let exclusive = lock(&self.exclusive);
        let Some(member) = self.members.list().into_iter().find(|member| member.id == id) else { return };
        if member.state != MemberState::WorkerLost {
            return;
        }
        let outcome = self.recovery_of(&member).and_then(|recovery| {
            // What killed the last worker may kill the next one too, or kill it as it starts.
            let mut attempts = (0..MAX_WORKERS).map(|_| self.rebuild(&member, &recovery));
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

    /// The checkpoint that is exactly the session that the member lost; the text says why there is none.
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

    /// Gives the member a worker like the one it lost.
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

    /// Gives a member that waits for one a worker of its server's, with the session that a checkpoint has of it, on `devices`
    /// in place of its own.
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
