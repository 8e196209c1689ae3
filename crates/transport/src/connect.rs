//! The program's way to a session.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use katydid_wire::SPEC_HASH;
use katydid_wire::companion::MAX_MESSAGE;
use katydid_wire::handshake::{
    ArenaKind, Build, Claim, HandshakeError, Hello, LINK_TIMEOUT, LinkKind, PREFIX, Prefix, Ready, RefusalCode, Role,
    SessionKind,
};
use katydid_wire::key::SessionKey;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use thiserror::Error;

use crate::area;
use crate::channel;
use crate::home::Home;
use crate::shm::ShmProgram;
use crate::socket::{Deadline, tune};
use crate::stream::StreamProgram;
use crate::tls::{self, Alert, Unsealed};
use crate::{Address, Identity, Line, LinkError, ProgramLink, Talk, TlsError, vsock};

/// A session that has begun.
pub struct Connection {
    /// The program's end.
    pub link: Box<dyn ProgramLink>,
    /// What the worker answered; its arenas are a choice out of the hello's.
    pub ready: Ready,
    /// The memory of the pinned arena; none on stream links. Offset 0 is the arena's base, and what the arena has beyond the
    /// memory's length is made by [`ProgramLink::lengthen_pinned`].
    pub pinned: Option<OwnedFd>,
}

/// Why there is no session.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// Nobody answers at the address.
    #[error("cannot reach a server at {address} ({source}); start one with: katydid serve --listen {address}")]
    Unreachable {
        /// Where.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// The server took the connection and then did not answer in time.
    #[error("the server at {address} did not answer within {seconds} s; is it overloaded? see its log")]
    Deadline {
        /// Where.
        address: Address,
        /// The time it had.
        seconds: u64,
    },
    /// The server refused, or its answer was none.
    #[error("{address}: {source}")]
    Handshake {
        /// Where.
        address: Address,
        /// The reason.
        source: HandshakeError,
    },
    /// The two sides did not come to speak TLS.
    #[error("{address}: {source}")]
    Tls {
        /// Where.
        address: Address,
        /// Why not.
        source: TlsError,
    },
    /// Shared memory was asked for beyond this machine.
    #[error("{address}: shared memory reaches this machine only; use a stream link")]
    NoSharedMemory {
        /// Where.
        address: Address,
    },
    /// The connection or the shared memory failed on this side.
    #[error("{address}: {source}")]
    Link {
        /// Where.
        address: Address,
        /// What failed.
        source: LinkError,
    },
}

/// Asks the server at `address` for a session and waits at most `timeout` for the worker's answer.
///
/// `hello.link` says which link to make ([`Address::best_link`]); shared memory is made here.
///
/// # Errors
/// A [`ConnectError`] that names the address and the remedy.
pub fn connect(address: &Address, hello: &Hello, build: &Build, timeout: Duration) -> Result<Connection, ConnectError> {
    let memory = Memory::create(address, hello)?;
    let consent = greet(address, hello, build, &memory.descriptors(), timeout)?;
    let ready = consent.ready.clone();
    let failed = |source| ConnectError::Link { address: address.clone(), source };
    let pinned = memory.pinned.as_ref().map(|pinned| pinned.try_clone()).transpose();
    let pinned = pinned.map_err(LinkError::system("keep the shared memory")).map_err(failed)?;
    let link = memory.into_link(consent, address, hello, build).map_err(failed)?;
    Ok(Connection { link, ready, pinned })
}

/// What a worker answers.
pub(crate) struct Consent {
    pub(crate) line: Line,
    pub(crate) ready: Ready,
    /// The memory of the staging pieces, on links that have one.
    pub(crate) pieces: Option<OwnedFd>,
}

