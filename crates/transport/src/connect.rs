//! The program's way to a session.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use katydid_wire::handshake::{Build, HandshakeError, Hello, Ready};
use thiserror::Error;

use crate::{Address, LinkError, ProgramLink};

/// A session that has begun.
pub struct Connection {
    /// The program's end.
    pub link: Box<dyn ProgramLink>,
    /// What the worker answered; its arenas are a choice out of the hello's.
    pub ready: Ready,
    /// The memory of the pinned arena, as long as the hello's; none on stream links. Offset 0 is the arena's base.
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
    todo!("{address} {hello:?} {build:?} {timeout:?}")
}
