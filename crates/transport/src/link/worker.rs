//! The worker's end of a link, of either kind.

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

/// A frame as the worker gets it: copied out of memory that the program can write.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// Head of the frame, whose fields have been checked.
    pub head: FrameHead,
    /// Encoded message behind the head.
    pub payload: &'a [u8],
    /// The number of the buffer that has the payload ([`WorkerLink::buffers`]); none if it is elsewhere.
    pub buffer: Option<usize>,
}

/// An event on a worker's link.
#[derive(Debug, Clone, Copy)]
pub enum LinkEvent<'a> {
    /// A frame to execute.
    Frame(Frame<'a>),
    /// The number of frames given to [`LinkControl::interrupt`] was handed out. Returned once.
    Interrupted,
    /// The program has closed its end, and all its queued frames were handed out.
    Closed,
}

impl<'a> LinkEvent<'a> {
    /// Returns the frame, if the event is one.
    #[must_use]
    pub fn frame(self) -> Option<Frame<'a>> {
        if let Self::Frame(frame) = self { Some(frame) } else { None }
    }
}

/// The worker's end of a link. One thread reads it.
pub trait WorkerLink: Send {
    /// Waits for the next frame, an interruption, or the end of the link.
    ///
    /// # Errors
    /// [`LinkError::Protocol`] or [`LinkError::Frame`]: the program broke the protocol, and the session must end.
    fn next(&mut self) -> Result<LinkEvent<'_>, LinkError>;

    /// Returns false while [`WorkerLink::next`] would wait, for a reader that has other work meanwhile.
    fn has_pending(&mut self) -> bool {
        true
    }

    /// Returns the sender of replies, which any thread may use.
    fn replier(&self) -> Arc<dyn Replier>;

    /// Returns the staging memory that both sides share; none on stream links.
    fn staging(&self) -> Option<&Staging>;

    /// Returns this side's buffers for bulk; none on links that share memory.
    fn buffers(&self) -> Option<&Arc<Buffers>> {
        None
    }

    /// Returns memory that the program may read; none on stream links.
    fn zero_copy(&self) -> Option<ZeroCopyMemory> {
        None
    }

    /// Returns what a thread waits on that ends the process when the program is gone.
    fn hangup(&self) -> Hangup;

    /// Returns control of the link for threads that do not read it; none where a link cannot be controlled.
    fn link_control(&self) -> Option<LinkControl> {
        None
    }
}

/// Sends replies. All threads of the worker share it.
pub trait Replier: Send + Sync {
    /// Answers frame `sequence` of the program's `thread`. Each frame that wants a reply gets exactly one.
    ///
    /// # Errors
    /// [`LinkError::Frame`] if payload and output do not fit ([`Output::cut`] makes them fit), [`LinkError::Closed`].
    fn reply(&self, answer: &OutgoingReply<'_>) -> Result<(), LinkError>;
}

/// A reply that is not encoded yet.
#[derive(Debug, Clone, Copy)]
pub struct OutgoingReply<'a> {
    /// The thread of the request.
    pub thread: u32,
    /// The number of the request.
    pub sequence: u64,
    /// `CUresult` of the call.
    pub status: u32,
    /// `CUresult` of an earlier enqueued call that was not reported yet; 0 is none.
    pub deferred: u32,
    /// The reply's message, encoded.
    pub payload: &'a [u8],
    /// Further bytes of the payload, sent without a copy.
    pub tail: &'a [u8],
    /// Output of device code.
    pub output: Output<'a>,
}

/// Returns the encoded head of a reply, and the length of its output.
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
