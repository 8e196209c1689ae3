//! The keeper: a process of a server that saves the worker of a session as a process, or restores one
//! (`katydid_wire::companion`). It has the server's rights, and takes orders from a supervisor that knows the session's key.
//!
//! ```text
//! save:     driver's own checkpoint ── CRIU's dump ── the image        CRIU has the worker frozen
//!           let go ── driver's restore                                 or it is killed
//! restore:  CRIU's restore, with the keeper's end of the control socket ── driver's restore ── wait for the worker's end
//! ```
//!
//! The rule: a saved worker goes on when the supervisor is gone, unless the supervisor has ended it.

mod driver;
mod files;
mod revived;
mod saved;
mod supervisor;

use std::process::ExitCode;

use katydid_transport::{ControlChannel, Pending};
use katydid_wire::SPEC_HASH;
use katydid_wire::companion::{FromWorker, MAX_COMPANION_MESSAGE_BYTES, ToWorker};
use katydid_wire::handshake::{Build, Ready};
use katydid_wire::note::Note;
use rustix::net::{SendFlags, send};

use crate::keeper::revived::RestoredWorker;
use crate::keeper::saved::SavedWorker;
pub use crate::keeper::supervisor::KeeperOptions;
use crate::keeper::supervisor::{OrderError, SupervisorConnection};

/// Message to the server before a saved worker is ended.
const SAVED_MESSAGE: &[u8] = b"saved";

/// Serves the supervisor that the server hands over, until that connection ends, or until the restored worker ends.
pub fn run(options: KeeperOptions) -> ExitCode {
    let build = Build::current(SPEC_HASH);
    let Ok(Some((peer, note))) = Pending::receive(&options.control, &build) else { return ExitCode::FAILURE };
    let key = Note::decode(&note).key;
    let ready = Ready { worker_pid: std::process::id(), key, driver: options.driver.clone(), arenas: Vec::new() };
    let connection = peer.consent(&build, &ready).map_err(|error| error.to_string());
    let channel = connection.and_then(|connection| {
        ControlChannel::over(connection, MAX_COMPANION_MESSAGE_BYTES).map_err(|error| error.to_string())
    });
    let Ok(channel) = channel else { return ExitCode::FAILURE };
    let supervisor = SupervisorConnection::over(channel);
    match options.saves {
        Some(pid) => save(&supervisor, &options, pid),
        None => restore(supervisor, options),
    }
}

/// Saves a worker, and follows orders until the supervisor is gone.
fn save(supervisor: &SupervisorConnection, options: &KeeperOptions, pid: u32) -> ExitCode {
    let mut saved: Option<SavedWorker> = None;
    while let Ok(order) = supervisor.receive() {
        let done = match (order, saved.take()) {
            (ToWorker::SaveProcess {}, None) => SavedWorker::new(options, pid, supervisor).map(|(worker, part)| {
                saved = Some(worker);
                FromWorker::ProcessSaved { part }
            }),
            (ToWorker::ResumeProcess {}, Some(worker)) => worker.free().map(|()| FromWorker::ProcessResumed {}),
            (ToWorker::End {}, Some(worker)) => {
                // Sent before the end, so that the server knows why the worker is dead.
                let _ = send(&options.control, SAVED_MESSAGE, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
                worker.end().map(|()| FromWorker::Ended {})
            }
            (order, worker) => {
                saved = worker;
                Err(OrderError::new(format_args!("{order:?} makes no sense now")))
            }
        };
        let message = done.unwrap_or_else(|error| FromWorker::Failed { text: error.to_string() });
        if supervisor.send(&message).is_err() {
            break;
        }
    }
    // No other process could be told of a failure.
    let freed = saved.map_or(Ok(()), SavedWorker::free);
    if freed.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Restores a worker, and waits for its end.
fn restore(supervisor: SupervisorConnection, options: KeeperOptions) -> ExitCode {
    let revived = match supervisor.receive() {
        Ok(ToWorker::Revive { part, devices }) => RestoredWorker::new(options, &part, &devices, &supervisor),
        Ok(order) => Err(OrderError::new(format_args!("{order:?} makes no sense now"))),
        Err(_) => return ExitCode::FAILURE,
    };
    match revived {
        Ok(worker) => {
            let result = supervisor.send(&FromWorker::Revived {});
            drop(supervisor);
            if result.is_err() { ExitCode::FAILURE } else { worker.wait() }
        }
        Err(error) => {
            let _ = supervisor.send(&FromWorker::Failed { text: error.to_string() });
            ExitCode::FAILURE
        }
    }
}
