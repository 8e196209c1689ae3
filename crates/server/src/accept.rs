//! Admits programs: accept, hello, admission, hand-over to a worker.
//!
//! A connection whose peer has sent bytes has a thread, which lives until a worker has the program or the program is refused. It
//! also has one of the slots of its listener and of its peer (`slots.rs`). Silent connections have neither (`hello_queue.rs`). No
//! thread waits for a peer or a worker under a lock. A refused program receives the reason; its fault never affects another one.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use katydid_transport::{AcceptError, Connection, Identity, Pending};
use katydid_wire::handshake::{ConnectionRole, Hello, LinkKind, Ready, RefusalCode, Refused, SessionKind};
use katydid_wire::key::SessionKey;
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::control::{name, printable_name};
use crate::hello_queue::{HelloQueue, NewConnection};
use crate::keepers::{self, NoKeeperError};
use crate::listen::{Listener, Peer};
use crate::nvml_service::{self, WatchError};
use crate::pool::PoolError;
use crate::report::{LineKind, LineSource};
use crate::sessions::{AdmissionError, Program, new_key};
use crate::shared::ServerState;
use crate::slots::GreetingSlot;
use crate::workers::handle::{AssignError, SessionId, WorkerHandle};

/// Connections accepted from one listener before the others' turn.
const MAX_ACCEPTS_PER_WAKE: usize = 32;
/// Refusal text when no slot is free.
const BUSY_TEXT: &str = "the server is busy: too many programs are connecting at once; try again in a few seconds";
/// How long a program waits while no worker starts. A worker that starts may take longer, as long as it makes progress.
const WORKER_HANDOUT_TIMEOUT: Duration = Duration::from_secs(60);
/// Workers tried for one program: a worker in the pool may have died unnoticed.
const WORKER_ATTEMPTS: usize = 3;

/// Why a program got no session.
#[derive(Debug, thiserror::Error)]
enum AdmissionRefusal {
    #[error("this server serves CUDA and OpenCL only; start the program with the same release of Katydid")]
    OtherKind,
    #[error("unknown role {0} of a connection; use the same release of Katydid on both sides")]
    OtherRole(u32),
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("no worker took the program ({0}); try again, and see the server's messages")]
    HandOver(AssignError),
    #[error("this server has no session with that key; it may have ended, or be on another server")]
    NoSession,
    #[error("the worker of the session cannot be reached ({0}); it may just have ended")]
    Attach(AssignError),
    #[error("the program has hung up while it waited for a worker")]
    Gone,
    #[error("no key could be made for the session: {0}")]
    NoKey(io::Error),
    #[error("the server has no descriptor left for the connection: {0}")]
    NoConnection(io::Error),
    #[error(transparent)]
    Watch(WatchError),
    #[error(transparent)]
    Keeper(NoKeeperError),
}

impl AdmissionRefusal {
    /// Returns what a program can tell apart; the text is for users.
    fn code(&self) -> RefusalCode {
        match self {
            Self::OtherKind | Self::OtherRole(_) => RefusalCode::BAD_HELLO,
            Self::Admission(_) => RefusalCode::BUSY,
            Self::Pool(PoolError::Failed(_)) => RefusalCode::DRIVER,
            Self::Pool(_) => RefusalCode::BUSY,
            Self::Watch(WatchError::Full) | Self::Attach(AssignError::Busy) => RefusalCode::CROWDED,
            Self::HandOver(_) | Self::Gone | Self::NoKey(_) | Self::NoConnection(_) | Self::Watch(_) => {
                RefusalCode::INTERNAL
            }
            Self::Keeper(NoKeeperError::Admission(_)) => RefusalCode::BUSY,
            Self::Keeper(NoKeeperError::Tenants | NoKeeperError::Network) => RefusalCode::NOT_ALLOWED,
            Self::Keeper(NoKeeperError::NoSession) => RefusalCode::NO_SESSION,
            Self::Keeper(_) => RefusalCode::INTERNAL,
            Self::NoSession | Self::Attach(_) => RefusalCode::NO_SESSION,
        }
    }
}

