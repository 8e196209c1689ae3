//! Every interleaving of a producer and a consumer, run with `cargo test -p katydid-transport --features loom --lib loom`.
//!
//! The bytes are checked cells: a consumer that read a frame before it was published, or a producer that overwrote
//! one that was still being read, is reported as a race. A lost wake-up is reported as a deadlock.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::*;

/// A ring of two words of 8 bytes.
struct Model {
    words: [UnsafeCell<[u8; 8]>; 2],
    counters: [AtomicU64; 2],
    asleep: [AtomicBool; 2],
    /// Stands for the kernel's queues: a sleeper checks its flag under this lock, as a futex does.
    kernel: Mutex<()>,
    queues: [Condvar; 2],
}

impl Model {
    fn new() -> Self {
        Self {
            words: [UnsafeCell::new([0; 8]), UnsafeCell::new([0; 8])],
            counters: [AtomicU64::new(0), AtomicU64::new(0)],
            asleep: [AtomicBool::new(false), AtomicBool::new(false)],
            kernel: Mutex::new(()),
            queues: [Condvar::new(), Condvar::new()],
        }
    }
}

impl Memory for Model {
    fn capacity(&self) -> u64 {
        16
    }
    fn window(&self) -> u64 {
        8
    }
    fn counter(&self, side: RingSide) -> u64 {
        self.counters[side as usize].load(Ordering::Acquire)
    }
    fn publish(&self, side: RingSide, value: u64) {
        self.counters[side as usize].store(value, Ordering::Release);
    }
    fn set_asleep(&self, side: RingSide, asleep: bool) {
        self.asleep[side as usize].store(asleep, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
    fn wake(&self, side: RingSide) {
        fence(Ordering::SeqCst);
        if self.asleep[side as usize].load(Ordering::Relaxed) {
            self.asleep[side as usize].store(false, Ordering::Relaxed);
            let _kernel = self.kernel.lock().unwrap();
            self.queues[side as usize].notify_one();
        }
    }
    fn sleep(&self, side: RingSide) {
        let kernel = self.kernel.lock().unwrap();
        if self.asleep[side as usize].load(Ordering::Relaxed) {
            drop(self.queues[side as usize].wait(kernel).unwrap());
        }
    }
    #[expect(unsafe_code, reason = "loom checks the access")]
    fn copy_in(&self, offset_in_ring: u64, bytes: &[u8]) {
        if let Ok(word) = <[u8; 8]>::try_from(bytes) {
            // SAFETY: loom fails the test if another thread uses the cell meanwhile.
            self.words[offset_in_ring as usize / 8].with_mut(|cell| unsafe { *cell = word });
        }
    }
    #[expect(unsafe_code, reason = "loom checks the access")]
    fn append_to(&self, offset_in_ring: u64, length: u64, bytes: &mut Vec<u8>) {
        if length == 8 {
            // SAFETY: as above.
            bytes.extend_from_slice(&self.words[offset_in_ring as usize / 8].with(|cell| unsafe { *cell }));
        }
    }
}

/// Three frames through a ring that holds two. In some interleavings each side has to wait for the other. Where the first word
/// was taken by then, the producer returns to the beginning after it.
#[test]
fn no_interleaving_loses_a_frame_or_a_wake_up() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let model = Arc::new(Model::new());
        let program = Arc::clone(&model);
        let thread = thread::spawn(move || {
            let mut producer = Producer::default();
            for frame in 1..=3_u64 {
                producer.wrap_early(&*program).unwrap();
                while !producer.has_space(&*program, 8).unwrap() {
                    producer.sleep(&*program, 8).unwrap();
                }
                producer.write(&*program, 0, &frame.to_le_bytes());
                // In the model no sleep ends by itself, so the last frame wakes a side that sleeps.
                match frame {
                    3 => producer.publish(&*program, 8),
                    _ => producer.publish_lazily(&*program, 8),
                }
            }
        });
        let mut consumer = Consumer::default();
        let mut expected = 1_u64;
        while expected <= 3 {
            while consumer.available(&*model).unwrap() == 0 {
                consumer.sleep(&*model, || false).unwrap();
            }
            let mut got = Vec::new();
            consumer.append_to(&*model, 0, 8, &mut got);
            let word = got.try_into().unwrap();
            if let Some(gap) = consumer.gap(&*model, word) {
                consumer.consume(&*model, gap);
                continue;
            }
            assert_eq!(word, expected.to_le_bytes());
            consumer.consume(&*model, 8);
            expected += 1;
        }
        thread.join().unwrap();
    });
}
