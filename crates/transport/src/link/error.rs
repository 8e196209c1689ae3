//! Why a link could not carry a frame: sorted by who is at fault, because that decides what happens to the session.

use std::io;

use katydid_wire::frame::FrameError;
use thiserror::Error;

use crate::link::address::Address;
use crate::tls::identity::TlsError;
use katydid_wire::handshake::HandshakeError;

/// Why a frame could not be carried. Except for the caller's faults the link is useless afterwards.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The peer's process has ended or closed the connection; what was queued may or may not have been executed.
    #[error("the other side has ended the session; look into the server's log for the reason")]
    Closed,
    /// Nothing has come, or nothing could be sent, for as long as the program waits for a sign of life.
    #[error(
        "the link has stalled: no sign of life from the other side for {seconds} s; look at the network, or wait longer \
         with KATYDID_LINK_TIMEOUT (such as 60s; 0s: for ever)"
    )]
    Stalled {
        /// The limit for silence, in seconds; at least the time without a sign of life.
        seconds: u64,
    },
    /// The peer wrote what the protocol does not allow.
    #[error("the other side broke the protocol: {what}")]
    Protocol {
        /// The rule it broke.
        what: &'static str,
    },
    /// A head with a wrong field, from the peer; or a payload of the caller that fits no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// More threads of the program use the link at once than there are slots for replies.
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
    /// The server took the connection and then did not answer in time.
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
    /// The server refused, or its answer was none.
    #[error("{address}: {source}")]
    Handshake {
        /// Address that the program connects to.
        address: Address,
        /// Why the handshake failed.
        source: HandshakeError,
    },
    /// The two sides did not come to speak TLS.
    #[error("{address}: {source}")]
    Tls {
        /// Address that the program connects to.
        address: Address,
        /// Failure of the TLS handshake.
        source: TlsError,
    },
    /// Shared memory was asked for beyond this machine.
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
