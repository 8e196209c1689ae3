//! The handshake that opens a connection: the hello, the answer, and retries while a server is too busy.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, SystemTime};

use katydid_wire::handshake::{
    ArenaKind, Build, HandshakeError, Hello, LinkKind, PREFIX_BYTES, Prefix, Ready, RefusalCode,
};
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use crate::ipc::connection::Connection;
use crate::link::address::Address;
use crate::link::error::{ConnectError, LinkError};
use crate::os::socket::{Deadline, tune};
use crate::os::vsock;
use crate::shm::channel;
use crate::shm::layout::STAGING_BYTES;
use crate::tls::handshake;
use crate::tls::handshake::NoEncryption;
use crate::tls::identity::{Identity, TlsError};
use crate::tls::record::Alert;

/// The worker's answer.
pub(crate) struct AcceptedConnection {
    pub(crate) connection: Connection,
    pub(crate) ready: Ready,
    /// The memory of the staging pieces, on links that have one.
    pub(crate) pieces: Option<OwnedFd>,
}

/// Connects, sends the hello with `fds`, and waits for consent. A server that is too busy to listen is asked again, at growing
/// intervals, until `timeout` is over.
pub(crate) fn greet(
    address: &Address,
    hello: &Hello,
    build: &Build,
    fds: &[BorrowedFd<'_>],
    timeout: Duration,
) -> Result<AcceptedConnection, ConnectError> {
    let (deadline, mut again) = (Deadline::after(timeout), ConnectRetry::default());
    loop {
        let error = match greet_once(address, hello, build, fds, (deadline, timeout)) {
            Err(error) if again.may_retry(&error) => error,
            outcome => return outcome,
        };
        let pause = again.pause();
        if pause >= deadline.remaining() {
            return Err(error);
        }
        thread::sleep(pause);
    }
}

/// Whether and when to ask a server again.
#[derive(Debug, Default)]
struct ConnectRetry {
    tries: u32,
    /// Connections that ended without an answer.
    cut: u32,
}

impl ConnectRetry {
    /// The pause before the second try, and the longest one.
    const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
    const MAX_RETRY_PAUSE: Duration = Duration::from_secs(1);
    /// A server that closes connections without an answer may not be Katydid's: the error comes after some 2 s.
    const MAX_CUT_CONNECTIONS: u32 = 8;

    fn may_retry(&mut self, error: &ConnectError) -> bool {
        // The kind of error says where this side was: it read, wrote what the other one has not read, or wrote later.
        let is_cut = |source: &io::Error| {
            use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
            matches!(source.kind(), UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe)
        };
        // A server behind TLS cannot say in the middle of a handshake that it needs the slot for another program. The handshake
        // ends on this side before it ends on the server's.
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
        is_without_a_word && self.cut < Self::MAX_CUT_CONNECTIONS
    }

    /// Returns the next pause. Programs that were refused at the same moment get different ones.
    fn pause(&mut self) -> Duration {
        let pause = Self::MAX_RETRY_PAUSE.min(Self::FIRST_RETRY_PAUSE * 2_u32.saturating_pow(self.tries));
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
) -> Result<AcceptedConnection, ConnectError> {
    let at = address.clone();
    let handshake = |source| ConnectError::Handshake { address: at.clone(), source };
    let link = |source| ConnectError::Link { address: at.clone(), source };
    let message = hello.encode(build).map_err(handshake)?;
    let socket = open(address, deadline)
        .and_then(|socket| tune(&socket, hello.link_timeout).map(|()| socket))
        .map_err(|source| ConnectError::Unreachable { address: at.clone(), source })?;
    let tls_failed = |source| match source {
        TlsError::System(error) if error.kind() == io::ErrorKind::TimedOut => {
            ConnectError::Deadline { address: at.clone(), seconds: timeout.as_secs() }
        }
        source => ConnectError::Tls { address: at.clone(), source },
    };
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::TimedOut => ConnectError::Deadline { address: at.clone(), seconds: timeout.as_secs() },
        io::ErrorKind::UnexpectedEof => link(LinkError::Closed),
        _ => match source.get_ref().and_then(|inner| inner.downcast_ref::<Alert>()) {
            Some(alert) => tls_failed(TlsError::Refused { reason: alert.reason() }),
            None => link(LinkError::System { doing: "exchange greetings with the server", source }),
        },
    };
    let unencrypted = |refusal| match refusal {
        NoEncryption::Failed(error) => tls_failed(error),
        NoEncryption::Plain(socket) => match receive_message(&socket.into(), deadline) {
            Ok((answer, _)) => Ready::decode(&answer, build).err().map_or(tls_failed(TlsError::Plain), handshake),
            Err(unread) => failed(unread),
        },
    };
    let connection = encrypt(address, socket, deadline).map_err(unencrypted)?;
    // A server that refuses early answers before it has read everything. So the answer counts, not a failed send.
    let sent = connection.send_with(&message, fds);
    let answered = receive_message(&connection, deadline);
    let (answer, fds) = answered.map_err(|unread| failed(sent.err().unwrap_or(unread)))?;
    let ready = Ready::decode(&answer, build).map_err(handshake)?;
    let pieces = check_pieces(hello.link, fds).map_err(|what| link(LinkError::Protocol { what }))?;
    Ok(AcceptedConnection { connection, ready, pieces })
}

/// Returns the descriptor that comes with the consent to a shared-memory link, and with no other.
fn check_pieces(link: LinkKind, mut fds: Vec<OwnedFd>) -> Result<Option<OwnedFd>, &'static str> {
    let pieces = fds.pop();
    if !fds.is_empty() || pieces.is_some() != (link == LinkKind::SHM) {
        return Err("the answer came with other descriptors than such a link has");
    }
    pieces.as_ref().map_or(Ok(()), |pieces| channel::check(pieces, STAGING_BYTES as u64))?;
    Ok(pieces)
}

