//! Time limits that only a hang reaches, even on a busy machine.
//!
//! A wait fails when its processes make no progress for the limit, never after a fixed time. Three kinds of work extend it:
//! processor time that they used, time in which they wanted a processor and got none, and bytes that they read and wrote. Time in
//! which the machine had no free processor counts a quarter (`/proc/pressure/cpu`), since they may wait for other processes. A
//! program that spins for ever is limited too: by processor time, scaled by the speed of this machine.

mod connection;
pub mod hang;
pub mod stacks;
pub(crate) mod watched_processes;

use std::fs;
use std::hint::black_box;
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use self::connection::{PatientStream, Socket};
use self::watched_processes::{ProcessUsage, WatchedProcesses};

/// A second with all processors busy counts as a second divided by this.
const STALLED_SHARE: u32 = 4;
/// Seconds of waiting that a second of work extends: processes that use a twentieth of a processor make progress.
const WAITING_PER_WORK: u32 = 20;
/// Bytes read or written that count as a second of work: a slow disk uses little processor time.
const BYTES_PER_WORK_SECOND: u64 = 1 << 20;
/// Most processor time of a wait, as a multiple of its limit, on a machine of the reference speed.
const MAX_WORK_IN_LIMITS: u32 = 10;
/// Interval between two checks of the processes.
const PROCESS_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// A longer wait is polled less often, to leave the processor to other tests: the interval is its time divided by this.
const POLLS_PER_WAIT: u32 = 50;
/// Highest interval of a short wait; short-lived states are still seen.
const SHORT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// From this time on a wait is polled even less often, so that the polls do not count as work.
const LONG_WAIT: Duration = Duration::from_secs(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The limit of a wait.
#[derive(Debug, Clone, Copy)]
pub enum Limit {
    /// Longest time without progress of the processes. A [`Duration`] is such a limit.
    Standstill(Duration),
    /// Longest total time, whatever the processes do: for machines that cost money.
    Budget(Duration),
}

impl From<Duration> for Limit {
    fn from(limit: Duration) -> Self {
        Self::Standstill(limit)
    }
}

/// Why a wait was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitFailure {
    /// The processes used no processor and moved no bytes.
    #[error("stood still for {still:.0?} of {elapsed:.0?}")]
    Still {
        /// Time in which the processes made no progress.
        still: Duration,
        /// Time since the wait began.
        elapsed: Duration,
    },
    /// The processes used more processor time than anything needs.
    #[error("used {used:.0?} of processor time in {elapsed:.0?}, more than anything needs")]
    Spinning {
        /// Processor time that the processes used.
        used: Duration,
        /// Time since the wait began.
        elapsed: Duration,
    },
    /// The total time is used up.
    #[error("had not ended after {elapsed:.0?}")]
    Budget {
        /// Time since the wait began.
        elapsed: Duration,
    },
}

/// The deadline of a wait that has begun.
#[derive(Debug)]
pub struct Deadline {
    begun: Instant,
    limit: Limit,
    watched: WatchedProcesses,
    measured: Instant,
    stalled: Option<Duration>,
    /// Time without progress so far.
    still: Duration,
    /// Processor time since the start.
    used: Duration,
    /// Usage of threads that only poll, which is not yet subtracted from that of the processes.
    polled: ProcessUsage,
    failure: Option<WaitFailure>,
}

impl Deadline {
    /// Starts a wait for the calling thread's programs and servers.
    pub fn after(limit: impl Into<Limit>) -> Self {
        Self::of(WatchedProcesses::of_this_thread(), limit)
    }

    /// Starts a wait for one process, its children, and the calling thread's programs and servers.
    pub fn of_process(pid: u32, limit: impl Into<Limit>) -> Self {
        Self::of(WatchedProcesses::with(pid), limit)
    }

    fn of(watched: WatchedProcesses, limit: impl Into<Limit>) -> Self {
        let (now, limit) = (Instant::now(), limit.into());
        let zero = Duration::ZERO;
        let (stalled, polled) = (stalled(), ProcessUsage::default());
        Self { begun: now, limit, watched, measured: now, stalled, still: zero, used: zero, polled, failure: None }
    }

