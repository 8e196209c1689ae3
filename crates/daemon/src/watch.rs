//! Programs that ask about the server's devices (NVML): each gets a process of its own, which is no session.
//!
//! The process lives as long as the connection. The thread that greeted the program waits for it, because a worker ends
//! with the thread that started it. What the sessions hold is handed over as it is now: softcuda knows nothing of other
//! processes.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use katydid_transport::{AcceptError, Pending};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::server::Shared;
use crate::spawn::{WorkerCommand, spawn};

/// Such processes at a time.
const MOST: usize = 64;

/// Why a program is not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// Too many ask at once.
    #[error("too many programs ask about the devices at once; try again in a second")]
    Full,
    /// No process.
    #[error("no process could be started to answer: {0}")]
    Start(io::Error),
    /// It did not take the program.
    #[error("the program could not be handed over: {0}")]
    HandOver(AcceptError),
}

/// One of the [`MOST`] places.
struct Place;

static TAKEN: AtomicUsize = AtomicUsize::new(0);

impl Place {
    fn take() -> Option<Self> {
        let more = |taken| (taken < MOST).then_some(taken + 1);
        TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Self)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Has a process answer the program, and returns when either has ended, or the server stops.
pub(crate) fn answer(shared: &Shared, pending: &Pending) -> Result<(), WatchError> {
    let _place = Place::take().ok_or(WatchError::Full)?;
    let mut worker = spawn(&command(&shared.worker)).map_err(WatchError::Start)?;
    let note = note(&shared.sessions.held());
    pending.hand_over(&*worker.control, &shared.build, &note).map_err(WatchError::HandOver)?;
    let mut events = [PollFd::new(&worker.pidfd, PollFlags::IN), PollFd::new(&shared.stop, PollFlags::IN)];
    while let Err(rustix::io::Errno::INTR) = poll(&mut events, None::<&Timespec>) {}
    worker.reap();
    Ok(())
}

/// As a worker, with one argument more.
fn command(worker: &WorkerCommand) -> WorkerCommand {
    let mut command = worker.clone();
    command.arguments.push("--watch".into());
    command
}

/// Processes and the bytes that they hold, as many as there is room for.
fn note(held: &[(u32, u64)]) -> Vec<u8> {
    const ROOM: usize = 4096;
    let record = |(process, bytes): &(u32, u64)| [&process.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    held.iter().take(ROOM).flat_map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_have_a_record_for_each_process() {
        assert_eq!(note(&[(7, 256)]), [7, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(note(&vec![(1, 1); 5000]).len(), 4096 * 12);
    }

    #[test]
    fn there_are_so_many_places_and_they_come_back() {
        let taken: Vec<_> = std::iter::from_fn(Place::take).collect();
        assert_eq!(taken.len(), MOST);
        drop(taken);
        assert!(Place::take().is_some());
    }
}
