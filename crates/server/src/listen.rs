//! Binds the sockets of a server.
//!
//! The file of a unix socket has mode 0600 from its creation. A socket file without a server behind it is replaced, one with a
//! live server is not. TCP and vsock are refused beyond this machine unless the operator insists. TCP with TLS is allowed, since
//! no process is admitted there without a certificate.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use katydid_transport::{Address, TlsError, bind_vsock, vsock_peer, vsock_port};
use rustix::fs::{Mode, fchmod};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::geteuid;

use crate::slots::PeerOrigin;

/// Connections that may wait to be accepted: hostile peers may make many while the server gets no time. The system's limit may be
/// lower (`net.core.somaxconn`).
const LISTEN_BACKLOG: i32 = 4096;

/// Mode of a socket's file.
const SOCKET_MODE: u32 = 0o600;

/// Why a server cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server answers on the socket.
    #[error("{path}: a server is listening there already; stop it, or give --listen (or --admin) another path")]
    Live {
        /// Path of the socket.
        path: PathBuf,
    },
    /// The path has a file that is not a socket, which the server must not remove.
    #[error("{path}: exists and is not a socket; remove it, or give another path")]
    NotASocket {
        /// Path of the file.
        path: PathBuf,
    },
    /// The address would be reachable from other machines.
    #[error(
        "{address}: refused, because anyone who reaches {ip} could run code on the GPU and nothing is encrypted; \
         listen on 127.0.0.1 (ssh -L brings it elsewhere), or say --insecure on a network you trust"
    )]
    BeyondLoopback {
        /// Address from the command line.
        address: Address,
        /// The IP address to which the host resolves, reachable from a network.
        ip: IpAddr,
    },
    /// A vsock address, which all programs of the other machines can reach.
    #[error(
        "{address}: refused, because any program of the other machines could run code on the GPU; say --insecure if those \
         are trusted"
    )]
    BeyondMachine {
        /// Address from the command line.
        address: Address,
    },
    /// The certificates cannot be used.
    #[error("{address}: {source}")]
    Certificates {
        /// Address from the command line.
        address: Address,
        /// What is wrong with the certificate or its key.
        source: TlsError,
    },
    /// The host name cannot be resolved.
    #[error("{address}: cannot find the host ({source}); give an address of this machine")]
    Resolve {
        /// Address from the command line.
        address: Address,
        /// The resolver's error.
        source: io::Error,
    },
    /// The operating system refused.
    #[error("{address}: cannot listen ({source}); {remedy}")]
    Bind {
        /// The address or path.
        address: String,
        /// Error that the system returned.
        source: io::Error,
        /// What the operator can do about it.
        remedy: &'static str,
    },
}

/// A bound socket that listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
    /// With the folder of certificates.
    Tls(TcpListener, PathBuf),
    /// With the requested number of this machine.
    Vsock(OwnedFd, u32),
}

/// The vsock machine number that is reachable only from this machine.
const VMADDR_CID_LOCAL: u32 = 1;

impl Listener {
    /// Binds `address` and listens. `insecure` allows addresses that other machines reach without TLS.
    pub(crate) fn bind(address: &Address, insecure: bool) -> Result<Self, ListenError> {
        let listener = match address {
            Address::Unix(path) => bind_unix(path).map(|(listener, file)| Self::Unix(listener, file))?,
            Address::Tcp { host, port } => bind_tcp(address, host, *port, insecure).map(Self::Tcp)?,
            Address::Tls { host, port, certs } => {
                let folder = check_certificates(address, certs.as_deref())?;
                bind_tcp(address, host, *port, true).map(|listener| Self::Tls(listener, folder))?
            }
            Address::Vsock { cid, port } => {
                if *cid != VMADDR_CID_LOCAL && !insecure {
                    return Err(ListenError::BeyondMachine { address: address.clone() });
                }
                let bound = bind_vsock(*cid, *port, LISTEN_BACKLOG);
                let bound = bound.map_err(|source| ListenError::Bind {
                    address: address.to_string(),
                    source,
                    remedy: "this machine may have no vsock, or not that number",
                })?;
                Self::Vsock(bound, *cid)
            }
        };
        listener.set_nonblocking().map_err(|source| ListenError::Bind {
            address: address.to_string(),
            source,
            remedy: "see ulimit -n",
        })?;
        Ok(listener)
    }

