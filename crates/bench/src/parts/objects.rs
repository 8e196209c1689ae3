//! A program with very many objects: the cost of making, using and destroying one.

use std::time::Instant;

use crate::cuda::objects::Event;
use crate::cuda::{Cuda, CudaError};
use crate::sampling::{Body, CALLS_PER_BATCH, Samples, batches};

pub(super) fn measure(body: &mut Body) {
    if !body.has_time() {
        for key in ["objects_make", "objects_use", "objects_end"] {
            body.note(key, Err(CudaError::no_time()));
        }
        return;
    }
    let [creation_times, recorded, ended] = match among(&body.cuda, body.plan.objects, body.plan.repetitions) {
        Ok(samples) => samples.map(Ok),
        Err(error) => [Err(error.clone()), Err(error.clone()), Err(error)],
    };
    body.note("objects_make", creation_times);
    body.note("objects_use", recorded);
    body.note("objects_end", ended);
}

/// Makes `count` events, records some, and destroys all. Returns the times per event.
fn among(cuda: &Cuda, count: u32, repetitions: u32) -> Result<[Vec<f64>; 3], CudaError> {
    let start = Instant::now();
    let events: Vec<Event<'_>> = (0..count).map(|_| cuda.new_event()).collect::<Result<_, CudaError>>()?;
    cuda.synchronize()?;
    let creation_time = start.elapsed().as_nanos() as f64 / f64::from(count);
    let mut spread = events.iter().step_by(61).cycle();
    let recorded: Samples =
        batches(repetitions / CALLS_PER_BATCH, cuda, || spread.next().map_or(Ok(()), Event::record));
    let start = Instant::now();
    drop(events);
    cuda.synchronize()?;
    let ended = start.elapsed().as_nanos() as f64 / f64::from(count);
    Ok([vec![creation_time], recorded?, vec![ended]])
}
