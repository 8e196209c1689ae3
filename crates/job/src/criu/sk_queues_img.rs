//! Descriptors on their way through sockets of a job, as CRIU noted them: out of `sk-queues.img` of a dump.
//!
//! | what                                                               | where                                          |
//! |--------------------------------------------------------------------|------------------------------------------------|
//! | magic                                                              | two u32                                        |
//! | then, for each piece of what is in a socket, length of a message   | u32                                            |
//! | the message, in protocol buffers, and the piece behind it          | `sk_packet_entry`: field 2 is the bytes of the piece, 4 its descriptors |
//!
//! CRIU 4.2 notes them, and does not bring them back: it fails with "Failed to send packet", or the receiver waits for ever.
//! Were it better, those of a stream would come with the first byte before them that was not read, since the kernel
//! gives both at once; a program that reads that byte with `read` loses them. So there is no checkpoint then.
//!
//! Nor does it note by whom datagrams were sent: it sends them anew by the socket that theirs is connected to, or one without an
//! address. So there is none either while a socket that is not connected has one from a sender with an address, nor while events of
//! watched files (inotify) are unread, which CRIU leaves out.

#![expect(
    unsafe_code,
    reason = "datagrams of other kinds of sockets have addresses that the safe interface does not know"
)]

use std::fs;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::io::ioctl_fionread;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SocketType, getpeername};

use crate::criu::files_img::{MAGIC, bounded_if_any};
use crate::criu::protobuf::Fields;
use crate::process::losses::descriptor;
use crate::process::tree::Process;

/// The second magic number.
const QUEUES: [u8; 4] = [0x26, 0x40, 0x26, 0x56];
/// Fields of a packet: its length, `sk_packet_entry.length`, and its descriptors, `.scm`.
const LENGTH: u64 = 2;
const RIGHTS: u64 = 4;
/// How the kernel begins the name of a socket, and what it calls a watch of files.
const SOCKET: &[u8] = b"socket:";
const WATCH: &[u8] = b"anon_inode:inotify";

/// Whether there are any.
///
/// # Errors
///
/// The file cannot be read.
pub(crate) fn have_descriptors(folder: &Path) -> io::Result<bool> {
    Ok(has_descriptors(&bounded_if_any(&folder.join("sk-queues.img"))?))
}

/// A process, of those that stand still, with a datagram of a sender that has an address.
pub(crate) fn with_senders(tree: &[Process]) -> Option<u32> {
    with(tree, SOCKET, has_sender)
}

/// A process, of those that stand still, with events of watched files that it has not read.
pub(crate) fn with_events(tree: &[Process]) -> Option<u32> {
    with(tree, WATCH, |watch| ioctl_fionread(watch).is_ok_and(|bytes| bytes > 0))
}

/// The first process with a descriptor whose name begins so, and of which that holds.
fn with(tree: &[Process], name: &[u8], holds: impl Fn(&OwnedFd) -> bool) -> Option<u32> {
    tree.iter().map(|process| process.pid).find(|pid| named(*pid, name).any(|descriptor| holds(&descriptor)))
}

/// What a process has open under the kernel's names, as ours.
fn named(pid: u32, name: &[u8]) -> impl Iterator<Item = OwnedFd> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let is_it = target.as_os_str().as_bytes().starts_with(name);
        descriptor(pid, entry.file_name().to_str().filter(|_| is_it)?.parse().ok()?)
    })
}

/// Whether what a unix socket would read next is from a sender with an address, and not from that which it is connected to.
fn has_sender(socket: &OwnedFd) -> bool {
    let is_unix = socket_domain(socket).is_ok_and(|domain| domain == AddressFamily::UNIX);
    let is_datagram = socket_type(socket).is_ok_and(|kind| kind == SocketType::DGRAM);
    is_unix && is_datagram && getpeername(socket).is_err() && sender_length(socket) > size_of::<libc::sa_family_t>()
}

/// Bytes of the address of the next datagram's sender. The datagram stays unread.
fn sender_length(socket: &OwnedFd) -> usize {
    // SAFETY: an address of zeros is one.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    let mut length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: no byte of the datagram is asked for, and the kernel writes no more of the address than are said to be there.
    let read = unsafe {
        libc::recvfrom(socket.as_raw_fd(), std::ptr::null_mut(), 0, flags, (&raw mut address).cast(), &raw mut length)
    };
    if read < 0 { 0 } else { length as usize }
}

/// Reads as far as a piece is whole.
fn has_descriptors(queues: &[u8]) -> bool {
    let mut rest = queues.strip_prefix(&MAGIC).and_then(|rest| rest.strip_prefix(&QUEUES)).unwrap_or_default();
    let mut messages = std::iter::from_fn(|| {
        let (length, after) = rest.split_first_chunk()?;
        let (message, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        rest = after.get(usize::try_from(Fields(message).number_in(LENGTH)?).ok()?..)?;
        Some(message)
    });
    messages.any(|message| Fields(message).bytes_in(RIGHTS).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::criu::protobuf::Message;

    fn file(pieces: &[Vec<u8>]) -> Vec<u8> {
        [&MAGIC[..], &QUEUES, &pieces.concat()].concat()
    }

    fn piece(bytes: &[u8], has_descriptors: bool) -> Vec<u8> {
        let message = Message::default().number(1, 11).number(LENGTH, bytes.len() as u64);
        let message = if has_descriptors { message.bytes(RIGHTS, &[8, 1, 16, 12]) } else { message }.encoded();
        [&(message.len() as u32).to_le_bytes()[..], &message, bytes].concat()
    }

    #[test]
    fn descriptors_are_found_behind_other_pieces_and_bytes_are_none() {
        assert!(has_descriptors(&file(&[piece(b"text", false), piece(b"d", true)])));
        assert!(!has_descriptors(&file(&[piece(b"text", false), piece(&piece(b"d", true), false)])));
        assert!(!has_descriptors(&file(&[])) && !has_descriptors(b"no image"));
    }

    #[test]
    fn datagrams_are_told_by_their_senders() {
        use std::os::unix::net::UnixDatagram;
        let folder = tempfile::tempdir().unwrap();
        let bound = |name: &str| UnixDatagram::bind(folder.path().join(name)).unwrap();
        let send = |from: &UnixDatagram| from.send_to(b"word", folder.path().join("to")).unwrap();
        let (to, has_sender) = (bound("to"), |to: &UnixDatagram| has_sender(&to.try_clone().unwrap().into()));
        assert!(!has_sender(&to), "nothing was sent");
        send(&UnixDatagram::unbound().unwrap());
        assert!(!has_sender(&to), "the sender has no address");
        to.recv(&mut [0; 4]).unwrap();
        let from = bound("from");
        send(&from);
        assert!(has_sender(&to) && has_sender(&to), "it stays unread");
        to.connect(folder.path().join("from")).unwrap();
        assert!(!has_sender(&to), "it is connected to the sender");
    }

    #[test]
    fn events_that_were_not_read_are_found() {
        use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
        let folder = tempfile::tempdir().unwrap();
        let watch = init(CreateFlags::empty()).unwrap();
        add_watch(&watch, folder.path(), WatchFlags::CREATE).unwrap();
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        assert_eq!(with_events(&us), None);
        fs::write(folder.path().join("new"), "").unwrap();
        assert_eq!(with_events(&us), Some(std::process::id()));
    }

    #[test]
    fn damage_is_survived() {
        let whole = file(&[piece(b"one", false), piece(b"d", true)]);
        for length in 0..whole.len() {
            assert!(!has_descriptors(&whole[..length]), "{length}");
        }
    }
}
