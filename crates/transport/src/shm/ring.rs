//! The ring that frames pass through: the program produces, under a lock; the worker consumes.
//!
//! Both counters count bytes since the session began, so `tail - head` is the number of bytes in the ring. A counter's position
//! is its value modulo the capacity. Frames start at multiples of 8 and may wrap around the end, since they are copied in and
//! out anyway.
//!
//! The first use of memory costs more than writing to it. So the producer skips the rest of the ring, and continues at its
//! beginning. It does so once it has written [`Memory::window`] bytes and the consumer is close behind. A **gap** begins with a
//! word of zeros where a frame would begin, and ends with the ring. The frames of a program that does not run far ahead stay in
//! the same few pages.
//!
//! A side publishes its counter with `Release` and reads the other's with `Acquire`. A side that is going to sleep sets its flag,
//! then checks once more. A side that publishes reads the flag after that. A full fence between the two steps, on both sides,
//! makes sure that one of them sees the other: `tests::loom` explores every interleaving. The producer leaves its fence to the
//! consumer where the consumer can run it on the producer's processors (`sync/barrier.rs`).
//!
//! A frame that may wait is published without a wake-up, which costs more than the frame. The consumer finds it with the next
//! frame that wakes it, after [`MAX_LAZY_FRAMES`] of its kind, or when its sleep ends.
//!
//! The peer may write any value into its counter. Each side keeps a private copy of its own counter. It refuses a peer's counter
//! that moves backwards or passes its own ([`InvalidCounter`]).

/// The four shared words of a ring and its bytes.
pub(crate) trait Memory {
    /// Capacity in bytes; a power of two.
    fn capacity(&self) -> u64;
    /// Bytes after which the producer may return to the beginning; a power of two.
    fn window(&self) -> u64;
    /// Reads a side's counter, `Acquire`.
    fn counter(&self, side: RingSide) -> u64;
    /// Publishes a side's counter, `Release`.
    fn publish(&self, side: RingSide, value: u64);
    /// Sets or clears the flag of a side that goes to sleep, and orders that before everything that follows.
    fn set_asleep(&self, side: RingSide, asleep: bool);
    /// Orders everything before it, then clears the side's flag, and wakes the side if the flag was set.
    fn wake(&self, side: RingSide);
    /// Sleeps while the side's flag is set, at most for a limited time: a tenth of a second where a producer publishes lazily.
    /// May return early.
    fn sleep(&self, side: RingSide);
    /// Copies bytes to an offset; never past the end.
    fn copy_in(&self, offset_in_ring: u64, bytes: &[u8]);
    /// Copies bytes from an offset. They never pass the end.
    fn append_to(&self, offset_in_ring: u64, length: u64, bytes: &mut Vec<u8>);
}

/// Most consecutive frames that are published without a wake-up.
const MAX_LAZY_FRAMES: u32 = 32;

/// The first word of a gap: no frame has the length 0.
pub(crate) const GAP_HEADER: [u8; 8] = [0; 8];

/// The side that writes a counter and sleeps on a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingSide {
    /// The program's side, which writes frames.
    Producer,
    /// The worker's side, which reads frames.
    Consumer,
}

/// The peer's counter has an impossible value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidCounter;

/// The program's half of the ring, which queues frames.
#[derive(Debug, Default)]
pub(crate) struct Producer {
    tail: u64,
    head_seen: u64,
    /// The counter at which [`Producer::wrap_early`] checks next.
    next_wrap_check: u64,
    /// Frames published since the consumer was last woken.
    lazy: u32,
}

impl Producer {
    /// Skips the rest of the ring, if that pays now. Called between two frames.
    ///
    /// At most half a window may be unread before the gap. Until the consumer has passed the gap, the ring has only as much room
    /// as was written since the ring's beginning.
    pub(crate) fn wrap_early(&mut self, memory: &impl Memory) -> Result<(), InvalidCounter> {
        if self.tail < self.next_wrap_check {
            return Ok(());
        }
        let (window, offset_in_ring) = (memory.window(), self.tail & (memory.capacity() - 1));
        if offset_in_ring >= window {
            self.see_head(memory)?;
            if self.tail - self.head_seen <= window / 2 {
                memory.copy_in(offset_in_ring, &GAP_HEADER);
                self.publish(memory, memory.capacity() - offset_in_ring);
            }
        }
        self.next_wrap_check = self.tail + window;
        Ok(())
    }

