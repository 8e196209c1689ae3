//! The measuring program: runs once for each way and round, and prints its figures as JSON.
//!
//! A figure that cannot be measured carries its reason, so that one missing function costs one line of the table.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

use super::cuda::{Cuda, CudaError};
use super::figures::{Idle, Timing};
use crate::failure::{Failure, Outcome};
use crate::flags::BenchBodyFlags;

/// An empty kernel; every GPU that CUDA 13 knows takes it.
const PTX: &CStr = c".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry nothing()\n{\n    ret;\n}\n";
const KERNEL: &CStr = c"nothing";
/// Calls timed together where one is too short for the clock.
const BATCH: u32 = 64;
/// Source of the small asynchronous copy.
static FOUR: [u8; 4] = [1, 2, 3, 4];
/// The sizes of copies, with their names in the keys.
const SIZES: [(usize, &str); 3] = [(4, "4"), (64 << 10, "64k"), (64 << 20, "64m")];

/// What one run prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// By key of `figures::FIGURES`.
    pub(super) figures: BTreeMap<String, Outcomes>,
    /// Right after the start.
    pub(super) idle: Option<Idle>,
    /// Resident memory in bytes after everything, large copies included.
    pub(super) resident_after: Option<u64>,
}

/// A figure, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcomes {
    Timing(Timing),
    Failed(String),
}

/// How often each thing is done.
struct Plan {
    /// Calls and small copies.
    repetitions: u32,
    /// Copies of 64 MiB, each of which takes milliseconds.
    large: u32,
    /// How long the program does nothing.
    idle: Duration,
}

impl Plan {
    /// `quick` gives up a steady 99th percentile for a run of a second.
    fn new(quick: bool) -> Self {
        match quick {
            true => Self { repetitions: 300, large: 3, idle: Duration::from_millis(300) },
            false => Self { repetitions: 3000, large: 12, idle: Duration::from_secs(1) },
        }
    }
}

