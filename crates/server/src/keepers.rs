//! Keepers: processes that save the worker of a session as a process, or restore one that was saved so
//! (`katydid_wire::companion`).
//!
//! A keeper has the rights of the server, which saving a process takes, and no sandbox; and an image of a process is code. So a
//! server has keepers only if it serves its own user alone, or if `--allow-worker-images` permits them. One that saves lives as
//! long as its connection. One that restores is what the server knows as the session's worker: the worker that it has restored is
//! below it, has its end of the control socket, and ends with it. The thread that greeted the supervisor watches either, because
//! a process of ours ends with the thread that started it.

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

/// Why there is no keeper.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoKeeperError {
    /// Others use the server too.
    #[error(
        "workers of this server serve several users and run in a sandbox that no image of a process keeps; use a server that listens \
         on unix sockets alone, or start it with --no-sandbox"
    )]
    Tenants,
    /// The peer is none of the server's own user.
    #[error(
        "this server keeps no worker as a process for programs that connect by TCP, TLS or vsock: restoring one runs code with the \
         server's rights; connect to its unix socket, or start it with --allow-worker-images"
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
    /// It did not take the supervisor.
    #[error("the supervisor's connection could not be passed to the process that saves the worker: {0}")]
    HandOver(#[from] AcceptError),
    /// The process that restores the worker did not take the supervisor.
    #[error("the supervisor's connection could not be passed to the process that restores the worker: {0}")]
    Assign(#[from] AssignError),
}

/// Has a process save the worker of the session that the supervisor has the key of; returns with its end.
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

/// Returns when the process has ended, or the server stops.
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

/// Has a process restore a worker for a session of `program`; returns with the session's end.
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

/// Whether a peer may have keepers.
fn may_keep(shared: &ServerState, is_own: bool) -> Result<(), NoKeeperError> {
    if shared.worker.serves_tenants {
        return Err(NoKeeperError::Tenants);
    }
    if is_own || shared.worker_images { Ok(()) } else { Err(NoKeeperError::Network) }
}

/// As a worker, with one argument more, the server's rights and all of its environment.
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
