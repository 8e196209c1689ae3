//! Waits of the program for streams, and of streams for events.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use katydid_cuda_sys::{CUevent, CUresult, CUstream};
use katydid_driver_rules::stream::is_external;
use katydid_graph::{CaptureOutcome, UncapturedCall};
use katydid_wire::message::{cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent};

use crate::context::stack;
use crate::copy::transfer::StreamIds;
use crate::ffi::handle::object;
use crate::graph::model;
use crate::launch::backpressure;
use crate::memory::pinned;
use crate::process::session::{Shim, shim};
use crate::sync::stream;

thread_local! {
    /// The stream that this thread has found empty, which saves one wait.
    static DRAINED_STREAM: Cell<Option<DrainedStream>> = const { Cell::new(None) };
}

/// A stream that was empty after a number of messages. It stays idle while no other message is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DrainedStream {
    /// Wire ids of context and stream.
    stream: (u32, u32),
    sent: u64,
}

/// Refuses to wait for a stream, or to query it, while a stream capture forbids it.
fn forbid(stream: CUstream) -> Result<(), CUresult> {
    let graphs = model::of_process();
    if graphs.is_quiet() { Ok(()) } else { graphs.forbid(UncapturedCall::Stream(stream::capture_stream(stream)?)) }
}

/// Waits for everything in the stream.
pub(crate) fn synchronize(stream: CUstream) -> Result<(), CUresult> {
    let context = stream::asked_in(stream)?;
    forbid(stream)?;
    let (shim, stream) = (shim()?, stream::wire(stream)?);
    if is_empty(shim, (context, stream)) {
        return Ok(());
    }
    waits_in(stream, || shim.session.call(context, &cuStreamSynchronize { hStream: stream })).map(drop)
}

/// Returns whether the thread's last copy out has waited for the stream, and nothing was sent since. It answers so only
/// once: a second wait must learn the outcome of other work.
fn is_empty(shim: &Shim, stream: (u32, u32)) -> bool {
    let drained = DrainedStream { stream, sent: shim.session.enqueued() };
    DRAINED_STREAM.take() == Some(drained) && !shim.session.is_lost()
}

/// As [`waits_in`], for a copy that waits for everything in its stream: a later wait then needs no message, which saves a
/// round trip.
pub(crate) fn empties<T>(way: StreamIds, copy: impl FnOnce() -> Result<T, CUresult>) -> Result<T, CUresult> {
    let sent = shim()?.session.enqueued();
    let got = waits_in(way.stream, copy)?;
    // The id of a thread's own stream means a different stream in each thread, and this record does not distinguish them.
    DRAINED_STREAM
        .set((!stream::is_of_thread(way.stream)).then_some(DrainedStream { stream: (way.context, way.stream), sent }));
    Ok(got)
}

/// Runs `run`, which returns when everything before it in the stream is done, so that the program may read the results.
pub(crate) fn waits_in<T>(stream: u32, run: impl FnOnce() -> Result<T, CUresult>) -> Result<T, CUresult> {
    let epoch = shim()?.session.enqueued();
    let got = run()?;
    pinned::pull_of(stream, epoch)?;
    Ok(got)
}

/// Waits for everything in a stream by wire id.
pub(crate) fn synchronize_wire(stream: u32) -> Result<(), CUresult> {
    synchronize_in(stack::wire()?, stream)
}

/// Waits for everything in a stream by wire id, through a context by wire id.
pub(crate) fn synchronize_in(context: u32, stream: u32) -> Result<(), CUresult> {
    let shim = shim()?;
    waits_in(stream, || shim.session.call(context, &cuStreamSynchronize { hStream: stream })).map(drop)
}

/// Waits for everything that a copy, queued now in a stream and context by wire ids, would come after. That includes work of
/// the default stream, if the two are in order. A wait for the stream alone does not include it.
pub(crate) fn synchronize_all_before(context: u32, stream: u32) -> Result<(), CUresult> {
    if stream > stream::LEGACY_STREAM as u32 && stream::waits_for_legacy((context, stream), context) {
        synchronize_in(context, stream::LEGACY_STREAM as u32)?;
    }
    synchronize_in(context, stream)
}

/// Returns whether everything in the stream is done; `ERROR_NOT_READY` if not.
pub(crate) fn query(stream: CUstream) -> Result<(), CUresult> {
    let context = stream::asked_in(stream)?;
    forbid(stream)?;
    let (shim, stream) = (shim()?, stream::wire(stream)?);
    waits_in(stream, || shim.session.call(context, &cuStreamQuery { hStream: stream })).map(drop)
}

/// Makes the stream wait for the work that the event recorded.
pub(crate) fn wait_event(stream: CUstream, event: CUevent, flags: u32) -> Result<(), CUresult> {
    let waited = object(event)?;
    let is_external = is_external(flags)?;
    if !model::of_process().is_quiet() {
        let was_recorded = waited.was_recorded.load(Ordering::Relaxed);
        if model::of_process().wait(event, stream::capture_stream(stream)?, is_external, was_recorded)?
            == CaptureOutcome::Yes
        {
            return Ok(());
        }
    }
    backpressure::take_slot(stream)?;
    // Outside of captures the flag has no meaning.
    let message = cuStreamWaitEvent { hStream: stream::wire(stream)?, hEvent: waited.wire(), Flags: 0 };
    shim()?.session.enqueue(stream::asked_in(stream)?, &message)
}

/// Ends a copy from the program's memory for which the program waits. Its bytes were read, so the program may go on as soon
/// as nothing can overtake the copy: work of the same stream, and of streams that wait for it, comes after it anyway.
pub(crate) fn synchronize_copy(stream: u32) -> Result<(), CUresult> {
    let can_be_overtaken = stream::can_be_overtaken(stream);
    if can_be_overtaken { synchronize_wire(stream) } else { Ok(()) }
}