/// Connects, says hello with `fds`, and waits for the consent. A server that is too busy to listen is asked again, less and
/// less often, until `timeout` is over.
pub(crate) fn greet(
    address: &Address,
    hello: &Hello,
    build: &Build,
    fds: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<Consent, ConnectError> {
    let (deadline, mut again) = (Deadline::after(timeout), Again::default());
    loop {
        let error = match greet_once(address, hello, build, fds, (deadline, timeout)) {
            Err(error) if again.is_wanted(&error) => error,
            outcome => return outcome,
        };
        let pause = again.pause();
        if pause >= deadline.left() {
            return Err(error);
        }
        thread::sleep(pause);
    }
}

/// Whether a server is asked again, and when.
#[derive(Debug, Default)]
struct Again {
    tries: u32,
    /// Connections that ended without a word.
    cut: u32,
}

impl Again {
    /// Before the second try, and at most.
    const FIRST: Duration = Duration::from_millis(20);
    const LAST: Duration = Duration::from_secs(1);
    /// A server that closes connections without a word may be none of ours.
    const MOST_CUT: u32 = 4;

    fn is_wanted(&mut self, error: &ConnectError) -> bool {
        let is_cut =
            |source: &io::Error| matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset);
        // A server behind TLS cannot say in the middle of a handshake that it needs the place for another program. The handshake is over
        // on this side before it is on the server's.
        let is_without_a_word = match error {
            ConnectError::Handshake { source: HandshakeError::Refused(refused), .. } => {
                return refused.code == RefusalCode::CROWDED;
            }
            ConnectError::Tls { source: TlsError::System(source), .. } => is_cut(source),
            ConnectError::Link { address: Address::Tls { .. }, source } => match source {
                LinkError::Closed => true,
                LinkError::System { source, .. } => is_cut(source),
                _ => false,
            },
            _ => false,
        };
        self.cut += u32::from(is_without_a_word);
        is_without_a_word && self.cut < Self::MOST_CUT
    }

    /// Programs that were refused at the same moment do not come back at the same moment.
    fn pause(&mut self) -> Duration {
        let pause = Self::LAST.min(Self::FIRST * 2_u32.saturating_pow(self.tries));
        self.tries += 1;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        let spread = now.wrapping_mul(2_654_435_761).wrapping_add(std::process::id().wrapping_mul(40_503)) % 512;
        pause / 2 + pause * spread / 512
    }
}

fn greet_once(
    address: &Address,
    hello: &Hello,
    build: &Build,
    fds: &[BorrowedFd<'_>],
    (deadline, timeout): (Deadline, Duration),
) -> Result<Consent, ConnectError> {
    let at = address.clone();
    let handshake = |source| ConnectError::Handshake { address: at.clone(), source };
    let link = |source| ConnectError::Link { address: at.clone(), source };
    let message = hello.encode(build).map_err(handshake)?;
    let socket = open(address, deadline)
        .and_then(|socket| tune(&socket, hello.link_timeout).map(|()| socket))
        .map_err(|source| ConnectError::Unreachable { address: at.clone(), source })?;
    let sealing = |source| match source {
        TlsError::System(error) if error.kind() == io::ErrorKind::TimedOut => {
            ConnectError::Deadline { address: at.clone(), seconds: timeout.as_secs() }
        }
        source => ConnectError::Tls { address: at.clone(), source },
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::TimedOut => ConnectError::Deadline { address: at.clone(), seconds: timeout.as_secs() },
        io::ErrorKind::UnexpectedEof => link(LinkError::Closed),
        _ => match source.get_ref().and_then(|inner| inner.downcast_ref::<Alert>()) {
            Some(alert) => sealing(TlsError::Refused { reason: alert.reason() }),
            None => link(LinkError::System { doing: "exchange greetings with the server", source }),
        },
    };
    let unsealed = |unsealed| match unsealed {
        Unsealed::Failed(error) => sealing(error),
        Unsealed::Plain(socket) => match receive_message(&socket.into(), deadline) {
            Ok((answer, _)) => Ready::decode(&answer, build).err().map_or(sealing(TlsError::Plain), handshake),
            Err(unread) => failed(unread),
        },
    };
    let line = seal(address, socket, deadline).map_err(unsealed)?;
    // A server that refuses early has answered before it has read all, so the answer counts, not a failed sending.
    let sent = line.send_with(&message, fds);
    let answered = receive_message(&line, deadline);
    let (answer, fds) = answered.map_err(|unread| failed(sent.err().unwrap_or(unread)))?;
    let ready = Ready::decode(&answer, build).map_err(handshake)?;
    let pieces = check_pieces(hello.link, fds).map_err(|what| link(LinkError::Protocol { what }))?;
    Ok(Consent { line, ready, pieces })
}

/// The descriptor that comes with the consent to a link by shared memory, and with no other.
fn check_pieces(link: LinkKind, mut fds: Vec<OwnedFd>) -> Result<Option<OwnedFd>, &'static str> {
    let pieces = fds.pop();
    if !fds.is_empty() || pieces.is_some() != (link == LinkKind::SHM) {
        return Err("the answer came with other descriptors than such a link has");
    }
    pieces.as_ref().map_or(Ok(()), |pieces| channel::check(pieces, area::LENGTH as u64))?;
    Ok(pieces)
}

