//! TCP connections of processes, which a dump has to keep silent.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;

use crate::process::tree::Process;

/// The kernel's lists of sockets, by protocol.
const PROC_NET_FILES: [&str; 2] = ["tcp", "tcp6"];
/// State of a socket that listens and has no connection itself.
const LISTEN_STATE: &str = "0A";
/// Prefix of the two queues of a socket that has sent everything.
const EMPTY_SEND_QUEUE: &str = "00000000:";
/// Extended attribute of a socket with the name of its protocol.
const PROTOCOL_ATTRIBUTE: &str = "system.sockprotoname";
/// Buffer size for such a name; the kernel's have 32 bytes.
const MAX_PROTOCOL_BYTES: usize = 64;
/// Prefix of the protocols' names that the lists cover.
const TCP_NAME: &[u8] = b"TCP";
/// Prefix of CRIU's files about connections.
const TCP_STREAM_PREFIX: &str = "tcp-stream-";

/// Held by tests with connections: one that is not yet accepted has no process at its other end.
#[cfg(test)]
pub(crate) static TEST_LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Whether any of the processes has a connection now. Sockets that cannot be inspected count.
pub(crate) fn is_connected(processes: &[Process]) -> bool {
    processes.iter().any(|process| {
        let sockets = tcp_sockets(process.pid);
        !sockets.is_empty()
            && PROC_NET_FILES.iter().any(|list| {
                match fs::read_to_string(format!("/proc/{}/net/{list}", process.pid)) {
                    Ok(text) => connections(&text).any(|connection| sockets.contains(connection.inode)),
                    // A kernel without this protocol has no list for it.
                    Err(error) => error.kind() != std::io::ErrorKind::NotFound,
                }
            })
    })
}

/// Connections of stopped processes, read once: for a list the kernel visits each slot of its table, which takes milliseconds if
/// that is large. Sockets that cannot be inspected do not count.
#[derive(Debug)]
pub(crate) struct TcpConnections {
    /// By their local and remote addresses, as the kernel writes them.
    ends: BTreeMap<(String, String), TcpEnd>,
}

/// One end of a connection.
#[derive(Debug)]
struct TcpEnd {
    pid: u32,
    is_unsent: bool,
}

impl TcpConnections {
    /// The connections of these processes.
    pub(crate) fn of(processes: &[Process]) -> Self {
        let mut ends = BTreeMap::new();
        for process in processes {
            let sockets = tcp_sockets(process.pid);
            if sockets.is_empty() {
                continue;
            }
            for list in PROC_NET_FILES {
                let text = fs::read_to_string(format!("/proc/{}/net/{list}", process.pid)).unwrap_or_default();
                let own_connections = connections(&text).filter(|connection| sockets.contains(connection.inode));
                ends.extend(own_connections.map(|connection| {
                    let end = TcpEnd { pid: process.pid, is_unsent: connection.is_unsent };
                    ((connection.local.to_owned(), connection.remote.to_owned()), end)
                }));
            }
        }
        Self { ends }
    }

    /// Whether any of the connections has its other end outside these processes.
    pub(crate) fn have_others(&self) -> bool {
        !self.ends.keys().all(|pair| self.is_inside(pair))
    }

    /// A process with unsent bytes for another one of these processes, which has no room for them. CRIU sends such bytes when it
    /// restores a connection, and the other end may not be there yet.
    pub(crate) fn unsent(&self) -> Option<u32> {
        self.ends.iter().find(|(pair, end)| end.is_unsent && self.is_inside(pair)).map(|(_, end)| end.pid)
    }

    /// The local and remote addresses of all ends, as the kernel lists them.
    pub(crate) fn into_addresses(self) -> Vec<(String, String)> {
        self.ends.into_keys().collect()
    }

    /// Whether the other end belongs to these processes too.
    fn is_inside(&self, (local, remote): &(String, String)) -> bool {
        self.ends.contains_key(&(remote.clone(), local.clone()))
    }
}

/// Whether CRIU has dumped a connection.
pub(crate) fn is_in(folder: &Path) -> bool {
    let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_string_lossy().starts_with(TCP_STREAM_PREFIX))
}

/// Inodes of the sockets that a process has open.
pub(crate) fn sockets(pid: u32) -> BTreeSet<String> {
    open_sockets(pid).map(|(inode, _)| inode).collect()
}

