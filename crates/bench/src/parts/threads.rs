//! Concurrent threads of a program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use crate::cuda::{Cuda, CudaError};
use crate::sampling::{Body, Samples, each};

/// Samples of each rate.
const SAMPLES_PER_RATE: u32 = 5;

pub(super) fn measure(body: &mut Body) {
    let often = body.plan.repetitions;
    for (threads, key) in [(1, "launch_rate_1"), (8, "launch_rate_8")] {
        let samples = body.with_kernel(|| rate(&body.cuda, threads, often));
        body.note(key, samples);
    }
    let samples = body.with_kernel(|| loaded(&body.cuda, often));
    body.note("stream_query_loaded", samples);
}

/// Returns the time per launch over all threads, with the wait at the end.
fn rate(cuda: &Cuda, threads: u32, launches: u32) -> Samples {
    (0..SAMPLES_PER_RATE)
        .map(|_| {
            let start = Instant::now();
            let work = || {
                cuda.enter()?;
                let stream = cuda.new_stream()?;
                (0..launches).try_for_each(|_| stream.launch())?;
                stream.synchronize()
            };
            thread::scope(|scope| {
                let threads_started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
                threads_started
                    .into_iter()
                    .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(CudaError::died())))
            })?;
            Ok(start.elapsed().as_nanos() as f64 / f64::from(threads * launches))
        })
        .collect()
}

/// Times a round trip while another thread launches in batches, so that its launches never pile up.
fn loaded(cuda: &Cuda, repetitions: u32) -> Samples {
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| {
            cuda.enter()?;
            let stream = cuda.new_stream()?;
            while !ended.load(Ordering::Relaxed) {
                (0..64).try_for_each(|_| stream.launch())?;
                stream.synchronize()?;
            }
            Ok(())
        });
        let samples = each(repetitions, || cuda.query_stream());
        ended.store(true, Ordering::Relaxed);
        let load: Result<(), CudaError> = load.join().unwrap_or_else(|_| Err(CudaError::died()));
        load.and(samples)
    })
}