/// Starts TLS on the connection, if its address asks for it.
fn encrypt(address: &Address, socket: OwnedFd, deadline: Deadline) -> Result<Connection, NoEncryption> {
    let Address::Tls { host, certs, .. } = address else { return Ok(socket.into()) };
    let identity = Identity::read(certs.as_ref().ok_or(TlsError::NoFolder)?)?;
    identity.check()?;
    handshake::connect(socket, host, identity, deadline)
}

/// Returns the most bytes that the pinned memory may have, whichever range the worker chooses.
pub(crate) fn pinned_length(hello: &Hello) -> Option<u64> {
    hello.arenas.iter().filter(|arena| arena.kind == ArenaKind::PINNED).map(|arena| arena.length).max()
}

/// Receives one handshake message of any kind, and the descriptors that came with its first byte.
pub(crate) fn receive_message(connection: &Connection, deadline: Deadline) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut message = vec![0; PREFIX_BYTES];
    let (read_length, fds) = connection.receive_first(&mut message, deadline)?;
    if read_length == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    connection.receive_by(&mut message[read_length..], deadline)?;
    // The decoder refuses a message with a bad prefix.
    if let Some(Ok(prefix)) = message.first_chunk().map(Prefix::decode) {
        message.resize(prefix.length, 0);
        connection.receive_by(&mut message[PREFIX_BYTES..], deadline)?;
    }
    Ok((message, fds))
}

fn open(address: &Address, deadline: Deadline) -> io::Result<OwnedFd> {
    match address {
        Address::Unix(path) => open_unix(path, deadline),
        Address::Tcp { host, port } | Address::Tls { host, port, .. } => open_tcp(host, *port, deadline),
        Address::Vsock { cid, port } => connect_until(deadline, |_| vsock::open(*cid, *port)),
    }
}

/// Connects to a unix socket. A server with a full queue of connections makes the call wait; the send timeout bounds that.
fn open_unix(path: &Path, deadline: Deadline) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(deadline.remaining()))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    sockopt::set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket)
}

/// Connects to one of the addresses that the name resolves to.
fn open_tcp(host: &str, port: u16, deadline: Deadline) -> io::Result<OwnedFd> {
    let numbers: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    open_first(&numbers, deadline)
}

