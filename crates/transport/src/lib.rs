//! Links that carry frames between a program and its worker.
//!
//! ```text
//! program                         server                         worker
//! connect ── hello (+ memfds) ──▶ Pending::accept
//!                                 Pending::hand_over ── hello, socket, memfds ──▶ Pending::receive
//!         ◀───────────────────────── ready, or refused ────────────────────────── Pending::open
//! ProgramLink ◀══════════ shared memory, or frames on the same socket ══════════▶ WorkerLink
//! ```
//!
//! [`connect()`] makes the shared memory (if the link is to have some), sends the hello and waits for the answer. The server
//! reads the hello under a deadline, refuses what does not fit, and passes the rest on. It keeps nothing of the connection. The
//! worker checks the shared memory, chooses the arenas, and answers. With the answer comes the memory of the staging pieces,
//! which no dump of the program may contain. From then on the socket of a shared-memory link stays silent: it only tells each
//! side when the other one is gone.
//!
//! Rules of this crate:
//! - the program gets no thread and no signal (no `SIGPIPE`) from this crate;
//! - whatever a peer may write is bounded, copied out, and checked before it means anything ([`LinkError::Protocol`]);
//! - memory shared with a peer is touched in the module `shm/shared_mapping` alone, by atomics and by copies, never by reference.
//!
//! Every byte is specified in `docs/reference/wire-protocol.md`.

pub mod fuzz_entry;
mod ipc;
mod link;
mod os;
mod shm;
mod stream;
mod sync;
mod tls;

pub use ipc::connection::Connection;
pub use ipc::control_channel::{ControlChannel, ControlError, ControlMessage};
pub use ipc::exporter_sockets;
pub use ipc::share;
pub use link::address::{Address, AddressError, MAX_SOCKET_PATH_BYTES};
pub use link::batch::{OrderingRules, StreamKey, in_batch};
pub use link::compression;
pub use link::connect::{ConnectedLink, ExpectedProgram, Reservation, companion, connect, driver_at, keeper, reserve};
pub use link::error::{ConnectError, LinkError};
pub use link::gate::{QuiesceGate, bypass_gate, holds_lock, with_lock_held};
pub use link::link_control::{AttachError, LinkControl};
pub use link::pending::{AcceptError, Delivery, Hangup, Pending};
pub use link::program::{BatchLink, CallLink, ProgramLink, QuiesceLink, ReclaimLink};
pub use link::reply_buffer::ReplyBuffer;
pub use link::worker::{Frame, LinkEvent, OutgoingReply, Replier, WorkerLink};
pub use os::vsock::{bind_vsock, vsock_peer, vsock_port};
pub use shm::layout::{STAGING_PIECE_BYTES, STAGING_PIECES};
pub use shm::staging::{
    PIECE_POLL_INTERVAL, Staging, ZERO_COPY_EPOCH_OFFSET, ZERO_COPY_WRITERS_OFFSET, ZeroCopyMemory,
};
pub use shm::staging_piece::StagingPiece;
pub use stream::bulk::{BUFFER_BYTES, BUFFER_COUNT, Buffer, Buffers};
pub use sync::contention::yield_unless_contended;
pub use sync::wait::Spin;
pub use tls::identity::{AUTHORITY_FILE, CERTIFICATE_FILE, Identity, KEY_FILE, TlsError};
