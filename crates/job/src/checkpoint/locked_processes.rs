//! The processes of a job that are locked, checkpointed, or lost, one by one (`checkpoint/process_checkpoint.rs`).

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
pub(crate) struct Kept {
    pub(crate) image: Scratch,
    pub(crate) number: CheckpointNumber,
}

/// A process that is locked, or, with an image, checkpointed.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) program: String,
    pub(crate) pid: u32,
    pub(crate) kept: Option<Arc<Kept>>,
}

/// A process whose session is lost for good.
#[derive(Debug)]
pub(crate) struct Lost {
    pid: u32,
    /// When it began: another one may get its number.
    started: Option<u64>,
}

/// All processes of a job that are locked or checkpointed, by their members.
#[derive(Debug, Default)]
pub(crate) struct Parked(Mutex<Table>);

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) seats: BTreeMap<u64, Seat>,
    /// Members that lost their worker for good while they were locked, and their processes: these may live on.
    pub(crate) failed: BTreeMap<u64, Lost>,
    /// Members that were restored to other GPUs than they know: UUIDs in the order of their own, a line each.
    pub(crate) placed: BTreeMap<u64, String>,
}

impl Parked {
    /// Whether a member is locked or checkpointed.
    pub(crate) fn has(&self, id: u64) -> bool {
        lock(&self.0).seats.contains_key(&id)
    }

    /// Notes that a member's session is lost for good; its process began at `started`.
    pub(crate) fn fail(&self, member: &Member, started: Option<u64>) {
        let mut table = lock(&self.0);
        if table.seats.remove(&member.id).is_some() {
            table.failed.insert(member.id, Lost { pid: member.pid, started });
        }
    }

    /// Whether a process with this number has lost its session for good: not the one that has it now, if that began at
    /// another time.
    pub(crate) fn is_lost(&self, process: u32, started: Option<u64>) -> bool {
        let is_it = |lost: &Lost| lost.pid == process && (started.is_none() || lost.started == started);
        lock(&self.0).failed.values().any(is_it)
    }

    /// The job has ended.
    pub(crate) fn clear(&self) {
        lock(&self.0).seats.clear();
    }

    /// Refuses what is done to a job as a whole while one of its processes is locked.
    pub(crate) fn refuse(&self, members: &Members) -> Result<(), CheckpointError> {
        match self.swept(members).seats.values().next() {
            Some(Seat { program, pid, .. }) => Err(CheckpointError::Locked { program: program.clone(), pid: *pid }),
            None => Ok(()),
        }
    }

    /// The table without processes that have ended.
    pub(crate) fn swept(&self, members: &Members) -> MutexGuard<'_, Table> {
        let list = members.list();
        let mut table = lock(&self.0);
        let is_there = |id: &u64| list.iter().any(|member| member.id == *id);
        table.seats.retain(|id, _| is_there(id));
        table.placed.retain(|id, _| is_there(id));
        table
    }

    /// One of [`state`].
    pub(crate) fn state(&self, id: u64) -> u32 {
        let table = lock(&self.0);
        match table.seats.get(&id) {
            None if table.failed.contains_key(&id) => state::FAILED,
            None => state::RUNNING,
            Some(Seat { kept: None, .. }) => state::LOCKED,
            Some(_) => state::CHECKPOINTED,
        }
    }

    pub(crate) fn put(&self, member: &Member, kept: Option<Kept>) {
        let seat = Seat { program: member.program.clone(), pid: member.pid, kept: kept.map(Arc::new) };
        lock(&self.0).seats.insert(member.id, seat);
    }

    /// The GPUs that a member was restored to; empty: those that it knows.
    pub(crate) fn devices(&self, id: u64) -> String {
        lock(&self.0).placed.get(&id).cloned().unwrap_or_default()
    }

    /// Notes that.
    pub(crate) fn place(&self, id: u64, devices: String) {
        lock(&self.0).placed.insert(id, devices);
    }

    /// All members are on the GPUs of another server.
    pub(crate) fn forget_places(&self) {
        lock(&self.0).placed.clear();
    }

    pub(crate) fn remove(&self, id: u64) {
        lock(&self.0).seats.remove(&id);
    }

    pub(crate) fn kept(&self, id: u64) -> Option<Arc<Kept>> {
        lock(&self.0).seats.get(&id)?.kept.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_process_that_got_the_number_of_a_lost_one_is_not_lost() {
        let parked = Parked::default();
        lock(&parked.0).failed.insert(1, Lost { pid: 5, started: Some(7) });
        assert!(parked.is_lost(5, Some(7)) && parked.is_lost(5, None));
        assert!(!parked.is_lost(5, Some(8)) && !parked.is_lost(6, Some(7)));
    }

    #[test]
    fn whoever_has_ended_is_in_nobody_s_way() {
        let folder = tempfile::tempdir().unwrap();
        let (events, _heard) = mpsc::channel();
        let members = Members::listen(&folder.path().join("shims"), events).unwrap();
        let parked = Parked::default();
        let seat = |kept| Seat { program: "app".to_owned(), pid: 5, kept };
        lock(&parked.0).seats.insert(1, seat(None));
        assert!(parked.has(1) && parked.state(1) == state::LOCKED && parked.state(2) == state::RUNNING);
        parked.refuse(&members).unwrap();
        assert!(!parked.has(1));
    }
}
