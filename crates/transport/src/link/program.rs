//! The program's end of a link, whatever carries it.

use std::time::Duration;

use katydid_wire::frame::ReplyHead;

use crate::link::batch::{OrderingRules, StreamKey};
use crate::link::error::LinkError;
use crate::link::gate::QuiesceGate;
use crate::link::reply_buffer::ReplyBuffer;
use crate::shm::staging::Staging;

/// The program's end of a link, shared by all its threads: the whole of its parts.
pub trait ProgramLink: CallLink + BatchLink + QuiesceLink + ReclaimLink {}

impl<L: CallLink + BatchLink + QuiesceLink + ReclaimLink> ProgramLink for L {}

/// Frames of calls, and their replies.
pub trait CallLink: Send + Sync {
    /// Queues one frame whose payload is `parts`, one after the other; waits only for room.
    ///
    /// Frames are executed in the order in which these functions took them in.
    ///
    /// # Errors
    /// [`LinkError::Closed`] once the worker is gone; other variants are the caller's or the peer's fault.
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError>;

    /// As [`CallLink::enqueue`], for a frame that need not be executed at once, and that few of follow each other: it does not
    /// wake a worker that sleeps. A later frame does, or the worker wakes by itself, after a tenth of a second at most.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn enqueue_lazily(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.enqueue(opcode, context, parts)
    }

    /// Frames queued so far that no thread waits for. Those that are counted are executed before any that is queued after the
    /// count was read.
    fn enqueued(&self) -> u64;

    /// Queues one frame and waits for its reply. What followed the reply's head replaces `reply`;
    /// [`ReplyHead::split`] divides it into payload and device output.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError>;

    /// As [`CallLink::call`], for a reply with much data, which goes to `buffer` at once where it fits there exactly:
    /// then `reply` gets what lies around it, and the second value is true.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`]. The buffer's contents are undefined then.
    fn call_into(
        &self,
        opcode: u16,
        context: u32,
        parts: &[&[u8]],
        reply: &mut Vec<u8>,
        buffer: ReplyBuffer,
    ) -> Result<(ReplyHead, bool), LinkError> {
        let head = self.call(opcode, context, parts, reply)?;
        let fits = buffer.fits(&head, reply.len());
        if fits {
            let data = buffer.skip()..buffer.skip() + buffer.size();
            buffer.write(0, &reply[data.clone()]);
            reply.drain(data);
        }
        Ok((head, fits))
    }

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

    /// From now on threads that wait sleep at once.
    fn disable_spin(&self) {}

    /// Whether threads have sent frames, and still live, besides one.
    fn is_multithreaded(&self) -> bool {
        false
    }

    /// Has the system prepare what makes frames cheaper to queue. With several threads this takes it milliseconds; the caller need not
    /// wait for it.
    fn enable_fast_path(&self) {}
}

/// Data in bulk: copies whose frames stay together, and ways beside the frames' own.
pub trait BatchLink: Send + Sync {
    /// Begins a batch of work for a stream, and waits until no batch overlaps it; its number is for `in_batch`.
    /// The caller has to end it.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn begin_batch(&self, stream_key: StreamKey, rules: OrderingRules) -> Result<u64, LinkError> {
        let _ = (stream_key, rules);
        Ok(0)
    }

    /// Ends the batch with the number that [`BatchLink::begin_batch`] returned.
    fn end_batch(&self, number: u64) {
        let _ = number;
    }

    /// Memory that both sides see, for bulk copies; none on stream links.
    fn staging(&self) -> Option<&Staging>;

    /// Lets bulk go over as many as `most` connections beside the first, which are opened when there is bulk; nothing on
    /// links that share memory.
    fn allow_bulk_connections(&self, most: usize) {
        let _ = most;
    }

    /// How many such connections `bytes` of bulk, which are about to be sent or received, can use at a time: that many
    /// threads do it faster than one. 0: there are none, or it is too little.
    fn bulk_connections_for(&self, bytes: u64) -> usize {
        let _ = bytes;
        0
    }
}

/// Frames that stop, for a checkpoint or for good.
pub trait QuiesceLink: Send + Sync {
    /// Waits until a frame of the calling thread would be sent at once.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn wait_until_open(&self) -> Result<(), LinkError> {
        Ok(())
    }

    /// For the keeper of the program's job; none where a link cannot be held.
    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate> {
        None
    }

    /// In the child of a fork: closes the descriptors and touches nothing that is shared. Every later use of the link
    /// is [`LinkError::Forked`]; the parent's end lives on.
    fn abandon(&self);
}

/// Memory that the worker wants back, and memory that it shares with the program.
pub trait ReclaimLink: Send + Sync {
    /// Waits until the worker wants back what the program holds idle of devices; the number of that notice. For one thread,
    /// which costs nothing while it waits.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn next_reclaim_request(&self) -> Result<u32, LinkError> {
        Err(LinkError::Closed)
    }

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
}
