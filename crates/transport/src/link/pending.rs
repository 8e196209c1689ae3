//! A program's connection on the server's side, before its session begins.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use katydid_wire::handshake::{
    Build, HandshakeError, Hello, LinkKind, MAX_HANDSHAKE_BYTES, Prefix, Ready, RefusalCode, Refused,
};
use rustix::net::{RecvFlags, SendFlags};
use thiserror::Error;

use crate::ipc::connection::Connection;
use crate::link::error::LinkError;
use crate::link::greeting::{pinned_length, receive_message};
use crate::os::descriptor::is_hung_up;
use crate::os::fdpass;
use crate::os::socket::{Deadline, tune};
use crate::shm::channel;
use crate::shm::layout::CHANNEL_BYTES;
use crate::tls::handshake;
use crate::tls::identity::{Identity, TlsError};
use crate::tls::record::{HANDSHAKE_RECORD, SEALS_BYTES, Seals};

/// Longest note that the server passes on with a program, in bytes.
const MAX_SERVER_NOTE_BYTES: usize = 64 * 1024;

/// Why a program's request failed. The program has got the reason already, where it could be sent.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The peer sent no complete hello in time.
    #[error("no hello within {seconds} s")]
    Deadline {
        /// The time limit, in seconds.
        seconds: u64,
    },
    /// The peer closed the connection before its hello was complete.
    #[error("the connection was closed before the hello was complete")]
    Closed,
    /// The hello is damaged, or from another build.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The program's shared memory breaks the protocol.
    #[error("the program's shared memory is unusable: {what}")]
    SharedMemory {
        /// What is wrong with the memory that the program passed.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("the handshake failed while trying to {doing}")]
    System {
        /// Operation that failed, in the infinitive.
        doing: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The link could not be opened.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer speaks TLS where the server does not, or the other way round.
    #[error("the peer speaks another protocol: {text}")]
    WrongProtocol {
        /// Text that the peer was sent.
        text: &'static str,
    },
}

/// A program that said hello and waits for its answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Pending {
    socket: Connection,
    hello: Hello,
    fds: Vec<OwnedFd>,
}

/// What a server sends to a worker.
#[derive(Debug)]
pub enum Delivery {
    /// A program or another connection of a session, with the server's note.
    Program(Box<Pending>, Vec<u8>),
    /// A line of text.
    Text(Vec<u8>),
}

impl Pending {
    /// Server: reads the hello of a program that has just connected. A program with a faulty hello gets the reason here.
    ///
    /// # Errors
    /// Why there is no program to hand over.
    pub fn accept(socket: OwnedFd, build: &Build, timeout: Duration) -> Result<Self, AcceptError> {
        let deadline = Deadline::after(timeout);
        match handshake::first_byte(socket.as_fd(), deadline).map_err(|source| unread(source, timeout))? {
            Some(HANDSHAKE_RECORD) => Err(refuse_protocol(&socket, build, PLAINTEXT_ONLY)),
            _ => Self::read(socket.into(), build, deadline, timeout),
        }
    }

    /// Server: reads the hello of a program that must speak TLS, with a certificate of the authority that `identity` names.
    ///
    /// # Errors
    /// As [`Pending::accept`]; [`AcceptError::Tls`].
    pub fn accept_encrypted(
        socket: OwnedFd,
        build: &Build,
        identity: Identity,
        timeout: Duration,
    ) -> Result<Self, AcceptError> {
        let deadline = Deadline::after(timeout);
        match handshake::first_byte(socket.as_fd(), deadline).map_err(|source| unread(source, timeout))? {
            Some(HANDSHAKE_RECORD) => {}
            None => return Err(AcceptError::Closed),
            Some(_) => return Err(refuse_protocol(&socket, build, TLS_ONLY)),
        }
        let seals = handshake::accept(socket.as_fd(), identity, deadline)?;
        Self::read(Connection::new(socket, Some(seals)), build, deadline, timeout)
    }

