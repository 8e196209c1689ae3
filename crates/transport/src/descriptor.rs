//! A socket that a forked child can let go of without disturbing its parent's, and whether its peer is there.

#![expect(unsafe_code, reason = "closing a descriptor behind its owner's back")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::fcntl_dupfd_cloexec;

use crate::LinkError;

/// The program's connection to its worker.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    abandoned: AtomicBool,
    gone: AtomicBool,
}

impl Descriptor {
    /// Takes the connection over. It is moved above the standard descriptors, which a program may have closed and
    /// would otherwise write to.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let fd = if fd.as_raw_fd() > 2 { fd } else { fcntl_dupfd_cloexec(&fd, 3)? };
        Ok(Self { fd: ManuallyDrop::new(fd), abandoned: AtomicBool::new(false), gone: AtomicBool::new(false) })
    }

    /// The connection, if it can still be used.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>, LinkError> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(LinkError::Forked);
        }
        if self.gone.load(Ordering::Relaxed) {
            return Err(LinkError::Closed);
        }
        Ok(self.fd.as_fd())
    }

    /// Remembers that the link is useless, so that later uses fail at once.
    pub(crate) fn give_up(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    /// Looks whether the peer is still there.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        if is_hung_up(self.get()?, Some(&Timespec::default())) {
            self.give_up();
            return Err(LinkError::Closed);
        }
        Ok(())
    }

    /// In a forked child: closes the child's copy, so that the peer sees the parent's end alone.
    pub(crate) fn abandon(&self) {
        if !self.abandoned.swap(true, Ordering::Relaxed) {
            // SAFETY: a forked child has one thread, so nobody is using the descriptor; after this `get` gives it to
            // nobody, and `drop` leaves it alone.
            unsafe { rustix::io::close(self.fd.as_raw_fd()) };
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !*self.abandoned.get_mut() {
            // SAFETY: dropped once, here; `abandon` has not closed it.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// Waits until the peer has closed its end, at most for `timeout`.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>, timeout: Option<&Timespec>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    // An interrupted or failed poll says nothing about the peer.
    let found = poll(&mut polled, timeout).is_ok_and(|found| found > 0);
    found && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_closed_peer_is_noticed_and_remembered() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let ours = Descriptor::new(ours.into()).unwrap();
        theirs.write_all(b"unread").unwrap();
        assert!(ours.check().is_ok());
        drop(theirs);
        assert!(matches!(ours.check(), Err(LinkError::Closed)));
        assert!(matches!(ours.get(), Err(LinkError::Closed)));
    }

    #[test]
    fn an_abandoned_descriptor_is_closed_once() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let ours = Descriptor::new(ours.into()).unwrap();
        ours.abandon();
        assert!(matches!(ours.get(), Err(LinkError::Forked)));
        assert!(is_hung_up(theirs.as_fd(), None));
        let unrelated = UnixStream::pair().unwrap();
        drop(ours);
        (&unrelated.0).write_all(b"still open").unwrap();
    }
}
