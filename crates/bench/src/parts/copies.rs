//! Copies: both directions, both kinds of host memory, alone, concurrently, and by several threads.

use std::thread;

use crate::cuda::rows::RowLayout;
use crate::cuda::{Cuda, CudaError, PinnedMemory};
use crate::noise::noise;
use crate::sampling::{Body, CALLS_PER_BATCH, Samples, batches, each};

const BYTES_PER_MIB: usize = 1 << 20;
/// Source of the small asynchronous copy.
static FOUR_BYTES: [u8; 4] = [1, 2, 3, 4];
/// The sizes of copies, with their names in the keys.
const COPY_SIZES: [(usize, &str); 5] = [
    (4, "4"),
    (64 << 10, "64k"),
    (64 * BYTES_PER_MIB, "64m"),
    (256 * BYTES_PER_MIB, "256m"),
    (1024 * BYTES_PER_MIB, "1g"),
];
/// Largest copy of quick runs, and of all rounds but the first one.
const LIGHT_BYTES: usize = 64 * BYTES_PER_MIB;
/// Number of concurrent copying threads, and bytes per thread.
const COPYING_THREADS: usize = 4;
const BYTES_PER_THREAD: usize = 16 * BYTES_PER_MIB;
/// Rows whose width does not suit a GPU, as programs have them, and a box of such rows.
const ROWS_SHAPE: RowLayout = RowLayout { width: 4_001, pitch: 4_608, rows: 4_000, slices: 1 };
const SLICES_SHAPE: RowLayout = RowLayout { width: 1_001, pitch: 1_024, rows: 400, slices: 40 };

pub(super) fn measure(body: &mut Body) {
    for (bytes, size) in COPY_SIZES.into_iter().filter(|(bytes, _)| *bytes <= LIGHT_BYTES) {
        alone(body, bytes, size);
    }
    let (often, rarely) = (body.plan.repetitions, body.plan.large);
    let small = small_async(often / CALLS_PER_BATCH, &body.cuda);
    let beside = small_beside(often, &body.cuda);
    let at_once = at_once(&body.cuda, rarely, 64 * BYTES_PER_MIB);
    let [into, out] = by_threads(&body.cuda, rarely);
    let odd = at_odd_addresses(&body.cuda, rarely);
    let (rows, slices) = (of_rows(&body.cuda, rarely, &ROWS_SHAPE), of_rows(&body.cuda, rarely, &SLICES_SHAPE));
    body.note("htod_4_async", small);
    body.note("htod_4_pageable_beside", beside);
    body.note("both_64m_pinned", at_once);
    body.note("htod_4x16m_pageable", into);
    body.note("dtoh_4x16m_pageable", out);
    for (kind, [into, out]) in [("odd", odd), ("2d", rows), ("3d", slices)] {
        body.note(&format!("htod_{kind}_pageable"), into);
        body.note(&format!("dtoh_{kind}_pageable"), out);
    }
}

/// Measures the copies that take seconds on a slow way.
pub(super) fn measure_large(body: &mut Body) {
    for (bytes, size) in COPY_SIZES.into_iter().filter(|(bytes, _)| *bytes > LIGHT_BYTES) {
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

/// Measures a size, with both kinds of host memory.
fn alone(body: &mut Body, bytes: usize, size: &str) {
    let repetitions = match bytes {
        small if small <= BYTES_PER_MIB => body.plan.repetitions,
        middle if middle <= LIGHT_BYTES => body.plan.large,
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

/// Measures a copy that a program may enqueue without waiting: its four bytes live as long as the program.
fn small_async(number: u32, cuda: &Cuda) -> Samples {
    let device = cuda.allocate(FOUR_BYTES.len())?;
    let samples = batches(number, cuda, || cuda.copy_in_async(device, &FOUR_BYTES));
    cuda.free(device)?;
    samples
}

/// Measures a copy that work of another stream could overtake.
fn small_beside(repetitions: u32, cuda: &Cuda) -> Samples {
    let device = cuda.allocate(FOUR_BYTES.len())?;
    let other = cuda.new_stream()?;
    let samples = each(repetitions, || cuda.copy_in(device, &FOUR_BYTES));
    drop(other);
    cuda.free(device)?;
    samples
}

/// Copies to the device, then back.
fn copy_both(cuda: &Cuda, repetitions: u32, host: &mut [u8]) -> [Samples; 2] {
    let device = match cuda.allocate(host.len()) {
        Ok(device) => device,
        Err(error) => return [Err(error.clone()), Err(error)],
    };
    let into = each(repetitions, || cuda.copy_in(device, host));
    let out = each(repetitions, || cuda.copy_out(host, device));
    both_freed(cuda, device, [into, out])
}

/// Copies to the device, then back, at unaligned addresses.
fn at_odd_addresses(cuda: &Cuda, repetitions: u32) -> [Samples; 2] {
    let mut host = noise(BYTES_PER_THREAD + 1);
    let device = match cuda.allocate(BYTES_PER_THREAD + 3) {
        Ok(device) => device,
        Err(error) => return [Err(error.clone()), Err(error)],
    };
    let into = each(repetitions, || cuda.copy_in(device + 3, &host[1..]));
    let out = each(repetitions, || cuda.copy_out(&mut host[1..], device + 3));
    both_freed(cuda, device, [into, out])
}

/// Copies rows to the device, then back.
fn of_rows(cuda: &Cuda, repetitions: u32, shape: &RowLayout) -> [Samples; 2] {
    let mut host = noise(shape.extent());
    let device = match cuda.allocate(shape.extent()) {
        Ok(device) => device,
        Err(error) => return [Err(error.clone()), Err(error)],
    };
    let into = each(repetitions, || cuda.rows_in(device, &host, shape));
    let out = each(repetitions, || cuda.rows_out(&mut host, device, shape));
    both_freed(cuda, device, [into, out])
}

/// Returns samples of both directions, after freeing their memory.
fn both_freed(cuda: &Cuda, device: u64, [into, out]: [Samples; 2]) -> [Samples; 2] {
    match cuda.free(device) {
        Ok(()) => [into, out],
        Err(error) => [into, out.and(Err(error))],
    }
}

/// Copies in both directions at the same time, in two streams.
fn at_once(cuda: &Cuda, repetitions: u32, bytes: usize) -> Samples {
    let (upload, download) = (cuda.new_stream()?, cuda.new_stream()?);
    let (from, to): (PinnedMemory<'_>, PinnedMemory<'_>) = (cuda.pinned(bytes)?, cuda.pinned(bytes)?);
    let (target, source) = (cuda.allocate(bytes)?, cuda.allocate(bytes)?);
    let samples = each(repetitions, || {
        upload.begin_copy_in(target, &from)?;
        download.begin_copy_out(&to, source)?;
        upload.synchronize()?;
        download.synchronize()
    });
    // After a failure, no copy may still use the memory.
    cuda.synchronize()?;
    cuda.free(target)?;
    cuda.free(source)?;
    samples
}

/// Copies by several concurrent threads, each with its own memory.
fn by_threads(cuda: &Cuda, repetitions: u32) -> [Samples; 2] {
    let devices: Result<Vec<u64>, CudaError> = (0..COPYING_THREADS).map(|_| cuda.allocate(BYTES_PER_THREAD)).collect();
    let devices = match devices {
        Ok(devices) => devices,
        Err(error) => return [Err(error.clone()), Err(error)],
    };
    let mut hosts = vec![noise(BYTES_PER_THREAD); COPYING_THREADS];
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