    fn see_head(&mut self, memory: &impl Memory) -> Result<(), InvalidCounter> {
        let head = memory.counter(RingSide::Consumer);
        if head < self.head_seen || head > self.tail {
            return Err(InvalidCounter);
        }
        self.head_seen = head;
        Ok(())
    }

    /// Returns whether `bytes` more fit now.
    pub(crate) fn has_space(&mut self, memory: &impl Memory, bytes: u64) -> Result<bool, InvalidCounter> {
        if bytes <= memory.capacity() - (self.tail - self.head_seen) {
            return Ok(true);
        }
        self.see_head(memory)?;
        Ok(bytes <= memory.capacity() - (self.tail - self.head_seen))
    }

    /// Writes bytes `offset` behind the last published one. [`Producer::has_space`] must have returned true for them.
    pub(crate) fn write(&self, memory: &impl Memory, offset: u64, bytes: &[u8]) {
        let offset_in_ring = (self.tail + offset) & (memory.capacity() - 1);
        let until_end = bytes.len().min((memory.capacity() - offset_in_ring) as usize);
        memory.copy_in(offset_in_ring, &bytes[..until_end]);
        memory.copy_in(0, &bytes[until_end..]);
    }

    /// Publishes `bytes`, a multiple of 8.
    pub(crate) fn publish(&mut self, memory: &impl Memory, bytes: u64) {
        self.tail += bytes;
        memory.publish(RingSide::Producer, self.tail);
        self.wake_consumer(memory);
    }

    /// Publishes a frame that may be read later. A sleeping consumer is not woken, but only for [`MAX_LAZY_FRAMES`] of them in
    /// a row.
    pub(crate) fn publish_lazily(&mut self, memory: &impl Memory, bytes: u64) {
        if self.lazy == MAX_LAZY_FRAMES {
            return self.publish(memory, bytes);
        }
        self.lazy += 1;
        self.tail += bytes;
        memory.publish(RingSide::Producer, self.tail);
    }

    fn wake_consumer(&mut self, memory: &impl Memory) {
        self.lazy = 0;
        memory.wake(RingSide::Consumer);
    }

    /// Sleeps until the consumer has advanced, unless `bytes` fit by now. May return early.
    pub(crate) fn sleep(&mut self, memory: &impl Memory, bytes: u64) -> Result<(), InvalidCounter> {
        // Lazily published frames may fill the ring.
        self.wake_consumer(memory);
        memory.set_asleep(RingSide::Producer, true);
        let has_space = self.has_space(memory, bytes);
        if has_space == Ok(false) {
            memory.sleep(RingSide::Producer);
        }
        memory.set_asleep(RingSide::Producer, false);
        has_space.map(|_| ())
    }
}

/// The worker's half of the ring, which takes frames.
#[derive(Debug, Default)]
pub(crate) struct Consumer {
    head: u64,
    tail_seen: u64,
}

impl Consumer {
    /// Continues where another consumer has stopped reading. The peer may have written any value there.
    pub(crate) fn resume(memory: &impl Memory) -> Result<Self, InvalidCounter> {
        let (head, tail) = (memory.counter(RingSide::Consumer), memory.counter(RingSide::Producer));
        let fits = head.is_multiple_of(8) && tail >= head && tail - head <= memory.capacity();
        if fits { Ok(Self { head, tail_seen: head }) } else { Err(InvalidCounter) }
    }

    /// Returns the number of bytes that can be read now.
    pub(crate) fn available(&mut self, memory: &impl Memory) -> Result<u64, InvalidCounter> {
        if self.tail_seen == self.head {
            let tail = memory.counter(RingSide::Producer);
            if tail < self.head || tail - self.head > memory.capacity() {
                return Err(InvalidCounter);
            }
            self.tail_seen = tail;
        }
        Ok(self.tail_seen - self.head)
    }

