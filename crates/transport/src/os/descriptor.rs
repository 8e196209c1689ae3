//! The program's connection to its worker: a socket that can be exchanged for another while threads use it. A forked child can
//! abandon it without disturbing its parent's.
//!
//! The descriptor's number stays the same from start to end. Another socket is put under it, or, while there is none, an event
//! descriptor that never becomes readable. So no thread can come to use a number that has become something else. Each exchange
//! makes a new generation of the socket. A thread that finds the peer gone names the generation that it used, so that a late
//! finding about an old socket does not condemn the new one.

#![expect(unsafe_code, reason = "closing and exchanging a descriptor behind its owner's back")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{DupFlags, dup3, fcntl_dupfd_cloexec};
use rustix::net::{Shutdown, shutdown};

use crate::link::error::LinkError;

/// The peer is connected, as far as is known.
const PEER_CONNECTED: u32 = 0;
/// The link has detached from the peer, which will be replaced.
const PEER_AWAY: u32 = 1;
/// The peer has gone by itself, and may be replaced.
const PEER_LOST: u32 = 2;
/// The link is unusable.
const PEER_GONE: u32 = 3;
/// Number of states. The bits above them count the exchanges.
const PEER_STATES: u32 = 4;

/// The program's connection to its worker.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: ManuallyDrop<OwnedFd>,
    abandoned: AtomicBool,
    state: AtomicU32,
    /// While set, the link waits for a replacement of a peer that goes by itself.
    keeps: AtomicBool,
}

/// What lies under a descriptor's number while there is no socket. It is made before a socket is closed, so that a program that
/// may open no more files is refused while it still has its socket.
#[derive(Debug)]
pub(crate) struct Placeholder(OwnedFd);

impl Placeholder {
    /// Creates an event descriptor that never becomes readable.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC)?))
    }
}

/// Which of the sockets under the number a thread used, and the state at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketGeneration(u32);

