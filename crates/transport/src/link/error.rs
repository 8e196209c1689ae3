//! Why a link could not carry a frame, sorted by who is at fault: that decides what happens to the session.

use std::io;

use katydid_wire::frame::FrameError;
use thiserror::Error;

use crate::link::address::Address;
use crate::tls::identity::TlsError;
use katydid_wire::handshake::HandshakeError;

/// Why a frame could not be carried. Unless the caller is at fault, the link is unusable afterwards.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer's process has ended or closed the connection. Queued frames may or may not have been executed.
    #[error("the other side has ended the session; look into the server's log for the reason")]
    Closed,
    /// Nothing arrived, or nothing could be sent, for the limit of silence (`KATYDID_LINK_TIMEOUT`).
    #[error(
        "the link has stalled: no sign of life from the other side for {seconds} s; look at the network, or wait longer \
         with KATYDID_LINK_TIMEOUT (such as 60s; 0s: for ever)"
    )]
    Stalled {
        /// The limit of silence, in seconds. The link was silent at least as long.
        seconds: u64,
    },
    /// The peer broke the protocol.
    #[error("the other side broke the protocol: {what}")]
    Protocol {
        /// The rule it broke.
        what: &'static str,
    },
    /// A head from the peer with a wrong field, or a payload of the caller that fits no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// More threads of the program use the link at once than there are reply slots.
    #[error("more than {limit} threads use the GPU at once; let some of them end first")]
    TooManyThreads {
        /// Most threads that a link serves at once.
        limit: usize,
    },
    /// The thread holds a lock, so it must not block until the link is released ([`crate::link::gate::with_lock_held`]).
    #[error("a checkpoint holds the link, so the frame was not sent")]
    Held,
    /// This process is a fork of the one that made the link.
    #[error("a forked process cannot use its parent's session; initialise the GPU after the fork")]
    Forked,
    /// The operating system refused.
    #[error("the link failed while trying to {doing}")]
    System {
        /// Operation that failed, in the infinitive.
        doing: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
}

impl LinkError {
    /// For `map_err` on a system call.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing, source: source.into() }
    }
}

/// Why there is no session.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// No server answers at the address.
    #[error(
        "cannot reach a server at {address} ({source}); start one with: katydid serve --listen {}",
        address.to_listen()
    )]
    Unreachable {
        /// Address that the program connects to.
        address: Address,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The server accepted the connection and then did not answer in time.
    #[error(
        "the server at {address} did not answer within {seconds} s; is it overloaded? see its log; KATYDID_CONNECT_TIMEOUT \
         (such as 60s) allows it more time"
    )]
    Deadline {
        /// Address that the program connects to.
        address: Address,
        /// Time limit of the connection, in seconds.
        seconds: u64,
    },
    /// The server refused, or its answer was invalid.
    #[error("{address}: {source}")]
    Handshake {
        /// Address that the program connects to.
        address: Address,
        /// Why the handshake failed.
        source: HandshakeError,
    },
    /// TLS could not be set up between the two sides.
    #[error("{address}: {source}")]
    Tls {
        /// Address that the program connects to.
        address: Address,
        /// Failure of the TLS handshake.
        source: TlsError,
    },
    /// Shared memory was requested with a server on another machine.
    #[error("{address}: shared memory reaches this machine only; use a stream link")]
    NoSharedMemory {
        /// Address that the program connects to.
        address: Address,
    },
    /// The connection or the shared memory failed on this side.
    #[error("{address}: {source}")]
    Link {
        /// Address that the program connects to.
        address: Address,
        /// The failure of the connection or of the shared memory.
        source: LinkError,
    },
}