/// Makes the connection one that speaks TLS, if its address says so.
fn seal(address: &Address, socket: OwnedFd, deadline: Deadline) -> Result<Line, Unsealed> {
    let Address::Tls { host, certs, .. } = address else { return Ok(socket.into()) };
    let identity = Identity::read(certs.as_ref().ok_or(TlsError::NoFolder)?)?;
    identity.check()?;
    tls::connect(socket, host, identity, deadline)
}

/// Bytes that the pinned memory has at first. More is made as the program pins it: CRIU looks at every page of a memory
/// file, holes too, and `mlockall` fills all of them.
pub(crate) const PINNED: u64 = 16 << 20;

/// The shared memory of a link to be: none of a stream link.
struct Memory {
    channel: Option<OwnedFd>,
    pinned: Option<OwnedFd>,
}

impl Memory {
    fn create(address: &Address, hello: &Hello) -> Result<Self, ConnectError> {
        if hello.link != LinkKind::SHM {
            return Ok(Self { channel: None, pinned: None });
        }
        if !matches!(address, Address::Unix(_)) {
            return Err(ConnectError::NoSharedMemory { address: address.clone() });
        }
        let failed = |source| {
            let source = LinkError::System { doing: "make shared memory", source };
            ConnectError::Link { address: address.clone(), source }
        };
        let channel = channel::create("katydid-channel", channel::LENGTH as u64).map_err(failed)?;
        let pinned = pinned_length(hello).map(|length| length.min(PINNED));
        let pinned = pinned.map(|length| channel::create_growing("katydid-pinned", length)).transpose();
        Ok(Self { channel: Some(channel), pinned: pinned.map_err(failed)? })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.channel.iter().chain(&self.pinned).map(AsFd::as_fd).collect()
    }

    fn into_link(
        self,
        consent: Consent,
        address: &Address,
        hello: &Hello,
        build: &Build,
    ) -> Result<Box<dyn ProgramLink>, LinkError> {
        let home = Home::new(address, hello, build, &consent.ready);
        Ok(match (self.channel, consent.pieces) {
            (Some(channel), Some(pieces)) => {
                Box::new(ShmProgram::new(consent.line.into_parts().0, channel, self.pinned, &pieces, home)?)
            }
            _ => Box::new(StreamProgram::new(consent.line, home)?),
        })
    }
}

/// Bytes that the pinned memory may come to have, whichever of its ranges the worker chooses.
pub(crate) fn pinned_length(hello: &Hello) -> Option<u64> {
    hello.arenas.iter().filter(|arena| arena.kind == ArenaKind::PINNED).map(|arena| arena.length).max()
}

/// Receives one handshake message of any kind, and the descriptors that came with its first byte.
pub(crate) fn receive_message(line: &Line, deadline: Deadline) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut message = vec![0; PREFIX];
    let (begun, fds) = line.receive_first(&mut message, deadline)?;
    if begun == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.receive_by(&mut message[begun..], deadline)?;
    // A message whose prefix is no good is refused with that prefix by whoever decodes it.
    if let Some(Ok(prefix)) = message.first_chunk().map(Prefix::decode) {
        message.resize(prefix.length, 0);
        line.receive_by(&mut message[PREFIX..], deadline)?;
    }
    Ok((message, fds))
}

