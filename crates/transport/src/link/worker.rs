//! The worker's end of a link, whatever carries it.

use std::sync::Arc;

use katydid_wire::frame::{FrameError, FrameHead, HEAD_BYTES, Output, ReplyHead};

use crate::link::error::LinkError;
use crate::link::link_control::LinkControl;
use crate::link::pending::Hangup;
use crate::shm::staging::{Staging, ZeroCopyMemory};
use crate::stream::bulk::Buffers;

/// A frame skips or repeats a number.
pub(crate) const OUT_OF_ORDER: LinkError =
    LinkError::Protocol { what: "a frame does not have the number that is expected" };

/// A frame as the worker gets it: copied out of what the program can write.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Head of the frame, whose fields have been checked.
    pub head: FrameHead,
    /// Encoded message behind the head.
    pub payload: &'a [u8],
    /// The number of the buffer that it lies in ([`WorkerLink::buffers`]), if it does.
    pub buffer: Option<usize>,
}

/// What a worker's link has come to.
#[derive(Debug, Clone, Copy)]
pub enum LinkEvent<'a> {
    /// A frame to execute.
    Frame(Frame<'a>),
    /// As many frames were handed out as [`LinkControl::interrupt`] said; returned once.
    Interrupted,
    /// The program has closed, and everything it queued was handed out.
    Closed,
}

impl<'a> LinkEvent<'a> {
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
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError>;

    /// Whether [`WorkerLink::next`] may have something to tell at once. False while it would wait; for a reader that has
    /// something to do meanwhile.
    fn has_pending(&mut self) -> bool {
        true
    }

    /// Sender of replies, which any thread may use.
    fn replier(&self) -> Arc<dyn Replier>;

    /// Memory that both sides see; none on stream links.
    fn staging(&self) -> Option<&Staging>;

    /// Memory of this side for bulk; none on links that share memory.
    fn buffers(&self) -> Option<&Arc<Buffers>> {
        None
    }

    /// Memory for what the program may read; none on stream links.
    fn zero_copy(&self) -> Option<ZeroCopyMemory> {
        None
    }

    /// For a thread that ends the process when the program is gone.
    fn hangup(&self) -> Hangup;

    /// Control of the link, for other threads than the one that reads it; none where a link cannot be controlled.
    fn link_control(&self) -> Option<LinkControl> {
        None
    }
}

/// Sends replies; shared by all threads of the worker.
pub trait Replier: Send + Sync {
    /// Answers frame `sequence` of the program's `thread`. Each frame that wants a reply gets exactly one.
    ///
    /// # Errors
    /// [`LinkError::Frame`] if payload and output do not fit ([`Output::cut`] makes them), [`LinkError::Closed`].
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError>;
}

/// A reply before it is encoded.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingReply<'a> {
    /// The thread of the request.
    pub thread: u32,
    /// The number of the request.
    pub sequence: u64,
    /// `CUresult` of the call.
    pub status: u32,
    /// `CUresult` of an earlier enqueued call that was not reported yet; 0: none.
    pub deferred: u32,
    /// The reply's message, encoded.
    pub payload: &'a [u8],
    /// Further bytes of the payload, sent without a copy.
    pub tail: &'a [u8],
    /// What device code printed.
    pub output: Output<'a>,
}

/// The head of a reply, and the length of its output.
pub(crate) fn answer_head(answer: &OutgoingReply<'_>) -> Result<([u8; HEAD_BYTES], usize), FrameError> {
    let output = Output::encoded_len(&answer.output);
    let body = answer.payload.len().saturating_add(answer.tail.len()).saturating_add(output);
    let too_large = |_| FrameError::TooLarge { payload: body };
    let head = ReplyHead {
        status: answer.status,
        deferred: answer.deferred,
        output: u32::try_from(output).map_err(too_large)?,
        thread: answer.thread,
        sequence: answer.sequence,
    };
    Ok((head.encode(body)?, output))
}
