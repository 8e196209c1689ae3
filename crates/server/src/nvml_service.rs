//! Programs that ask about the server's devices (NVML): each gets its own process, which is no session.
//!
//! The process lives as long as the connection. The thread that did the program's handshake waits for it, because a worker ends
//! with the thread that started it. The process ends by itself when its program asks nothing for a while, or has asked for long;
//! the program's library connects again for its next question. The server passes it the sessions' current memory use: softcuda
//! knows nothing of other processes.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use katydid_transport::{AcceptError, Pending};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::nvml_processes::ProcessSlot;
use crate::shared::ServerState;
use crate::slots::PeerOrigin;
use crate::workers::spawn::{Worker, WorkerCommand, spawn};

/// Why a program gets no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    /// Too many programs ask at once.
    #[error("too many programs ask about the devices at once; try again in a second")]
    Full,
    /// The service's process cannot be started.
    #[error("no process could be started to answer: {0}")]
    Start(io::Error),
    /// The process did not accept the program.
    #[error("the program could not be handed over: {0}")]
    HandOver(AcceptError),
}

/// A process that answers one program.
pub(crate) struct NvmlProcess<'a> {
    worker: Worker,
    _slot: ProcessSlot<'a>,
}

/// Starts a process that answers the program, and hands the program over to it.
pub(crate) fn begin<'a>(
    shared: &'a ServerState,
    pending: &Pending,
    origin: PeerOrigin,
) -> Result<NvmlProcess<'a>, WatchError> {
    let _slot = shared.watchers.take(origin).ok_or(WatchError::Full)?;
    let worker = spawn(&command(&shared.worker), &shared.memory_limits).map_err(WatchError::Start)?;
    let note = note(&shared.sessions.workers_memory());
    pending.hand_over(&*worker.control, &shared.build, &note).map_err(WatchError::HandOver)?;
    Ok(NvmlProcess { worker, _slot })
}

impl NvmlProcess<'_> {
    /// Waits until the process has ended, or the server stops.
    pub(crate) fn wait(mut self, shared: &ServerState) {
        while !self.step(shared) {}
        self.worker.reap();
        self.worker.output.finish(&shared.reporter);
    }

    /// Handles the next event. Returns whether to reap the process.
    fn step(&mut self, shared: &ServerState) -> bool {
        let output = self.worker.output.source().unwrap_or(self.worker.pidfd.as_fd());
        let mut events = [self.worker.pidfd.as_fd(), shared.stop.as_fd(), output]
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        let rest = self.worker.output.rests_until();
        let rest = rest.map(|until| until.saturating_duration_since(Instant::now()));
        let due = poll(&mut events, rest.and_then(|rest| Timespec::try_from(rest).ok()).as_ref());
        let [exit, stop, has_output] = events.map(|event| due.is_ok_and(|due| due > 0) && !event.revents().is_empty());
        if has_output {
            self.worker.output.read(&shared.reporter);
        }
        exit || stop
    }
}

/// Returns a worker's command with one more argument.
fn command(worker: &WorkerCommand) -> WorkerCommand {
    let mut command = worker.clone();
    command.arguments.push("--watch".into());
    command
}

/// Encodes processes and the bytes that they hold, as many as fit.
fn note(held: &[(u32, u64)]) -> Vec<u8> {
    const NVML_NOTE_BYTES: usize = 4096;
    let record = |(process, bytes): &(u32, u64)| [&process.to_le_bytes()[..], &bytes.to_le_bytes()].concat();
    held.iter().take(NVML_NOTE_BYTES).flat_map(record).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml_processes::{MAX_NVML_PROCESSES, MAX_REMOTE_PROCESSES, NvmlProcesses};

    #[test]
    fn notes_have_a_record_for_each_process() {
        assert_eq!(note(&[(7, 256)]), [7, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(note(&vec![(1, 1); 5000]).len(), 4096 * 12);
    }

    #[test]
    fn no_peer_has_all_slots_and_slots_are_freed() {
        let watchers = NvmlProcesses::default();
        let address = |last| PeerOrigin::of(std::net::IpAddr::from([10, 0, 0, last]));
        let of = |origin| std::iter::from_fn(|| watchers.take(origin)).collect::<Vec<_>>();
        let remote: Vec<_> = (0..8).map(|last| of(address(last))).collect();
        assert_eq!(remote.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16, 0, 0, 0, 0, 0]);
        let own = of(PeerOrigin::User(0));
        assert_eq!(own.len(), MAX_NVML_PROCESSES - MAX_REMOTE_PROCESSES);
        drop(remote);
        assert_eq!(of(PeerOrigin::User(0)).len(), MAX_REMOTE_PROCESSES);
    }
}