    /// Receives and decodes the hello.
    fn read(socket: Connection, build: &Build, deadline: Deadline, timeout: Duration) -> Result<Self, AcceptError> {
        let (message, fds) = receive_message(&socket, deadline).map_err(|source| unread(source, timeout))?;
        let decoded = Hello::decode(&message, build).map_err(AcceptError::from);
        match decoded.and_then(|hello| check_link(&hello, &fds).map(|()| hello)) {
            Ok(hello) => Ok(Self { socket, hello, fds }),
            Err(error) => {
                refuse(&socket, build, &refusal(&error));
                Err(error)
            }
        }
    }

    /// Returns the program's hello.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns the connection, to look up the peer's credentials.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the memory of the pinned arena, which never becomes shorter than found; none on stream links.
    #[must_use]
    pub fn pinned(&self) -> Option<BorrowedFd<'_>> {
        self.fds.get(1).map(AsFd::as_fd)
    }

    /// Tells the program that there will be no session, as well as that can be done without waiting.
    pub fn refuse(self, build: &Build, refused: &Refused) {
        refuse(&self.socket, build, refused);
    }

    /// Server: passes program and `note` (the server's own text, at most 64 KiB) to a worker, over a socket pair of type
    /// `SOCK_SEQPACKET`. After success the program is the worker's: drop this value. After a failure another worker may be tried.
    /// It never waits.
    ///
    /// # Errors
    /// The system's error: `EPIPE` when the worker is gone, [`io::ErrorKind::WouldBlock`] when it has not read earlier packets.
    pub fn hand_over(&self, worker: impl AsFd, build: &Build, note: &[u8]) -> Result<(), AcceptError> {
        if note.len() > MAX_SERVER_NOTE_BYTES {
            return Err(HandshakeError::TooLarge { what: "the server's note", limit: MAX_SERVER_NOTE_BYTES }.into());
        }
        let hello = self.hello.encode(build)?;
        let fds: Vec<BorrowedFd<'_>> =
            [self.socket.as_fd()].into_iter().chain(self.fds.iter().map(AsFd::as_fd)).collect();
        let secrets = self.socket.secrets().unwrap_or_else(|| vec![0; SEALS_BYTES]);
        let parts = [IoSlice::new(&hello), IoSlice::new(&secrets), IoSlice::new(note)];
        let sent = fdpass::send_at_once(worker.as_fd(), &parts, &fds);
        sent.map(|_| ()).map_err(|source| AcceptError::System { doing: "hand a program over to its worker", source })
    }

    /// Worker: waits for a program, where the server sends no text yet. Returns none once the server has closed its end, so that
    /// no program will come.
    ///
    /// # Errors
    /// The server is of another build, or the system refused.
    pub fn receive(server: impl AsFd, build: &Build) -> Result<Option<(Self, Vec<u8>)>, AcceptError> {
        match Self::receive_any(&server, build)? {
            Some(Delivery::Program(program, note)) => Ok(Some((*program, note))),
            Some(Delivery::Text(_)) => Err(HandshakeError::Damaged { what: "the hand-over has no program" }.into()),
            None => Ok(None),
        }
    }

    /// Worker: waits for a program, or for a line of text from the server, which comes without descriptors. Returns none as
    /// [`Pending::receive`] does.
    ///
    /// # Errors
    /// As [`Pending::receive`].
    pub fn receive_any(server: impl AsFd, build: &Build) -> Result<Option<Delivery>, AcceptError> {
        let mut packet = vec![0; MAX_HANDSHAKE_BYTES + SEALS_BYTES + MAX_SERVER_NOTE_BYTES];
        let (length, mut fds) = fdpass::receive(server.as_fd(), &mut packet, RecvFlags::empty())
            .map_err(|source| AcceptError::System { doing: "wait for a program", source })?;
        if length == 0 {
            return Ok(None);
        }
        packet.truncate(length);
        if fds.is_empty() {
            return Ok(Some(Delivery::Text(packet)));
        }
        let damaged = HandshakeError::Damaged { what: "the hand-over is not whole" };
        let prefix = packet.first_chunk().map(Prefix::decode).transpose()?;
        let hello_length = prefix.map(|prefix| prefix.length).filter(|hello| *hello <= length);
        let tail = packet.split_off(hello_length.ok_or(damaged.clone())?);
        let hello = Hello::decode(&packet, build)?;
        let (secrets, note) = tail.split_first_chunk::<SEALS_BYTES>().ok_or(damaged.clone())?;
        let seals = (secrets[0] != 0).then(|| Seals::decode(secrets).ok_or(damaged)).transpose()?;
        let (socket, note) = (Connection::new(fds.remove(0), seals), note.to_vec());
        Ok(Some(Delivery::Program(Box::new(Self { socket, hello, fds }), note)))
    }

    /// Worker: tells the peer that it is served, and returns the connection.
    ///
    /// # Errors
    /// The peer is gone.
    pub fn consent(self, build: &Build, ready: &Ready) -> Result<Connection, AcceptError> {
        self.consent_with(build, ready, None)
    }

    /// Worker: tells a program that it is served, and gives it the memory of the staging pieces, if its link has some.
    pub(crate) fn consent_with(
        self,
        build: &Build,
        ready: &Ready,
        pieces: Option<BorrowedFd<'_>>,
    ) -> Result<Connection, AcceptError> {
        let failed = |source| AcceptError::System { doing: "answer the program", source };
        let message = ready.encode(build)?;
        tune(&self.socket, self.hello.link_timeout).map_err(failed)?;
        self.socket.send_with(&message, pieces.as_slice()).map_err(failed)?;
        Ok(self.socket)
    }

    /// Returns the connection, the hello, and the descriptors that came with it.
    pub(crate) fn into_parts(self) -> (Connection, Hello, Vec<OwnedFd>) {
        (self.socket, self.hello, self.fds)
    }

    /// Returns the descriptors that came with the hello.
    pub(crate) fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }
}