impl Descriptor {
    /// Takes the connection over. Moves it above the standard descriptors, which a program may have closed and would otherwise
    /// write to.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        let (abandoned, keeps) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { fd: ManuallyDrop::new(above_standard(fd)?), abandoned, state: AtomicU32::new(PEER_CONNECTED), keeps })
    }

    /// Returns the connection, if it is still usable. While the peer is away, no byte comes from it.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>, LinkError> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(LinkError::Forked);
        }
        if self.state.load(Ordering::Acquire) % PEER_STATES == PEER_GONE {
            return Err(LinkError::Closed);
        }
        Ok(self.fd.as_fd())
    }

    /// Returns the current generation. A thread takes it before it uses the socket.
    pub(crate) fn generation(&self) -> SocketGeneration {
        SocketGeneration(self.state.load(Ordering::Acquire))
    }

    /// Marks the link as unusable, so that later uses fail at once.
    pub(crate) fn give_up(&self) {
        self.state.fetch_or(PEER_GONE, Ordering::Release);
    }

    /// Notes that the peer of that generation's socket is gone. An error means that the link has ended; otherwise another peer
    /// will come, or has come.
    pub(crate) fn ended(&self, SocketGeneration(seen): SocketGeneration) -> Result<(), LinkError> {
        let state = if self.keeps.load(Ordering::Relaxed) { PEER_LOST } else { PEER_GONE };
        if seen % PEER_STATES == PEER_CONNECTED {
            let _ = self.state.compare_exchange(seen, seen + state, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.get().map(|_| ())
    }

    /// Checks that the peer is still connected.
    pub(crate) fn check(&self) -> Result<(), LinkError> {
        let generation = self.generation();
        let socket = self.get()?;
        if generation.0 % PEER_STATES == PEER_CONNECTED && is_hung_up(socket, Some(&Timespec::default())) {
            return self.ended(generation);
        }
        Ok(())
    }

    /// Returns whether there is a peer, as far as is known.
    pub(crate) fn is_connected(&self) -> bool {
        self.state.load(Ordering::Acquire) % PEER_STATES == PEER_CONNECTED
    }

    /// Returns whether the peer has gone by itself and the link waits for another.
    pub(crate) fn is_lost(&self) -> bool {
        self.state.load(Ordering::Acquire) % PEER_STATES == PEER_LOST
    }

    /// Makes the link wait for a replacement of a peer that goes by itself.
    pub(crate) fn keep(&self) {
        self.keeps.store(true, Ordering::Relaxed);
    }

    /// Notes that the peer will go. Returns false if it is gone already.
    pub(crate) fn expect_end(&self) -> bool {
        self.exchange_state(PEER_CONNECTED, PEER_AWAY)
    }

    /// Tells the peer that nothing more will come, and waits at most `timeout` until it has closed its end too.
    pub(crate) fn part(&self, timeout: Duration) {
        let Ok(socket) = self.get() else { return };
        let timeout = Timespec::try_from(timeout).unwrap_or_default();
        if shutdown(socket, Shutdown::Write).is_ok() {
            is_hung_up(socket, Some(&timeout));
        }
    }

    /// Closes a socket whose end was expected or came by itself. The connection ends even if another process has a copy of the
    /// descriptor: a child that was made without `fork` keeps one.
    pub(crate) fn close(&self, placeholder: &Placeholder) -> io::Result<()> {
        // A socket that has ended already cannot be shut down.
        let _ = shutdown(&*self.fd, Shutdown::Both);
        self.put_under(&placeholder.0)
    }

    /// Puts another socket in the place of the closed one. Returns false if the link does not wait for one.
    pub(crate) fn replace(&self, socket: &OwnedFd) -> io::Result<bool> {
        let old_state = self.state.load(Ordering::Acquire);
        if !matches!(old_state % PEER_STATES, PEER_AWAY | PEER_LOST) {
            return Ok(false);
        }
        self.put_under(socket)?;
        let next = (old_state - old_state % PEER_STATES).wrapping_add(PEER_STATES) | PEER_CONNECTED;
        Ok(self.state.compare_exchange(old_state, next, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    fn exchange_state(&self, from: u32, to: u32) -> bool {
        let change = |state: u32| (state % PEER_STATES == from).then_some(state - from + to);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Makes this descriptor's number another name of `other`.
    fn put_under(&self, other: &OwnedFd) -> io::Result<()> {
        // SAFETY: the number is this value's own and stays open; the second owner is never dropped.
        let mut number = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(self.fd.as_raw_fd()) });
        Ok(dup3(other, &mut number, DupFlags::CLOEXEC)?)
    }

    /// In a forked child: closes the child's copy, so that the peer sees the parent's end alone.
    pub(crate) fn abandon(&self) {
        if !self.abandoned.swap(true, Ordering::Relaxed) {
            // SAFETY: a forked child has one thread, so no other thread uses the descriptor. From here on `get` returns it to no
            // caller, and `drop` leaves it alone.
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

/// Moves a descriptor above the standard ones.
pub(crate) fn above_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > 2 { Ok(fd) } else { Ok(fcntl_dupfd_cloexec(&fd, 3)?) }
}

/// Waits at most `timeout` until the peer has closed its end. Returns whether it has.
pub(crate) fn is_hung_up(fd: BorrowedFd<'_>, timeout: Option<&Timespec>) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    // An interrupted or failed poll says nothing about the peer.
    let found = poll(&mut polled, timeout).is_ok_and(|found| found > 0);
    found && polled[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use katydid_tests::deadline::hang::hang_limit;

    use super::*;

    #[test]
    fn a_closed_peer_is_noticed_and_remembered() {
        let (local, mut peer) = UnixStream::pair().unwrap();
        let local = Descriptor::new(local.into()).unwrap();
        peer.write_all(b"unread").unwrap();
        assert!(local.check().is_ok());
        drop(peer);
        assert!(matches!(local.check(), Err(LinkError::Closed)));
        assert!(matches!(local.get(), Err(LinkError::Closed)));
    }

    #[test]
    fn an_abandoned_descriptor_is_closed_once() {
        let (local, peer) = UnixStream::pair().unwrap();
        let local = Descriptor::new(local.into()).unwrap();
        local.abandon();
        assert!(matches!(local.get(), Err(LinkError::Forked)));
        assert!(is_hung_up(peer.as_fd(), None));
        let unrelated = UnixStream::pair().unwrap();
        drop(local);
        (&unrelated.0).write_all(b"still open").unwrap();
    }

    #[test]
    fn another_socket_takes_the_place_of_one_that_was_left() {
        let (local, peer) = UnixStream::pair().unwrap();
        let local = Descriptor::new(local.into()).unwrap();
        let number = local.get().unwrap().as_raw_fd();
        assert!(local.expect_end() && !local.expect_end());
        local.close(&Placeholder::new().unwrap()).unwrap();
        assert!(is_hung_up(peer.as_fd(), None));
        assert!(local.check().is_ok() && !local.is_connected());
        let (again, mut peer) = UnixStream::pair().unwrap();
        assert!(local.replace(&again.into()).unwrap() && local.is_connected());
        peer.write_all(b"hello").unwrap();
        let mut got = [0; 5];
        rustix::io::read(local.get().unwrap(), &mut got).unwrap();
        assert_eq!((local.get().unwrap().as_raw_fd(), &got), (number, b"hello"));
        drop(peer);
        assert!(matches!(local.check(), Err(LinkError::Closed)));
    }

    #[test]
    fn a_connection_ends_though_a_child_has_a_copy() {
        let (local, peer) = UnixStream::pair().unwrap();
        let copy = local.try_clone().unwrap();
        let local = Descriptor::new(local.into()).unwrap();
        assert!(local.expect_end());
        thread::scope(|scope| {
            scope.spawn(|| local.part(hang_limit()));
            assert!(is_hung_up(peer.as_fd(), None), "the peer is told");
            shutdown(&peer, Shutdown::Both).unwrap();
        });
        local.close(&Placeholder::new().unwrap()).unwrap();
        assert_eq!((&copy).read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_late_finding_about_an_old_socket_does_not_condemn_the_new_one() {
        let (local, _peer) = UnixStream::pair().unwrap();
        let local = Descriptor::new(local.into()).unwrap();
        let generation = local.generation();
        assert!(local.expect_end());
        local.close(&Placeholder::new().unwrap()).unwrap();
        assert!(local.ended(generation).is_ok());
        let (again, _peer) = UnixStream::pair().unwrap();
        assert!(local.replace(&again.into()).unwrap());
        assert!(local.ended(generation).is_ok() && local.is_connected());
    }

    #[test]
    fn a_peer_that_may_be_replaced_is_lost_and_not_gone() {
        let (local, peer) = UnixStream::pair().unwrap();
        let local = Descriptor::new(local.into()).unwrap();
        local.keep();
        drop(peer);
        assert!(local.check().is_ok() && local.is_lost());
        local.give_up();
        assert!(matches!(local.get(), Err(LinkError::Closed)) && !local.is_lost());
    }
}
