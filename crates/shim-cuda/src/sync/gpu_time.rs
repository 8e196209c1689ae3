//! Times the work of calls on the GPU, for a trace: with an event before it and one after it, in its stream.
//!
//! Times of events are differences. So each context has a base event with a known time on the monotonic clock, in a stream
//! that waits for no work of the program. The shim asks for times when the program waits anyway, with messages that take no
//! error away from it.
//!
//! Work that cannot be timed (in a captured stream, or in one of another context) is left out, and makes no call fail.
#![expect(unsafe_code, reason = "our own calls of functions for C callers")]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_client::environment::variable;
use katydid_client::trace::{CallId, TraceWriter, now};
use katydid_cuda_sys::{CUevent, CUresult, CUstream};

use crate::context::stack;
use crate::graph::model;
use crate::sync::{event, stream};

/// Set to 0, it disables times of the GPU.
const TRACE_GPU_VARIABLE: &str = "KATYDID_TRACE_GPU";
/// Waiting spans that make the next call collect times.
const MAX_WAITING_SPANS: usize = 4096;
/// Largest exact difference: milliseconds as 32-bit floats are no more exact than a microsecond beyond some seconds.
const MAX_EXACT_MS: f32 = 4000.0;
/// A stream that does not wait for the default one.
const STREAM_NON_BLOCKING: u32 = 1;

/// Work that was queued in a stream.
struct TimedWork {
    begin: CUevent,
    end: CUevent,
    of: CallId,
}

/// The timed work of one context.
#[derive(Default)]
struct TimedContext {
    /// The base event, and its time in nanoseconds of the monotonic clock.
    base: Option<(CUevent, u64)>,
    spare: Vec<CUevent>,
    pending: VecDeque<TimedWork>,
}

// Handles are addresses of records that live as long as the process.
struct TimedContexts(HashMap<u32, TimedContext>);

// SAFETY: the handles in it are names, which any thread may use.
unsafe impl Send for TimedContexts {}

static TIMED_CONTEXTS: LazyLock<Mutex<TimedContexts>> = LazyLock::new(|| Mutex::new(TimedContexts(HashMap::new())));
static PENDING_SPANS: AtomicUsize = AtomicUsize::new(0);

fn timed_contexts() -> MutexGuard<'static, TimedContexts> {
    TIMED_CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Work whose beginning is recorded.
pub(crate) struct BegunSpan {
    context: u32,
    event: CUevent,
}

/// Records the beginning of work in a stream; none if it cannot be timed.
pub(crate) fn begin(stream: CUstream) -> Option<BegunSpan> {
    static IS_WANTED: LazyLock<bool> = LazyLock::new(|| variable(TRACE_GPU_VARIABLE).is_none_or(|value| value != "0"));
    if !*IS_WANTED || is_captured(stream) {
        return None;
    }
    let context = stack::active().ok()?.owner().wire();
    let mut contexts = timed_contexts();
    let of = contexts.0.entry(context).or_default();
    if of.base.is_none() {
        of.base = Some(base(context)?);
    }
    let event = mark(of, stream)?;
    Some(BegunSpan { context, event })
}

/// Records the end of a span's work; a failed call leaves none.
pub(crate) fn end(span: BegunSpan, stream: CUstream, of: CallId, has_succeeded: bool) {
    let mut contexts = timed_contexts();
    let context = contexts.0.entry(span.context).or_default();
    match if has_succeeded { mark(context, stream) } else { None } {
        Some(end) => {
            context.pending.push_back(TimedWork { begin: span.event, end, of });
            PENDING_SPANS.fetch_add(1, Ordering::Relaxed);
        }
        None => context.spare.push(span.event),
    }
}

/// Returns whether so many spans wait that their times must be collected now.
pub(crate) fn is_much() -> bool {
    PENDING_SPANS.load(Ordering::Relaxed) >= MAX_WAITING_SPANS
}

/// Writes the times of completed spans to the trace.
pub(crate) fn collect(writer: &TraceWriter) {
    if PENDING_SPANS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let mut contexts = timed_contexts();
    for (number, context) in &mut contexts.0 {
        while let Some(span) = context.pending.pop_front() {
            match times(*number, context, &span) {
                Ok((start, duration)) => writer.gpu(span.of, start, duration),
                Err(CUresult::ERROR_NOT_READY) => {
                    context.pending.push_front(span);
                    break;
                }
                // The context is gone, or the GPU.
                Err(_) => {}
            }
            PENDING_SPANS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    if is_much() {
        // Work that never ends must not make every later call ask for it.
        contexts.0.values_mut().for_each(|context| context.pending.clear());
        PENDING_SPANS.store(0, Ordering::Relaxed);
    }
}

/// Returns start by the monotonic clock, and duration, in nanoseconds; the events are reused.
fn times(number: u32, context: &mut TimedContext, span: &TimedWork) -> Result<(u64, u64), CUresult> {
    let (base, moment) = context.base.ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    let duration = nanoseconds(event::ask_elapsed(number, span.begin, span.end)?);
    let since = event::ask_elapsed(number, base, span.begin)?;
    let start = moment.saturating_add_signed(since_base(since));
    if since > MAX_EXACT_MS {
        context.base = Some((span.begin, start));
        context.spare.extend([base, span.end]);
    } else {
        context.spare.extend([span.begin, span.end]);
    }
    Ok((start, duration))
}

fn nanoseconds(milliseconds: f32) -> u64 {
    (f64::from(milliseconds).max(0.0) * 1e6) as u64
}

/// Returns nanoseconds since the base event; negative if work began before it.
fn since_base(milliseconds: f32) -> i64 {
    (f64::from(milliseconds) * 1e6) as i64
}

/// Returns whether a stream is captured, or may be.
fn is_captured(stream: CUstream) -> bool {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let result = unsafe { model::of_process().is_capturing(stream, &raw mut status) };
    result.is_err() || status != 0
}

/// Makes a base event with a known time.
fn base(context: u32) -> Option<(CUevent, u64)> {
    let (mut own, mut event) = (CUstream::NULL, CUevent::NULL);
    // SAFETY: `own` is writable.
    unsafe { stream::create(&raw mut own, STREAM_NON_BLOCKING) }.ok()?;
    // SAFETY: `event` is writable.
    unsafe { event::create(&raw mut event, 0) }.ok()?;
    event::record(event, own).ok()?;
    event::ask_wait(context, event).ok()?;
    Some((event, now()))
}

/// Records an event in the stream.
fn mark(context: &mut TimedContext, stream: CUstream) -> Option<CUevent> {
    let event = match context.spare.pop() {
        Some(event) => event,
        None => {
            let mut event = CUevent::NULL;
            // SAFETY: `event` is writable.
            unsafe { event::create(&raw mut event, 0) }.ok()?;
            event
        }
    };
    match event::record(event, stream) {
        Ok(()) => Some(event),
        // The stream is of another context, or the event's context is gone.
        Err(_) => None,
    }
}
