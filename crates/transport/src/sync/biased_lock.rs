//! A biased lock: uncontended acquisition by its owner needs no locked instruction.
//!
//! Most programs submit their GPU work from one thread, for a while at least. That thread becomes the lock's **bias owner**. It
//! enters by writing that it is inside, and checking that it still is the bias owner, without a locked instruction. Another
//! thread first takes the lock, then the bias away. It clears the word, has the system run a barrier on every processor that runs
//! a thread of this process ([`barrier`]), and waits until the bias owner is not inside. Either the thread sees the bias owner
//! inside, or the bias owner sees that it has lost the bias.
//!
//! The lock itself is a word that waiters poll, with naps: it is held for less than a microsecond, or until there is room in a
//! ring. Unlocking wakes no thread, so it is a plain store.
#![expect(unsafe_code, reason = "what the raw guards is lent as mutable")]

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

#[cfg(all(test, feature = "loom"))]
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
#[cfg(not(all(test, feature = "loom")))]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::shm::layout::MAX_LINK_THREADS;
use crate::sync::barrier;

/// How often a thread must take the lock, with no other in between, to become the bias owner. Taking the bias away costs as much
/// as some hundred acquisitions.
const ACQUISITIONS_BEFORE_BIAS: u32 = 100;
/// Polls of a waiter before it yields, and before it naps.
#[cfg(not(all(test, feature = "loom")))]
const SPINS_BEFORE_YIELD: u32 = 100;
#[cfg(not(all(test, feature = "loom")))]
const SPINS_BEFORE_SLEEP: u32 = 110;
const WAIT_SLEEP: Duration = Duration::from_micros(50);

/// Thread numbers are the thread ids of a link. A thread without one has 0, and is never the bias owner.
const THREAD_ID_LIMIT: usize = MAX_LINK_THREADS + 1;

/// State of the lock: its bias owner, and the threads that hold or want the lock.
#[derive(Debug)]
struct RawBiasedLock {
    /// Number of the bias owner; 0 is none.
    bias_owner: AtomicU32,
    /// By number: the thread is inside as the bias owner, or has not yet seen that it lost the bias.
    inside: Box<[AtomicBool]>,
    /// A thread without the bias is inside, or is about to enter.
    is_locked: AtomicBool,
    /// Whether there may be a bias owner: barriers work here.
    bias_enabled: AtomicBool,
    /// The last thread that had the lock, and its acquisitions in a row. The holder writes both.
    last: AtomicU32,
    times: AtomicU32,
}

/// How a thread entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockEntry {
    Biased,
    Locked,
}

impl RawBiasedLock {
    /// Creates a lock for threads with numbers below `numbers`.
    fn new(numbers: usize) -> Self {
        Self {
            bias_owner: AtomicU32::new(0),
            inside: (0..numbers).map(|_| AtomicBool::new(false)).collect(),
            is_locked: AtomicBool::new(false),
            bias_enabled: AtomicBool::new(false),
            last: AtomicU32::new(0),
            times: AtomicU32::new(0),
        }
    }

    #[inline]
    fn enter(&self, number: u32) -> LockEntry {
        if number != 0
            && self.bias_owner.load(Ordering::Relaxed) == number
            && let Some(inside) = self.inside.get(number as usize)
            // Otherwise a signal interrupted this same thread inside; its handler waits for ever, as with any lock.
            && !inside.load(Ordering::Relaxed)
        {
            inside.store(true, Ordering::Relaxed);
            barrier::light();
            if self.bias_owner.load(Ordering::Relaxed) == number {
                return LockEntry::Biased;
            }
            inside.store(false, Ordering::Relaxed);
        }
        self.lock();
        LockEntry::Locked
    }

    #[cold]
    fn lock(&self) {
        let is_free = || !self.is_locked.load(Ordering::Relaxed);
        let lock = || self.is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Waiters read before they try: trying takes the cache line away from the holder.
        wait_until(|| is_free() && lock());
        let bias_owner = self.bias_owner.load(Ordering::Relaxed);
        let Some(inside) = self.inside.get(bias_owner as usize).filter(|_| bias_owner != 0) else { return };
        self.bias_owner.store(0, Ordering::Relaxed);
        // A barrier that worked before works again. Otherwise a bias owner's store has long arrived after a nap.
        if !barrier::full() {
            std::thread::sleep(WAIT_SLEEP);
        }
        wait_until(|| !inside.load(Ordering::Acquire));
    }

    #[inline]
    fn leave(&self, number: u32, entry: LockEntry) {
        if entry == LockEntry::Biased {
            if let Some(inside) = self.inside.get(number as usize) {
                inside.store(false, Ordering::Release);
            }
            return;
        }
        self.unlock(number);
    }