/// Accepts connections until the server stops.
pub(crate) fn serve(listeners: &[Listener], shared: &Arc<ServerState>) {
    let mut queue = HelloQueue::new(shared.hello_timeout, shared.slots);
    while let Some(ready) = queue.wait(listeners, &shared.stop, shared.reporter.summary_due()) {
        for late in ready.late {
            let seconds = shared.hello_timeout.as_secs();
            not_heard(shared, &late.peer, format_args!("no hello within {seconds} s"));
        }
        for spoken in ready.spoken {
            if let Err(error) = let_through(spoken, listeners, shared) {
                out_of_something(shared, "greet", &error);
            }
        }
        for at in ready.listeners {
            if let Err(error) = accept(at, listeners, &mut queue, shared) {
                out_of_something(shared, "accept", &error);
                drop(queue.pause_accepting());
            }
        }
        shared.reporter.tell_left_out();
    }
}

/// Reports a connection that was refused before its program was known.
fn not_heard(shared: &ServerState, peer: &Peer, reason: fmt::Arguments<'_>) {
    let line = format_args!("{}: refused: {reason}", peer.name);
    shared.reporter.note_of(LineKind::Refused, LineSource::Peer(peer.origin), line);
}

/// Reports that the system refused a resource for a newcomer.
fn out_of_something(shared: &ServerState, resource: &'static str, error: &io::Error) {
    let line = format_args!("cannot {resource} a program: {error}");
    shared.reporter.problem_of(LineKind::System, LineSource::Server(resource), line);
}

/// Accepts connections of a listener, a bounded number at a time so that other listeners do not wait long.
fn accept(at: usize, listeners: &[Listener], queue: &mut HelloQueue, shared: &ServerState) -> io::Result<()> {
    for _ in 0..MAX_ACCEPTS_PER_WAKE {
        let Some((socket, peer)) = listeners.get(at).map_or(Ok(None), Listener::accept)? else { return Ok(()) };
        if !peer.allowed {
            let text = "only the user who runs the server, and root, may use it; start a server of your own";
            refuse_unheard(&socket, shared, RefusalCode::NOT_ALLOWED, text);
            let line = format_args!("{}: refused: it belongs to another user", peer.name);
            shared.reporter.problem_of(LineKind::Refused, LineSource::Peer(peer.origin), line);
            continue;
        }
        if let Some(gone) = queue.enter(NewConnection { socket, peer, listener: at }) {
            refuse_unheard(&gone.socket, shared, RefusalCode::CROWDED, BUSY_TEXT);
        }
    }
    Ok(())
}

/// Hands a connection whose peer has sent bytes to a thread, so that a slow program holds up no other.
fn let_through(arrived: NewConnection, listeners: &[Listener], shared: &Arc<ServerState>) -> io::Result<()> {
    let NewConnection { socket, peer, listener } = arrived;
    let certs = listeners.get(listener).and_then(Listener::certs).map(PathBuf::from);
    // In the middle of a TLS handshake no refusal can be sent; the end of the connection has to do.
    let farewell = |socket: &OwnedFd| match certs {
        Some(_) => {}
        None => refuse_unheard(socket, shared, RefusalCode::CROWDED, BUSY_TEXT),
    };
    let known = socket.try_clone()?;
    let Some(slot) = shared.greetings.take((listener, peer.origin), known, shared.slots, farewell) else {
        refuse_unheard(&socket, shared, RefusalCode::CROWDED, BUSY_TEXT);
        return Ok(());
    };
    let shared = Arc::clone(shared);
    let builder = thread::Builder::new().name("greeting".to_owned());
    builder.spawn(move || greet(socket, &peer, certs.as_deref(), slot, &shared)).map(drop)
}

