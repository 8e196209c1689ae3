//! The operations of a job, one checkpoint or move at a time.

use std::sync::TryLockError;
use std::sync::atomic::Ordering::SeqCst;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::{migrate, run};
use crate::process::tree;
use crate::supervisor::state::JobState;
use crate::supervisor::view::{CompletedMigration, JobView, Migration, Report, Request, StageProgress};
use crate::sync::lock;

/// The last stage of a failed operation.
fn failed(error: &CheckpointError) -> StageProgress {
    StageProgress::Failed { error: error.to_string(), of_server: error.is_of_server() }
}

impl JobState {
    /// Does `work` unless a checkpoint or a migration is running already.
    fn exclusively<T>(&self, work: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        let only = match self.checkpointer.try_lock() {
            Ok(only) => Some(only),
            Err(TryLockError::Poisoned(only)) => Some(only.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        only.ok_or(CheckpointError::Busy).and_then(|_only| {
            let _guard = lock(&self.exclusive);
            work()
        })
    }

    /// Moves the job's sessions, and reports each stage.
    pub(crate) fn migrate(
        &self,
        request: &Migration,
        notify: &(dyn Fn(&StageProgress) + Sync),
    ) -> Result<CompletedMigration, CheckpointError> {
        let outcome = self.exclusively(|| {
            self.or_release(|| self.answer_members_during(notify, |notify| migrate::migrate(self, request, notify)))
        });
        match &outcome {
            Ok(moved) => notify(&StageProgress::Moved(moved.clone())),
            Err(error) => notify(&failed(error)),
        }
        outcome
    }

    /// Does `work`, and shows its stages in the job's view meanwhile.
    fn answer_members_during<T>(
        &self,
        notify: &(dyn Fn(&StageProgress) + Sync),
        work: impl FnOnce(&(dyn Fn(&StageProgress) + Sync)) -> T,
    ) -> T {
        let outcome = work(&|stage| {
            *lock(&self.stage) = Some(stage.clone());
            notify(stage);
        });
        *lock(&self.stage) = None;
        outcome
    }

    pub(crate) fn checkpoint(
        &self,
        request: &Request,
        notify: &(dyn Fn(&StageProgress) + Sync),
    ) -> Result<Report, CheckpointError> {
        let outcome = self.exclusively(|| self.take(request, notify));
        // Reported last, since the requester may ask for the next one at once.
        match &outcome {
            Ok(report) => notify(&StageProgress::Done(report.clone())),
            Err(error) => notify(&failed(error)),
        }
        outcome
    }

    /// Takes a checkpoint. The caller is in the queue of operations ([`Self::exclusively`]).
    fn take(&self, request: &Request, notify: &(dyn Fn(&StageProgress) + Sync)) -> Result<Report, CheckpointError> {
        let outcome = self.or_release(|| self.answer_members_during(notify, |notify| run::take(self, request, notify)));
        if let Ok(report) = &outcome {
            *lock(&self.last) = Some(report.clone());
            self.was_put_away.store(!report.running, SeqCst);
        }
        outcome
    }

    /// Does `work`. If it fails, perhaps before it reached the programs, lets programs that held themselves for it go on. A
    /// program that it has released already, and that has come to its next point since, stays.
    fn or_release<T>(&self, work: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        let waiting: Vec<(u64, Option<u64>)> =
            self.members.list().iter().map(|member| (member.id, member.reached)).collect();
        let done = self.locked_processes.refuse(&self.members).and_then(|()| {
            let sees = |pid| self.members.list().iter().any(|member| member.pid == pid);
            let root = self.root.now().and_then(|root| tree::tree(root).ok());
            self.stopped.go_on(&root.unwrap_or_default(), sees);
            work()
        });
        self.stopped.stop();
        done.map_err(|error| {
            self.release_reached(|member| waiting.contains(&(member.id, member.reached)));
            // After any other failure the program was let go, and may have ended since.
            if error.is_of_ended_program() && self.root.has_ended() { CheckpointError::NoProgram } else { error }
        })
    }

    pub(crate) fn view(&self) -> JobView {
        JobView {
            name: self.folder.name(),
            supervisor: std::process::id(),
            program: self.root.now().unwrap_or(0),
            command: self.command.clone(),
            host: self.host.clone(),
            members: self.members.list().into_iter().map(Into::into).collect(),
            checkpoint: lock(&self.stage).clone(),
            last: lock(&self.last).clone(),
        }
    }
}