    /// Makes accepting nonblocking: a peer that is gone before it is accepted must not hold up the others.
    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener, _) => listener.set_nonblocking(true),
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.set_nonblocking(true),
            Self::Vsock(socket, _) => Ok(rustix::io::ioctl_fionbio(socket, true)?),
        }
    }

    /// Returns the address for programs. Port 0 has become the port that the system chose.
    pub(crate) fn address(&self) -> io::Result<Address> {
        match self {
            Self::Unix(_, file) => Ok(Address::Unix(file.path.clone())),
            Self::Tcp(listener) => {
                let bound = listener.local_addr()?;
                Ok(Address::Tcp { host: bound.ip().to_string(), port: bound.port() })
            }
            Self::Tls(listener, _) => {
                let bound = listener.local_addr()?;
                Ok(Address::Tls { host: bound.ip().to_string(), port: bound.port(), certs: None })
            }
            Self::Vsock(socket, cid) => {
                let port = vsock_port(socket).ok_or(io::ErrorKind::AddrNotAvailable)?;
                Ok(Address::Vsock { cid: *cid, port })
            }
        }
    }

    /// Returns the folder of certificates, if connections of this listener speak TLS.
    pub(crate) fn certs(&self) -> Option<&Path> {
        if let Self::Tls(_, folder) = self { Some(folder) } else { None }
    }
}

/// Checks that the server can use its certificates. Without that it would refuse every connection.
fn check_certificates(address: &Address, folder: Option<&Path>) -> Result<PathBuf, ListenError> {
    let failed = |source| ListenError::Certificates { address: address.without_certs(), source };
    let folder = folder.ok_or(TlsError::NoFolder).map_err(failed)?;
    katydid_transport::Identity::read(folder).and_then(|identity| identity.check_as_server()).map_err(failed)?;
    Ok(folder.to_owned())
}

/// The peer of an accepted connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// `unix`, or address and port.
    pub(crate) name: String,
    /// Process id of the peer, where the system tells.
    pub(crate) pid: Option<u32>,
    /// The origin that its limits apply to.
    pub(crate) origin: PeerOrigin,
    /// Whether the peer may use this server.
    pub(crate) allowed: bool,
}

impl Peer {
    /// Returns whether the peer came over the server's unix socket, so that it is the server's own user, or root.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.origin, PeerOrigin::User(_))
    }
}

impl Listener {
    /// Accepts the next connection; `None` when the peer was gone before.
    pub(crate) fn accept(&self) -> io::Result<Option<(OwnedFd, Peer)>> {
        let accepted = match self {
            Self::Unix(listener, _) => listener.accept().and_then(|(socket, _)| {
                let peer = unix_peer(&socket)?;
                Ok((socket.into(), peer))
            }),
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.accept().map(|(socket, address)| {
                let origin = PeerOrigin::of(address.ip());
                (socket.into(), Peer { name: address.to_string(), pid: None, origin, allowed: true })
            }),
            Self::Vsock(socket, _) => accept_vsock(socket),
        };
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if is_fleeting(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn accept_vsock(listener: &OwnedFd) -> io::Result<(OwnedFd, Peer)> {
    let socket = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)?;
    let peer = vsock_peer(&socket);
    let name = peer.map_or_else(|| "vsock".to_owned(), |(cid, port)| format!("vsock {cid}:{port}"));
    let origin = PeerOrigin::Machine(peer.map_or(0, |(cid, _)| cid));
    Ok((socket, Peer { name, pid: None, origin, allowed: true }))
}

/// Identifies the peer of a unix socket by the kernel's credentials. Root and the server's own user are allowed.
fn unix_peer(socket: &UnixStream) -> io::Result<Peer> {
    let credentials = socket_peercred(socket)?;
    let allowed = credentials.uid.is_root() || credentials.uid == geteuid();
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).ok();
    Ok(Peer { name: "unix".to_owned(), pid, origin: PeerOrigin::User(credentials.uid.as_raw()), allowed })
}

/// Returns whether an error is the peer's doing, not the system's.
fn is_fleeting(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | WouldBlock)
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.as_fd(),
            Self::Vsock(socket, _) => socket.as_fd(),
        }
    }
}

/// A socket in the file system. It is removed with this value, unless another process put another file in its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

/// Identifies a file: device, inode, and the inode's change time, since inode numbers are reused.
type Identity = (u64, u64, i64, i64);

impl SocketFile {
    /// Returns the path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            // If it stayed, only the next server would find it stale.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    fs::symlink_metadata(path).map(|data| (data.dev(), data.ino(), data.ctime(), data.ctime_nsec()))
}

/// Binds a socket of mode 0600 at `path`, whose folder must exist.
pub(crate) fn bind_unix(path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    make_room(path)?;
    let bound = bind_private(path).and_then(|listener| Ok((listener, identity(path)?)));
    let (listener, identity) = bound.map_err(|source| unix_error(path, source))?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

/// Binds with mode 0600. Undoes a umask that takes rights from the owner before the socket listens.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let socket = socket_of_mode_0600(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    listen(&socket, LISTEN_BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Binds a socket that does not listen yet. Its file never has another mode: Linux gives it that of the unbound socket, less the
/// umask.
fn socket_of_mode_0600(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::from_raw_mode(SOCKET_MODE))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn unix_error(path: &Path, source: io::Error) -> ListenError {
    let remedy = match source.kind() {
        io::ErrorKind::NotFound => "create the folder first",
        io::ErrorKind::PermissionDenied => "choose a folder that you may write to",
        io::ErrorKind::InvalidInput => "use a path of less than 108 bytes",
        _ => "choose another path",
    };
    ListenError::Bind { address: path.display().to_string(), source, remedy }
}

/// Removes a socket on which no server listens any more.
fn make_room(path: &Path) -> Result<(), ListenError> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|source| unix_error(path, source))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(unix_error(path, error)),
        Ok(_) => Err(ListenError::Live { path: path.to_owned() }),
    }
}