/// Tries one address after the other. Each gets an equal share of the time left: a host may have an address in a network that is
/// not reachable from here.
fn open_first(numbers: &[SocketAddr], deadline: Deadline) -> io::Result<OwnedFd> {
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host's name stands for no number");
    for (number, left) in numbers.iter().zip((1..=numbers.len() as u32).rev()) {
        let connect = |remaining| TcpStream::connect_timeout(number, remaining);
        match connect_until(Deadline::after(deadline.remaining() / left), connect) {
            Ok(stream) => return Ok(stream.into()),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Connects by `connect`, which gets the time that it may take. The system gives up by itself after two minutes for TCP
/// (`tcp_syn_retries`) and two seconds for vsock, but a server may take longer to accept.
fn connect_until<T>(deadline: Deadline, mut connect: impl FnMut(Duration) -> io::Result<T>) -> io::Result<T> {
    loop {
        match connect(deadline.remaining()) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::TIMEDOUT) && !deadline.has_passed() => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_connection_that_ends_without_a_word_is_tried_again_behind_tls_alone() {
        let closed =
            |address: &str| ConnectError::Link { address: address.parse().unwrap(), source: LinkError::Closed };
        let mut again = ConnectRetry::default();
        let retries = [0; 8].map(|_| again.may_retry(&closed("tls://gpu:9923")));
        assert_eq!(retries, [true, true, true, true, true, true, true, false], "it may not be a server of ours");
        assert!(!ConnectRetry::default().may_retry(&closed("tcp://gpu:9923")));
    }

    #[test]
    fn a_handshake_that_the_other_side_cuts_off_is_begun_again_wherever_this_side_was() {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, PermissionDenied, UnexpectedEof};
        let address: Address = "tls://gpu:9923".parse().unwrap();
        let may_retry = |kind: io::ErrorKind| {
            let (tls, link) =
                (TlsError::System(kind.into()), LinkError::System { doing: "greet", source: kind.into() });
            let tls_error = ConnectError::Tls { address: address.clone(), source: tls };
            let link_error = ConnectError::Link { address: address.clone(), source: link };
            [tls_error, link_error].map(|error| ConnectRetry::default().may_retry(&error))
        };
        for kind in [UnexpectedEof, ConnectionReset, ConnectionAborted, BrokenPipe] {
            assert_eq!(may_retry(kind), [true; 2], "{kind}");
        }
        assert_eq!(may_retry(PermissionDenied), [false; 2]);
    }

    #[test]
    fn a_server_that_accepts_late_is_reached_within_the_timeout() {
        // While a listener's queue is full, the system drops further connections, and sends each again after 1, 3 and 7 s.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let number = listener.local_addr().unwrap();
        let queued = || TcpStream::connect_timeout(&number, Duration::from_millis(50)).ok();
        let _queue: Vec<TcpStream> = std::iter::from_fn(queued).collect();
        thread::spawn(move || {
            thread::sleep(Duration::from_secs(6));
            while listener.accept().is_ok() {}
        });
        assert!(open_first(&[number], Deadline::after(Duration::from_secs(3600))).is_ok());
    }

    #[test]
    fn a_connection_that_the_system_gives_up_is_tried_again_until_the_deadline() {
        let mut tries = 0;
        let mut third_time = |_| {
            tries += 1;
            if tries < 3 { Err(Errno::TIMEDOUT.into()) } else { Ok(tries) }
        };
        assert_eq!(connect_until(Deadline::after(Duration::from_secs(3600)), &mut third_time).unwrap(), 3);
        let refused = |_| Err::<(), _>(Errno::CONNREFUSED.into());
        let error = connect_until(Deadline::after(Duration::from_secs(3600)), refused).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let late = |_| Err::<(), _>(Errno::TIMEDOUT.into());
        assert!(connect_until(Deadline::after(Duration::ZERO), late).is_err());
    }

    #[test]
    fn a_number_that_does_not_answer_leaves_time_for_the_next() {
        const SHORT: Duration = Duration::from_millis(50);
        // A listener whose queue is full: the system drops further connections.
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
