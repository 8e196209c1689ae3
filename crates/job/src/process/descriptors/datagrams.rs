//! Senders of unread datagrams of unix sockets, which `recvfrom` returns.
//!
//! CRIU saves the contents of datagrams, but not their senders. It sends them anew from a socket that is connected to theirs, or
//! from one without a name. So the senders' names are noted while the processes are stopped. While the restored processes are
//! stopped, their datagrams are taken out again and sent once more, in their order.
//!
//! | sender | sends once more |
//! |---|---|
//! | has no name | a new socket |
//! | a socket that the job has | that socket |
//! | is gone, with a name that is no file's | a new socket of that name |
//! | is gone, with the name of a file | a new socket of that name in a root folder of its own, which takes the right to have one |
//!
//! The rule: datagrams that could not be sent once more refuse the checkpoint. If the restoring side refuses a sender, a message
//! names it, and its datagram comes without a sender.

#![expect(unsafe_code, reason = "the offset of peeks, and names as the kernel has them, have no safe interface")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::thread;

use katydid_scratch::{Scratch, private};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fstat};
use rustix::net::sockopt::{
    set_socket_send_buffer_size, set_socket_send_buffer_size_force, socket_domain, socket_passcred, socket_type,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, getpeername,
    getsockname, recv, recvfrom, sendto, socket_with,
};
use rustix::process::{chdir, chroot, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

use crate::process::descriptors::remote::{SOCKET_NAME_PREFIX, descriptor, named, open_in_root};
use crate::process::tree;
use crate::process::tree::Process;

/// Bytes of send buffer that a datagram needs beside its own.
const SEND_OVERHEAD_BYTES: usize = 4096;

/// The unread datagrams of a socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DatagramQueue {
    /// A process that has the socket, as it sees itself.
    pid: u32,
    /// Number of the descriptor in that process.
    number: i32,
    /// Sender of each datagram, in the order of the datagrams.
    senders: Vec<Name>,
}

/// A datagram that refuses a checkpoint, and the process that has not read it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnsendableDatagram {
    pub(crate) pid: u32,
    pub(crate) why: &'static str,
}

/// Name of a unix socket, as the kernel has it: a path, or a zero byte and an abstract name; empty for none.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Name(Vec<u8>);

impl Name {
    /// The name in an address that the kernel returned; empty for another family of sockets.
    pub(super) fn of(address: Option<SocketAddrAny>) -> Self {
        let Some(address) = address.filter(|address| address.address_family() == AddressFamily::UNIX) else {
            return Self::default();
        };
        // SAFETY: an address has as many bytes as it says, in memory of its own.
        let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr().cast::<u8>(), address.addr_len() as usize) };
        let name = bytes.get(size_of::<libc::sa_family_t>()..).unwrap_or_default();
        let is_path = name.first().is_some_and(|first| *first != 0);
        Self(if is_path { name.strip_suffix(&[0]).unwrap_or(name) } else { name }.to_vec())
    }

    fn path(&self) -> Option<&Path> {
        (self.0.first()? > &0).then(|| Path::new(OsStr::from_bytes(&self.0)))
    }

    fn abstract_name(&self) -> Option<&[u8]> {
        self.0.strip_prefix(&[0])
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

/// A datagram socket of a job's process.
struct DatagramSocket {
    pid: u32,
    number: i32,
    inode: u64,
    fd: OwnedFd,
    name: Name,
    peer: Name,
    is_connected: bool,
}

/// Each datagram socket of the processes once, in the order of the processes.
fn sockets(processes: &[Process]) -> Vec<DatagramSocket> {
    let mut visited = BTreeSet::new();
    let all =
        processes.iter().flat_map(|process| named(process.pid, SOCKET_NAME_PREFIX).map(|found| (process.pid, found)));
    let sockets = all.filter_map(|(pid, (number, fd))| {
        let is_unix = socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX);
        let is_datagram = is_unix && socket_type(&fd).is_ok_and(|kind| kind == SocketType::DGRAM);
        let inode = fstat(&fd).ok().filter(|_| is_datagram)?.st_ino;
        let (peer, name) = (getpeername(&fd), Name::of(getsockname(&fd).ok()));
        let is_connected = peer.is_ok();
        let peer = Name::of(peer.ok().flatten());
        visited.insert(inode).then_some(DatagramSocket { pid, number, inode, fd, name, peer, is_connected })
    });
    sockets.collect()
}

