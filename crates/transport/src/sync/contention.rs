//! Whether other threads want the processors, so that a thread that yields gets its own back late.
//!
//! Where no other thread wants the processor, `sched_yield` costs half a microsecond. Beside work that never sleeps it costs that
//! work's whole slice, up to four milliseconds, though the system wakes a sleeper within microseconds. Time spent awake counts
//! against a thread there, too. So a long yield ends all yields and spins of this process for a while: waiting threads sleep.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// A yield of this many nanoseconds met work that uses up its slice. The other side of a link needs some tens of microseconds for
/// a call.
const LONG_YIELD_NS: u64 = 100_000;
/// How many nanoseconds nothing yields after the first long yield. After another long yield, the time doubles.
const SHORTEST_PAUSE_NS: u64 = 50_000_000;
/// The longest such time. Long yields then take less than a hundredth of all time.
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;

/// The contention that this process has seen.
static LOCK_CONTENTION: Contention = Contention::new();

/// What yields have shown. Threads that update at the same time may undo each other's updates.
#[derive(Debug)]
pub(crate) struct Contention {
    /// Nothing yields until then, in nanoseconds of [`now`].
    until: AtomicU64,
    /// How long that was, in nanoseconds.
    pause: AtomicU64,
}

impl Contention {
    pub(crate) const fn new() -> Self {
        Self { until: AtomicU64::new(0), pause: AtomicU64::new(0) }
    }

    /// Returns this process's contention.
    pub(crate) fn of_process() -> &'static Self {
        &LOCK_CONTENTION
    }

    /// Returns whether other threads want the processors.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on_at(now)
    }

    fn is_on_at(&self, now: impl FnOnce() -> u64) -> bool {
        // Without contention, the usual case, this reads no clock.
        let until = self.until.load(Ordering::Relaxed);
        until != 0 && now() < until
    }

    /// Yields, unless that would take long. Returns false if it would, or did: the waiting thread should sleep.
    pub(crate) fn yield_now(&self) -> bool {
        self.yield_with(now, thread::yield_now)
    }

    fn yield_with(&self, now: impl Fn() -> u64, yields: impl FnOnce()) -> bool {
        let start = now();
        if self.is_on_at(|| start) {
            return false;
        }
        yields();
        let ended = now();
        self.learn(ended, ended.saturating_sub(start));
        !self.is_on_at(|| ended)
    }

    fn learn(&self, ended: u64, took: u64) {
        let old_pause = self.pause.load(Ordering::Relaxed);
        if took >= LONG_YIELD_NS {
            let pause = (old_pause * 2).clamp(SHORTEST_PAUSE_NS, LONGEST_PAUSE_NS);
            self.pause.store(pause, Ordering::Relaxed);
            self.until.store(ended + pause, Ordering::Relaxed);
        } else if old_pause != 0 {
            self.pause.store(old_pause / 2, Ordering::Relaxed);
            self.until.store(0, Ordering::Relaxed);
        }
    }
}

/// Yields between two polls. Returns false where that costs a slice of a processor: the waiting thread should sleep.
pub fn yield_unless_contended() -> bool {
    LOCK_CONTENTION.yield_now()
}

/// Returns nanoseconds since this process first asked.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
impl Contention {
    /// Contention that does not end.
    pub(crate) const fn for_ever() -> Self {
        Self { until: AtomicU64::new(u64::MAX), pause: AtomicU64::new(LONGEST_PAUSE_NS) }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Whether a thread yielded at `start`, where a yield takes `takes`, and whether it may poll again.
    fn has_yielded(contention: &Contention, start: u64, takes: u64) -> (bool, bool) {
        let (clock, has_yielded) = (Cell::new(start), Cell::new(false));
        let may_look = contention.yield_with(
            || clock.get(),
            || {
                clock.set(start + takes);
                has_yielded.set(true);
            },
        );
        (has_yielded.get(), may_look)
    }

    #[test]
    fn after_a_long_yield_nothing_yields_for_a_while() {
        let contention = Contention::new();
        assert_eq!(has_yielded(&contention, 0, LONG_YIELD_NS - 1), (true, true));
        assert_eq!(has_yielded(&contention, 1, LONG_YIELD_NS), (true, false));
        let end = 1 + LONG_YIELD_NS + SHORTEST_PAUSE_NS;
        assert!(contention.is_on_at(|| end - 1) && !contention.is_on_at(|| end));
        assert_eq!(has_yielded(&contention, end - 1, 0), (false, false));
        assert_eq!(has_yielded(&contention, end, 0), (true, true));
    }

    #[test]
    fn pauses_become_longer_while_yields_are_long_and_shorter_when_they_are_not() {
        let contention = Contention::new();
        let mut clock = 0;
        let pauses: Vec<u64> = (0..7)
            .map(|_| {
                assert_eq!(has_yielded(&contention, clock, LONG_YIELD_NS), (true, false));
                let until = contention.until.load(Ordering::Relaxed);
                let pause = until - clock - LONG_YIELD_NS;
                clock = until;
                pause / 1_000_000
            })
            .collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1000, 1000]);
        for _ in 0..64 {
            assert_eq!(has_yielded(&contention, clock, 0), (true, true));
        }
        assert_eq!(contention.pause.load(Ordering::Relaxed), 0);
    }
}