fn open(address: &Address, deadline: Deadline) -> io::Result<OwnedFd> {
    match address {
        Address::Unix(path) => open_unix(path, deadline),
        Address::Tcp { host, port } | Address::Tls { host, port, .. } => open_tcp(host, *port, deadline),
        Address::Vsock { cid, port } => vsock::open(*cid, *port),
    }
}

/// A server whose queue of connections is full makes the call wait; the timeout for sending bounds that.
fn open_unix(path: &Path, deadline: Deadline) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(deadline.left()))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

/// Connects to one of the numbers that the name stands for.
fn open_tcp(host: &str, port: u16, deadline: Deadline) -> io::Result<OwnedFd> {
    let numbers: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    open_first(&numbers, deadline)
}

/// Tries one number after the other. One that does not answer leaves as much time to each that follows as it had: a host may
/// have one in a network that is not reached from here.
fn open_first(numbers: &[SocketAddr], deadline: Deadline) -> io::Result<OwnedFd> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host's name stands for no number");
    for (number, left) in numbers.iter().zip((1..=numbers.len() as u32).rev()) {
        match TcpStream::connect_timeout(number, deadline.left() / left) {
            Ok(stream) => return Ok(stream.into()),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Asks the server at `address` which driver it has, and waits for one at most `timeout`.
///
/// # Errors
/// As [`connect`]; a server that has no driver refuses with the reason.
pub fn driver_at(address: &Address, timeout: Duration) -> Result<String, ConnectError> {
    let hello = hello_without_session(Role::INQUIRY, SessionKey::NONE);
    greet(address, &hello, &Build::current(SPEC_HASH), &[], timeout).map(|consent| consent.ready.driver)
}

/// What a peer says that is no program.
fn hello_without_session(role: Role, key: SessionKey) -> Hello {
    Hello {
        session: SessionKind::CUDA,
        claim: Claim { role, key, frames: 0 },
        link: LinkKind::STREAM,
        pid: std::process::id(),
        memory_quota: 0,
        program: "katydid".to_owned(),
        name: String::new(),
        arenas: Vec::new(),
        link_timeout: LINK_TIMEOUT,
    }
}

/// Asks the server at `address` for the companion connection to the session `key`; without one, to a worker that will
/// rebuild a session, whose new key is in the answer.
///
/// # Errors
/// As [`connect`].
pub fn companion(address: &Address, key: SessionKey, timeout: Duration) -> Result<(Talk, Ready), ConnectError> {
    let hello = hello_without_session(Role::COMPANION, key);
    let Consent { line, ready, .. } = greet(address, &hello, &Build::current(SPEC_HASH), &[], timeout)?;
    let talk = Talk::over(line, MAX_MESSAGE).map_err(|source| {
        let source = LinkError::System { doing: "prepare the connection", source };
        ConnectError::Link { address: address.clone(), source }
    })?;
    Ok((talk, ready))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_that_ends_without_a_word_is_tried_again_behind_tls_alone() {
        let closed =
            |address: &str| ConnectError::Link { address: address.parse().unwrap(), source: LinkError::Closed };
        let mut again = Again::default();
        let wanted = [0; 4].map(|_| again.is_wanted(&closed("tls://gpu:9923")));
        assert_eq!(wanted, [true, true, true, false], "it may be no server of ours");
        assert!(!Again::default().is_wanted(&closed("tcp://gpu:9923")));
    }

    #[test]
    fn a_number_that_does_not_answer_leaves_time_for_the_next() {
        const SHORT: Duration = Duration::from_millis(50);
        // A listener whose queue is full: the system passes over whoever wants to connect.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let number = silent.local_addr().unwrap();
        let connected = std::iter::from_fn(|| TcpStream::connect_timeout(&number, SHORT).ok());
        let _queue: Vec<TcpStream> = connected.collect();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let deadline = Deadline::after(Duration::from_secs(4));
        assert!(open_first(&[number, good.local_addr().unwrap()], deadline).is_ok());
        assert!(!deadline.has_passed());
        assert!(open_first(&[number], Deadline::after(SHORT)).is_err() && open_first(&[], deadline).is_err());
    }
}