fn bind_tcp(address: &Address, host: &str, port: u16, insecure: bool) -> Result<TcpListener, ListenError> {
    let resolved: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|source| ListenError::Resolve { address: address.clone(), source })?
        .collect();
    if let Some(beyond) = resolved.iter().find(|found| !insecure && !found.ip().is_loopback()) {
        return Err(ListenError::BeyondLoopback { address: address.clone(), ip: beyond.ip() });
    }
    let bound = TcpListener::bind(resolved.as_slice());
    let bound = bound.and_then(|listener| Ok(listen(&listener, LISTEN_BACKLOG).map(|()| listener)?));
    bound.map_err(|source| {
        let remedy = match source.kind() {
            io::ErrorKind::AddrInUse => "stop the other server, or choose another port",
            io::ErrorKind::AddrNotAvailable => "give an address of this machine",
            _ => "choose another port",
        };
        ListenError::Bind { address: address.to_string(), source, remedy }
    })
}

#[cfg(test)]
mod tests {

    use std::net::TcpStream;
    use std::time::Duration;

    use katydid_tests::deadline::hang::until;

    use super::*;

    /// More connections than programs make at once, and more than the standard library's queue has room for.
    #[test]
    fn a_server_that_is_late_keeps_clients_waiting_and_loses_no_connection() {
        let listener = bind_tcp(&tcp("127.0.0.1"), "127.0.0.1", 0, false).unwrap();
        let number = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect_timeout(&number, Duration::from_millis(900));
        let clients = (0..300).map(connect).collect::<io::Result<Vec<_>>>();
        assert_eq!(clients.unwrap().len(), 300);
        // A socket with a full queue makes such a caller try again later.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _bound = bind_unix(&path).unwrap();
        let connect = |_| {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(&path)?).map(|()| socket)
        };
        let clients = (0..300).map(connect).collect::<Result<Vec<_>, _>>();
        assert_eq!(clients.unwrap().len(), 300);
    }

    /// Binds where no process listens any more. A child that another test has just forked has a copy of the listener, for a
    /// moment.
    fn bind_again(path: &Path) -> (UnixListener, SocketFile) {
        until("the end of the child's copy", || !matches!(bind_unix(path), Err(ListenError::Live { .. })));
        bind_unix(path).unwrap()
    }

    fn tcp(host: &str) -> Address {
        Address::Tcp { host: host.into(), port: 0 }
    }

    #[test]
    fn a_unix_socket_is_for_its_owner_only_and_removed_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let bound = bind_unix(&path).unwrap();
        assert_eq!(mode_of(&path), SOCKET_MODE);
        drop(bound);
        assert!(!path.exists());
    }

    #[test]
    fn a_unix_socket_is_for_its_owner_only_from_its_first_moment_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let _socket = socket_of_mode_0600(&path).unwrap();
        assert_eq!(mode_of(&path), SOCKET_MODE);
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let _live = bind_again(&path);
        assert!(matches!(bind_unix(&path), Err(ListenError::Live { .. })));
    }

    #[test]
    fn plain_file_in_place_of_a_socket_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(bind_unix(&path), Err(ListenError::NotASocket { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn a_socket_that_another_server_put_there_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let (first, file) = bind_unix(&path).unwrap();
        drop(first);
        let _second = bind_again(&path);
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn tcp_beyond_loopback_needs_insistence() {
        let error = Listener::bind(&tcp("0.0.0.0"), false).unwrap_err();
        assert!(error.to_string().contains("--insecure"), "{error}");
        assert!(Listener::bind(&tcp("0.0.0.0"), true).is_ok());
        assert!(Listener::bind(&tcp("127.0.0.1"), false).is_ok());
    }

    #[test]
    fn port_zero_becomes_a_real_port() {
        let listener = Listener::bind(&tcp("127.0.0.1"), false).unwrap();
        assert!(matches!(listener.address().unwrap(), Address::Tcp { port, .. } if port != 0));
    }

    #[test]
    fn a_missing_folder_is_named_with_the_remedy() {
        let error = bind_unix(Path::new("/no/such/folder/a.sock")).unwrap_err();
        assert!(error.to_string().contains("create the folder first"), "{error}");
    }
}
