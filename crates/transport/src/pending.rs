//! A program's connection on the server's side, before its session begins.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use katydid_wire::handshake::{Build, HandshakeError, Hello, Ready, Refused};
use thiserror::Error;

use crate::{LinkError, WorkerLink};

/// Why a program's wish came to nothing. The program has been told already, where it could be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// Its hello did not come in time.
    #[error("no hello within {seconds} s")]
    Deadline {
        /// The time it had.
        seconds: u64,
    },
    /// It closed the connection before its hello was complete.
    #[error("the connection was closed before the hello was complete")]
    Closed,
    /// Its hello was refused.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The shared memory it sent is not what the protocol asks for.
    #[error("the program's shared memory is unusable: {what}")]
    SharedMemory {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The operating system refused.
    #[error("the handshake failed while trying to {doing}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The link could not be opened.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// A program that said hello and waits for its answer. Dropping it closes the connection.
#[derive(Debug)]
pub struct Pending {
    socket: OwnedFd,
    hello: Hello,
    fds: Vec<OwnedFd>,
}

impl Pending {
    /// Daemon: reads the hello of a program that has just connected. A program that gets it wrong is told why here.
    ///
    /// # Errors
    /// Why there is nothing to hand over.
    pub fn accept(socket: OwnedFd, build: &Build, timeout: Duration) -> Result<Self, AcceptError> {
        todo!("{socket:?} {build:?} {timeout:?}")
    }

    /// What the program wants.
    #[must_use]
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The connection, to look up the peer's credentials.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The memory of the pinned arena; none on stream links.
    #[must_use]
    pub fn pinned(&self) -> Option<BorrowedFd<'_>> {
        self.fds.get(1).map(AsFd::as_fd)
    }

    /// Tells the program that there will be no session, as well as that can be done without waiting.
    pub fn refuse(self, build: &Build, refused: &Refused) {
        todo!("{build:?} {refused:?}")
    }

    /// Daemon: passes program and `note` (the daemon's own words, at most 64 KiB) to a worker, over a socket pair of
    /// type `SOCK_SEQPACKET`. After success the program is the worker's: drop this value. After a failure another
    /// worker may be tried.
    ///
    /// # Errors
    /// What the system said; `EPIPE` when the worker is gone.
    pub fn hand_over(&self, worker: impl AsFd, build: &Build, note: &[u8]) -> Result<(), AcceptError> {
        todo!("{:?} {build:?} {note:?}", worker.as_fd())
    }

    /// Worker: waits for a program. None: the daemon closed its end, so there will be no program any more.
    ///
    /// # Errors
    /// The daemon is of another build, or the system refused.
    pub fn receive(daemon: impl AsFd, build: &Build) -> Result<Option<(Self, Vec<u8>)>, AcceptError> {
        todo!("{:?} {build:?}", daemon.as_fd())
    }

    /// Worker: opens the link, then tells the program that its session begins.
    ///
    /// # Errors
    /// Why not; the program has been told.
    pub fn open(self, build: &Build, ready: &Ready) -> Result<Box<dyn WorkerLink>, AcceptError> {
        todo!("{build:?} {ready:?}")
    }
}

/// Tells when the program is gone.
#[derive(Debug)]
pub struct Hangup {
    socket: OwnedFd,
}

impl Hangup {
    /// Returns once the program has closed its end, or its process has ended.
    pub fn wait(&self) {
        todo!("{:?}", self.socket)
    }
}
