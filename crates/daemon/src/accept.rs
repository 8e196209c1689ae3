//! Lets programs in: accept, hello, admission, hand-over to a worker.
//!
//! Each connection has a thread that lives until the program is a worker's or is refused. As long as its hello is
//! awaited a connection holds one of [`GREETINGS`] places, so that peers that connect and say nothing cost little and
//! for a bounded time. A refused program is told why; what was wrong with it never concerns another one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use katydid_transport::{AcceptError, Identity, Pending};
use katydid_wire::handshake::{Hello, LinkKind, Ready, RefusalCode, Refused, Role, SessionKind};
use katydid_wire::key::SessionKey;
use katydid_wire::note::Note;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};

use crate::control::printable;
use crate::listen::{Listener, Peer};
use crate::minder::{AssignError, Mind};
use crate::pool::PoolError;
use crate::server::Shared;
use crate::sessions::{AdmissionError, Program, SessionId, new_key};
use crate::watch::{self, WatchError};

/// Connections whose hello is awaited at a time.
const GREETINGS: usize = 64;
/// How long a program waits for a worker; a driver with many GPUs takes seconds to start.
const WORKER_PATIENCE: Duration = Duration::from_secs(60);
/// Workers tried for one program; one that was ready can have died unnoticed.
const ATTEMPTS: usize = 3;
/// Pause after the system could not accept, for instance because all descriptors are in use.
const PAUSE: Duration = Duration::from_millis(100);

/// Why a program got no session.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("this server serves CUDA and OpenCL only; start the program with the same release of Katydid")]
    OtherKind,
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("no worker took the program ({0}); try again, and see the server's messages")]
    HandOver(AssignError),
    #[error("this server has no session with that key; it may have ended, or be on another server")]
    NoSession,
    #[error("the session's worker cannot be reached ({0}); it may just have ended")]
    Visit(AssignError),
    #[error("no key could be made for the session: {0}")]
    NoKey(io::Error),
    #[error(transparent)]
    Watch(WatchError),
}

impl Refusal {
    /// What a program can tell apart; the text is for people.
    fn code(&self) -> RefusalCode {
        match self {
            Self::OtherKind => RefusalCode::BAD_HELLO,
            Self::Admission(_) => RefusalCode::BUSY,
            Self::Pool(PoolError::Failed(_)) => RefusalCode::DRIVER,
            Self::Pool(_) => RefusalCode::BUSY,
            Self::Watch(WatchError::Full) => RefusalCode::BUSY,
            Self::HandOver(_) | Self::NoKey(_) | Self::Watch(_) => RefusalCode::INTERNAL,
            Self::NoSession | Self::Visit(_) => RefusalCode::NO_SESSION,
        }
    }
}

/// Accepts until the server stops.
pub(crate) fn serve(listeners: &[Listener], shared: &Arc<Shared>) {
    let greetings = Arc::new(AtomicUsize::new(0));
    while let Some(ready) = wait(listeners, &shared.stop) {
        for listener in ready {
            if let Err(error) = accept(listener, shared, &greetings) {
                shared.reporter.problem(format_args!("cannot accept a program: {error}"));
                thread::sleep(PAUSE);
            }
        }
    }
}

/// The listeners that somebody connected to; `None` when the server stops.
fn wait<'a>(listeners: &'a [Listener], stop: &OwnedFd) -> Option<Vec<&'a Listener>> {
    let sources = listeners.iter().map(AsFd::as_fd).chain([stop.as_fd()]);
    let mut events: Vec<_> = sources.map(|source| PollFd::from_borrowed_fd(source, PollFlags::IN)).collect();
    // An interrupted wait returns no listener and is repeated by the caller.
    let _ = poll(&mut events, None::<&Timespec>);
    let due: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
    let (stops, due) = due.split_last()?;
    if *stops {
        return None;
    }
    Some(listeners.iter().zip(due).filter(|(_, due)| **due).map(|(listener, _)| listener).collect())
}

/// Takes one connection and leaves it to a thread, so that a slow program holds up no other.
fn accept(listener: &Listener, shared: &Arc<Shared>, greetings: &Arc<AtomicUsize>) -> io::Result<()> {
    let Some((socket, peer)) = listener.accept()? else { return Ok(()) };
    if !peer.allowed {
        let text = "only the user who runs the server, and root, may use it; start a server of your own";
        refuse_unheard(&socket, shared, RefusalCode::NOT_ALLOWED, text);
        shared.reporter.problem(format_args!("{}: refused: it belongs to another user", peer.name));
        return Ok(());
    }
    let Some(place) = Place::take(greetings) else {
        let text = "too many programs are connecting at once; try again in a few seconds";
        refuse_unheard(&socket, shared, RefusalCode::BUSY, text);
        return Ok(());
    };
    let (shared, certs) = (Arc::clone(shared), listener.certs().map(PathBuf::from));
    let builder = thread::Builder::new().name("greeting".to_owned());
    builder.spawn(move || greet(socket, &peer, certs.as_deref(), place, &shared)).map(drop)
}

