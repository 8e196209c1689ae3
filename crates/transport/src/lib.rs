//! Links that carry frames between a program and its worker.
//!
//! ```text
//! program                         daemon                         worker
//! connect ── hello (+ memfds) ──▶ Pending::accept
//!                                 Pending::hand_over ── hello, socket, memfds ──▶ Pending::receive
//!         ◀───────────────────────── ready, or refused ────────────────────────── Pending::open
//! ProgramLink ◀══════════ shared memory, or frames on the same socket ══════════▶ WorkerLink
//! ```
//!
//! [`connect()`] makes the shared memory (if the link is to have some), sends the hello and waits for the answer. The
//! daemon reads the hello under a deadline, refuses what does not fit, and passes the rest on; it keeps nothing of the
//! connection. The worker checks the shared memory, chooses the arenas, and answers, with the memory of the staging
//! pieces, which no dump of the program is to hold. From then on the socket of a
//! shared-memory link stays silent: it only tells each side when the other one is gone.
//!
//! Rules kept in this crate:
//! - no thread is made in the program, and no signal can reach it from here (no `SIGPIPE`);
//! - whatever a peer may write is bounded, copied out, and checked before it means anything ([`LinkError::Protocol`]);
//! - memory shared with a peer is touched in the module `shared` alone, by atomics and by copies, never by reference.
//!
//! Every byte is specified in `docs/wire-protocol.md`.

mod address;
mod area;
mod barrier;
mod bulk;
mod channel;
mod connect;
mod descriptor;
mod error;
pub mod examine;
mod fdpass;
mod hold;
mod home;
mod inlet;
mod landing;
mod line;
mod mapped;
pub mod packing;
mod pending;
mod reply;
mod ring;
mod seats;
pub mod share;
mod shared;
mod shm;
mod socket;
mod staging;
mod stream;
mod switch;
mod talk;
mod tls;
mod train;
mod turn;
mod vsock;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use katydid_wire::frame::{FrameHead, Output, ReplyHead};

pub use address::{Address, AddressError};
pub use bulk::{BUFFER, BUFFERS, Buffer, Buffers};
pub use connect::{ConnectError, Connection, companion, connect, driver_at};
pub use error::LinkError;
pub use hold::{Holding, is_laden, laden, pass_holds};
pub use landing::Landing;
pub use line::Line;
pub use pending::{AcceptError, Delivery, Hangup, Pending};
pub use staging::{PIECE, PIECES, Piece, SHELF_TURN, SHELF_WRITERS, ShelfMemory, Staging};
pub use switch::{AttachError, Switch};
pub use talk::{Talk, TalkError, Word};
pub use tls::{AUTHORITY, CERTIFICATE, Identity, KEY, TlsError};
pub use train::{Place, Rules, aboard};
pub use vsock::{bind_vsock, vsock_peer, vsock_port};
pub use wait::Spin;

/// The program's end of a link, shared by all its threads.
pub trait ProgramLink: Send + Sync {
    /// Queues one frame whose payload is `parts`, one after the other; waits only for room.
    ///
    /// Frames are executed in the order in which these functions took them in.
    ///
    /// # Errors
    /// [`LinkError::Closed`] once the worker is gone; other variants are the caller's or the peer's fault.
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError>;

    /// Frames queued so far that nobody waits for. Those that are counted are executed before any that is queued after the
    /// count was read.
    fn enqueued(&self) -> u64;

    /// Queues one frame and waits for its reply. What followed the reply's head replaces `reply`;
    /// [`ReplyHead::split`] divides it into payload and device output.
    ///
    /// # Errors
    /// As [`ProgramLink::enqueue`].
    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError>;

    /// As [`ProgramLink::call`], for a reply with much data, which goes to `landing` at once where it fits there exactly:
    /// then `reply` gets what lies around it, and the second value is true.
    ///
    /// # Errors
    /// As [`ProgramLink::enqueue`]. What the landing holds then is anybody's guess.
    fn call_landing(
        &self,
        opcode: u16,
        context: u32,
        parts: &[&[u8]],
        reply: &mut Vec<u8>,
        landing: Landing,
    ) -> Result<(ReplyHead, bool), LinkError> {
        let head = self.call(opcode, context, parts, reply)?;
        let fits = landing.fits(&head, reply.len());
        if fits {
            let data = landing.skip()..landing.skip() + landing.size();
            landing.write(0, &reply[data.clone()]);
            reply.drain(data);
        }
        Ok((head, fits))
    }

    /// Memory that both sides see, for bulk copies; none on stream links.
    fn staging(&self) -> Option<&Staging>;

    /// Makes the memory that the sides share for the pinned arena at least `length` bytes long; nothing on links that have
    /// none.
    ///
    /// # Errors
    ///
    /// The system refuses, or the program has closed the memory's descriptor.
    fn lengthen_pinned(&self, length: u64) -> std::io::Result<()> {
        let _ = length;
        Ok(())
    }

    /// Begins a train ([`train`]) of work for a place, and waits until there is none that it meets; its number is for [`aboard`].
    /// Whoever begins one ends it.
    ///
    /// # Errors
    /// As [`ProgramLink::enqueue`].
    fn begin_train(&self, place: Place, rules: Rules) -> Result<u64, LinkError> {
        let _ = (place, rules);
        Ok(0)
    }