/// Sends a refusal before the hello was read, as far as possible without waiting.
fn refuse_unheard(socket: &OwnedFd, shared: &ServerState, code: RefusalCode, text: &str) {
    if let Ok(message) = Refused::new(code, text).encode(&shared.build) {
        let _ = send(socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Reads the hello and finds a worker for the program.
fn greet(socket: OwnedFd, peer: &Peer, certs: Option<&Path>, slot: GreetingSlot, shared: &ServerState) {
    let accepted = match certs {
        None => Pending::accept(socket, &shared.build, shared.hello_timeout),
        // Read each time, so that a certificate can be renewed while the server runs.
        Some(folder) => Identity::read(folder)
            .map_err(AcceptError::from)
            .and_then(|identity| Pending::accept_encrypted(socket, &shared.build, identity, shared.hello_timeout)),
    };
    let pending = match accepted {
        Ok(pending) => pending,
        // Another process only checked whether a server is here.
        Err(AcceptError::Closed) => return,
        Err(error) => return not_heard(shared, peer, format_args!("{error}")),
    };
    // Another connection may have taken the slot.
    if !slot.stay() {
        return;
    }
    match pending.hello() {
        hello if !is_in_role(hello) => {
            let refusal = AdmissionRefusal::OtherRole(hello.claim.role.0);
            refuse(shared, pending, peer, &refusal);
        }
        hello if hello.claim.role == ConnectionRole::INQUIRY => inform(shared, pending, peer),
        hello if hello.claim.role == ConnectionRole::RESERVATION => reserve(shared, pending, peer, slot),
        hello if hello.claim.role == ConnectionRole::KEEPER => keep(shared, pending, peer, slot),
        hello if hello.session == SessionKind::NVML => watch(shared, pending, peer, slot),
        _ => {
            if let Err(refusal) = admit(shared, &pending, peer, slot) {
                refuse(shared, pending, peer, &refusal);
            }
        }
    }
}

/// Returns whether the hello's role and key fit each other. Peers that a worker would refuse are refused before they cost one: a
/// worker that has refused its first peer ends.
fn is_in_role(hello: &Hello) -> bool {
    match hello.claim.role {
        ConnectionRole::PROGRAM | ConnectionRole::INQUIRY | ConnectionRole::RESERVATION | ConnectionRole::KEEPER => {
            true
        }
        ConnectionRole::COMPANION => hello.session != SessionKind::NVML,
        // It belongs to another connection, so there must be a session.
        ConnectionRole::BULK => hello.session != SessionKind::NVML && !hello.claim.key.is_none(),
        _ => false,
    }
}

/// Tells a program, and the operator, why the program was refused.
fn refuse(shared: &ServerState, pending: Pending, peer: &Peer, refusal: &AdmissionRefusal) {
    let line = format_args!("{}: refused: {refusal}", printable_name(&pending.hello().program));
    shared.reporter.problem_of(LineKind::Refused, LineSource::Peer(peer.origin), line);
    pending.refuse(&shared.build, &Refused::new(refusal.code(), refusal.to_string()));
}

/// Starts a process that answers questions about the devices, and waits for its end.
fn watch(shared: &ServerState, pending: Pending, peer: &Peer, slot: GreetingSlot) {
    match nvml_service::begin(shared, &pending, peer.origin) {
        Ok(watching) => {
            drop((pending, slot));
            watching.wait(shared);
        }
        Err(error) => refuse(shared, pending, peer, &AdmissionRefusal::Watch(error)),
    }
}

/// Starts a keeper, which saves a session's worker or restores one, and waits for its end.
fn keep(shared: &ServerState, pending: Pending, peer: &Peer, slot: GreetingSlot) {
    let program = describe(pending.hello(), peer);
    drop(slot);
    let result = match pending.hello().claim.key.is_none() {
        true => keepers::restore(shared, pending, program, peer.is_own()),
        false => keepers::save(shared, pending, peer.is_own()),
    };
    if let Err(refused) = result {
        let (pending, error) = *refused;
        refuse(shared, pending, peer, &AdmissionRefusal::Keeper(error));
    }
}

/// Tells a peer which driver the workers have, or why a program would get no worker now.
fn inform(shared: &ServerState, pending: Pending, peer: &Peer) {
    let known =
        shared.sessions.check_room(Some(peer.origin), &pending.hello().reservation).map_err(AdmissionRefusal::from);
    match known.and_then(|()| Ok(shared.pool.driver(WORKER_HANDOUT_TIMEOUT, &|| is_gone(&pending))?)) {
        Ok(driver) => drop(tell_driver(shared, pending, peer, driver.name, SessionKey::NONE)),
        Err(refusal) => pending.refuse(&shared.build, &Refused::new(refusal.code(), refusal.to_string())),
    }
}

/// Tells a peer which driver the workers have, and returns its connection.
fn tell_driver(
    shared: &ServerState,
    pending: Pending,
    peer: &Peer,
    driver: String,
    key: SessionKey,
) -> Option<Connection> {
    let ready = Ready { worker_pid: 0, key, driver, arenas: Vec::new() };
    let connection = pending.consent(&shared.build, &ready).inspect_err(|error| {
        let line = format_args!("{}: cannot send the driver's name: {error}", peer.name);
        shared.reporter.note_of(LineKind::Refused, LineSource::Peer(peer.origin), line);
    });
    connection.ok()
}

/// Reserves a slot for a program that the peer is about to start, until the program has come or the peer has gone.
fn reserve(shared: &ServerState, pending: Pending, peer: &Peer, slot: GreetingSlot) {
    let (id, key) = match begin_reservation(shared, &pending, peer) {
        Ok(reserved) => reserved,
        Err(refusal) => return pending.refuse(&shared.build, &Refused::new(refusal.code(), refusal.to_string())),
    };
    // From here on it counts as a session. If its slot was reserved before, it counts as a greeting until its end.
    let _slot = id.is_none().then_some(slot);
    match shared.pool.driver(WORKER_HANDOUT_TIMEOUT, &|| is_gone(&pending)) {
        Ok(driver) => {
            let connection = tell_driver(shared, pending, peer, driver.name, key);
            if let Some(connection) = connection.filter(|_| id.is_some()) {
                wait_for_end(shared, &connection);
            }
        }
        Err(error) => {
            let refusal = AdmissionRefusal::Pool(error);
            pending.refuse(&shared.build, &Refused::new(refusal.code(), refusal.to_string()));
        }
    }
    if let Some(id) = id {
        shared.sessions.release(id);
    }
}

/// Reserves a slot, unless one is reserved for the same program already. Returns it, and its key.
fn begin_reservation(
    shared: &ServerState,
    pending: &Pending,
    peer: &Peer,
) -> Result<(Option<SessionId>, SessionKey), AdmissionRefusal> {
    let (program, known) = (describe(pending.hello(), peer), pending.hello().reservation);
    let key = new_key().map_err(AdmissionRefusal::NoKey)?;
    let keeper = pending.socket().try_clone_to_owned().map_err(AdmissionRefusal::NoConnection)?;
    let id = shared.sessions.reserve(program, &known, key, keeper)?;
    Ok((id, id.map_or(known, |_| key)))
}

/// Returns when the peer has gone, the connection was shut down, or the server stops.
fn wait_for_end(shared: &ServerState, connection: &Connection) {
    loop {
        let ends = PollFlags::RDHUP;
        let mut events = [
            PollFd::from_borrowed_fd(connection.as_fd(), ends),
            PollFd::from_borrowed_fd(shared.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Ok(0) | Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// Gives the program a session slot and a worker. Frees the slot if that fails.
fn admit(shared: &ServerState, pending: &Pending, peer: &Peer, slot: GreetingSlot) -> Result<(), AdmissionRefusal> {
    if ![SessionKind::CUDA, SessionKind::OPENCL].contains(&pending.hello().session) {
        return Err(AdmissionRefusal::OtherKind);
    }
    if !pending.hello().claim.key.is_none() {
        return attach(shared, pending, peer);
    }
    let program = describe(pending.hello(), peer);
    let words =
        format!("{} (process {} from {}, {})", printable_name(&program.name), program.pid, program.peer, program.link);
    let id = shared.sessions.admit(program, &pending.hello().reservation)?;
    // From here on the program counts as a session.
    drop(slot);
    match hand_over(shared, id, pending, peer) {
        Ok(worker) => {
            let line = format_args!("session {id} began: {words}, worker {}", worker.pid());
            shared.reporter.note_of(LineKind::Session, LineSource::Peer(peer.origin), line);
            if pending.hello().session == SessionKind::CUDA {
                shared.note_driver(worker.driver());
            }
            Ok(())
        }
        Err(refusal) => {
            shared.sessions.end(id);
            Err(refusal)
        }
    }
}

/// Passes a peer that knows a session's key on to the session's worker.
fn attach(shared: &ServerState, pending: &Pending, peer: &Peer) -> Result<(), AdmissionRefusal> {
    let (id, worker) = shared.sessions.find(&pending.hello().claim.key).ok_or(AdmissionRefusal::NoSession)?;
    worker.pass_on(id, |control| pending.hand_over(control, &shared.build, &[])).map_err(AdmissionRefusal::Attach)?;
    if pending.hello().claim.role == ConnectionRole::PROGRAM {
        // It may be another process than before, or the first one of a restored session that this server sees.
        shared.sessions.describe(id, describe(pending.hello(), peer));
        let line = format_args!("session {id} was taken up by process {}", pending.hello().pid);
        shared.reporter.note_of(LineKind::Session, LineSource::Peer(peer.origin), line);
    }
    Ok(())
}

/// Describes a program for the table of sessions. Its texts come from the peer and are made printable.
fn describe(hello: &Hello, peer: &Peer) -> Program {
    let program = name(&hello.program);
    let name = if hello.name.is_empty() { program.clone() } else { name(&hello.name) };
    let link = match hello.link {
        LinkKind::SHM => "shm",
        LinkKind::STREAM => "stream",
        _ => "unknown",
    };
    let (pid, origin) = (peer.pid.unwrap_or(hello.pid), Some(peer.origin));
    Program { name, pid, program, peer: peer.name.clone(), link, origin }
}

/// Returns whether the program has hung up while it waited.
fn is_gone(pending: &Pending) -> bool {
    let mut end = [PollFd::from_borrowed_fd(pending.socket(), PollFlags::RDHUP)];
    poll(&mut end, Some(&Timespec::default())).is_ok_and(|ended| ended > 0)
}

/// Passes the program to the next ready worker that is alive, and returns that worker.
fn hand_over(
    shared: &ServerState,
    id: SessionId,
    pending: &Pending,
    peer: &Peer,
) -> Result<WorkerHandle, AdmissionRefusal> {
    let key = new_key().map_err(AdmissionRefusal::NoKey)?;
    let processors = peer.is_own() || shared.cpu_opencl;
    let note = Note { memory_limit: shared.session_memory, key, processors }.encode();
    let mut last = AssignError::Dead;
    for _ in 0..WORKER_ATTEMPTS {
        let worker = shared.pool.take(pending.hello().session, WORKER_HANDOUT_TIMEOUT, &|| is_gone(pending));
        if is_gone(pending) {
            worker.into_iter().for_each(|worker| shared.pool.put_back(worker));
            return Err(AdmissionRefusal::Gone);
        }
        let worker = worker?;
        shared.sessions.serve(id, &worker);
        shared.sessions.open(id, key, worker.clone());
        match worker.assign(id, |control| pending.hand_over(control, &shared.build, &note)) {
            Ok(()) => return Ok(worker),
            Err(error) => last = error,
        }
    }
    Err(AdmissionRefusal::HandOver(last))
}