/// Refuses before the hello was read, as well as that can be done without waiting.
fn refuse_unheard(socket: &OwnedFd, shared: &Shared, code: RefusalCode, text: &str) {
    if let Ok(message) = Refused::new(code, text).encode(&shared.build) {
        let _ = send(socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// One of the [`GREETINGS`] places.
struct Place(Arc<AtomicUsize>);

impl Place {
    /// `None` while all are taken.
    fn take(taken: &Arc<AtomicUsize>) -> Option<Self> {
        let more = |taken| (taken < GREETINGS).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Self(Arc::clone(taken)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Reads the hello and finds the program a worker.
fn greet(socket: OwnedFd, peer: &Peer, certs: Option<&Path>, place: Place, shared: &Shared) {
    let accepted = match certs {
        None => Pending::accept(socket, &shared.build, shared.hello_patience),
        // Read each time, so that a certificate can be renewed while the server runs.
        Some(folder) => Identity::read(folder)
            .map_err(AcceptError::from)
            .and_then(|identity| Pending::accept_sealed(socket, &shared.build, identity, shared.hello_patience)),
    };
    let pending = match accepted {
        Ok(pending) => pending,
        // Somebody only looked whether a server is here.
        Err(AcceptError::Closed) => return,
        Err(error) => return shared.reporter.note(format_args!("{}: refused: {error}", peer.name)),
    };
    drop(place);
    if pending.hello().claim.role == Role::INQUIRY {
        return inform(shared, pending, peer);
    }
    if let Err(refusal) = admit(shared, &pending, peer) {
        shared.reporter.problem(format_args!("{}: refused: {refusal}", printable(pending.hello().program.as_bytes())));
        pending.refuse(&shared.build, &Refused::new(refusal.code(), refusal.to_string()));
    }
}

/// Tells a peer which driver workers have, or why they have none.
fn inform(shared: &Shared, pending: Pending, peer: &Peer) {
    let driver = match shared.pool.driver(WORKER_PATIENCE) {
        Ok(driver) => driver.name,
        Err(error) => {
            let refusal = Refusal::from(error);
            return pending.refuse(&shared.build, &Refused::new(refusal.code(), refusal.to_string()));
        }
    };
    let ready = Ready { worker_pid: 0, key: SessionKey::NONE, driver, arenas: Vec::new() };
    if let Err(error) = pending.consent(&shared.build, &ready) {
        shared.reporter.note(format_args!("{}: could not be told the driver: {error}", peer.name));
    }
}

/// Gives the program a place in the table and a worker, or takes the place away again.
fn admit(shared: &Shared, pending: &Pending, peer: &Peer) -> Result<(), Refusal> {
    if pending.hello().session == SessionKind::NVML {
        return watch::answer(shared, pending).map_err(Refusal::Watch);
    }
    if ![SessionKind::CUDA, SessionKind::OPENCL].contains(&pending.hello().session) {
        return Err(Refusal::OtherKind);
    }
    if !pending.hello().claim.key.is_none() {
        return visit(shared, pending, peer);
    }
    let program = describe(pending.hello(), peer);
    let words = format!("{} (process {} from {}, {})", program.name, program.pid, program.peer, program.link);
    let id = shared.sessions.admit(program)?;
    match hand_over(shared, id, pending, peer) {
        Ok(worker) => {
            shared.reporter.note(format_args!("session {id} began: {words}, worker {}", worker.pid()));
            if pending.hello().session == SessionKind::CUDA {
                shared.began(worker.driver());
            }
            Ok(())
        }
        Err(refusal) => {
            shared.sessions.end(id);
            Err(refusal)
        }
    }
}

/// Passes a peer that knows the key of a session on to its worker.
fn visit(shared: &Shared, pending: &Pending, peer: &Peer) -> Result<(), Refusal> {
    let (id, worker) = shared.sessions.find(&pending.hello().claim.key).ok_or(Refusal::NoSession)?;
    worker.visit(id, |control| pending.hand_over(control, &shared.build, &[])).map_err(Refusal::Visit)?;
    if pending.hello().claim.role == Role::PROGRAM {
        // It may be another process than before, or the first one that this server sees of a restored session.
        shared.sessions.describe(id, describe(pending.hello(), peer));
        shared.reporter.note(format_args!("session {id} was taken up by process {}", pending.hello().pid));
    }
    Ok(())
}

/// What the table says of the program; its words are the peer's and are made printable.
fn describe(hello: &Hello, peer: &Peer) -> Program {
    let program = printable(hello.program.as_bytes());
    let name = if hello.name.is_empty() { program.clone() } else { printable(hello.name.as_bytes()) };
    let link = match hello.link {
        LinkKind::SHM => "shm",
        LinkKind::STREAM => "stream",
        _ => "unknown",
    };
    Program { name, pid: peer.pid.unwrap_or(hello.pid), program, peer: peer.name.clone(), link }
}

/// Passes the program to the next ready worker that is alive, and says which.
fn hand_over(shared: &Shared, id: SessionId, pending: &Pending, peer: &Peer) -> Result<Mind, Refusal> {
    let key = new_key().map_err(Refusal::NoKey)?;
    let processors = peer.is_own || shared.cpu_opencl;
    let note = Note { memory: shared.session_memory.unwrap_or(0), key, processors }.encode();
    let mut last = AssignError::Dead;
    for _ in 0..ATTEMPTS {
        let worker = shared.pool.take(WORKER_PATIENCE)?;
        shared.sessions.serve(id, &worker);
        shared.sessions.open(id, key, worker.clone());
        match worker.assign(id, |control| pending.hand_over(control, &shared.build, &note)) {
            Ok(()) => return Ok(worker),
            Err(error) => last = error,
        }
    }
    Err(Refusal::HandOver(last))
}