/// Notes the senders of all unread datagrams of stopped processes, except in sockets with the inodes `but`. `saved`: how many
/// datagrams CRIU has saved of a socket, by its inode.
///
/// # Errors
///
/// A datagram could not be sent once more.
pub(crate) fn note(
    processes: &[Process],
    saved: &BTreeMap<u64, usize>,
    but: &[u64],
) -> Result<Vec<DatagramQueue>, UnsendableDatagram> {
    let sockets_of_job = sockets(processes);
    let mut queues = Vec::new();
    for socket in sockets_of_job.iter().filter(|socket| !but.contains(&socket.inode)) {
        let refused = |why| UnsendableDatagram { pid: socket.pid, why };
        let senders = senders(&socket.fd);
        let is_cut = saved.get(&socket.inode).is_some_and(|count| *count < senders.len());
        if is_cut || senders.is_empty() && is_readable(&socket.fd) {
            return Err(refused("one of them has no bytes, and CRIU saves none from there on"));
        }
        queues.extend(queue_of(socket, &senders, &sockets_of_job).map_err(refused)?);
    }
    Ok(queues)
}

/// The queue to note for a socket; `None` if CRIU restores it correctly.
fn queue_of(
    socket: &DatagramSocket,
    senders: &[Name],
    sockets_of_job: &[DatagramSocket],
) -> Result<Option<DatagramQueue>, &'static str> {
    if socket.is_connected {
        let is_peer = senders.iter().all(|sender| *sender == socket.peer);
        return if is_peer {
            Ok(None)
        } else {
            Err("their sender is not the one that their socket is connected to now")
        };
    }
    let sends_now = |other: &&DatagramSocket| other.is_connected && other.peer == socket.name && !other.name.is_none();
    let has_names = senders.iter().any(|sender| !sender.is_none());
    if senders.is_empty()
        || !has_names && (socket.name.is_none() || !sockets_of_job.iter().any(|other| sends_now(&other)))
    {
        return Ok(None);
    }
    if namespace(socket.pid) != namespace("self") {
        return Err("it is in a network namespace of its own");
    }
    // A datagram that is sent once more has the credentials of the restoring process.
    if socket_passcred(&socket.fd).unwrap_or(true) {
        return Err("their socket asks for the credentials of senders (SO_PASSCRED)");
    }
    let listed = fs::read_to_string(format!("/proc/{}/net/unix", socket.pid)).unwrap_or_default();
    if !is_reached(socket, &listed) {
        return Err("their socket has no name by which it is reached");
    }
    for sender in senders {
        let is_here = sockets_of_job.iter().any(|other| other.name == *sender);
        let is_taken = || listed_inodes(&listed, sender).next().is_some();
        if !is_here && sender.abstract_name().is_some() && is_taken() {
            return Err("a process outside of the job has the name of their sender");
        }
        if !is_here && sender.path().is_some() && !geteuid().is_root() {
            return Err("their sender is gone, and it takes root to have its name again");
        }
    }
    let pid = tree::pid_in_own_namespace(socket.pid);
    Ok(Some(DatagramQueue { pid, number: socket.number, senders: senders.to_vec() }))
}

/// Whether every process reaches the socket by its name.
fn is_reached(socket: &DatagramSocket, listed: &str) -> bool {
    let mut inodes = listed_inodes(listed, &socket.name);
    let is_listed = inodes.next() == Some(socket.inode) && inodes.next().is_none();
    let Some(path) = socket.name.path() else { return is_listed && !socket.name.is_none() };
    let found = open_in_root(socket.pid, path, OFlags::empty()).and_then(|file| Ok(fstat(&file)?));
    is_listed && found.is_ok_and(|found| is_socket(found.st_mode))
}

fn is_socket(mode: u32) -> bool {
    FileType::from_raw_mode(mode) == FileType::Socket
}

/// The inodes of sockets of this name in the kernel's list. Its columns are number, references, protocol, flags, type, state,
/// inode, and the name, with `@` for each zero byte.
fn listed_inodes<'a>(listed: &'a str, name: &Name) -> impl Iterator<Item = u64> + 'a {
    let text: Vec<u8> = name.0.iter().map(|byte| if *byte == 0 { b'@' } else { *byte }).collect();
    let text = String::from_utf8_lossy(&text).into_owned();
    listed.lines().skip(1).filter_map(move |line| {
        let from_inode = (0..6).try_fold(line, |rest, _| Some(rest.trim_start().split_once(' ')?.1))?;
        let (inode, name) = from_inode.trim_start().split_once(' ')?;
        (name == text).then_some(inode.parse().ok()?)
    })
}