/// Waits for the program to go.
#[derive(Debug)]
pub struct Hangup {
    socket: Arc<Connection>,
}

impl Hangup {
    pub(crate) fn new(socket: Arc<Connection>) -> Self {
        Self { socket }
    }

    /// Waits until the program has closed its end, or its process has ended.
    pub fn wait(&self) {
        while !is_hung_up(self.socket.as_fd(), None) {}
    }
}

/// Checks that the descriptors are those of the requested link.
pub(crate) fn check_link(hello: &Hello, fds: &[OwnedFd]) -> Result<(), AcceptError> {
    let unusable = |what| AcceptError::SharedMemory { what };
    let has_pinned = pinned_length(hello).is_some();
    match (hello.link, fds) {
        (LinkKind::STREAM, []) => Ok(()),
        (LinkKind::SHM, [channel, rest @ ..]) if rest.len() == usize::from(has_pinned) => {
            channel::check(channel, CHANNEL_BYTES as u64).map_err(unusable)?;
            rest.iter().try_for_each(channel::check_growing).map_err(unusable)
        }
        (LinkKind::SHM | LinkKind::STREAM, _) => Err(unusable("not the descriptors that such a link has")),
        _ => Err(unusable("this build does not know that kind of link")),
    }
}

pub(crate) fn refusal(error: &AcceptError) -> Refused {
    match error {
        AcceptError::Handshake(error) => Refused::from(error),
        other => Refused::new(RefusalCode::BAD_HELLO, other.to_string()),
    }
}

/// Sends a refusal. Does not wait for a program that is gone or does not read.
fn refuse(socket: &Connection, build: &Build, refused: &Refused) {
    if let Ok(message) = refused.encode(build) {
        socket.send_at_once(&message);
    }
}

const TLS_ONLY: &str = "this address takes TLS only: use tls://HOST:PORT and --certs DIR";
const PLAINTEXT_ONLY: &str = "this address does not speak TLS: use tcp://HOST:PORT, or a server that listens on tls://";

/// Refuses, in plain text, a program that speaks TLS where the server does not, or the other way round.
fn refuse_protocol(socket: &OwnedFd, build: &Build, text: &'static str) -> AcceptError {
    if let Ok(message) = Refused::new(RefusalCode::NOT_ALLOWED, text).encode(build) {
        let sent = rustix::net::send(socket, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        if sent.is_ok() {
            handshake::part(socket.as_fd());
        }
    }
    AcceptError::WrongProtocol { text }
}

/// Translates the error of reading a hello.
fn unread(source: io::Error, timeout: Duration) -> AcceptError {
    match source.kind() {
        io::ErrorKind::TimedOut => AcceptError::Deadline { seconds: timeout.as_secs() },
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => AcceptError::Closed,
        _ => AcceptError::System { doing: "read a hello", source },
    }
}