    /// Ends a train.
    fn end_train(&self, number: u64) {
        let _ = number;
    }

    /// Waits until a frame of the calling thread would be sent at once.
    ///
    /// # Errors
    /// As [`ProgramLink::enqueue`].
    fn stand(&self) -> Result<(), LinkError> {
        Ok(())
    }

    /// From now on threads that wait sleep at once.
    fn calm(&self) {}

    /// Whether threads have sent frames, and still live, besides one.
    fn has_company(&self) -> bool {
        false
    }

    /// Has the system prepare what makes frames cheaper to queue. With several threads this takes it milliseconds; nobody has to
    /// wait for it.
    fn quicken(&self) {}

    /// In the child of a fork: closes the descriptors and touches nothing that is shared. Every later use of the link
    /// is [`LinkError::Forked`]; the parent's end lives on.
    fn abandon(&self);

    /// Ends the link when nothing was heard of its worker for so long by a thread that waits; nothing on links that share
    /// memory, whose peer is on the same machine. Without a limit, or with one of nothing, threads wait for ever.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn limit_silence(&self, limit: Duration) -> std::io::Result<()> {
        let _ = limit;
        Ok(())
    }

    /// Lets bulk go over as many as `most` connections beside the first, which are opened when there is bulk; nothing on
    /// links that share memory.
    fn allow_lanes(&self, most: usize) {
        let _ = most;
    }

    /// How many such connections `bytes` of bulk, which are about to be sent or received, can use at a time: that many
    /// threads do it faster than one. 0: there are none, or it is too little.
    fn lanes_for(&self, bytes: u64) -> usize {
        let _ = bytes;
        0
    }

    /// Waits until the worker wants back what the program holds idle of devices; the number of that appeal. For one thread,
    /// which costs nothing while it waits.
    ///
    /// # Errors
    /// As [`ProgramLink::enqueue`].
    fn next_appeal(&self) -> Result<u32, LinkError> {
        Err(LinkError::Closed)
    }

    /// For the keeper of the program's job; none where a link cannot be held.
    fn holding(&self) -> Option<&dyn Holding> {
        None
    }
}

/// A frame as the worker gets it: copied out of what the program can write.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Its head, checked.
    pub head: FrameHead,
    /// What followed it.
    pub payload: &'a [u8],
    /// The number of the buffer that it lies in ([`WorkerLink::buffers`]), if it does.
    pub buffer: Option<usize>,
}

/// What a worker's link has come to.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    /// The next frame.
    Frame(Frame<'a>),
    /// As many frames were handed out as [`Switch::interrupt`] said; told once.
    Interrupted,
    /// The program has closed, and everything it queued was handed out.
    Closed,
}

impl<'a> Event<'a> {
    /// The frame, if it is one.
    #[must_use]
    pub fn frame(self) -> Option<Frame<'a>> {
        if let Self::Frame(frame) = self { Some(frame) } else { None }
    }
}

/// The worker's end of a link; one thread reads it.
pub trait WorkerLink: Send {
    /// Waits for the next frame, an interruption, or the end.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] or [`LinkError::Frame`]: the program broke the protocol, and the session must end.
    fn next(&mut self) -> Result<Event<'_>, LinkError>;

    /// Whether [`WorkerLink::next`] may have something to tell at once. False while it would wait; for a reader that has
    /// something to do meanwhile.
    fn has_news(&mut self) -> bool {
        true
    }

    /// For replies, from any thread.
    fn replier(&self) -> Arc<dyn Replier>;

    /// Memory that both sides see; none on stream links.
    fn staging(&self) -> Option<&Staging>;

    /// Memory of this side for bulk; none on links that share memory.
    fn buffers(&self) -> Option<&Arc<Buffers>> {
        None
    }

    /// Memory for what the program may read; none on stream links.
    fn shelf(&self) -> Option<ShelfMemory> {
        None
    }

    /// For a thread that ends the process when the program is gone.
    fn hangup(&self) -> Hangup;

    /// For whoever controls the link beside the thread that reads it; none where a link cannot be controlled.
    fn switch(&self) -> Option<Switch> {
        None
    }
}

/// Sends replies; shared by all threads of the worker.
pub trait Replier: Send + Sync {
    /// Answers frame `sequence` of the program's `thread`. Each frame that wants a reply gets exactly one.
    ///
    /// # Errors
    /// [`LinkError::Frame`] if payload and output do not fit ([`Output::cut`] makes them), [`LinkError::Closed`].
    fn reply(&self, answer: &Answer<'_>) -> Result<(), LinkError>;
}

/// One reply.
#[derive(Debug, Clone, Copy)]
pub struct Answer<'a> {
    /// The thread of the request.
    pub thread: u32,
    /// The number of the request.
    pub sequence: u64,
    /// `CUresult` of the call.
    pub status: u32,
    /// `CUresult` of an earlier enqueued call that was not reported yet; 0: none.
    pub deferred: u32,
    /// The message.
    pub payload: &'a [u8],
    /// More of it, sent from where it lies.
    pub tail: &'a [u8],
    /// What device code printed.
    pub output: Output<'a>,
}
