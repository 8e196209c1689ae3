//! Keepers: processes that save a session's worker as a process, or restore a worker saved that way (`katydid_wire::companion`).
//!
//! A keeper has the rights of the server, which it needs to save a process, and no sandbox; and an image of a process is code. So
//! a server has keepers only if it serves its own user alone, or if `--allow-worker-images` permits them. A keeper that saves
//! lives as long as its connection. One that restores is the session's worker for the server: the restored worker is its
//! descendant, has its end of the control socket, and ends with it. The thread that did the supervisor's handshake watches
//! either, because the server's child ends with the thread that started it.

use std::io;
use std::os::fd::AsFd;

use katydid_transport::{AcceptError, Pending};
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, poll};

use crate::sessions::{AdmissionError, Program, new_key};
use crate::shared::ServerState;
use crate::workers::handle::{AssignError, WorkerHandle, WorkerNeeds};
use crate::workers::spawn::{Worker, WorkerCommand, spawn};
use crate::workers::supervisor::supervise_session;
use crate::workers::users::RunsAs;

/// Why no keeper was started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoKeeperError {
    /// Other users use the server too.
    #[error(
        "workers of this server run in a sandbox that no image of a process keeps; use a server on unix sockets alone, or start it \
         with --no-sandbox"
    )]
    Tenants,
    /// The peer is not the server's own user.
    #[error(
        "this server keeps no worker as a process for programs that connect by TCP, TLS or vsock; connect to its unix socket, or \
         start it with --allow-worker-images"
    )]
    Network,
    /// No session of this server has the key.
    #[error("this server has no session with that key; it may have ended, or be on another server")]
    NoSession,
    /// No free slot for a session.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The system gave no random bytes for a session key.
    #[error("no key could be made for the session: {0}")]
    NoKey(io::Error),
    /// The keeper's process cannot be started.
    #[error("no process could be started to save or restore the worker: {0}")]
    Start(io::Error),
    /// The keeper did not accept the supervisor.
    #[error("the supervisor's connection could not be passed to the process that saves the worker: {0}")]
    HandOver(#[from] AcceptError),
    /// The process that restores the worker did not accept the supervisor.
    #[error("the supervisor's connection could not be passed to the process that restores the worker: {0}")]
    Assign(#[from] AssignError),
}

/// Starts a process that saves the worker of the session whose key the supervisor has. Returns when it ends.
pub(crate) fn save(shared: &ServerState, pending: Pending, is_own: bool) -> Result<(), Box<(Pending, NoKeeperError)>> {
    match may_keep(shared, is_own).and_then(|()| begin_save(shared, &pending)) {
        Ok(keeper) => {
            drop(pending);
            wait(shared, keeper);
            Ok(())
        }
        Err(error) => Err(Box::new((pending, error))),
    }
}

fn begin_save(shared: &ServerState, pending: &Pending) -> Result<Worker, NoKeeperError> {
    let command = command(shared);
    let (id, worker) = shared.sessions.find(&pending.hello().claim.key).ok_or(NoKeeperError::NoSession)?;
    let saves = ["--saves".into(), worker.pid().to_string().into()];
    let command = WorkerCommand { arguments: [command.arguments, saves.into()].concat(), ..command };
    let keeper = spawn(&command, &shared.memory_limits).map_err(NoKeeperError::Start)?;
    pending.hand_over(&*keeper.control, &shared.build, &[])?;
    shared.sessions.is_saved_by(id, &keeper.control);
    Ok(keeper)
}

/// Waits until the process has ended, or the server stops.
fn wait(shared: &ServerState, mut keeper: Worker) {
    loop {
        let output = keeper.output.source().unwrap_or(keeper.pidfd.as_fd());
        let mut events = [keeper.pidfd.as_fd(), shared.stop.as_fd(), output]
            .map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN));
        let due = poll(&mut events, None).is_ok_and(|due| due > 0);
        let [exit, stop, has_output] = events.map(|event| due && !event.revents().is_empty());
        if has_output {
            keeper.output.read(&shared.reporter);
        }
        if exit || stop {
            break;
        }
    }
    keeper.reap();
    keeper.output.finish(&shared.reporter);
}

/// Starts a process that restores a worker for a session of `program`. Returns when the session ends.
pub(crate) fn restore(
    shared: &ServerState,
    pending: Pending,
    program: Program,
    is_own: bool,
) -> Result<(), Box<(Pending, NoKeeperError)>> {
    match may_keep(shared, is_own).and_then(|()| begin_restore(shared, &pending, program)) {
        Ok((keeper, handle)) => {
            drop(pending);
            supervise_session(shared, keeper, handle);
            Ok(())
        }
        Err(error) => Err(Box::new((pending, error))),
    }
}

fn begin_restore(
    shared: &ServerState,
    pending: &Pending,
    program: Program,
) -> Result<(Worker, WorkerHandle), NoKeeperError> {
    let command = command(shared);
    let key = new_key().map_err(NoKeeperError::NoKey)?;
    let id = shared.sessions.admit(program, &pending.hello().reservation)?;
    let result = spawn(&command, &shared.memory_limits).map_err(NoKeeperError::Start).and_then(|keeper| {
        let handle = WorkerHandle::new(&keeper, WorkerNeeds::default());
        shared.sessions.serve(id, &handle);
        shared.sessions.open(id, key, handle.clone());
        let note = Note { memory_limit: shared.session_memory, key, processors: false }.encode();
        handle.assign(id, |control| pending.hand_over(control, &shared.build, &note))?;
        Ok((keeper, handle))
    });
    result.inspect_err(|_| drop(shared.sessions.end(id)))
}

/// Checks that a peer may have keepers.
fn may_keep(shared: &ServerState, is_own: bool) -> Result<(), NoKeeperError> {
    if shared.worker.serves_tenants {
        return Err(NoKeeperError::Tenants);
    }
    if is_own || shared.worker_images { Ok(()) } else { Err(NoKeeperError::Network) }
}

/// Returns a worker's command with one more argument, the server's rights and all of its environment.
fn command(shared: &ServerState) -> WorkerCommand {
    let worker = &shared.worker;
    let mut arguments = Vec::new();
    let mut worker_arguments = worker.arguments.iter();
    while let Some(argument) = worker_arguments.next() {
        match argument.to_str() {
            Some("--sandbox") => drop(worker_arguments.next()),
            _ => arguments.push(argument.clone()),
        }
    }
    arguments.push("--keeper".into());
    WorkerCommand { arguments, passes: None, runs_as: RunsAs::default(), ..worker.clone() }
}
