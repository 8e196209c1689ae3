//! Waiting for a word of shared memory: first awake, then asleep.
//!
//! Whoever is answered within some 30 µs never sleeps. How long to stay awake adapts: waits that ended asleep halve
//! it, others double it, so a thread that waits for long kernels costs no processor time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

/// Longest time awake, in nanoseconds.
const LONGEST: u32 = 30_000;
/// Shortest time awake, in nanoseconds: above the 10 µs of a launch and its synchronisation. Below them a loop of the two
/// would sleep in each round, never find out that it need not, and take twice as long (measured on an H200).
const SHORTEST: u32 = 20_000;
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;
/// How long a sleeper trusts that it will be woken, before it looks whether its peer is still there.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long waits of one kind stay awake.
#[derive(Debug)]
pub(crate) struct Spin {
    nanoseconds: AtomicU32,
}

impl Spin {
    /// Starts with the longest time; on a single processor, where the awaited side could not run, with none.
    pub(crate) fn new() -> Self {
        let alone = available_parallelism().is_ok_and(|processors| processors.get() == 1);
        Self { nanoseconds: AtomicU32::new(if alone { 0 } else { LONGEST }) }
    }

    /// Looks until `found` gives something, or it is time to sleep.
    pub(crate) fn until<T>(&self, mut found: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(value) = found() {
            return Some(value);
        }
        let budget = self.nanoseconds.load(Ordering::Relaxed);
        if budget == 0 {
            return None;
        }
        let end = Instant::now() + Duration::from_nanos(budget.into());
        let value = loop {
            if let Some(value) = look_for_a_while(&mut found) {
                break Some(value);
            }
            if Instant::now() >= end {
                break None;
            }
        };
        let next = if value.is_some() { budget.saturating_mul(2) } else { budget / 2 };
        self.nanoseconds.store(next.clamp(SHORTEST, LONGEST), Ordering::Relaxed);
        value
    }
}

fn look_for_a_while<T>(found: &mut impl FnMut() -> Option<T>) -> Option<T> {
    (0..LOOKS).find_map(|_| {
        std::hint::spin_loop();
        found()
    })
}

/// Sleeps while `word` is `value`, for a tenth of a second at most. May return early for no reason.
pub(crate) fn sleep(word: &AtomicU32, value: u32) {
    // Every outcome (woken, changed, interrupted, timed out) means the same to the caller: look again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&NAP));
}

/// Wakes who sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // Fails only for an address that is no memory, which a reference cannot be.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_without_waiting() {
        assert_eq!(Spin::new().until(|| Some(5)), Some(5));
    }

    #[test]
    fn waits_in_vain_become_shorter_but_not_nothing() {
        let spin = Spin { nanoseconds: AtomicU32::new(LONGEST) };
        for _ in 0..10 {
            assert_eq!(spin.until(|| None::<()>), None);
        }
        assert_eq!(spin.nanoseconds.load(Ordering::Relaxed), SHORTEST);
    }

    #[test]
    fn a_waker_ends_the_sleep() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word.store(1, Ordering::Release);
                wake(&word);
            });
            while word.load(Ordering::Acquire) == 0 {
                sleep(&word, 0);
            }
        });
    }
}
