//! The measuring program: calls, copies and kernels of the first device that a loader finds, with figures as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::api::{Device, MEM_FOR_HOST, MEM_READ_WRITE};
use crate::figures;
use crate::flags::BenchOpenclBodyFlags;
use katydid_cli_core::output::failure::{Failure, Outcome};

/// Launches of one row.
const LAUNCHES_PER_ROW: u32 = 1000;
/// Number of small calls, each timed by itself; the median counts.
const TIMED_CALLS: usize = 200;
/// Number of large copies, each timed by itself; the best counts.
const TIMED_COPIES: usize = 8;
/// Bytes of a small and of a large copy.
const SMALL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 64 << 20;

/// Output of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Name of the device.
    pub(super) device: String,
    /// Seconds, by the key of the figure.
    pub(super) seconds: BTreeMap<String, f64>,
}

/// Measures and prints the figures as JSON.
pub(super) fn main(flags: &BenchOpenclBodyFlags) -> Outcome {
    let report = measure(flags.quick).map_err(|reason| Failure::work(format!("cannot measure: {reason}")))?;
    let text = serde_json::to_string(&report).map_err(Failure::work)?;
    writeln!(io::stdout(), "{text}").map_err(Failure::work)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(quick: bool) -> Result<Report, String> {
    let device = Device::open()?;
    let mut seconds = BTreeMap::new();
    let mut note = |key: &str, value: f64| seconds.insert(key.to_owned(), value);
    let [enqueue, launch] = launches(&device)?;
    note("enqueue", enqueue);
    note("launch", launch);
    let event = device.event()?;
    note("query", median(TIMED_CALLS, || device.state(event).map(drop))?);
    let nothing = device.kernel(c"nothing")?;
    device.set(nothing, 0, &0_i32)?;
    note("round_trip", median(TIMED_CALLS, || device.launch(nothing, 1).and_then(|()| device.finish()))?);
    for (size, keys) in
        [(SMALL_BYTES, ["write_small", "read_small", "map_small"]), (LARGE_BYTES, ["write", "read", "map"])]
    {
        let [write, read, map] = copies(&device, size, quick)?;
        note(keys[0], write);
        note(keys[1], read);
        note(keys[2], map);
    }
    let [compute, moves] = kernels(&device)?;
    note("compute", compute);
    note("move", moves);
    Ok(Report { device: device.name, seconds })
}

/// Times one launch with an argument, averaged over many: until it is enqueued, and until it is done.
fn launches(device: &Device) -> Result<[f64; 2], String> {
    let kernel = device.kernel(c"nothing")?;
    let mut best = [f64::MAX; 2];
    for _ in 0..5 {
        let start = Instant::now();
        for number in 0..LAUNCHES_PER_ROW as i32 {
            device.set(kernel, 0, &number)?;
            device.launch(kernel, 1)?;
        }
        let enqueued = start.elapsed().as_secs_f64();
        device.finish()?;
        let each = [enqueued, start.elapsed().as_secs_f64()].map(|seconds| seconds / f64::from(LAUNCHES_PER_ROW));
        best = [best[0].min(each[0]), best[1].min(each[1])];
    }
    Ok(best)
}

/// Times a blocking write, a blocking read, and a map for reading of memory that the driver holds for the host.
fn copies(device: &Device, size: usize, quick: bool) -> Result<[f64; 3], String> {
    let count = if size == SMALL_BYTES { TIMED_CALLS } else { TIMED_COPIES / if quick { 2 } else { 1 } };
    let figure = |work: &mut dyn FnMut() -> Result<(), String>| {
        if size == SMALL_BYTES { median(count, work) } else { best(count, work) }
    };
    let (plain, shared) = (device.buffer(MEM_READ_WRITE, size)?, device.buffer(MEM_FOR_HOST, size)?);
    let mut bytes: Vec<u8> = (0..size).map(|index| index as u8).collect();
    let write = figure(&mut || device.write(plain, &bytes))?;
    let read = figure(&mut || device.read(plain, &mut bytes))?;
    if bytes.iter().enumerate().any(|(index, byte)| *byte != index as u8) {
        return Err("what was written was not read".to_owned());
    }
    device.write(shared, &bytes)?;
    let map = figure(&mut || device.map(shared, size))?;
    device.release(plain)?;
    device.release(shared)?;
    Ok([write, read, map])
}

/// Times a kernel that computes, and one that moves memory.
fn kernels(device: &Device) -> Result<[f64; 2], String> {
    let (from, to) = (device.buffer(MEM_READ_WRITE, LARGE_BYTES)?, device.buffer(MEM_READ_WRITE, LARGE_BYTES)?);
    device.write(from, &vec![0; LARGE_BYTES])?;
    let (compute, moves) = (device.kernel(c"compute")?, device.kernel(c"move")?);
    device.set(compute, 0, &from)?;
    device.set(moves, 0, &from)?;
    device.set(moves, 1, &to)?;
    let figures = [
        best(TIMED_COPIES, &mut || device.launch(compute, LARGE_BYTES / 16).and_then(|()| device.finish()))?,
        best(TIMED_COPIES, &mut || device.launch(moves, LARGE_BYTES / 16).and_then(|()| device.finish()))?,
    ];
    device.release(from)?;
    device.release(to)?;
    Ok(figures)
}

fn times(count: usize, mut work: impl FnMut() -> Result<(), String>) -> Result<Vec<f64>, String> {
    let mut samples = Vec::with_capacity(count);
    // The first call creates pages and threads.
    work()?;
    for _ in 0..count {
        let start = Instant::now();
        work()?;
        samples.push(start.elapsed().as_secs_f64());
    }
    Ok(samples)
}

fn median(count: usize, work: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    Ok(figures::median(times(count, work)?).unwrap_or(f64::NAN))
}

fn best(count: usize, work: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    Ok(times(count, work)?.into_iter().reduce(f64::min).unwrap_or(f64::NAN))
}