/// Runs the measurements.
pub(super) fn main(flags: &BenchBodyFlags) -> Outcome {
    let cuda = Cuda::open().map_err(|error| Failure::work(format!("cannot measure: {error}")))?;
    let started = now().saturating_sub(flags.started);
    let mut body = Body { cuda, plan: Plan::new(flags.quick), figures: BTreeMap::new() };
    if flags.started != 0 {
        body.note("first_call", Ok(vec![started as f64]));
    }
    body.cuda.prepare().map_err(|error| Failure::work(format!("cannot measure: {error}")))?;
    let idle = body.idle();
    body.measure();
    let report = Report { idle, resident_after: resident(), figures: body.figures };
    writeln!(io::stdout(), "{}", serde_json::to_string(&report).map_err(Failure::work)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Nanoseconds of the clock that parent and child share.
pub(super) fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Clocks of this kind never show negative times.
fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// A run in progress.
struct Body {
    cuda: Cuda,
    plan: Plan,
    figures: BTreeMap<String, Outcomes>,
}

/// Nanoseconds of each repetition, or why there are none.
type Samples = Result<Vec<f64>, CudaError>;

impl Body {
    /// Keeps a figure; a failed one keeps its reason.
    fn note(&mut self, key: &str, samples: Samples) {
        let outcome = match samples.map(Timing::of) {
            Ok(Some(timing)) => Outcomes::Timing(timing),
            Ok(None) => Outcomes::Failed("no sample".to_owned()),
            Err(error) => Outcomes::Failed(error.to_string()),
        };
        self.figures.insert(key.to_owned(), outcome);
    }

    /// Everything but the start, which was measured before there was a `Body`.
    fn measure(&mut self) {
        self.launches();
        let (often, rarely) = (self.plan.repetitions, self.plan.large);
        let cuda = &self.cuda;
        let noted = [
            ("stream_query", each(often, || cuda.query_stream())),
            ("context_sync", each(often, || cuda.synchronise())),
            ("event_record", batches(often / BATCH, cuda, || cuda.record())),
            ("malloc_256", each(often, || cuda.allocate(256).and_then(|address| cuda.free(address)))),
            ("malloc_64m", each(rarely * 4, || cuda.allocate(64 << 20).and_then(|address| cuda.free(address)))),
            ("htod_4_async", small_async(often / BATCH, cuda)),
        ];
        noted.into_iter().for_each(|(key, samples)| self.note(key, samples));
        for (bytes, size) in SIZES {
            self.copies(bytes, size);
        }
    }

    /// Both ways of launching the empty kernel; a driver that cannot load it loses these figures and no other.
    fn launches(&mut self) {
        let loaded = self.cuda.load(PTX, KERNEL);
        let (often, cuda) = (self.plan.repetitions, &self.cuda);
        let launch = loaded.clone().and_then(|()| batches(often / BATCH, cuda, || cuda.launch()));
        let and_wait = || cuda.launch().and_then(|()| cuda.synchronise());
        let launch_sync = loaded.and_then(|()| each(often, and_wait));
        self.note("launch", launch);
        self.note("launch_sync", launch_sync);
    }

    /// Both directions of a size, from and to both kinds of host memory.
    fn copies(&mut self, bytes: usize, size: &str) {
        let repetitions = if bytes > 1 << 20 { self.plan.large } else { self.plan.repetitions };
        let mut pageable = vec![0; bytes];
        let [into, out] = copy_both(&self.cuda, repetitions, &mut pageable);
        self.note(&format!("htod_{size}_pageable"), into);
        self.note(&format!("dtoh_{size}_pageable"), out);
        let [into, out] = match self.cuda.pinned(bytes) {
            Ok(mut pinned) => copy_both(&self.cuda, repetitions, pinned.bytes_mut()),
            Err(error) => [Err(error.clone()), Err(error)],
        };
        self.note(&format!("htod_{size}_pinned"), into);
        self.note(&format!("dtoh_{size}_pinned"), out);
    }

    /// What a session that does nothing costs the program.
    fn idle(&self) -> Option<Idle> {
        self.cuda.synchronise().ok()?;
        let (cpu, wall) = (cpu_time(), Instant::now());
        thread::sleep(self.plan.idle);
        let used = cpu_time().saturating_sub(cpu);
        let cpu_percent = used as f64 / wall.elapsed().as_nanos() as f64 * 100.0;
        Some(Idle { cpu_percent, resident: resident()? })
    }
}

/// Times each call. The first tenth is thrown away: it pays for caches and page faults.
fn each(repetitions: u32, mut call: impl FnMut() -> Result<(), CudaError>) -> Samples {
    let mut samples = Vec::with_capacity(repetitions as usize);
    for index in 0..repetitions + repetitions / 10 {
        let start = Instant::now();
        call()?;
        let taken = start.elapsed();
        if index >= repetitions / 10 {
            samples.push(taken.as_nanos() as f64);
        }
    }
    Ok(samples)
}

/// Times calls that return before the work is done, many at a time; the work is waited for outside the clock.
fn batches(number: u32, cuda: &Cuda, mut call: impl FnMut() -> Result<(), CudaError>) -> Samples {
    let mut samples = Vec::with_capacity(number as usize);
    for index in 0..number.max(3) + 1 {
        let start = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        let taken = start.elapsed();
        cuda.synchronise()?;
        if index > 0 {
            samples.push(taken.as_nanos() as f64 / f64::from(BATCH));
        }
    }
    Ok(samples)
}

/// The copy that a program may enqueue without waiting: its four bytes live as long as the program.
fn small_async(number: u32, cuda: &Cuda) -> Samples {
    let device = cuda.allocate(FOUR.len())?;
    let samples = batches(number, cuda, || cuda.copy_in_async(device, &FOUR));
    cuda.free(device)?;
    samples
}

/// To the device, then back.
fn copy_both(cuda: &Cuda, repetitions: u32, host: &mut [u8]) -> [Samples; 2] {
    let device = match cuda.allocate(host.len()) {
        Ok(device) => device,
        Err(error) => return [Err(error.clone()), Err(error)],
    };
    let into = each(repetitions, || cuda.copy_in(device, host));
    let out = each(repetitions, || cuda.copy_out(host, device));
    match cuda.free(device) {
        Ok(()) => [into, out],
        Err(error) => [into, out.and(Err(error))],
    }
}

/// CPU time of this process in nanoseconds.
fn cpu_time() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

/// Resident memory of this process in bytes.
fn resident() -> Option<u64> {
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
        assert_eq!(each(20, || Ok(())).unwrap().len(), 20);
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