/// Inodes of a process's TCP sockets, and of sockets whose protocol the kernel does not tell.
fn tcp_sockets(pid: u32) -> BTreeSet<String> {
    let may_be_tcp = |descriptor: &Path| protocol(descriptor).is_none_or(|name| name.starts_with(TCP_NAME));
    open_sockets(pid).filter(|(_, descriptor)| may_be_tcp(descriptor)).map(|(inode, _)| inode).collect()
}

/// Inodes of a process's sockets, and the paths of their descriptors.
fn open_sockets(pid: u32) -> impl Iterator<Item = (String, PathBuf)> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
        Some((inode.to_owned(), entry.path()))
    })
}

/// The kernel's name of a socket's protocol, such as `TCP` or `TCPv6`.
fn protocol(descriptor: &Path) -> Option<Vec<u8>> {
    let mut name = [0; MAX_PROTOCOL_BYTES];
    let length = getxattr(descriptor, PROTOCOL_ATTRIBUTE, &mut name[..]).ok()?;
    name.get(..length).map(<[u8]>::to_vec)
}

/// A line of the kernel's list of sockets.
struct SocketLine<'a> {
    local: &'a str,
    remote: &'a str,
    /// Whether bytes wait to be sent, or to be acknowledged.
    is_unsent: bool,
    inode: &'a str,
}

/// All sockets of a list, except those that only listen.
fn connections(list: &str) -> impl Iterator<Item = SocketLine<'_>> {
    list.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, remote, state) = (words.next()?, words.next()?, words.next()?);
        let is_unsent = !words.next()?.starts_with(EMPTY_SEND_QUEUE);
        (state != LISTEN_STATE).then_some(SocketLine { local, remote, is_unsent, inode: words.nth(4)? })
    })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::PoisonError;

    use katydid_tests::deadline::hang::until;

    use rustix::fs::fstat;

    use super::*;

    fn us() -> Vec<Process> {
        vec![Process { pid: std::process::id(), parent: 0, state: 'R' }]
    }

    #[test]
    fn a_connection_is_found() {
        let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(is_connected(&us()));
    }

    #[test]
    fn sockets_of_other_protocols_are_not_tcp() {
        let inode = |socket: &dyn AsFd| fstat(socket).unwrap().st_ino.to_string();
        let (stream, _other) = UnixStream::pair().unwrap();
        let (datagrams, listener) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (all, of_tcp) = (sockets(std::process::id()), tcp_sockets(std::process::id()));
        assert!([inode(&stream), inode(&datagrams), inode(&listener)].iter().all(|inode| all.contains(inode)));
        assert!(of_tcp.contains(&inode(&listener)));
        assert!(!of_tcp.contains(&inode(&stream)) && !of_tcp.contains(&inode(&datagrams)));
        // A kernel without this protocol has no list for it.
        if let Ok(listener) = TcpListener::bind("[::1]:0") {
            assert!(tcp_sockets(std::process::id()).contains(&inode(&listener)));
        }
    }

    #[test]
    fn a_connection_to_ourselves_is_none_to_others() {
        let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let process = |pid| Process { pid, parent: 0, state: 'R' };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let script =
            "import socket, sys\ns = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\nsys.stdin.read()";
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script, &listener.local_addr().unwrap().port().to_string()]);
        let mut other = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
        let _accepted = listener.accept().unwrap();
        assert!(TcpConnections::of(&[process(other.id())]).have_others());
        assert!(!TcpConnections::of(&[process(std::process::id()), process(other.id())]).have_others());
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn bytes_that_the_other_end_has_no_room_for_are_found() {
        let _guard = TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        assert_eq!(TcpConnections::of(&us()).unsent(), None);
        stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(length) = stream.write(&[0; 1 << 16]) {
            sent += length;
        }
        assert_eq!(TcpConnections::of(&us()).unsent(), Some(std::process::id()));
        accepted.read_exact(&mut vec![0; sent]).unwrap();
        // The kernel needs a moment until the bytes are acknowledged.
        until("all is sent", || TcpConnections::of(&us()).unsent().is_none());
    }

    #[test]
    fn listeners_are_not_connections() {
        let list = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                    0: 0100007F:A3E1 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100\n   \
                    1: 0100007F:A3E1 0100007F:B2C2 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100\n";
        assert_eq!(connections(list).map(|connection| connection.inode).collect::<Vec<_>>(), ["4712"]);
    }

    #[test]
    fn dumped_connections_are_told_by_their_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("core-1.img"), "").unwrap();
        assert!(!is_in(folder.path()));
        fs::write(folder.path().join("tcp-stream-1f.img"), "").unwrap();
        assert!(is_in(folder.path()));
    }
}
