//! The program's end of a link, of either kind.

use std::time::Duration;

use katydid_wire::frame::ReplyHead;

use crate::link::batch::{OrderingRules, StreamKey};
use crate::link::error::LinkError;
use crate::link::gate::QuiesceGate;
use crate::link::reply_buffer::ReplyBuffer;
use crate::shm::staging::Staging;

/// The program's end of a link, shared by all its threads.
pub trait ProgramLink: CallLink + BatchLink + QuiesceLink + ReclaimLink {}

impl<L: CallLink + BatchLink + QuiesceLink + ReclaimLink> ProgramLink for L {}

/// Frames of calls, and their replies.
pub trait CallLink: Send + Sync {
    /// Queues one frame whose payload is the concatenation of `parts`. Waits only for room.
    ///
    /// Frames are executed in the order in which these functions accepted them.
    ///
    /// # Errors
    /// [`LinkError::Closed`] once the worker is gone; other variants are the caller's or the peer's fault.
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError>;

    /// Queues a frame like [`CallLink::enqueue`], without waking a worker that sleeps. For rare frames that may be executed
    /// later. A later frame wakes the worker, or it wakes by itself, after a tenth of a second at most.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn enqueue_lazily(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.enqueue(opcode, context, parts)
    }

    /// Returns the number of frames queued so far that no thread waits for. All of these are executed before any frame that is
    /// queued after this read.
    fn enqueued(&self) -> u64;

    /// Queues one frame and waits for its reply. The bytes behind the reply's head replace `reply`; [`ReplyHead::split`] divides
    /// them into payload and device output.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError>;

    /// Makes a call like [`CallLink::call`], for a reply with much data. Data that fits `buffer` exactly goes straight there.
    /// Then `reply` gets the bytes around it, and the second value is true.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`]. The buffer's contents are undefined after an error.
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

    /// Ends the link when a waiting thread hears nothing of the worker for `limit`. Does nothing on links that share memory,
    /// whose peer is on the same machine. Without a limit, or with a zero limit, threads wait for ever.
    ///
    /// # Errors
    ///
    /// The system refuses.
    fn limit_silence(&self, limit: Duration) -> std::io::Result<()> {
        let _ = limit;
        Ok(())
    }

    /// Disables spinning: from now on, threads that wait sleep at once.
    fn disable_spin(&self) {}

    /// Returns whether several living threads have sent frames.
    fn is_multithreaded(&self) -> bool {
        false
    }

    /// Asks the system to prepare a cheaper way to queue frames. With several threads this takes the system milliseconds; the
    /// caller need not wait for it.
    fn enable_fast_path(&self) {}
}

/// Bulk data: copies whose frames stay together, and channels beside the frames.
pub trait BatchLink: Send + Sync {
    /// Begins a batch of work for a stream, once no batch overlaps it. Returns its number, for `in_batch`. The caller must end
    /// the batch.
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

    /// Returns the memory that both sides share for bulk copies; none on stream links.
    fn staging(&self) -> Option<&Staging>;

    /// Lets bulk use up to `most` connections beside the first. They are opened when there is bulk. Does nothing on links that
    /// share memory.
    fn allow_bulk_connections(&self, most: usize) {
        let _ = most;
    }

    /// Returns how many bulk connections can carry `bytes` of upcoming bulk at a time: that many threads are faster than one.
    /// Returns 0 without such connections, or for too few bytes.
    fn bulk_connections_for(&self, bytes: u64) -> usize {
        let _ = bytes;
        0
    }
}

/// Stops frames, for a checkpoint or for good.
pub trait QuiesceLink: Send + Sync {
    /// Waits until a frame of the calling thread would be sent at once.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn wait_until_open(&self) -> Result<(), LinkError> {
        Ok(())
    }

    /// Returns the gate for the supervisor of the program's job; none where a link cannot be held.
    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate> {
        None
    }

    /// In the child of a fork: closes the descriptors and touches nothing that is shared. Every later use of the link fails with
    /// [`LinkError::Forked`]. The parent's end is unaffected.
    fn abandon(&self);
}

/// Memory that the worker reclaims, and memory that it shares with the program.
pub trait ReclaimLink: Send + Sync {
    /// Waits for the worker's next reclaim notice, and returns its number. For one thread only; waiting costs nothing.
    ///
    /// # Errors
    /// As [`CallLink::enqueue`].
    fn next_reclaim_notice(&self) -> Result<u32, LinkError> {
        Err(LinkError::Closed)
    }

    /// Makes the shared memory of the pinned arena at least `length` bytes long. Does nothing on links that have none.
    ///
    /// # Errors
    ///
    /// The system refuses, or the program has closed the memory's descriptor.
    fn lengthen_pinned(&self, length: u64) -> std::io::Result<()> {
        let _ = length;
        Ok(())
    }
}
