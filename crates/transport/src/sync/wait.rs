//! Waiting for a word of shared memory, or for a socket: first spinning, then asleep.
//!
//! The time to spin adapts. A wait that ended while spinning sets it to twice that wait; waits that ended asleep halve it. One in
//! [`WAITS_PER_PROBE`] of the waits in vain spins for the longest time, to find out whether waits have become shorter. So a
//! thread that waits for long kernels costs next to no processor time.
//!
//! Beside work that never sleeps ([`Contention`]) waits sleep at once, and the spin time stays.

use std::num::NonZero;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rustix::thread::futex;
use rustix::time::Timespec;

use crate::sync::contention::Contention;

/// Longest spin for a word of memory, in nanoseconds. Waking a sleeper takes 5 to 50 µs; a driver itself stays awake as long as
/// its GPU works.
pub(crate) const MAX_MEMORY_SPIN_NS: u32 = 200_000;
/// Longest spin for work of the GPU, in nanoseconds. A copy of 256 MiB takes five milliseconds, programs that choose the size of
/// their launches have them take ten, and waking a sleeper after them takes up to 0.3 on a virtual machine. A thread that spins
/// longer than [`MAX_MEMORY_SPIN_NS`] yields between polls.
pub(crate) const MAX_WORK_SPIN_NS: u32 = 20_000_000;
/// Longest spin, in nanoseconds, where each poll is a system call, and on two processors, where the awaited side may need this
/// one.
pub(crate) const MAX_SYSTEM_SPIN_NS: u32 = 30_000;
/// Shortest spin, in nanoseconds: above the 10 µs of a launch and its synchronization. With less, a loop of the two would sleep
/// in each round, never find out that it need not, and take twice as long (measured on an H200).
const MIN_SPIN_NS: u32 = 20_000;
/// After waits in vain, one wait in this many spins for the longest time.
const WAITS_PER_PROBE: u32 = 16;
/// A thread that has spun this long yields between polls.
const EAGER_SPIN_TIME: Duration = Duration::from_nanos(MAX_MEMORY_SPIN_NS as u64);
/// Polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 16;
/// Polls of memory before the first reading, one to three microseconds. An answer before that came as fast as answers can, and
/// clocks took a fifth of such a round trip.
const POLLS_BEFORE_CLOCK: u32 = 64;
/// How long a sleeper relies on its wake-up, before it checks whether its peer is still there.
const SLEEP_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long waits of one kind spin.
#[derive(Debug)]
pub struct Spin {
    nanoseconds: AtomicU32,
    /// Waits in vain since the last successful one.
    in_vain: AtomicU32,
    longest: AtomicU32,
    /// Polls before the clock is first read.
    first: u32,
    /// Yields between polls: with two processors, the awaited side may be waiting for this one.
    yields: bool,
    /// Whether yields take long.
    contention: &'static Contention,
}

impl Spin {
    /// Spins for a message of another thread.
    #[must_use]
    pub fn for_word() -> Self {
        Self::new(MAX_MEMORY_SPIN_NS)
    }

    /// Spins for work of the GPU.
    #[must_use]
    pub fn for_work() -> Self {
        Self::new(MAX_WORK_SPIN_NS)
    }

    /// Starts with the longest time, which is [`MAX_MEMORY_SPIN_NS`], [`MAX_WORK_SPIN_NS`] or [`MAX_SYSTEM_SPIN_NS`]. On a single
    /// processor, where the awaited side could not run, starts with none.
    pub(crate) fn new(longest: u32) -> Self {
        match available_parallelism().map_or(2, NonZero::get) {
            1 => Self::of(0, true),
            2 => Self::of(MAX_SYSTEM_SPIN_NS.min(longest), true),
            _ => Self::of(longest, false),
        }
    }

    fn of(longest: u32, yields: bool) -> Self {
        Self {
            nanoseconds: AtomicU32::new(longest),
            in_vain: AtomicU32::new(0),
            longest: AtomicU32::new(longest),
            first: if yields || longest <= MAX_SYSTEM_SPIN_NS { POLLS_PER_CLOCK_READ } else { POLLS_BEFORE_CLOCK },
            yields,
            contention: Contention::of_process(),
        }
    }

    /// Keeps all later waits short: the program wants its threads to sleep while they wait.
    pub(crate) fn disable_spin(&self) {
        self.longest.fetch_min(MIN_SPIN_NS, Ordering::Relaxed);
        self.nanoseconds.fetch_min(MIN_SPIN_NS, Ordering::Relaxed);
    }

    fn longest(&self) -> u32 {
        self.longest.load(Ordering::Relaxed)
    }

    /// Polls until `poll` returns a value, or it is time to sleep.
    pub fn until<T>(&self, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(value) = poll() {
            return Some(value);
        }
        if self.longest() == 0 {
            return None;
        }
        if let Some(value) = poll_times(self.first, &mut poll) {
            self.learn(Some(Duration::ZERO));
            return Some(value);
        }
        if self.contention.is_on() {
            return None;
        }
        let (start, budget) = (Instant::now(), Duration::from_nanos(self.budget().into()));
        loop {
            let value = poll_times(POLLS_PER_CLOCK_READ, &mut poll);
            let waited = start.elapsed();
            if value.is_some() || waited >= budget {
                self.learn(value.is_some().then_some(waited));
                return value;
            }
            if (self.yields || waited >= EAGER_SPIN_TIME) && !self.contention.yield_now() {
                return poll();
            }
        }
    }

    /// Returns how long to spin this time, in nanoseconds.
    fn budget(&self) -> u32 {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        let is_probe = in_vain > 0 && in_vain.is_multiple_of(WAITS_PER_PROBE);
        if is_probe { self.longest() } else { self.nanoseconds.load(Ordering::Relaxed) }
    }

