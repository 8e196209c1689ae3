//! Calls without data: round trips, launches, events, streams.

use crate::cuda::{Cuda, CudaError};
use crate::sampling::{Body, CALLS_PER_BATCH, batches, each};

pub(super) fn measure(body: &mut Body) {
    let often = body.plan.repetitions;
    let cuda = &body.cuda;
    let figures = [
        ("launch", body.with_kernel(|| batches(often / CALLS_PER_BATCH, cuda, || cuda.launch()))),
        ("launch_sync", body.with_kernel(|| each(often, || cuda.launch().and_then(|()| cuda.synchronize())))),
        ("stream_query", each(often, || cuda.query_stream())),
        ("context_sync", each(often, || cuda.synchronize())),
        ("event_record", batches(often / CALLS_PER_BATCH, cuda, || cuda.record())),
        ("event_query", recorded(cuda).and_then(|()| each(often, || cuda.query_event()))),
        ("event_sync", recorded(cuda).and_then(|()| each(often, || cuda.wait_for_event()))),
        ("event_create", batches(often / CALLS_PER_BATCH, cuda, || cuda.new_event().map(drop))),
        ("stream_create", each(often / 8, || cuda.new_stream().map(drop))),
    ];
    figures.into_iter().for_each(|(key, samples)| body.note(key, samples));
}

/// Records the one event, and waits until it is done.
fn recorded(cuda: &Cuda) -> Result<(), CudaError> {
    cuda.record()?;
    cuda.synchronize()
}