fn namespace(pid: impl std::fmt::Display) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

fn is_readable(socket: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::IN | PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    // Poll also reports a socket as readable that was shut down for reading.
    poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0) && polled[0].revents() == PollFlags::IN
}

/// The sender of each unread datagram of a socket; all datagrams stay unread.
fn senders(socket: &OwnedFd) -> Vec<Name> {
    let Some(offset_before) = peek_offset(socket) else { return Vec::new() };
    let (mut offset, mut senders) = (0, Vec::new());
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    while set_peek_offset(socket, offset).is_ok() {
        let Ok((_, length, sender)) = recvfrom(socket, &mut [0; 1], flags) else { break };
        senders.push(Name::of(sender));
        offset = offset.saturating_add(i32::try_from(length).unwrap_or(i32::MAX));
    }
    let _ = set_peek_offset(socket, offset_before);
    senders
}

fn peek_offset(socket: &OwnedFd) -> Option<i32> {
    let (mut offset, mut length) = (0_i32, size_of::<i32>() as libc::socklen_t);
    let value = (&raw mut offset).cast();
    // SAFETY: the kernel writes as many bytes as are said to be there at most.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, value, &raw mut length) };
    (done == 0).then_some(offset)
}

fn set_peek_offset(socket: &OwnedFd, offset: i32) -> io::Result<()> {
    let (value, length) = ((&raw const offset).cast(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: the kernel reads as many bytes as are there.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEEK_OFF, value, length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends the datagrams of restored processes, which are stopped, once more. Returns a line for each that was refused.
pub(crate) fn send_again(queues: &[DatagramQueue], processes: &[Process]) -> Vec<String> {
    if queues.is_empty() {
        return Vec::new();
    }
    let sockets_of_job = sockets(processes);
    let mut refused = Vec::new();
    for queue in queues {
        let mut note = |what: &str, error: io::Error| {
            refused.push(format!("{what} of unread datagrams of process {} are not restored: {error}", queue.pid));
        };
        let process = processes.iter().find(|process| tree::pid_in_own_namespace(process.pid) == queue.pid);
        let socket = process.and_then(|process| Some((process.pid, descriptor(process.pid, queue.number)?)));
        let Some((pid, socket)) = socket else {
            note("senders", io::ErrorKind::NotFound.into());
            continue;
        };
        if let Err(error) =
            queue.send_again(pid, &socket, &sockets_of_job, &mut |error| note("names of senders", error))
        {
            note("contents", error);
        }
    }
    refused.dedup();
    refused
}

impl DatagramQueue {
    fn send_again(
        &self,
        pid: u32,
        to: &OwnedFd,
        sockets_of_job: &[DatagramSocket],
        without_name: &mut dyn FnMut(io::Error),
    ) -> io::Result<()> {
        let (address, _folder) = address(pid, to)?;
        if senders(to).len() != self.senders.len() {
            return Err(io::Error::other("they are not those of the checkpoint"));
        }
        let datagrams = self.senders.iter().map(|_| take(to)).collect::<io::Result<Vec<Vec<u8>>>>()?;
        for (bytes, sender) in datagrams.iter().zip(&self.senders) {
            let send = |socket: &OwnedFd| sendto(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address);
            let known = sockets_of_job.iter().find(|socket| !sender.is_none() && socket.name == *sender);
            let sent = match known {
                Some(socket) => send(&socket.fd).map_err(io::Error::from),
                None => new(sender, bytes.len()).and_then(|socket| Ok(send(&socket)?)),
            };
            if let Err(error) = sent {
                without_name(error);
                send(&new(&Name::default(), bytes.len())?)?;
            }
        }
        Ok(())
    }
}

/// The address by which this process reaches a socket of another process, as long as the returned folder is open.
fn address(pid: u32, socket: &OwnedFd) -> io::Result<(SocketAddrUnix, Option<OwnedFd>)> {
    let name = Name::of(Some(getsockname(socket)?));
    if let Some(name) = name.abstract_name() {
        return Ok((SocketAddrUnix::new_abstract_name(name)?, None));
    }
    let path = name.path().filter(|path| path.is_absolute());
    let Some((folder, file)) = path.and_then(|path| Some((path.parent()?, path.file_name()?))) else {
        return Err(io::Error::other("their socket has no name"));
    };
    let folder = open_in_root(pid, folder, OFlags::DIRECTORY)?;
    // A path below `/proc/PID` may be too long for a socket.
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(file);
    Ok((SocketAddrUnix::new(&path)?, Some(folder)))
}

/// Takes the next datagram out of a socket.
fn take(socket: &OwnedFd) -> io::Result<Vec<u8>> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    let (_, length) = recv(socket, &mut [0; 1], flags)?;
    let mut bytes = vec![0; length];
    recv(socket, &mut bytes, RecvFlags::DONTWAIT)?;
    Ok(bytes)
}

/// A socket of this name that can send `bytes` at once.
fn new(name: &Name, bytes: usize) -> io::Result<OwnedFd> {
    let socket = match (name.abstract_name(), name.path()) {
        (Some(name), _) => {
            let socket = unbound()?;
            bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
            socket
        }
        (None, Some(path)) => bound_elsewhere(path)?,
        (None, None) => unbound()?,
    };
    let room = bytes.saturating_add(SEND_OVERHEAD_BYTES);
    if set_socket_send_buffer_size_force(&socket, room).is_err() {
        set_socket_send_buffer_size(&socket, room)?;
    }
    Ok(socket)
}

fn unbound() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// A socket with the name of a file, which is made in a root folder of a thread's own: a file of that name stays as it is.
fn bound_elsewhere(path: &Path) -> io::Result<OwnedFd> {
    let root = Scratch::new("root")?;
    let parts = path.parent().into_iter().flat_map(Path::components);
    let parts = parts.filter(|part| matches!(part, Component::Normal(_)));
    private::folders(&root.path().join(parts.collect::<PathBuf>()))?;
    let (above, address) = (root.path().to_owned(), SocketAddrUnix::new(path)?);
    let binder = thread::Builder::new().name("bind".into()).spawn(move || {
        // SAFETY: the thread shares its descriptors with all others as before; only its root folder is its own.
        unsafe { unshare_unsafe(UnshareFlags::FS) }?;
        chroot(above)?;
        chdir("/")?;
        let socket = unbound()?;
        bind(&socket, &address)?;
        Ok::<_, io::Error>(socket)
    });
    binder?.join().map_err(|_| io::Error::other("a thread has ended"))?
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::net::sockopt::set_socket_passcred;

    use super::*;

    fn us() -> [Process; 1] {
        [Process { pid: std::process::id(), parent: 1, state: 'R' }]
    }

    /// Each socket has a new name: a child that another test has just forked may still hold the one before.
    fn abstract_socket(name: &str) -> UnixDatagram {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("katydid-{}-{name}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
    }

    /// The queue of one socket of this process.
    fn queue_of_socket(socket: &UnixDatagram) -> Result<Option<DatagramQueue>, &'static str> {
        let all = sockets(&us());
        let found = all.iter().find(|it| it.number == socket.as_raw_fd()).unwrap();
        queue_of(found, &senders(&found.fd), &all)
    }

    fn read(socket: &UnixDatagram) -> (Vec<u8>, Name) {
        let mut bytes = [0; 16];
        let (_, length, sender) = recvfrom(socket, &mut bytes, RecvFlags::DONTWAIT).unwrap();
        (bytes[..length].to_vec(), Name::of(sender))
    }

    #[test]
    fn datagrams_come_again_from_who_sent_them() {
        let folder = tempfile::tempdir().unwrap();
        let is_root = geteuid().is_root();
        for to in [UnixDatagram::bind(folder.path().join("to")).unwrap(), abstract_socket("to")] {
            let here = abstract_socket("here");
            let (gone, file) = (abstract_socket("gone"), UnixDatagram::bind(folder.path().join("from")).unwrap());
            let address = to.local_addr().unwrap();
            assert_eq!(queue_of_socket(&to), Ok(None), "nothing was sent");
            // Only root can have the name of a file again.
            let all = [&UnixDatagram::unbound().unwrap(), &here, &gone, if is_root { &file } else { &gone }, &here];
            for (sender, text) in all.into_iter().zip(["one", "two", "three", "four", "five"]) {
                sender.send_to_addr(text.as_bytes(), &address).unwrap();
            }
            drop((gone, file));
            let queue = queue_of_socket(&to).unwrap().unwrap();
            let own = OwnedFd::from(to.try_clone().unwrap());
            assert_eq!(senders(&own), queue.senders, "they stay unread");
            queue.send_again(std::process::id(), &own, &sockets(&us()), &mut |error| panic!("{error}")).unwrap();
            let found: Vec<_> = (0..5).map(|_| read(&to)).collect();
            let texts: Vec<_> = found.iter().map(|(text, _)| String::from_utf8_lossy(text).into_owned()).collect();
            assert_eq!(texts, ["one", "two", "three", "four", "five"]);
            assert_eq!(found.into_iter().map(|(_, sender)| sender).collect::<Vec<_>>(), queue.senders);
            fs::remove_file(folder.path().join("from")).unwrap();
        }
    }

    #[test]
    fn a_sender_whose_name_is_taken_is_said_and_its_datagram_comes() {
        let (to, from) = (abstract_socket("untaken"), abstract_socket("taken"));
        from.send_to_addr(b"text", &to.local_addr().unwrap()).unwrap();
        let queue = queue_of_socket(&to).unwrap().unwrap();
        let mut errors = Vec::new();
        let own = OwnedFd::from(to.try_clone().unwrap());
        queue.send_again(std::process::id(), &own, &[], &mut |error| errors.push(error.kind())).unwrap();
        assert_eq!((read(&to), errors), ((b"text".to_vec(), Name::default()), vec![io::ErrorKind::AddrInUse]));
    }

    #[test]
    fn unrepeatable_datagrams_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (UnixDatagram::bind(folder.path().join("to")).unwrap(), abstract_socket("refused"));
        from.send_to(b"text", folder.path().join("to")).unwrap();
        assert!(queue_of_socket(&to).is_ok_and(|queue| queue.is_some()));
        set_socket_passcred(&to, true).unwrap();
        assert_eq!(queue_of_socket(&to), Err("their socket asks for the credentials of senders (SO_PASSCRED)"));
        set_socket_passcred(&to, false).unwrap();
        fs::remove_file(folder.path().join("to")).unwrap();
        assert_eq!(queue_of_socket(&to), Err("their socket has no name by which it is reached"));
        let other = abstract_socket("other");
        to.connect_addr(&other.local_addr().unwrap()).unwrap();
        assert_eq!(queue_of_socket(&to), Err("their sender is not the one that their socket is connected to now"));
    }

    #[test]
    fn datagrams_of_a_connection_are_criu_s() {
        let (one, other) = UnixDatagram::pair().unwrap();
        other.send(b"text").unwrap();
        assert_eq!(queue_of_socket(&one), Ok(None));
    }

    #[test]
    fn a_datagram_without_bytes_is_noticed() {
        for texts in [&["", "text"][..], &["text", "", "text"], &[""]] {
            let to = abstract_socket("empty");
            let inode = fstat(&to).unwrap().st_ino;
            let from = UnixDatagram::unbound().unwrap();
            for text in texts {
                from.send_to_addr(text.as_bytes(), &to.local_addr().unwrap()).unwrap();
            }
            // CRIU reads the datagrams this way.
            let own = OwnedFd::from(to.try_clone().unwrap());
            set_peek_offset(&own, 0).unwrap();
            let mut count = 0;
            while recv(&own, &mut [0; 16], RecvFlags::PEEK | RecvFlags::DONTWAIT).is_ok_and(|(_, length)| length > 0) {
                count += 1;
            }
            set_peek_offset(&own, -1).unwrap();
            let others: Vec<u64> =
                sockets(&us()).iter().map(|socket| socket.inode).filter(|other| *other != inode).collect();
            let refused = note(&us(), &[(inode, count)].into(), &others).unwrap_err();
            assert!(refused.why.contains("no bytes"), "{texts:?}: {refused:?}");
        }
    }

    #[test]
    fn the_longest_name_of_a_file_is_taken_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("n".repeat(107 - folder.path().as_os_str().len()));
        let socket = unbound().unwrap();
        bind(&socket, &SocketAddrUnix::new(&long).unwrap()).unwrap();
        assert_eq!(Name::of(getsockname(&socket).ok()).path(), Some(&*long));
        assert!(Name::of(getsockname(unbound().unwrap()).ok()).is_none());
    }

    #[test]
    fn names_are_found_in_proc_net_unix() {
        let listed = "Num RefCount Protocol Flags Type St Inode Path\n\
                      0000: 00000002 00000000 00000000 0002 01 17 /tmp/a b\n\
                      0000: 00000002 00000000 00000000 0002 01 18\n\
                      0000: 00000002 00000000 00000000 0002 01 19 @name\n";
        let found = |name: &[u8]| listed_inodes(listed, &Name(name.to_vec())).collect::<Vec<_>>();
        assert_eq!((found(b"/tmp/a b"), found(b"\0name"), found(b"")), (vec![17], vec![19], vec![]));
    }
}