    /// Adapts the spin to a wait that took `elapsed`; none is a wait in vain. Threads that update at the same time may undo each
    /// other's updates.
    fn learn(&self, elapsed: Option<Duration>) {
        let old_budget = self.nanoseconds.load(Ordering::Relaxed);
        let (next, in_vain) = match elapsed {
            Some(waited) => (old_budget.max(u32::try_from(waited.as_nanos() * 2).unwrap_or(u32::MAX)), 0),
            None => (old_budget / 2, self.in_vain.load(Ordering::Relaxed).wrapping_add(1)),
        };
        self.nanoseconds.store(next.clamp(MIN_SPIN_NS, self.longest().max(MIN_SPIN_NS)), Ordering::Relaxed);
        self.in_vain.store(in_vain, Ordering::Relaxed);
    }
}

fn poll_times<T>(times: u32, poll: &mut impl FnMut() -> Option<T>) -> Option<T> {
    (0..times).find_map(|_| {
        std::hint::spin_loop();
        poll()
    })
}

/// Sleeps while `word` is `value`, for a tenth of a second at most. May return early.
pub(crate) fn sleep(word: &AtomicU32, value: u32) {
    // Every outcome (woken, changed, interrupted, timed out) means the same to the caller: check again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&SLEEP_CHECK_INTERVAL));
}

/// Sleeps while `word` is `value`, until another thread wakes it. May return early.
pub(crate) fn sleep_on(word: &AtomicU32, value: u32) {
    // As above.
    let _ = futex::wait(word, futex::Flags::empty(), value, None);
}

/// Wakes a thread that sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // Fails only for an address without memory, which a reference cannot have.
    let _ = futex::wake(word, futex::Flags::empty(), 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_available_value_is_found_without_waiting() {
        assert_eq!(Spin::new(MAX_MEMORY_SPIN_NS).until(|| Some(5)), Some(5));
    }

    #[test]
    fn an_immediate_result_keeps_the_spin_budget() {
        let spin = Spin::of(MAX_MEMORY_SPIN_NS, false);
        (0..10).for_each(|_| spin.learn(None));
        let mut looks = 0;
        let result = spin.until(|| {
            looks += 1;
            (looks == POLLS_BEFORE_CLOCK).then_some(())
        });
        let (budget, in_vain) = (spin.nanoseconds.load(Ordering::Relaxed), spin.in_vain.load(Ordering::Relaxed));
        assert_eq!((result, budget, in_vain), (Some(()), MIN_SPIN_NS, 0));
    }

    #[test]
    fn waits_in_vain_become_shorter_but_not_nothing() {
        // Other tests of this process may contend for processors.
        static NO_OTHERS: Contention = Contention::new();
        let spin = Spin { contention: &NO_OTHERS, ..Spin::of(MAX_MEMORY_SPIN_NS, false) };
        for _ in 0..10 {
            assert_eq!(spin.until(|| None::<()>), None);
        }
        assert_eq!(spin.nanoseconds.load(Ordering::Relaxed), MIN_SPIN_NS);
    }

    #[test]
    fn a_wait_that_has_become_short_is_found_out_and_learnt_from() {
        let spin = Spin::of(MAX_MEMORY_SPIN_NS, false);
        let budgets: Vec<u32> = (0..2 * WAITS_PER_PROBE)
            .map(|_| {
                spin.learn(None);
                spin.budget()
            })
            .collect();
        assert_eq!(budgets.iter().filter(|budget| **budget == MAX_MEMORY_SPIN_NS).count(), 2);
        spin.learn(Some(Duration::from_micros(45)));
        assert_eq!((spin.budget(), spin.in_vain.load(Ordering::Relaxed)), (90_000, 0));
        spin.learn(Some(Duration::from_secs(100)));
        assert_eq!(spin.budget(), MAX_MEMORY_SPIN_NS);
    }

    #[test]
    fn waits_without_spin_are_short_whatever_is_learnt() {
        let (spin, none) = (Spin::of(MAX_WORK_SPIN_NS, false), Spin::of(0, true));
        spin.disable_spin();
        none.disable_spin();
        assert_eq!((spin.budget(), none.longest()), (MIN_SPIN_NS, 0));
        spin.learn(Some(Duration::from_millis(3)));
        assert_eq!(spin.budget(), MIN_SPIN_NS);
        (0..WAITS_PER_PROBE).for_each(|_| spin.learn(None));
        assert_eq!(spin.budget(), MIN_SPIN_NS);
    }

    #[test]
    fn no_thread_spins_where_spinning_keeps_the_other_side_from_running() {
        let mut looks = 0;
        let result = Spin::of(0, true).until(|| {
            looks += 1;
            None::<()>
        });
        assert_eq!((result, looks), (None, 1));
    }

    #[test]
    fn beside_others_waits_are_short_and_teach_nothing() {
        static OTHERS: Contention = Contention::for_ever();
        let (mut spin, mut looks) = (Spin { contention: &OTHERS, ..Spin::of(MAX_WORK_SPIN_NS, true) }, 0);
        let mut count = |spin: &Spin| {
            let result = spin.until(|| {
                looks += 1;
                None::<()>
            });
            assert_eq!(result, None);
            std::mem::take(&mut looks)
        };
        assert_eq!(count(&spin), POLLS_PER_CLOCK_READ + 1);
        assert_eq!((spin.budget(), spin.in_vain.load(Ordering::Relaxed)), (MAX_WORK_SPIN_NS, 0));
        spin.contention = Box::leak(Box::new(Contention::new()));
        assert!(count(&spin) > POLLS_PER_CLOCK_READ + 1);
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
