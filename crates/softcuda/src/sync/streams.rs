//! Streams by handle, and the stream that a handle means in the thread's present call.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use katydid_cuda_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream};
use katydid_driver_rules::stream as rules;

use crate::context::stack;
use crate::ffi::Outcome;
use crate::process::handles::Registry;
use crate::process::state;
use crate::sync::default_stream::is_per_thread;
use crate::sync::stream::{LiveContext, Stream, StreamKind};
use crate::sync::stream_attributes::GREATEST_PRIORITY;

/// Streams whose handle is alive.
static STREAMS: Registry<Stream> = Registry::new();

/// `cuStreamCreate`, in a green context if that is not 0.
pub(crate) fn create(context: &Arc<LiveContext>, green: usize, flags: u32, priority: i32) -> Outcome<Arc<Stream>> {
    rules::check_flags(flags)?;
    let priority = rules::priority(priority, 0, GREATEST_PRIORITY);
    let stream = context.add_stream(green, StreamKind::Created, flags, priority);
    STREAMS.insert(stream.handle, Arc::clone(&stream));
    Ok(stream)
}

/// `cuStreamDestroy`: ends the handle; pending work goes on.
pub(crate) fn destroy(handle: CUstream) -> Outcome {
    STREAMS.remove(handle.address() as usize).map(drop).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Ends the handles of a context's streams.
pub(crate) fn forget(context: u64) {
    STREAMS.remove_if(|stream| stream.context().map_or(true, |owner| owner.id == context));
}

/// Ends the handles of a green context's streams.
pub(crate) fn forget_green(green: usize) {
    STREAMS.remove_if(|stream| stream.green() == green);
}

thread_local! {
    /// This thread's default streams, by the id of their context.
    static DEFAULT_STREAMS: RefCell<HashMap<u64, Arc<Stream>>> = RefCell::default();
}

/// Returns the stream behind a handle, if its context is healthy. Null means a default stream of the current context.
pub(crate) fn resolve(handle: CUstream) -> Outcome<Arc<Stream>> {
    if handle.is_null() || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD {
        let context = stack::usable()?;
        let own = handle == CU_STREAM_PER_THREAD || (handle.is_null() && is_per_thread());
        return Ok(default_of(&context, own));
    }
    let stream = created(handle)?;
    stream.context()?.healthy()?;
    Ok(stream)
}

/// Returns the default stream of functions without a stream argument.
pub(crate) fn default_stream() -> Outcome<Arc<Stream>> {
    resolve(CUstream::NULL)
}

/// Returns the stream that a non-special handle names.
pub(crate) fn created(handle: CUstream) -> Outcome<Arc<Stream>> {
    state::ready()?;
    STREAMS.get(handle.address() as usize).ok_or(CUresult::ERROR_INVALID_HANDLE)
}

/// Returns the stream of a batch.
pub(crate) fn of_group(handle: CUstream) -> Outcome<Arc<Stream>> {
    rules::check_group(handle, is_per_thread(), || created(handle).is_ok())?;
    resolve(handle)
}

/// Returns a default stream of `context`: the legacy one, or the calling thread's own.
pub(crate) fn default_of(context: &Arc<LiveContext>, own: bool) -> Arc<Stream> {
    if !own {
        return Arc::clone(context.legacy());
    }
    let make = || context.add_stream(0, StreamKind::PerThread, 0, 0);
    let own_stream = DEFAULT_STREAMS.try_with(|own| {
        let mut own = own.borrow_mut();
        own.retain(|_, stream| stream.has_context());
        Arc::clone(own.entry(context.id).or_insert_with(make))
    });
    // A thread that is ending cannot store a stream: its call gets a new one.
    own_stream.unwrap_or_else(|_| make())
}
