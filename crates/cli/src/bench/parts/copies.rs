//! Copies: both directions, from and to both kinds of host memory, alone, at the same time, and by several threads.

use std::thread;

use crate::bench::body::{BATCH, Body, Samples, batches, each};
use crate::bench::cuda::{Cuda, CudaError, Pinned};
use crate::bench::noise::noise;

const MIB: usize = 1 << 20;
/// Source of the small asynchronous copy.
static FOUR: [u8; 4] = [1, 2, 3, 4];
/// The sizes of copies, with their names in the keys.
const SIZES: [(usize, &str); 5] =
    [(4, "4"), (64 << 10, "64k"), (64 * MIB, "64m"), (256 * MIB, "256m"), (1024 * MIB, "1g")];
/// Larger ones are left out of quick runs, and of all rounds but the first one.
const LIGHT: usize = 64 * MIB;
/// Threads that copy at once, and what each of them copies.
const THREADS: usize = 4;
const SHARE: usize = 16 * MIB;

pub(super) fn measure(body: &mut Body) {
    for (bytes, size) in SIZES.into_iter().filter(|(bytes, _)| *bytes <= LIGHT) {
        alone(body, bytes, size);
    }
    let (often, rarely) = (body.plan.repetitions, body.plan.large);
    let small = small_async(often / BATCH, &body.cuda);
    let beside = small_beside(often, &body.cuda);
    let at_once = at_once(&body.cuda, rarely, 64 * MIB);
    let [into, out] = by_threads(&body.cuda, rarely);
    body.note("htod_4_async", small);
    body.note("htod_4_pageable_beside", beside);
    body.note("both_64m_pinned", at_once);
    body.note("htod_4x16m_pageable", into);
    body.note("dtoh_4x16m_pageable", out);
}

/// Those that take seconds on a slow way.
pub(super) fn measure_large(body: &mut Body) {
    for (bytes, size) in SIZES.into_iter().filter(|(bytes, _)| *bytes > LIGHT) {
        if body.has_time() {
            alone(body, bytes, size);
            continue;
        }
        for direction in ["htod", "dtoh"] {
            for kind in ["pageable", "pinned"] {
                body.note(&format!("{direction}_{size}_{kind}"), Err(CudaError::no_time()));
            }
        }
    }
}

/// A size, from and to both kinds of host memory.
fn alone(body: &mut Body, bytes: usize, size: &str) {
    let repetitions = match bytes {
        small if small <= MIB => body.plan.repetitions,
        middle if middle <= LIGHT => body.plan.large,
        _ => 3,
    };
    let [into, out] = copy_both(&body.cuda, repetitions, &mut noise(bytes));
    body.note(&format!("htod_{size}_pageable"), into);
    body.note(&format!("dtoh_{size}_pageable"), out);
    let [into, out] = match body.cuda.pinned(bytes) {
        Ok(mut pinned) => copy_both(&body.cuda, repetitions, pinned.bytes_mut()),
        Err(error) => [Err(error.clone()), Err(error)],
    };
    body.note(&format!("htod_{size}_pinned"), into);
    body.note(&format!("dtoh_{size}_pinned"), out);
}

/// The copy that a program may enqueue without waiting: its four bytes live as long as the program.
fn small_async(number: u32, cuda: &Cuda) -> Samples {
    let device = cuda.allocate(FOUR.len())?;
    let samples = batches(number, cuda, || cuda.copy_in_async(device, &FOUR));
    cuda.free(device)?;
    samples
}

/// A copy that the work of another stream could overtake.
fn small_beside(repetitions: u32, cuda: &Cuda) -> Samples {
    let device = cuda.allocate(FOUR.len())?;
    let other = cuda.new_stream()?;
    let samples = each(repetitions, || cuda.copy_in(device, &FOUR));
    drop(other);
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

/// One copy each way at the same time, in two streams.
fn at_once(cuda: &Cuda, repetitions: u32, bytes: usize) -> Samples {
    let (there, back) = (cuda.new_stream()?, cuda.new_stream()?);
    let (from, to): (Pinned<'_>, Pinned<'_>) = (cuda.pinned(bytes)?, cuda.pinned(bytes)?);
    let (target, source) = (cuda.allocate(bytes)?, cuda.allocate(bytes)?);
    let samples = each(repetitions, || {
        there.begin_copy_in(target, &from)?;
        back.begin_copy_out(&to, source)?;
        there.synchronise()?;
        back.synchronise()
    });
    // What goes wrong in between must not leave copies behind that use the memory.
    cuda.synchronise()?;
    cuda.free(target)?;
    cuda.free(source)?;
    samples
}

/// Several threads at once, each with memory of its own.
fn by_threads(cuda: &Cuda, repetitions: u32) -> [Samples; 2] {
    let devices: Result<Vec<u64>, CudaError> = (0..THREADS).map(|_| cuda.allocate(SHARE)).collect();
    let devices = match devices {
        Ok(devices) => devices,
        Err(error) => return [Err(error.clone()), Err(error)],
    };
    let mut hosts = vec![noise(SHARE); THREADS];
    let into = each(repetitions, || together(cuda, &devices, &mut hosts, |at, host| cuda.copy_in(at, host)));
    let out = each(repetitions, || together(cuda, &devices, &mut hosts, |at, host| cuda.copy_out(host, at)));
    let freed = devices.into_iter().try_for_each(|address| cuda.free(address));
    match freed {
        Ok(()) => [into, out],
        Err(error) => [into, Err(error)],
    }
}

fn together(
    cuda: &Cuda,
    devices: &[u64],
    hosts: &mut [Vec<u8>],
    copy: impl Fn(u64, &mut [u8]) -> Result<(), CudaError> + Sync,
) -> Result<(), CudaError> {
    let copy = &copy;
    thread::scope(|scope| {
        let copies: Vec<_> = devices
            .iter()
            .zip(hosts)
            .map(|(device, host)| scope.spawn(move || cuda.enter().and_then(|()| copy(*device, host))))
            .collect();
        copies.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(CudaError::died())))
    })
}
