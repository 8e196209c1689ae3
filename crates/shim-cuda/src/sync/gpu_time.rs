//! When the work of calls ran on the GPU, for a trace: an event before it and one behind it, in its stream.
//!
//! Times of events are differences. So each context has an event whose moment by the monotonic clock is known: one of a stream of
//! its own, which waits for nothing of the program's. What events say is asked for when the program waits anyway, and by questions
//! that take no error away from it.
//!
//! The rule: what cannot be timed (a captured stream, one of another context) is left out, and no call fails by it.
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

/// Set to 0: nothing is timed on the GPU.
const TRACE_GPU_VARIABLE: &str = "KATYDID_TRACE_GPU";
/// Spans that wait to be asked about before the next call asks.
const MAX_WAITING_SPANS: usize = 4096;
/// A difference in milliseconds of 32 bits is no more exact than a microsecond beyond some seconds.
const MAX_EXACT_MS: f32 = 4000.0;
/// A stream that does not wait for the default one.
const STREAM_NON_BLOCKING: u32 = 1;

/// Work that was given to a stream.
struct TimedWork {
    begin: CUevent,
    end: CUevent,
    of: CallId,
}

/// What is timed in one context.
#[derive(Default)]
struct TimedContext {
    /// An event, and when it came to pass, in nanoseconds of the monotonic clock.
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

/// Work whose beginning is marked.
pub(crate) struct BegunSpan {
    context: u32,
    event: CUevent,
}

/// Marks the beginning of work in a stream; none where it cannot be timed.
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

/// Marks the end of a span's work; nothing is kept of a call that failed.
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

/// Whether so much waits that it is to be asked about now.
pub(crate) fn is_much() -> bool {
    PENDING_SPANS.load(Ordering::Relaxed) >= MAX_WAITING_SPANS
}

/// Writes down what has come to pass.
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
                // Its context is gone, or the GPU is.
                Err(_) => {}
            }
            PENDING_SPANS.fetch_sub(1, Ordering::Relaxed);
        }
    }
    if is_much() {
        // Work that does not end must not have every later call ask about it.
        contexts.0.values_mut().for_each(|context| context.pending.clear());
        PENDING_SPANS.store(0, Ordering::Relaxed);
    }
}

/// Start by the monotonic clock, and duration, in nanoseconds; the events are used again.
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

/// Work may have begun before the base came to pass.
fn since_base(milliseconds: f32) -> i64 {
    (f64::from(milliseconds) * 1e6) as i64
}

/// Whether a stream is captured, or may be.
fn is_captured(stream: CUstream) -> bool {
    let mut status = 0;
    // SAFETY: `status` is writable.
    let result = unsafe { model::of_process().is_capturing(stream, &raw mut status) };
    result.is_err() || status != 0
}

/// An event whose moment is known.
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

/// An event that is recorded in the stream.
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
        // The stream is of another context, or the event was of one that is gone.
        Err(_) => None,
    }
}
