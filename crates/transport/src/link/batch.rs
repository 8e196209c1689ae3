//! Batches: frames that belong together, such as the parts of one copy. Until the last of them is sent, other threads may not
//! send what a GPU must not see between two of them. All other frames pass.
//!
//! Only a waiting thread pays: a batch moves the limit that each frame is compared with anyway ([`crate::link::gate`]). A thread
//! inside a batch never blocks on another batch: overlapping batches cannot start. So every batch ends, whatever locks the
//! waiting threads hold. Staging pieces are the exception: a batch has some to itself ([`crate::shm::staging`]).

use std::cell::Cell;

use katydid_wire::frame::FrameHead;

/// Wire ids of a context and a stream.
pub type StreamKey = (u32, u32);

/// Which streams of an API are ordered with each other.
#[derive(Debug, Clone, Copy)]
pub struct OrderingRules {
    /// Returns the stream to whose work a frame adds something, given its opcode and payload.
    pub stream: fn(u16, &[u8]) -> Option<u32>,
    /// Whether the work of one stream is ordered with that of the other.
    pub are_ordered: fn(StreamKey, StreamKey) -> bool,
}

/// The parts of a frame that decide its order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FrameInfo<'a> {
    pub(crate) opcode: u16,
    pub(crate) context: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> FrameInfo<'a> {
    /// Describes a frame with this head. The payload's first part has all fields.
    pub(crate) fn of(head: &FrameHead, parts: &[&'a [u8]]) -> Self {
        Self { opcode: head.opcode, context: head.context, payload: parts.first().copied().unwrap_or_default() }
    }
}

thread_local! {
    /// The batch of the calling thread's frames; 0 is none.
    static CURRENT_BATCH: Cell<u64> = const { Cell::new(0) };
}

/// Restores the thread's previous batch when it is dropped.
struct InBatch(u64);

impl Drop for InBatch {
    fn drop(&mut self) {
        CURRENT_BATCH.set(self.0);
    }
}

/// Runs `body`, whose frames belong to batch `number`.
pub fn in_batch<T>(number: u64, body: impl FnOnce() -> T) -> T {
    let _restore = InBatch(CURRENT_BATCH.replace(number));
    body()
}

/// Whether the calling thread's frames belong to a batch.
pub(crate) fn is_in_batch() -> bool {
    CURRENT_BATCH.get() != 0
}

#[derive(Debug)]
struct Batch {
    number: u64,
    stream_key: StreamKey,
    rules: OrderingRules,
}

/// The batches under way on a link, kept under the lock of its frames.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    batches: Vec<Batch>,
    /// Number of the latest batch.
    last: u64,
    /// Whether a thread waits for a batch to end.
    is_awaited: bool,
}

impl Batches {
    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    /// Whether the calling thread may send a frame now.
    pub(crate) fn admit(&mut self, frame: FrameInfo<'_>) -> bool {
        let current = CURRENT_BATCH.get();
        let meets = |batch: &Batch| {
            let stream = (batch.rules.stream)(frame.opcode, frame.payload);
            stream.is_some_and(|stream| (batch.rules.are_ordered)(batch.stream_key, (frame.context, stream)))
        };
        self.wait_if(|batch| batch.number != current && meets(batch))
    }

    /// Begins a batch. Returns none while a batch is under way that it would overlap.
    pub(crate) fn begin(&mut self, stream_key: StreamKey, rules: OrderingRules) -> Option<u64> {
        self.wait_if(|batch| (rules.are_ordered)(batch.stream_key, stream_key)).then(|| {
            self.last += 1;
            self.batches.push(Batch { number: self.last, stream_key, rules });
            self.last
        })
    }

    /// Returns false if the caller must wait for a batch that matches.
    fn wait_if(&mut self, is_in_the_way: impl Fn(&Batch) -> bool) -> bool {
        let is_free = !self.batches.iter().any(is_in_the_way);
        self.is_awaited |= !is_free;
        is_free
    }

    /// Ends a batch. Returns whether a thread may have waited for that.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        self.batches.retain(|batch| batch.number != number);
        std::mem::take(&mut self.is_awaited)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A frame of an odd opcode names the stream that is its payload; streams meet within a context, stream 0 all of them.
    pub(crate) const ORDERING_RULES: OrderingRules = OrderingRules {
        stream: |opcode, payload| payload.first().filter(|_| opcode % 2 == 1).map(|stream| u32::from(*stream)),
        are_ordered: |one, other| one.0 == other.0 && (one.1 == other.1 || one.1 == 0 || other.1 == 0),
    };

    fn frame(opcode: u16, context: u32, stream: &[u8]) -> FrameInfo<'_> {
        FrameInfo { opcode, context, payload: stream }
    }

    #[test]
    fn only_what_meets_a_train_waits_for_it() {
        let mut batches = Batches::default();
        let number = batches.begin((1, 5), ORDERING_RULES).unwrap();
        assert!(
            batches.admit(frame(1, 1, &[6])) && batches.admit(frame(1, 2, &[5])) && batches.admit(frame(2, 1, &[5]))
        );
        assert!(!batches.is_awaited && !batches.admit(frame(1, 1, &[5])) && !batches.admit(frame(3, 1, &[0])));
        assert!(batches.end(number) && batches.is_empty());
        assert!(batches.admit(frame(1, 1, &[5])));
    }

    #[test]
    fn a_thread_inside_a_batch_passes_and_overlapping_batches_follow_each_other() {
        let mut batches = Batches::default();
        let first = batches.begin((1, 5), ORDERING_RULES).unwrap();
        assert!(batches.begin((1, 0), ORDERING_RULES).is_none() && batches.begin((1, 5), ORDERING_RULES).is_none());
        let other = batches.begin((1, 6), ORDERING_RULES).unwrap();
        assert!(in_batch(first, || is_in_batch() && batches.admit(frame(1, 1, &[5]))) && !is_in_batch());
        assert!(!in_batch(other, || batches.admit(frame(1, 1, &[5]))));
        assert!(batches.end(first) && batches.begin((1, 5), ORDERING_RULES).is_some());
        assert!(!batches.end(other), "no thread has waited since");
    }
}
