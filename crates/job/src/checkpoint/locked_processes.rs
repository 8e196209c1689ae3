//! The table of a job's processes that are locked, checkpointed or lost, one by one (`checkpoint/process_checkpoint.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::checkpoint::error::CheckpointError;
use crate::supervisor::members::{Member, Members};
use crate::sync::lock;
use katydid_image::CheckpointNumber;
use katydid_scratch::Scratch;
use katydid_wire::job::state;

/// The session of a process that has no worker.
#[derive(Debug)]
pub(crate) struct SavedSession {
    pub(crate) image: Scratch,
    pub(crate) number: CheckpointNumber,
}

/// A process that is locked, or, with an image, checkpointed.
#[derive(Debug)]
pub(crate) struct LockedProcess {
    pub(crate) program: String,
    pub(crate) pid: u32,
    pub(crate) saved: Option<Arc<SavedSession>>,
}

/// A process whose session is lost for good.
#[derive(Debug)]
pub(crate) struct LostSession {
    pid: u32,
    /// Start time of the process: another one may get its number later.
    started: Option<u64>,
}

/// All processes of a job that are locked or checkpointed, by their members.
#[derive(Debug, Default)]
pub(crate) struct LockedProcesses(Mutex<LockTable>);

#[derive(Debug, Default)]
pub(crate) struct LockTable {
    pub(crate) locked: BTreeMap<u64, LockedProcess>,
    /// Members that lost their worker for good while they were locked, with their processes, which may live on.
    pub(crate) failed: BTreeMap<u64, LostSession>,
    /// Members that were restored to other GPUs than they know: UUIDs, one a line, in the order of their own GPUs.
    pub(crate) placed: BTreeMap<u64, String>,
}

impl LockedProcesses {
    /// Whether a member is locked or checkpointed.
    pub(crate) fn has(&self, id: u64) -> bool {
        lock(&self.0).locked.contains_key(&id)
    }

    /// Notes that a member's session is lost for good; `started` is the start time of its process.
    pub(crate) fn fail(&self, member: &Member, started: Option<u64>) {
        let mut table = lock(&self.0);
        if table.locked.remove(&member.id).is_some() {
            table.failed.insert(member.id, LostSession { pid: member.pid, started });
        }
    }

    /// Whether the process with this number lost its session for good. A process that began at another time than `started` is not
    /// meant.
    pub(crate) fn is_lost(&self, process: u32, started: Option<u64>) -> bool {
        let is_it = |lost: &LostSession| lost.pid == process && (started.is_none() || lost.started == started);
        lock(&self.0).failed.values().any(is_it)
    }

    /// Forgets all locked processes, because the job has ended.
    pub(crate) fn clear(&self) {
        lock(&self.0).locked.clear();
    }

    /// Refuses an operation on the whole job while one of its processes is locked.
    pub(crate) fn refuse(&self, members: &Members) -> Result<(), CheckpointError> {
        match self.swept(members).locked.values().next() {
            Some(LockedProcess { program, pid, .. }) => {
                Err(CheckpointError::Locked { program: program.clone(), pid: *pid })
            }
            None => Ok(()),
        }
    }

    /// Returns the table, without processes that have ended.
    pub(crate) fn swept(&self, members: &Members) -> MutexGuard<'_, LockTable> {
        let list = members.list();
        let mut table = lock(&self.0);
        let is_there = |id: &u64| list.iter().any(|member| member.id == *id);
        table.locked.retain(|id, _| is_there(id));
        table.placed.retain(|id, _| is_there(id));
        table
    }

    /// State of a process, one of the constants in [`state`].
    pub(crate) fn state(&self, id: u64) -> u32 {
        let table = lock(&self.0);
        match table.locked.get(&id) {
            None if table.failed.contains_key(&id) => state::FAILED,
            None => state::RUNNING,
            Some(LockedProcess { saved: None, .. }) => state::LOCKED,
            Some(_) => state::CHECKPOINTED,
        }
    }

    pub(crate) fn put(&self, member: &Member, saved: Option<SavedSession>) {
        let process = LockedProcess { program: member.program.clone(), pid: member.pid, saved: saved.map(Arc::new) };
        lock(&self.0).locked.insert(member.id, process);
    }

    /// UUIDs of the GPUs that a member was restored to; empty if those are the ones that it knows.
    pub(crate) fn devices(&self, id: u64) -> String {
        lock(&self.0).placed.get(&id).cloned().unwrap_or_default()
    }

    /// Notes the GPUs that a member was restored to.
    pub(crate) fn note_devices(&self, id: u64, devices: String) {
        lock(&self.0).placed.insert(id, devices);
    }

    /// Forgets the GPUs of all members, because they are on another server.
    pub(crate) fn forget_gpus(&self) {
        lock(&self.0).placed.clear();
    }

    pub(crate) fn remove(&self, id: u64) {
        lock(&self.0).locked.remove(&id);
    }

    pub(crate) fn saved(&self, id: u64) -> Option<Arc<SavedSession>> {
        lock(&self.0).locked.get(&id)?.saved.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_process_that_got_the_number_of_a_lost_one_is_not_lost() {
        let locked_processes = LockedProcesses::default();
        lock(&locked_processes.0).failed.insert(1, LostSession { pid: 5, started: Some(7) });
        assert!(locked_processes.is_lost(5, Some(7)) && locked_processes.is_lost(5, None));
        assert!(!locked_processes.is_lost(5, Some(8)) && !locked_processes.is_lost(6, Some(7)));
    }

    #[test]
    fn a_process_that_has_ended_is_in_no_way() {
        let folder = tempfile::tempdir().unwrap();
        let (events, _receiver) = mpsc::channel();
        let members = Members::listen(&folder.path().join("shims"), events).unwrap();
        let locked_processes = LockedProcesses::default();
        let process = |saved| LockedProcess { program: "app".to_owned(), pid: 5, saved };
        lock(&locked_processes.0).locked.insert(1, process(None));
        assert!(
            locked_processes.has(1)
                && locked_processes.state(1) == state::LOCKED
                && locked_processes.state(2) == state::RUNNING
        );
        locked_processes.refuse(&members).unwrap();
        assert!(!locked_processes.has(1));
    }
}
