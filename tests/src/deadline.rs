//! Limits that only a hang reaches, on a busy machine too.
//!
//! A limit counts time in which the machine could have gone on. Time in which processes waited for a processor counts a
//! tenth: `/proc/pressure/cpu` tells it (Linux 4.20, "some"). So a program that gets a tenth of a processor has ten times
//! as long, and one that hangs on an idle machine is found after the limit itself.

use std::fs;
use std::time::{Duration, Instant};

/// A stalled second counts as a second divided by this.
const STALLED_SHARE: u32 = 10;

/// The end of a wait that has begun.
#[derive(Debug)]
pub struct Deadline {
    begun: Instant,
    stalled: Option<Duration>,
    limit: Duration,
}

impl Deadline {
    /// After `limit` on an idle machine.
    pub fn after(limit: Duration) -> Self {
        Self { begun: Instant::now(), stalled: stalled(), limit }
    }

    /// Whether the limit is over.
    pub fn is_over(&self) -> bool {
        // Most looks come long before, and need no file.
        let elapsed = self.begun.elapsed();
        elapsed > self.limit && counted(elapsed, self.stalled_since()) > self.limit
    }

    /// The limit on an idle machine.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    fn stalled_since(&self) -> Duration {
        let both = self.stalled.zip(stalled());
        both.map_or(Duration::ZERO, |(before, now)| now.saturating_sub(before))
    }
}

/// What counts of `elapsed`, of which processes waited for a processor during `stalled`.
fn counted(elapsed: Duration, stalled: Duration) -> Duration {
    let stalled = stalled.min(elapsed);
    elapsed - stalled + stalled / STALLED_SHARE
}

/// Time since the machine started in which some process waited for a processor; nothing where the kernel does not count it.
fn stalled() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    total_of(&text).map(Duration::from_micros)
}

/// Microseconds of the line `some` of a file of `/proc/pressure`.
fn total_of(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_time_counts_a_tenth() {
        let [ten, five] = [10, 5].map(Duration::from_secs);
        assert_eq!(counted(ten, Duration::ZERO), ten);
        assert_eq!(counted(ten, five), Duration::from_millis(5500));
        assert_eq!(counted(five, ten), Duration::from_millis(500));
    }

    #[test]
    fn the_total_of_a_pressure_file_is_that_of_some() {
        let text =
            "some avg10=99.39 avg60=97.58 avg300=90.25 total=14085\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of(text), Some(14_085));
        assert_eq!((total_of("full total=7\n"), total_of("some total=x\n")), (None, None));
    }

    #[test]
    fn a_deadline_is_over_on_an_idle_machine() {
        let deadline =
            Deadline { begun: Instant::now() - Duration::from_secs(2), stalled: None, limit: Duration::from_secs(1) };
        assert!(deadline.is_over());
        assert!(!Deadline::after(Duration::from_secs(60)).is_over());
    }
}
