//! Points where the program waits: then what kernels printed is written, and pools give back what they need not keep.

use std::sync::Arc;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::pool;
use crate::sync::event::Event;
use crate::sync::stream::{LiveContext, Stream};

/// `cuCtxSynchronize`: waits for all streams, and gives the error that sticks.
pub(crate) fn context(context: &LiveContext) -> Outcome {
    context.drain();
    settle(context);
    context.healthy()
}

/// `cuStreamSynchronize`.
pub(crate) fn stream(stream: &Arc<Stream>) -> Outcome {
    let context = stream.context()?;
    for (stream, ticket) in stream.tickets(&context) {
        stream.wait(ticket);
    }
    settle(&context);
    context.healthy()
}

/// `cuEventSynchronize`.
pub(crate) fn event(event: &Event) -> Outcome {
    event.wait();
    if let Some(context) = event.context() {
        settle(&context);
    }
    event.healthy()
}

fn settle(context: &Context) {
    context.output.flush();
    pool::settle(context.device.ordinal);
}
