//! How a thread learns that its reply is in its slot: the worker writes a word last. It wakes the thread only if another word
//! says that the thread sleeps.
//!
//! Each side writes its word before it reads the other's, with a fence between. So at least one of them sees the other's. Tests
//! by loom explore every interleaving.

/// Both words of a slot, and the thread that sleeps there.
pub(crate) trait ReplyCell {
    /// Marks the reply as arrived. A thread that sees the mark sees what was written before.
    fn set_arrived(&self);
    fn has_arrived(&self) -> bool;
    fn set_asleep(&self, asleep: bool);
    fn is_asleep(&self) -> bool;
    /// A full fence: all threads agree on the order of their fences.
    fn fence(&self);
    /// Sleeps until woken, unless the reply is there. May end early without a reason.
    fn sleep(&self);
    fn wake(&self);
}

/// Worker: announces a reply that is written.
pub(crate) fn announce(cell: &impl ReplyCell) {
    cell.set_arrived();
    cell.fence();
    if cell.is_asleep() {
        cell.wake();
    }
}

/// Program: sleeps until the reply is there, or for a limited time.
pub(crate) fn sleep(cell: &impl ReplyCell) {
    cell.set_asleep(true);
    cell.fence();
    if !cell.has_arrived() {
        cell.sleep();
    }
    cell.set_asleep(false);
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// A slot, and the ring in front of it, of which only the number of the last request counts.
    struct Model {
        has_arrived: AtomicBool,
        is_asleep: AtomicBool,
        request: AtomicU32,
        frame: UnsafeCell<u32>,
        /// Stands for the kernel's queue: a sleeper checks the word under this lock, as a futex does.
        kernel: Mutex<()>,
        queue: Condvar,
    }

    impl ReplyCell for Model {
        fn set_arrived(&self) {
            self.has_arrived.store(true, Ordering::Release);
        }
        fn has_arrived(&self) -> bool {
            self.has_arrived.load(Ordering::Acquire)
        }
        fn set_asleep(&self, asleep: bool) {
            self.is_asleep.store(asleep, Ordering::Relaxed);
        }
        fn is_asleep(&self) -> bool {
            self.is_asleep.load(Ordering::Relaxed)
        }
        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
        fn sleep(&self) {
            let kernel = self.kernel.lock().unwrap();
            if !self.has_arrived.load(Ordering::Relaxed) {
                drop(self.queue.wait(kernel).unwrap());
            }
        }
        fn wake(&self) {
            let _kernel = self.kernel.lock().unwrap();
            self.queue.notify_one();
        }
    }

    /// Two calls: the second one begins while the worker may still be about to wake the sleeper of the first.
    #[test]
    #[expect(unsafe_code, reason = "loom checks the access")]
    fn loom_no_interleaving_loses_a_reply_or_its_wake_up() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Arc::new(Model {
                has_arrived: AtomicBool::new(false),
                is_asleep: AtomicBool::new(false),
                request: AtomicU32::new(0),
                frame: UnsafeCell::new(0),
                kernel: Mutex::new(()),
                queue: Condvar::new(),
            });
            let worker = Arc::clone(&model);
            let thread = thread::spawn(move || {
                for expected in 1..=2 {
                    while worker.request.load(Ordering::Acquire) < expected {
                        thread::yield_now();
                    }
                    // SAFETY: loom fails the test if another thread uses the cell meanwhile.
                    worker.frame.with_mut(|frame| unsafe { *frame = expected });
                    announce(&*worker);
                }
            });
            for number in 1..=2 {
                model.has_arrived.store(false, Ordering::Relaxed);
                model.request.store(number, Ordering::Release);
                while !model.has_arrived() {
                    sleep(&*model);
                }
                // SAFETY: as above.
                assert_eq!(model.frame.with(|frame| unsafe { *frame }), number);
            }
            thread.join().unwrap();
        });
    }
}
