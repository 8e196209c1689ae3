//! Descriptors passed with bytes over a unix socket (`SCM_RIGHTS`).
//!
//! A receiver sets how many descriptors it takes. The kernel closes any beyond that, and the message is refused, so a peer cannot
//! fill this process's table of descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Most descriptors of one message.
pub(crate) const MAX_FDS: usize = 4;

/// Sends `parts` with `fds`, and returns how many bytes were sent. A packet socket sends all or nothing.
pub(crate) fn send(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, parts, fds, SendFlags::empty())
}

/// Sends `parts` with `fds` without waiting. [`io::ErrorKind::WouldBlock`]: there is no room, or too many descriptors of this
/// user are in flight.
pub(crate) fn send_at_once(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send_with(socket, parts, fds, SendFlags::DONTWAIT)
}

fn send_with(
    socket: BorrowedFd<'_>,
    parts: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // The space is rounded up, so it alone would not enforce the limit.
    if fds.len() > MAX_FDS || (!fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds))) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        match sendmsg(socket, parts, &mut control, SendFlags::NOSIGNAL | flags) {
            Err(Errno::INTR) => {}
            Err(Errno::TOOMANYREFS) => return Err(io::ErrorKind::WouldBlock.into()),
            other => return Ok(other?),
        }
    }
}

/// Receives bytes and the descriptors that came with them. 0 bytes are the end of the connection.
pub(crate) fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], flags: RecvFlags) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if fds.len() > MAX_FDS || received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "a message was longer, or had more descriptors, than agreed",
        ));
    }
    Ok((received.bytes, fds))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_and_works() {
        let (local, peer) = UnixStream::pair().unwrap();
        let (mut reader, sent) = UnixStream::pair().unwrap();
        assert_eq!(send(local.as_fd(), &[IoSlice::new(b"take")], &[sent.as_fd()]).unwrap(), 4);
        let mut bytes = [0; 8];
        let (length, mut fds) = receive(peer.as_fd(), &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!((&bytes[..length], fds.len()), (&b"take"[..], 1));
        UnixStream::from(fds.remove(0)).write_all(b"through").unwrap();
        drop(sent);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn too_many_descriptors_are_refused_on_both_sides() {
        let (local, _peer) = UnixStream::pair().unwrap();
        let many = vec![local.as_fd(); MAX_FDS + 1];
        assert_eq!(send(local.as_fd(), &[IoSlice::new(b"x")], &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
