//! Points where the program waits. There, output of kernels is written, and pools free unused memory.

use std::sync::Arc;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::pool;
use crate::sync::event::Event;
use crate::sync::stream::{LiveContext, Stream};

/// `cuCtxSynchronize`: waits for all streams, and returns the sticky error.
pub(crate) fn context(context: &LiveContext) -> Outcome {
    context.drain();
    finish_work(context);
    context.healthy()
}

/// `cuStreamSynchronize`.
pub(crate) fn stream(stream: &Arc<Stream>) -> Outcome {
    let context = stream.context()?;
    for (stream, ticket) in stream.tickets(&context) {
        stream.wait(ticket);
    }
    finish_work(&context);
    context.healthy()
}

/// `cuEventSynchronize`.
pub(crate) fn event(event: &Event) -> Outcome {
    event.wait();
    if let Some(context) = event.context() {
        finish_work(&context);
    }
    event.healthy()
}

fn finish_work(context: &Context) {
    context.output.flush();
    pool::reclaim_completed(context.device.ordinal);
}