    /// Appends `length` bytes that start `offset` behind the first unread one. They must be available.
    pub(crate) fn append_to(&self, memory: &impl Memory, offset: u64, length: u64, bytes: &mut Vec<u8>) {
        let offset_in_ring = (self.head + offset) & (memory.capacity() - 1);
        let until_end = length.min(memory.capacity() - offset_in_ring);
        memory.append_to(offset_in_ring, until_end, bytes);
        memory.append_to(0, length - until_end, bytes);
    }

    /// Returns how many bytes to skip if a gap begins here; `word` is what a frame would begin with.
    pub(crate) fn gap(&self, memory: &impl Memory, word: [u8; 8]) -> Option<u64> {
        (word == GAP_HEADER).then(|| memory.capacity() - (self.head & (memory.capacity() - 1)))
    }

    /// Returns the room of `bytes` to the producer.
    pub(crate) fn consume(&mut self, memory: &impl Memory, bytes: u64) {
        self.head += bytes;
        memory.publish(RingSide::Consumer, self.head);
        memory.wake(RingSide::Producer);
    }

    /// Sleeps until the producer has published, unless bytes are available, or `has_reason` to stay awake. A thread that provides
    /// a reason calls [`Memory::wake`] afterwards. May return early.
    pub(crate) fn sleep(&mut self, memory: &impl Memory, has_reason: impl Fn() -> bool) -> Result<(), InvalidCounter> {
        memory.set_asleep(RingSide::Consumer, true);
        let available = self.available(memory);
        if available == Ok(0) && !has_reason() {
            memory.sleep(RingSide::Consumer);
        }
        memory.set_asleep(RingSide::Consumer, false);
        available.map(|_| ())
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests;

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Memory of one thread; a peer's counters can be set at will.
    struct Local {
        bytes: RefCell<Vec<u8>>,
        counters: [Cell<u64>; 2],
        /// How often each side was woken.
        wakes: [Cell<u32>; 2],
    }

    impl Local {
        fn new(capacity: usize) -> Self {
            Self { bytes: RefCell::new(vec![0; capacity]), counters: Default::default(), wakes: Default::default() }
        }
    }

    impl Memory for Local {
        fn capacity(&self) -> u64 {
            self.bytes.borrow().len() as u64
        }
        fn window(&self) -> u64 {
            16
        }
        fn counter(&self, side: RingSide) -> u64 {
            self.counters[side as usize].get()
        }
        fn publish(&self, side: RingSide, value: u64) {
            self.counters[side as usize].set(value);
        }
        fn set_asleep(&self, _: RingSide, _: bool) {}
        fn wake(&self, side: RingSide) {
            self.wakes[side as usize].update(|count| count + 1);
        }
        fn sleep(&self, _: RingSide) {}
        fn copy_in(&self, offset_in_ring: u64, bytes: &[u8]) {
            self.bytes.borrow_mut()[offset_in_ring as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        fn append_to(&self, offset_in_ring: u64, length: u64, bytes: &mut Vec<u8>) {
            bytes.extend_from_slice(&self.bytes.borrow()[offset_in_ring as usize..][..length as usize]);
        }
    }

    #[test]
    fn frames_of_all_sizes_pass_around_the_end() {
        let memory = Local::new(64);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        for round in 0..1000_u64 {
            let frame: Vec<u8> = (0..(round % 9) * 8).map(|at| (at + round) as u8).collect();
            let length = frame.len() as u64;
            assert_eq!(producer.has_space(&memory, length), Ok(true));
            let (first, second) = frame.split_at(frame.len() / 3);
            producer.write(&memory, 0, first);
            producer.write(&memory, first.len() as u64, second);
            producer.publish(&memory, length);
            assert_eq!(consumer.available(&memory), Ok(length));
            let mut got = Vec::new();
            consumer.append_to(&memory, 0, length, &mut got);
            assert_eq!(got, frame);
            consumer.consume(&memory, length);
        }
    }

    #[test]
    fn a_full_ring_has_no_room_until_something_is_consumed() {
        let memory = Local::new(64);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        assert_eq!(producer.has_space(&memory, 64), Ok(true));
        producer.publish(&memory, 64);
        assert_eq!(producer.has_space(&memory, 8), Ok(false));
        assert_eq!(consumer.available(&memory), Ok(64));
        consumer.consume(&memory, 8);
        assert_eq!((producer.has_space(&memory, 8), producer.has_space(&memory, 16)), (Ok(true), Ok(false)));
    }

    #[expect(clippy::unwrap_used, reason = "a helper of tests")]
    fn put(producer: &mut Producer, memory: &Local, frame: u64) {
        producer.wrap_early(memory).unwrap();
        assert_eq!(producer.has_space(memory, 8), Ok(true));
        producer.write(memory, 0, &frame.to_le_bytes());
        producer.publish(memory, 8);
    }

    #[expect(clippy::unwrap_used, reason = "a helper of tests")]
    fn take(consumer: &mut Consumer, memory: &Local) -> u64 {
        loop {
            assert!(consumer.available(memory).unwrap() >= 8, "nothing was published");
            let mut got = Vec::new();
            consumer.append_to(memory, 0, 8, &mut got);
            let word = got.try_into().unwrap();
            match consumer.gap(memory, word) {
                Some(gap) => consumer.consume(memory, gap),
                None => {
                    consumer.consume(memory, 8);
                    return u64::from_le_bytes(word);
                }
            }
        }
    }

    #[test]
    fn a_producer_begins_anew_behind_a_consumer_that_is_close() {
        let memory = Local::new(64);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        for frame in 1..=100 {
            put(&mut producer, &memory, frame);
            assert_eq!(take(&mut consumer, &memory), frame);
        }
        assert_eq!(memory.bytes.borrow()[24..], [0; 40], "what lies behind the window and a gap's word was used");
    }

    #[test]
    fn a_producer_far_ahead_uses_all_of_the_ring() {
        let memory = Local::new(64);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        (1..=8).for_each(|frame| put(&mut producer, &memory, frame));
        assert_eq!(producer.has_space(&memory, 8), Ok(false));
        (1..=8).for_each(|frame| assert_eq!(take(&mut consumer, &memory), frame));
    }

    #[test]
    fn lazy_publication_wakes_only_a_consumer_that_has_missed_many_frames() {
        let memory = Local::new(1 << 10);
        let (mut producer, mut consumer) = (Producer::default(), Consumer::default());
        let woken = || memory.wakes[RingSide::Consumer as usize].replace(0);
        for _ in 0..MAX_LAZY_FRAMES {
            producer.publish_lazily(&memory, 8);
        }
        assert_eq!(
            (consumer.available(&memory), woken()),
            (Ok(8 * u64::from(MAX_LAZY_FRAMES)), 0),
            "it is there all the same"
        );
        producer.publish_lazily(&memory, 8);
        assert_eq!(woken(), 1, "one too many");
        producer.publish_lazily(&memory, 8);
        producer.publish(&memory, 8);
        assert_eq!((woken(), producer.lazy), (1, 0));
        producer.publish_lazily(&memory, 8);
        producer.sleep(&memory, 1 << 10).unwrap();
        assert_eq!(woken(), 1, "a consumer that sleeps makes no room");
    }

    #[test]
    fn a_consumer_refuses_counters_that_cannot_be() {
        for tail in [65, u64::MAX] {
            let memory = Local::new(64);
            memory.publish(RingSide::Producer, tail);
            assert_eq!(Consumer::default().available(&memory), Err(InvalidCounter));
        }
        let memory = Local::new(64);
        memory.publish(RingSide::Producer, 15);
        assert_eq!(Consumer { head: 16, tail_seen: 16 }.available(&memory), Err(InvalidCounter));
    }

    #[test]
    fn a_producer_refuses_counters_that_cannot_be() {
        for head in [71, 129, u64::MAX] {
            let memory = Local::new(64);
            memory.publish(RingSide::Consumer, head);
            assert_eq!(
                Producer { tail: 128, head_seen: 72, ..Producer::default() }.has_space(&memory, 64),
                Err(InvalidCounter),
                "{head}"
            );
        }
    }
}