    /// Returns whether the limit is exceeded, and why.
    pub fn over(&mut self) -> Option<WaitFailure> {
        let since = self.measured.elapsed();
        let limit = match self.limit {
            Limit::Standstill(limit) => limit,
            Limit::Budget(budget) => {
                let elapsed = self.begun.elapsed();
                self.failure = (elapsed > budget).then_some(WaitFailure::Budget { elapsed });
                return self.failure;
            }
        };
        if self.failure.is_none() && (since >= PROCESS_POLL_INTERVAL || since > limit) {
            self.measure(since);
            self.failure = self.verdict(limit);
        }
        self.failure
    }

    /// Adds usage of threads that only poll, which does not count as work. On a busy machine each poll waits for a processor, so
    /// a stalled process would otherwise never seem stalled.
    fn add_polled(&mut self, used: &ProcessUsage) {
        self.polled = self.polled.with(used);
    }

    /// Returns whether the limit is exceeded.
    pub fn is_over(&mut self) -> bool {
        self.over().is_some()
    }

    /// Sleeps until the next poll: for `interval`, or longer in a long wait.
    pub fn pause(&self, interval: Duration) {
        sleep(poll_interval(self.begun.elapsed(), interval));
    }

    /// Returns what each thread of the awaited processes does, with stacks, for the message of a failed test.
    pub fn stacks(&self) -> String {
        stacks::of(&self.watched.processes())
    }

    fn measure(&mut self, since: Duration) {
        let now = stalled();
        let both = self.stalled.zip(now);
        let stalled = both.map_or(Duration::ZERO, |(before, now)| now.saturating_sub(before));
        let all = self.watched.used();
        let done = all.without(&self.polled);
        self.polled = self.polled.without(&all);
        self.measured += since;
        self.stalled = now;
        self.used += done.processor;
        self.still = (self.still + counted_time(since, stalled)).saturating_sub(paid(&done));
    }

    fn verdict(&self, limit: Duration) -> Option<WaitFailure> {
        let (elapsed, still, used) = (self.begun.elapsed(), self.still, self.used);
        if still > limit {
            return Some(WaitFailure::Still { still, elapsed });
        }
        let most = limit * MAX_WORK_IN_LIMITS;
        // The speed is measured only if it matters.
        (used > most && used > most * *MACHINE_SLOWNESS).then_some(WaitFailure::Spinning { used, elapsed })
    }
}

/// Returns the waiting time by which work extends a wait.
fn paid(done: &ProcessUsage) -> Duration {
    let moved = Duration::from_secs(done.bytes / BYTES_PER_WORK_SECOND);
    (done.processor + done.delayed + moved) * WAITING_PER_WORK
}

/// Returns how much of `elapsed` counts, if processes waited for a processor during `stalled`.
fn counted_time(elapsed: Duration, stalled: Duration) -> Duration {
    let stalled = stalled.min(elapsed);
    elapsed - stalled + stalled / STALLED_SHARE
}

fn poll_interval(elapsed: Duration, interval: Duration) -> Duration {
    let long = (elapsed.saturating_sub(LONG_WAIT) / 100).min(MAX_POLL_INTERVAL);
    interval.max((elapsed / POLLS_PER_WAIT).min(SHORT_POLL_INTERVAL)).max(long)
}

/// Returns the time since boot in which some process waited for a processor; `None` if the kernel does not record it.
fn stalled() -> Option<Duration> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    total_of(&text).map(Duration::from_micros)
}

