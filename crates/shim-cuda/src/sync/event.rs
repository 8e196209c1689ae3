//! Events: the shim makes their handles, and creates and records them without waiting. The worker reports completion.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use katydid_client::session::Session;
use katydid_client::slab::SlabSlot;
use katydid_client::trace;
use katydid_cuda_sys::{CUevent, CUresult, CUstream, event_flags};
use katydid_wire::message::{
    cuEventCreate, cuEventDestroy_v2, cuEventQuery, cuEventRecord, cuEventSynchronize, kdElapsedTime,
};

use katydid_driver_rules::stream::{check_event_flags, is_external};
use katydid_graph::CaptureOutcome;

use crate::context::record::Context;
use crate::context::request::enqueue;
use crate::context::stack;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::{Handle, HandleTable, Wire, object, peek, wire};
use crate::graph::model;
use crate::launch::backpressure;
use crate::memory::pinned;
use crate::process::session::shim;
use crate::sync::stream;

/// A bit of a [`peek`] at an event, beside its context's wire id. The event was recorded before, and no other program can
/// have it, so recording it takes a single message.
const PLAIN_EVENT_BIT: u32 = 1 << 31;

/// How long the worker's answer may be repeated without asking again. Running work may fail meanwhile, and a program that
/// only polls a completed event must learn of that. This is its longest delay over the native driver.
const ANSWER_LIFETIME: Duration = Duration::from_millis(1);

/// An event of the program, and the state of its completion.
pub(crate) struct Event {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    /// Whether it was recorded in a stream, outside of captures.
    pub(crate) was_recorded: AtomicBool,
    /// Whether another program may have it too.
    pub(crate) is_shared: AtomicBool,
    /// Whether no other program can ever have it.
    pub(crate) is_private: bool,
    /// Its last known completion.
    pub(crate) done: CompletionRecord,
}

/// The completion of an event after a number of messages. It holds while no other message is sent, since recording the event
/// again takes one: by a call, the launch of a graph, or a function of the program.
#[derive(Default)]
pub(crate) struct CompletionRecord {
    /// One more than the messages that had been sent before the worker was asked; 0 for no known completion.
    sent: AtomicU64,
    /// Nanoseconds of [`trace::now`] when the worker had answered.
    at: AtomicU64,
}

impl CompletionRecord {
    /// Notes that the worker, asked after `sent` messages, has answered that the event has completed.
    fn note(&self, sent: u64, now: u64) {
        self.at.store(now, Ordering::Relaxed);
        self.sent.store(sent + 1, Ordering::Relaxed);
    }

    /// Returns whether the worker, asked now after `sent` messages, would answer the same again.
    fn is_known(&self, sent: u64, now: impl FnOnce() -> u64) -> bool {
        let is_latest = self.sent.load(Ordering::Relaxed) == sent + 1;
        // A restored program may find an earlier time on the clock, and must not wait until that has come.
        let since = |now: u64| now.checked_sub(self.at.load(Ordering::Relaxed));
        is_latest && since(now()).is_some_and(|since| since < ANSWER_LIFETIME.as_nanos() as u64)
    }
}

/// Events of all contexts.
pub(crate) static EVENTS: HandleTable<Event> = HandleTable::new();

impl Handle for CUevent {
    type Object = Event;

    fn table() -> &'static HandleTable<Event> {
        &EVENTS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUevent {
    fn wire(self) -> Result<u32, CUresult> {
        object(self).map(|event| event.wire())
    }
}

impl Event {
    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }
}

/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn create(target: *mut CUevent, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::active()?.owner();
    check_event_flags(flags)?;
    let (wire, is_private) = (context.wire(), flags & event_flags::INTERPROCESS == 0);
    let make = |slot| {
        let (was_recorded, is_shared) = (AtomicBool::new(false), AtomicBool::new(false));
        Event { slot, context, was_recorded, is_shared, is_private, done: CompletionRecord::default() }
    };
    let event = EVENTS.get()?.insert_with(wire, make).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    enqueue(&cuEventCreate { phEvent: event.wire(), Flags: flags })?;
    target.write(CUevent(handle(event.slot.handle)));
    Ok(())
}

