//! The hook that records calls when `KATYDID_TRACE` names a file. Off, it costs one relaxed load.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use katydid_client::connect::{program_name, variable};
use katydid_client::life::{self, Life};
use katydid_client::output::say;
use katydid_client::session::round_trips;
use katydid_client::trace::{Call, TraceWriter, now};
use katydid_cuda_sys::{CUresult, Function};

/// Nobody has looked at the environment yet.
const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
static WRITER: OnceLock<Option<TraceWriter>> = OnceLock::new();

/// Whether calls need not be recorded.
#[inline]
pub(crate) fn is_off() -> bool {
    STATE.load(Ordering::Relaxed) == OFF
}

/// Runs a call and records it.
pub(crate) fn traced(function: Function, call: impl FnOnce() -> CUresult) -> CUresult {
    let Some(writer) = writer() else { return call() };
    let (start, before) = (now(), round_trips());
    let result = call();
    // The file is the parent's: a forked child leaves no marks in it.
    if life::now() != Life::Forked {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let duration = now() - start;
        let round_trips = round_trips().wrapping_sub(before);
        writer.record(&Call { function: function.number(), thread, start, duration, result: result.0, round_trips });
    }
    result
}

/// Cuts the file to its length, for the end of the process.
pub(crate) fn finish() {
    if let Some(Some(writer)) = WRITER.get() {
        writer.finish();
    }
}

fn writer() -> Option<&'static TraceWriter> {
    let writer = WRITER.get_or_init(|| {
        let path = variable("KATYDID_TRACE")?;
        TraceWriter::create(Path::new(&path), &program_name())
            .inspect_err(|error| say(format_args!("KATYDID_TRACE={path}: {error}; calls are not recorded")))
            .ok()
    });
    STATE.store(if writer.is_some() { ON } else { OFF }, Ordering::Relaxed);
    writer.as_ref()
}