/// Returns the microseconds in the line `some` of a file of `/proc/pressure`.
fn total_of(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// How much slower this machine is than the reference machine of processor time limits; 1 for a faster one.
///
/// It includes other work on the same core, and processors that the host takes away.
static MACHINE_SLOWNESS: LazyLock<u32> = LazyLock::new(|| slowness(measured_loop()));

/// Duration of [`measured_loop`] on the reference machine.
const REFERENCE_LOOP: Duration = Duration::from_millis(20);

fn slowness(measured: Duration) -> u32 {
    u32::try_from(measured.as_micros().div_ceil(REFERENCE_LOOP.as_micros())).unwrap_or(u32::MAX).max(1)
}

/// Returns the processor time of a fixed piece of work, the median of three runs.
fn measured_loop() -> Duration {
    // The standard library's code is optimized, whatever the profile of this crate.
    let text = "ä€".repeat(4 << 20);
    let mut measured = [0; 3].map(|_| {
        let start = processor_time();
        for _ in 0..2 {
            // Only the duration matters.
            let _ = black_box(std::str::from_utf8(black_box(text.as_bytes())));
        }
        processor_time().saturating_sub(start)
    });
    measured.sort();
    measured[1]
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::program::Running;

    #[test]
    fn stalled_time_counts_a_quarter() {
        let [ten, five] = [10, 5].map(Duration::from_secs);
        assert_eq!(counted_time(ten, Duration::ZERO), ten);
        assert_eq!(counted_time(ten, five), Duration::from_millis(6250));
        assert_eq!(counted_time(five, ten), Duration::from_millis(1250));
    }

    #[test]
    fn the_total_of_a_pressure_file_is_that_of_some() {
        let text =
            "some avg10=99.39 avg60=97.58 avg300=90.25 total=14085\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total_of(text), Some(14_085));
        assert_eq!(total_of("full avg10=0.00 total=7\n"), None);
        assert_eq!(total_of("some total=many\n"), None);
    }

    #[test]
    fn work_and_waiting_for_a_processor_and_bytes_pay_for_waiting() {
        let second = Duration::from_secs(1);
        assert_eq!(paid(&ProcessUsage { processor: second, ..ProcessUsage::default() }), second * 20);
        assert_eq!(paid(&ProcessUsage { delayed: second, ..ProcessUsage::default() }), second * 20);
        assert_eq!(paid(&ProcessUsage { bytes: 3 << 20, ..ProcessUsage::default() }), second * 60);
        assert_eq!(paid(&ProcessUsage { bytes: 4096, ..ProcessUsage::default() }), Duration::ZERO);
    }

    #[test]
    fn a_long_wait_is_polled_less_often() {
        let ms = Duration::from_millis;
        assert_eq!(poll_interval(ms(90), ms(2)), ms(2));
        assert_eq!(poll_interval(ms(250), ms(2)), ms(5));
        assert_eq!(poll_interval(ms(5_000), ms(2)), ms(10));
        assert_eq!(poll_interval(ms(5_000), ms(50)), ms(50));
        assert_eq!(poll_interval(ms(20_000), ms(2)), ms(100));
        assert_eq!(poll_interval(ms(500_000), ms(2)), ms(200));
    }

    #[test]
    fn a_slow_machine_has_more_processor_time() {
        assert_eq!(slowness(REFERENCE_LOOP / 2), 1);
        assert_eq!(slowness(REFERENCE_LOOP * 3), 3);
        assert!(measured_loop() > Duration::ZERO && *MACHINE_SLOWNESS >= 1);
    }

    /// Returns the result of a wait for a shell script, polled until the wait is over or `is_enough` holds.
    fn fate(script: &str, limit: Duration, is_enough: impl Fn(&Deadline) -> bool) -> Option<WaitFailure> {
        let running = Running::start(Command::new("sh").args(["-c", script]), Stdio::null()).unwrap();
        let mut deadline = Deadline::of_process(running.pid(), limit);
        while !deadline.is_over() && !is_enough(&deadline) {
            sleep(Duration::from_millis(20));
        }
        deadline.failure
    }

    #[test]
    fn processes_that_stand_still_are_given_up() {
        let fate = fate("sleep 600", Duration::from_secs(2), |_| false);
        assert!(matches!(fate, Some(WaitFailure::Still { .. })), "{fate:?}");
    }

    #[test]
    fn processes_that_work_longer_than_the_limit_are_waited_for() {
        let limit = Duration::from_secs(2);
        let fate = fate("while :; do :; done", limit, |deadline| deadline.begun.elapsed() > limit * 3);
        assert_eq!(fate, None);
    }

    #[test]
    fn processes_that_spin_for_ever_are_given_up() {
        let limit = Duration::from_secs(1);
        let mut deadline = Deadline::after(limit);
        deadline.used = limit * MAX_WORK_IN_LIMITS;
        assert_eq!(deadline.verdict(limit), None);
        deadline.used = limit * (MAX_WORK_IN_LIMITS + 1) * *MACHINE_SLOWNESS;
        let verdict = deadline.verdict(limit);
        assert!(matches!(verdict, Some(WaitFailure::Spinning { .. })), "{verdict:?}");
    }

    #[test]
    fn a_budget_ends_whatever_the_processes_do() {
        let mut deadline = Deadline::after(Limit::Budget(Duration::ZERO));
        assert!(matches!(deadline.over(), Some(WaitFailure::Budget { .. })));
    }
}