/// Destroys an event. The handle ends at once; the driver keeps the event until it has completed.
pub(crate) fn destroy(event: CUevent) -> Result<(), CUresult> {
    model::of_process().forget_event(event);
    let event = EVENTS.get()?.remove(event.0.addr()).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    shim()?.session.enqueue(event.context.wire(), &cuEventDestroy_v2 { hEvent: event.wire() })
}

/// Makes the event stand for a node of a graph, if its stream is captured.
fn is_captured(event: CUevent, stream: CUstream, is_external: bool) -> Result<bool, CUresult> {
    if model::of_process().is_quiet() {
        return Ok(false);
    }
    object(event)?;
    Ok(model::of_process().record(event, stream::capture_stream(stream)?, is_external)? == CaptureOutcome::Yes)
}

/// Refuses to query or wait for an event of a capture, and any query while a capture forbids it. Returns the event, and the
/// context for the query: the event's own on a thread without one, such as PyTorch's that pins memory.
fn askable(event: CUevent) -> Result<(Arc<Event>, u32), CUresult> {
    let event_object = object(event)?;
    let context = stack::wire_or_of(&event_object.context)?;
    model::of_process().check_event(event)?;
    model::forbid()?;
    Ok((event_object, context))
}

/// Records an event outside of captures; event and stream must belong to the same context.
fn record_now(event: CUevent, stream: CUstream) -> Result<(), CUresult> {
    backpressure::take_slot(stream)?;
    let (glance, shim) = (peek(event)?, shim()?);
    let context = glance.tag & !PLAIN_EVENT_BIT;
    if glance.tag & PLAIN_EVENT_BIT != 0
        && let Some(stream) = stream::wire_in_current(stream, context)
    {
        return shim.session.enqueue(context, &cuEventRecord { hEvent: glance.index + 1, hStream: stream });
    }
    let is_private = record_first(event, stream)?;
    if is_private && context != 0 {
        EVENTS.get()?.change_tag(glance, context | PLAIN_EVENT_BIT);
    }
    Ok(())
}