    fn unlock(&self, number: u32) {
        let times =
            if self.last.load(Ordering::Relaxed) == number { self.times.load(Ordering::Relaxed) + 1 } else { 0 };
        let becomes_biased =
            number != 0 && times >= ACQUISITIONS_BEFORE_BIAS && self.bias_enabled.load(Ordering::Relaxed);
        self.last.store(number, Ordering::Relaxed);
        self.times.store(if becomes_biased { 0 } else { times.min(ACQUISITIONS_BEFORE_BIAS) }, Ordering::Relaxed);
        if becomes_biased {
            self.bias_owner.store(number, Ordering::Relaxed);
        }
        self.is_locked.store(false, Ordering::Release);
    }
}

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let mut looks = 0_u32;
    while !is_so() {
        looks = looks.saturating_add(1);
        #[cfg(all(test, feature = "loom"))]
        if looks > 0 {
            loom::thread::yield_now();
        }
        #[cfg(not(all(test, feature = "loom")))]
        match looks {
            ..SPINS_BEFORE_YIELD => std::hint::spin_loop(),
            SPINS_BEFORE_YIELD..SPINS_BEFORE_SLEEP => std::thread::yield_now(),
            _ => std::thread::sleep(WAIT_SLEEP),
        }
    }
}

/// A value that one thread at a time may use.
#[derive(Debug)]
pub(crate) struct BiasedLock<T> {
    raw: RawBiasedLock,
    value: UnsafeCell<T>,
}

// SAFETY: the raw lock lets one thread in at a time, and what it did is seen by the next.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { raw: RawBiasedLock::new(THREAD_ID_LIMIT), value: UnsafeCell::new(value) }
    }

    /// Waits until no other thread holds the lock. No two threads have the same `number` at a time, except 0.
    #[inline]
    pub(crate) fn take(&self, number: u32) -> BiasedLockGuard<'_, T> {
        BiasedLockGuard { lock: self, number, entry: self.raw.enter(number) }
    }

    /// Lets a thread that takes the lock often do so without a locked instruction. [`barrier::register`] must have returned true.
    pub(crate) fn enable_bias(&self) {
        self.raw.bias_enabled.store(true, Ordering::Relaxed);
    }
}

/// Gives access to the value of a [`BiasedLock`] until dropped.
pub(crate) struct BiasedLockGuard<'a, T> {
    lock: &'a BiasedLock<T>,
    number: u32,
    entry: LockEntry,
}

impl<T> Deref for BiasedLockGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the raw lock let this thread in and no other, until the drop.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedLockGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.leave(self.number, self.entry);
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The bias owner enters again while another thread takes the bias away: the two are never inside together.
    #[test]
    fn loom_no_interleaving_lets_two_in() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((RawBiasedLock::new(3), UnsafeCell::new(0)));
            shared.0.bias_owner.store(1, Ordering::Relaxed);
            let increment = |(raw, count): &(RawBiasedLock, UnsafeCell<u32>), number: u32| {
                let entry = raw.enter(number);
                // SAFETY: loom fails the test if another thread uses the cell meanwhile.
                count.with_mut(|count| unsafe { *count += 1 });
                raw.leave(number, entry);
            };
            let other = Arc::clone(&shared);
            let other = thread::spawn(move || increment(&other, 2));
            increment(&shared, 1);
            other.join().unwrap();
            // SAFETY: as above.
            shared.1.with(|count| assert_eq!(unsafe { *count }, 2));
        });
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// A lock with bias, if the system supports it.
    fn favouring() -> BiasedLock<u64> {
        let lock = BiasedLock::new(0);
        if barrier::register() {
            lock.enable_bias();
        }
        lock
    }

    #[test]
    fn a_frequent_owner_gets_the_bias_until_another_thread_comes() {
        let lock = favouring();
        (0..=ACQUISITIONS_BEFORE_BIAS + 1).for_each(|_| *lock.take(7) += 1);
        let expected = if barrier::register() { LockEntry::Biased } else { LockEntry::Locked };
        assert_eq!(lock.take(7).entry, expected);
        assert_eq!(lock.take(8).entry, LockEntry::Locked);
        let guard = lock.take(7);
        assert_eq!((guard.entry, *guard), (LockEntry::Locked, u64::from(ACQUISITIONS_BEFORE_BIAS) + 2));
        drop(guard);
        (0..2 * ACQUISITIONS_BEFORE_BIAS).for_each(|_| *lock.take(0) += 1);
        assert_eq!(lock.take(0).entry, LockEntry::Locked);
    }

    #[test]
    fn nothing_is_lost_among_many_threads() {
        let lock = favouring();
        std::thread::scope(|scope| {
            for thread in 1..=4 {
                let lock = &lock;
                scope.spawn(move || {
                    for round in 0..20_000_u64 {
                        *lock.take(thread) += 1;
                        // Long runs of one thread now and then create a bias owner.
                        if (round / 500 + u64::from(thread)).is_multiple_of(4) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        });
        assert_eq!(*lock.take(0), 80_000);
    }
}
