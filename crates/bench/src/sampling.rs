//! Samples of the measuring program, and its output.
//!
//! A failed figure carries its reason, so that one missing function costs one line of the table.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

use super::cuda::{Cuda, CudaError};
use super::figures::{Idle, Timing};
use crate::flags::BenchBodyFlags;

/// Calls timed together if one is too short for the clock.
pub(super) const CALLS_PER_BATCH: u32 = 64;
/// Longest time of a figure, unless it needs more for its minimum of samples.
const MAX_FIGURE_TIME: Duration = Duration::from_millis(400);
const MIN_SAMPLES: usize = 2;

/// Latest time in a run at which a slow measurement begins.
const LATEST_SLOW_START: Duration = Duration::from_secs(12);

/// Output of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// By key of `figures::FIGURES`.
    pub(super) figures: BTreeMap<String, Outcomes>,
    /// Cost of an idle session, right after the start.
    pub(super) idle: Option<Idle>,
    /// Resident memory in bytes after all measurements, with large copies.
    pub(super) resident_after: Option<u64>,
}

/// A figure, or why it is missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcomes {
    Timing(Timing),
    Failed(String),
}

/// Number of repetitions of each kind.
pub(super) struct Plan {
    /// Calls and small copies.
    pub(super) repetitions: u32,
    /// Copies of 64 MiB, each of which takes milliseconds.
    pub(super) large: u32,
    /// Objects that live at the same time.
    pub(super) objects: u32,
    /// Time for which the program is idle.
    pub(super) idle: Duration,
    /// Whether slow measurements run too.
    pub(super) heavy: bool,
    /// Whether this program measures its own copies over TCP too.
    pub(super) by_hand: bool,
}

impl Plan {
    /// Returns the plan of the flags. `quick` sacrifices a steady 99th percentile for a run of a second.
    pub(super) fn new(flags: &BenchBodyFlags) -> Self {
        let idle = Duration::from_millis(if flags.quick { 300 } else { 1000 });
        let (heavy, by_hand) = (flags.heavy, flags.by_hand);
        match flags.quick {
            true => Self { repetitions: 300, large: 3, objects: 10_000, idle, heavy, by_hand },
            false => Self { repetitions: 3000, large: 12, objects: 1_000_000, idle, heavy, by_hand },
        }
    }
}

/// Returns nanoseconds of the clock that parent and child share.
pub(super) fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Converts a time; clocks of this kind are never negative.
fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A run in progress.
pub(super) struct Body {
    pub(super) cuda: Cuda,
    pub(super) plan: Plan,
    pub(super) begun: Instant,
    pub(super) figures: BTreeMap<String, Outcomes>,
    /// Why the kernel is missing.
    pub(super) lost: Option<CudaError>,
}

/// Nanoseconds of each repetition, or why there are none.
pub(super) type Samples = Result<Vec<f64>, CudaError>;

impl Body {
    /// Stores a figure, or the reason of its failure.
    pub(super) fn note(&mut self, key: &str, samples: Samples) {
        let outcome = match samples.map(Timing::of) {
            Ok(Some(timing)) => Outcomes::Timing(timing),
            Ok(None) => Outcomes::Failed("no sample".to_owned()),
            Err(error) => Outcomes::Failed(error.to_string()),
        };
        self.figures.insert(key.to_owned(), outcome);
    }

    /// Returns whether slow measurements may begin.
    pub(super) fn has_time(&self) -> bool {
        self.begun.elapsed() < LATEST_SLOW_START
    }

    /// Notes that the kernel could not be loaded.
    pub(super) fn lose(&mut self, error: CudaError) {
        self.lost = Some(error);
    }

    /// Measures with the kernel. A driver that cannot load it loses only these figures.
    pub(super) fn with_kernel(&self, measure: impl FnOnce() -> Samples) -> Samples {
        match &self.lost {
            None => measure(),
            Some(error) => Err(error.clone()),
        }
    }

    /// Returns the cost of an idle session for the program.
    pub(super) fn idle(&self) -> Option<Idle> {
        self.cuda.synchronize().ok()?;
        let (cpu, wall) = (cpu_time(), Instant::now());
        thread::sleep(self.plan.idle);
        let used = cpu_time().saturating_sub(cpu);
        let cpu_percent = used as f64 / wall.elapsed().as_nanos() as f64 * 100.0;
        Some(Idle { cpu_percent, resident: resident()? })
    }
}

/// Times each call. The first tenth does not count, since it pays for caches and page faults.
pub(super) fn each(repetitions: u32, call: impl FnMut() -> Result<(), CudaError>) -> Samples {
    each_within(MAX_FIGURE_TIME, repetitions, call)
}

/// Times each call, as `each` does. Repeats a slow call as often as `limit` allows.
fn each_within(limit: Duration, repetitions: u32, mut call: impl FnMut() -> Result<(), CudaError>) -> Samples {
    let loop_start = Instant::now();
    let mut samples = Vec::with_capacity(repetitions as usize);
    for index in 0..repetitions + repetitions / 10 {
        let start = Instant::now();
        call()?;
        let duration = start.elapsed();
        if index >= repetitions / 10 {
            samples.push(duration.as_nanos() as f64);
        }
        if samples.len() >= MIN_SAMPLES && loop_start.elapsed() > limit {
            break;
        }
    }
    Ok(samples)
}

/// Times calls that return before the work is done, many at a time. The wait for the work is not timed.
pub(super) fn batches(number: u32, cuda: &Cuda, mut call: impl FnMut() -> Result<(), CudaError>) -> Samples {
    let loop_start = Instant::now();
    let mut samples = Vec::with_capacity(number as usize);
    for index in 0..number.max(3) + 1 {
        if samples.len() >= MIN_SAMPLES && loop_start.elapsed() > MAX_FIGURE_TIME {
            break;
        }
        let start = Instant::now();
        for _ in 0..CALLS_PER_BATCH {
            call()?;
        }
        let duration = start.elapsed();
        cuda.synchronize()?;
        if index > 0 {
            samples.push(duration.as_nanos() as f64 / f64::from(CALLS_PER_BATCH));
        }
    }
    Ok(samples)
}

/// Returns the CPU time of this process in nanoseconds.
fn cpu_time() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the resident memory of this process in bytes.
pub(super) fn resident() -> Option<u64> {
    let pages: u64 = fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_call_ends_its_own_figure_only() {
        let error = CudaError::Missing("no cuda".into());
        assert_eq!(each(5, || Err(error.clone())), Err(error));
        // However long the machine keeps this waiting.
        assert_eq!(each_within(Duration::MAX, 20, || Ok(())).unwrap().len(), 20);
    }

    #[test]
    fn slow_calls_are_sampled_less_but_at_least_the_minimum() {
        assert_eq!(each_within(Duration::ZERO, 5, || Ok(())).unwrap().len(), MIN_SAMPLES);
    }

    #[test]
    fn a_report_survives_json() {
        let failed = Outcomes::Failed("cuMemAllocHost_v2: CUDA_ERROR_NOT_SUPPORTED".into());
        let timing = Outcomes::Timing(Timing { median_ns: 1.5, p99_ns: 2.0 });
        let figures = [("a".to_owned(), failed), ("b".to_owned(), timing)].into();
        let report = Report { figures, idle: Some(Idle { cpu_percent: 0.0, resident: 4096 }), resident_after: None };
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }

    #[test]
    fn the_programs_own_costs_are_known() {
        assert!(resident().unwrap() > 0 && cpu_time() > 0);
    }
}