/// Records any event in any stream; returns whether no other program can ever have the event.
fn record_first(event: CUevent, stream: CUstream) -> Result<bool, CUresult> {
    let (event, context) = (object(event)?, stream::context_of(stream)?.owner());
    let same = event.context.slot == context.slot;
    event.was_recorded.fetch_or(same, Ordering::Relaxed);
    if !same {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    let (shim, wire_context) = (shim()?, stack::wire_or_of(&context)?);
    shim.session.enqueue(wire_context, &cuEventRecord { hEvent: event.wire(), hStream: wire(stream)? })?;
    if event.is_shared.load(Ordering::Relaxed) {
        // Another program that learns of the record right after this must not find the old state. A later query reports the
        // outcome.
        let _ = shim.session.ask(wire_context, &cuEventQuery { hEvent: event.wire() });
    }
    Ok(event.is_private)
}

/// Records an event: it completes when the stream has done all its current work.
pub(crate) fn record(event: CUevent, stream: CUstream) -> Result<(), CUresult> {
    if is_captured(event, stream, false)? {
        return Ok(());
    }
    record_now(event, stream)
}

/// Records an event with `CU_EVENT_RECORD_EXTERNAL` or without flags.
pub(crate) fn record_with_flags(event: CUevent, stream: CUstream, flags: u32) -> Result<(), CUresult> {
    object(event)?;
    if is_captured(event, stream, is_external(flags)?)? {
        return Ok(());
    }
    // Outside of captures the flag has no meaning.
    record_now(event, stream)
}

/// Returns whether the event has completed; `ERROR_NOT_READY` if not.
pub(crate) fn query(event: CUevent) -> Result<(), CUresult> {
    unless_done(event, |session, context, wire| session.call(context, &cuEventQuery { hEvent: wire }).map(drop))
}

/// Waits until the event has completed.
pub(crate) fn synchronize(event: CUevent) -> Result<(), CUresult> {
    unless_done(event, |session, context, wire| session.call(context, &cuEventSynchronize { hEvent: wire }).map(drop))
}

/// Runs `ask`, which asks the worker about an event, unless the event is known to have completed.
fn unless_done(
    event: CUevent,
    ask: impl FnOnce(&Session<CUresult>, u32, u32) -> Result<(), CUresult>,
) -> Result<(), CUresult> {
    let (event, context) = askable(event)?;
    let session = &shim()?.session;
    let sent = session.enqueued();
    // Another program may record one that is not private.
    if event.is_private && event.done.is_known(sent, trace::now) && !session.is_lost() {
        return Ok(());
    }
    ask(session, context, event.wire())?;
    pinned::pull_all()?;
    event.done.note(sent, trace::now());
    Ok(())
}

/// Returns the milliseconds between the completion of two events.
///
/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn elapsed_time(target: *mut f32, start: CUevent, end: CUevent) -> Result<(), CUresult> {
    // SAFETY: as the caller promises.
    unsafe { elapsed(target, start, end, 1) }
}

/// Returns the milliseconds between two events, in the version of CUDA 12.8.
///
/// # Safety
///
/// As for [`elapsed_time`].
pub(crate) unsafe fn elapsed_time_v2(target: *mut f32, start: CUevent, end: CUevent) -> Result<(), CUresult> {
    // SAFETY: as the caller promises.
    unsafe { elapsed(target, start, end, 2) }
}

/// # Safety
///
/// As for [`elapsed_time`].
unsafe fn elapsed(target: *mut f32, start: CUevent, end: CUevent, version: u32) -> Result<(), CUresult> {
    let (start, end) = (object(start)?, object(end)?);
    let is_recorded = |event: &Event| event.was_recorded.load(Ordering::Relaxed);
    // Checked before the output, as the driver does; the worker's driver knows more of other programs' events.
    let is_wrong =
        start.context.slot != end.context.slot || (target.is_null() && !(is_recorded(&start) && is_recorded(&end)));
    if is_wrong {
        return Err(CUresult::ERROR_INVALID_HANDLE);
    }
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let message = kdElapsedTime { start: start.wire(), end: end.wire(), version };
    target.write(shim()?.session.call(stack::wire_or_of(&start.context)?, &message)?.milliseconds);
    Ok(())
}

/// Returns the milliseconds between two events, for the shim itself: it reports no error of the program's calls.
///
/// # Errors
///
/// `ERROR_NOT_READY`, or another code of the driver.
pub(crate) fn ask_elapsed(context: u32, start: CUevent, end: CUevent) -> Result<f32, CUresult> {
    let message = kdElapsedTime { start: object(start)?.wire(), end: object(end)?.wire(), version: 1 };
    Ok(shim()?.session.ask(context, &message)?.milliseconds)
}

/// Waits for an event, for the shim itself.
///
/// # Errors
///
/// The driver's code.
pub(crate) fn ask_wait(context: u32, event: CUevent) -> Result<(), CUresult> {
    shim()?.session.ask(context, &cuEventSynchronize { hEvent: object(event)?.wire() }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_is_known_until_a_frame_is_sent_or_the_answer_expires() {
        let done = CompletionRecord::default();
        assert!(!done.is_known(0, || 0), "not asked yet");
        done.note(7, 500);
        let last = 500 + ANSWER_LIFETIME.as_nanos() as u64;
        assert!(done.is_known(7, || 500) && done.is_known(7, || last - 1));
        assert!(!done.is_known(7, || last), "an error may be there by now");
        assert!(!done.is_known(8, || 500), "it may have been recorded again");
        assert!(!done.is_known(7, || 499), "the clock is another one");
    }
}
