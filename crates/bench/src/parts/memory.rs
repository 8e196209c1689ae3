//! Device memory: allocations, frees and fills; and pinned memory, which programs allocate too.

use std::time::Instant;

use crate::cuda::{Cuda, CudaError};
use crate::sampling::{Body, CALLS_PER_BATCH, Samples, batches, each};

const BYTES_PER_MIB: usize = 1 << 20;
/// Requests of PyTorch's caching allocator to a driver while a model grows: small pools, large ones, and separate blocks for
/// larger sizes.
const POOL_BLOCKS_MIB: [usize; 16] = [2, 2, 20, 2, 20, 20, 2, 34, 2, 20, 66, 2, 20, 130, 2, 258];
/// Requests of CuPy's pool to a driver: each array without a free block, in bytes that the pool rounds up to 512. The pool frees
/// nothing until it is cleared. Here they are operands and results of growing arrays, and a large one.
const ARRAY_BYTES: [usize; 16] = [
    1_000,
    1_000,
    24_000,
    24_000,
    160_004,
    160_004,
    1_000_000,
    1_000_000,
    4_000_000,
    4_000_000,
    12_582_915,
    12_582_915,
    40_000_000,
    40_000_000,
    100_000_000,
    200_000_001,
];
const ROUNDING_BYTES: usize = 512;
/// Requests of JAX's allocator while it grows, with preallocation off: regions that it keeps, each twice as large as the last.
const REGION_MIB: [usize; 8] = [2, 4, 8, 16, 32, 64, 128, 256];
/// Powers of two of a program that allocates as it goes: 256 B to 128 MiB.
const SIZE_SHIFTS: std::ops::Range<u32> = 8..28;

pub(super) fn measure(body: &mut Body) {
    let (often, rarely) = (body.plan.repetitions, body.plan.large);
    let cuda = &body.cuda;
    let pair = |bytes| move || cuda.allocate(bytes).and_then(|address| cuda.free(address));
    let pinned = |bytes| move || cuda.pinned(bytes).map(drop);
    let mut figures = vec![
        ("malloc_256", each(often, pair(256))),
        ("malloc_64m", each(rarely * 4, pair(64 * BYTES_PER_MIB))),
        ("malloc_pools", pattern(cuda, rarely, &POOL_BLOCKS_MIB.map(|size| size * BYTES_PER_MIB))),
        ("malloc_cupy", pattern(cuda, rarely, &ARRAY_BYTES.map(|size| size.next_multiple_of(ROUNDING_BYTES)))),
        ("malloc_jax", pattern(cuda, rarely, &REGION_MIB.map(|size| size * BYTES_PER_MIB))),
        ("malloc_mixed", pattern(cuda, rarely * 4, &SIZE_SHIFTS.flat_map(|shift| [1 << shift; 3]).collect::<Vec<_>>())),
        ("malloc_host_64k", each(rarely * 8, pinned(64 << 10))),
        ("malloc_host_64m", each(rarely / 3, pinned(64 * BYTES_PER_MIB))),
        ("memset_4k", filled(cuda, 4096, |at| batches(often / CALLS_PER_BATCH, cuda, || cuda.clear(at, 4096)))),
        (
            "memset_64m",
            filled(cuda, 64 * BYTES_PER_MIB, |at| {
                each(rarely, || cuda.clear(at, 64 * BYTES_PER_MIB).and_then(|()| cuda.synchronize()))
            }),
        ),
    ];
    if body.plan.heavy {
        figures.push(("malloc_1g", each(rarely, pair(1024 * BYTES_PER_MIB))));
    }
    figures.into_iter().for_each(|(key, samples)| body.note(key, samples));
}

/// Runs `measure` with allocated device memory.
fn filled(cuda: &Cuda, bytes: usize, measure: impl FnOnce(u64) -> Samples) -> Samples {
    let at = cuda.allocate(bytes)?;
    let samples = measure(at);
    cuda.free(at)?;
    samples
}

/// Allocates all sizes, frees every second one, then the rest. A sample is the time of one pair. The first round, in which the
/// arenas grow, counts too, since programs also pay for it.
fn pattern(cuda: &Cuda, rounds: u32, sizes: &[usize]) -> Samples {
    (0..rounds.max(3))
        .map(|_| {
            let start = Instant::now();
            let held: Vec<u64> = sizes.iter().map(|size| cuda.allocate(*size)).collect::<Result<_, CudaError>>()?;
            let mut in_turn = held.iter().step_by(2).chain(held.iter().skip(1).step_by(2));
            in_turn.try_for_each(|address| cuda.free(*address))?;
            Ok(start.elapsed().as_nanos() as f64 / sizes.len() as f64)
        })
        .collect()
}
