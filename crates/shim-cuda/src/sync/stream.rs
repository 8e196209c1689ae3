//! Streams: the shim makes their handles, and the worker creates them without a wait. Their records answer queries of
//! properties.
//!
//! Handle 0 is the default stream of the called function's kind: the legacy one, or the thread's own in the variants that
//! end in `_ptsz` and `_ptds`. Handles 1 and 2 always name these two.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{CUcontext, CUdevice, CUgreenCtx, CUresult, CUstream, stream_flags};
use katydid_wire::message::{cuStreamCreateWithPriority, cuStreamDestroy_v2};

use katydid_driver_rules::stream as rules;
use katydid_graph::CaptureStream;

use crate::context::record::{CONTEXTS, Context, ContextIds, are_several, next_stream_id};
use crate::context::request::enqueue;
use crate::context::stack;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::{Handle, HandleTable, Wire, object, peek};
use crate::graph::model;
use crate::process::session::shim;

/// Handles and wire ids of the default streams.
pub(super) const LEGACY_STREAM: usize = 1;
const PER_THREAD_STREAM: usize = 2;
/// Wire ids below this are the default streams'.
const FIRST_STREAM_WIRE_ID: u32 = 3;

thread_local! {
    /// Whether the current call means the thread's own default stream.
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
}

/// Number of things whose work does not come after that of a context's default stream by itself.
static UNORDERED_WORK: AtomicUsize = AtomicUsize::new(0);

/// Counts in [`UNORDERED_WORK`] as long as it lives.
pub(crate) struct UnorderedWork(());

impl UnorderedWork {
    fn begin() -> Self {
        UNORDERED_WORK.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Counts one for good: memory is shared with other programs from now on, and no message reports the end of that.
    pub(crate) fn begin_for_good() {
        std::mem::forget(Self::begin());
    }
}

impl Drop for UnorderedWork {
    fn drop(&mut self) {
        UNORDERED_WORK.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream that the program created.
pub(crate) struct Stream {
    pub(crate) slot: SlabSlot,
    pub(crate) context: Arc<Context>,
    flags: u32,
    priority: i32,
    id: u64,
    /// Counts a stream that does not wait for the default stream.
    _unordered: Option<UnorderedWork>,
}

/// Streams that the program created, of all contexts.
pub(crate) static STREAMS: HandleTable<Stream> = HandleTable::new();

impl Handle for CUstream {
    type Object = Stream;

    fn table() -> &'static HandleTable<Stream> {
        &STREAMS
    }

    fn value(self) -> usize {
        self.0.addr()
    }
}

impl Wire for CUstream {
    fn wire(self) -> Result<u32, CUresult> {
        wire(self)
    }
}

impl Stream {
    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + FIRST_STREAM_WIRE_ID
    }
}

/// Runs a function whose default stream is the thread's own.
pub(crate) fn with_per_thread_default(body: impl FnOnce() -> CUresult) -> CUresult {
    with_default(true, body)
}

/// Runs a function of the program in the middle of a call: its own calls do not belong to that one.
pub(crate) fn outside_of_call(body: impl FnOnce()) {
    with_default(false, body);
}

fn with_default<T>(is_per_thread: bool, body: impl FnOnce() -> T) -> T {
    let was_per_thread = PER_THREAD_DEFAULT.try_with(|flag| flag.replace(is_per_thread)).unwrap_or(false);
    let result = body();
    let _ = PER_THREAD_DEFAULT.try_with(|flag| flag.set(was_per_thread));
    result
}

/// Returns the wire id of the current call's default stream.
pub(crate) fn default_wire() -> u32 {
    let per_thread = PER_THREAD_DEFAULT.try_with(Cell::get).unwrap_or(false);
    if per_thread { PER_THREAD_STREAM as u32 } else { 0 }
}

/// Returns whether work of one stream is in order with that of another, each by wire ids of context and stream: both are the
/// same, or one is the default stream of a context and the other waits for it.
pub(crate) fn are_in_order(one: (u32, u32), other: (u32, u32)) -> bool {
    let is_legacy = |it: (u32, u32)| it.1 <= LEGACY_STREAM as u32;
    match (is_legacy(one), is_legacy(other)) {
        (true, true) => one.0 == other.0,
        (true, false) => waits_for_legacy(other, one.0),
        (false, true) => waits_for_legacy(one, other.0),
        (false, false) => one.1 == other.1 && !is_of_thread(one.1),
    }
}

/// Returns whether a stream, not the legacy one of a context, waits for that one.
pub(super) fn waits_for_legacy((here, stream): (u32, u32), context: u32) -> bool {
    if is_of_thread(stream) {
        return here == context;
    }
    let record = STREAMS.get().ok().and_then(|streams| streams.get_index(stream - FIRST_STREAM_WIRE_ID));
    record.is_some_and(|record| record.flags & stream_flags::NON_BLOCKING == 0 && record.context.wire() == context)
}

/// Refuses streams that take no batches: the legacy default stream, by any name, and invalid streams.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
pub(crate) fn takes_groups(stream: CUstream) -> Result<(), CUresult> {
    rules::check_group(stream, is_of_thread(default_wire()), || object(stream).is_ok())
}

/// Returns whether a wire id means a different stream in each thread.
pub(crate) fn is_of_thread(wire: u32) -> bool {
    wire == PER_THREAD_STREAM as u32
}

/// Returns whether work of other streams may overtake that of one, by its wire id, without an event between them.
pub(super) fn can_be_overtaken(stream: u32) -> bool {
    is_of_thread(stream) || UNORDERED_WORK.load(Ordering::Relaxed) > 0 || are_several()
}

/// Returns the wire id of a stream.
///
/// # Errors
///
/// `ERROR_INVALID_HANDLE`.
pub(crate) fn wire(stream: CUstream) -> Result<u32, CUresult> {
    // The caller is about to use the stream: work that can be captured was captured before.
    refuse_captured(stream)?;
    match stream.0.addr() {
        0 => Ok(default_wire()),
        default @ (LEGACY_STREAM | PER_THREAD_STREAM) => Ok(default as u32),
        _ => peek(stream).map(|stream| stream.index + FIRST_STREAM_WIRE_ID),
    }
}

/// Returns the wire id of a stream, and the context ids of a stream that the program created, which may differ from the
/// current context.
///
/// # Errors
///
/// As [`wire`].
pub(crate) fn wire_and_ids(
    stream: CUstream,
    current: Option<ContextIds>,
) -> Result<(u32, Option<ContextIds>), CUresult> {
    let wire = wire(stream)?;
    if wire < FIRST_STREAM_WIRE_ID {
        return Ok((wire, None));
    }
    let context = peek(stream)?.tag;
    let owner = match current.filter(|current| current.wire == context) {
        Some(current) => current,
        None => object(stream)?.context.ids(),
    };
    Ok((wire, Some(owner)))
}

/// Returns the wire id of a stream of the context with wire id `context`, if that is current and active, and nothing is
/// captured.
pub(crate) fn wire_in_current(stream: CUstream, context: u32) -> Option<u32> {
    if stack::wire() != Ok(context) || !model::of_process().is_quiet() {
        return None;
    }
    let is_there = stream.0.addr() <= PER_THREAD_STREAM || peek(stream).is_ok_and(|seen| seen.tag == context);
    wire(stream).ok().filter(|_| is_there)
}

/// A default stream, or one that the program created.
enum ResolvedStream {
    /// A default stream of a context: 0 the legacy one, 1 the thread's own.
    Default(Arc<Context>, usize),
    Made(Arc<Stream>),
}

fn resolve(stream: CUstream) -> Result<ResolvedStream, CUresult> {
    let default = |index| stack::active().map(|context| ResolvedStream::Default(context, index));
    match stream.0.addr() {
        0 => default(usize::from(default_wire() != 0)),
        LEGACY_STREAM => default(0),
        PER_THREAD_STREAM => default(1),
        _ if stack::get().is_some() => {
            stack::active()?;
            object(stream).map(ResolvedStream::Made)
        }
        // The handle tells the context.
        _ => object(stream).map(ResolvedStream::Made),
    }
}

/// Returns the context for messages about a stream.
pub(crate) fn asked_in(stream: CUstream) -> Result<u32, CUresult> {
    match resolve(stream)? {
        ResolvedStream::Default(..) => stack::wire(),
        ResolvedStream::Made(stream) => stack::wire_or_of(&stream.context),
    }
}

/// Returns the key of a stream for stream capture. A thread's default streams have keys of their own, above all ids.
pub(crate) fn capture_stream(stream: CUstream) -> Result<CaptureStream, CUresult> {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    Ok(match resolve(stream)? {
        ResolvedStream::Made(stream) => CaptureStream {
            key: stream.id,
            is_legacy: false,
            is_blocking: stream.flags & stream_flags::NON_BLOCKING == 0,
            context: stream.context.slot.handle,
        },
        ResolvedStream::Default(context, index) => {
            let thread = if index == 0 { 0 } else { THREAD.try_with(|thread| *thread + 1).unwrap_or(0) };
            let key = 1 << 63 | thread << 24 | u64::from(context.slot.index) << 1 | index as u64;
            CaptureStream { key, is_legacy: index == 0, is_blocking: index == 1, context: context.slot.handle }
        }
    })
}

/// Returns the context of a stream.
pub(crate) fn context_of(stream: CUstream) -> Result<Arc<Context>, CUresult> {
    Ok(match resolve(stream)? {
        ResolvedStream::Default(context, _) => context,
        ResolvedStream::Made(stream) => Arc::clone(&stream.context),
    })
}

/// Refuses calls that cannot be captured on a captured stream, and on the legacy stream while blocking streams are captured.
pub(crate) fn refuse_captured(stream: CUstream) -> Result<(), CUresult> {
    let graphs = model::of_process();
    if graphs.is_quiet() { Ok(()) } else { graphs.refuse_captured(capture_stream(stream)?) }
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn create(target: *mut CUstream, flags: u32) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { create_with_priority(target, flags, 0) }
}

/// Creates a stream. A priority outside the device's range is clamped.
///
/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_with_priority(target: *mut CUstream, flags: u32, priority: i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let (stream, priority) = new_record(stack::active()?, flags, priority)?;
    enqueue(&cuStreamCreateWithPriority { phStream: stream.wire(), flags, priority })?;
    target.write(CUstream(handle(stream.slot.handle)));
    Ok(())
}

/// Makes the record of a stream that the worker has yet to create, and returns its priority.
pub(crate) fn new_record(context: Arc<Context>, flags: u32, priority: i32) -> Result<(Arc<Stream>, i32), CUresult> {
    rules::check_flags(flags)?;
    let priority = context.with_facts(|it| rules::priority(priority, it.least_priority, it.greatest_priority))?;
    let (id, wire) = (next_stream_id(), context.wire());
    let make = |slot| {
        let _unordered = (flags & stream_flags::NON_BLOCKING != 0).then(UnorderedWork::begin);
        Stream { slot, context, flags, priority, id, _unordered }
    };
    let stream = STREAMS.get()?.insert_with(wire, make).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    Ok((stream, priority))
}

/// Destroys a stream. The handle ends at once; work in the stream goes on.
pub(crate) fn destroy(stream: CUstream) -> Result<(), CUresult> {
    let stream = STREAMS.get()?.remove(stream.0.addr()).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    model::of_process().forget_stream(stream.id);
    shim()?.session.enqueue(stream.context.wire(), &cuStreamDestroy_v2 { hStream: stream.wire() })
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn priority(stream: CUstream, target: *mut i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(if let ResolvedStream::Made(stream) = resolve(stream)? { stream.priority } else { 0 });
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn flags(stream: CUstream, target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(if let ResolvedStream::Made(stream) = resolve(stream)? { stream.flags } else { 0 });
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn id(stream: CUstream, target: *mut u64) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(match resolve(stream)? {
        ResolvedStream::Default(context, index) => context.default_streams[index].load(Ordering::Relaxed),
        ResolvedStream::Made(stream) => stream.id,
    });
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn context(stream: CUstream, target: *mut CUcontext) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(context_of(stream)?.handle());
    Ok(())
}

/// Returns the context of a stream; for a stream of a green context, that one and its primary context.
///
/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn contexts(
    stream: CUstream,
    target: *mut CUcontext,
    green: *mut CUgreenCtx,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let (target, green) = unsafe { (out(target)?, out(green)?) };
    let context = context_of(stream)?;
    green.write(context.green_handle());
    target.write(context.owner().handle());
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn device(stream: CUstream, target: *mut CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(context_of(stream)?.device as CUdevice);
    Ok(())
}

/// Returns a private table's value for a stream's object: an address inside its record, never the handle itself.
pub(crate) fn object_address(stream: CUstream) -> Result<usize, CUresult> {
    Ok(match resolve(stream)? {
        ResolvedStream::Default(context, index) => context.slot.handle + 1 + index,
        ResolvedStream::Made(stream) => stream.slot.handle + 1,
    })
}

/// Returns the id of the stream for an address from [`object_address`].
pub(crate) fn id_of_object(object: usize) -> Result<u64, CUresult> {
    if let Some(stream) = STREAMS.get()?.get(object.wrapping_sub(1)) {
        return Ok(stream.id);
    }
    for index in 0..2 {
        if let Some(context) = CONTEXTS.get()?.get(object.wrapping_sub(1 + index)) {
            return Ok(context.default_streams[index].load(Ordering::Relaxed));
        }
    }
    Err(CUresult::ERROR_INVALID_HANDLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use katydid_cuda_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

    #[test]
    fn the_null_stream_is_the_kind_that_the_function_means() {
        assert_eq!(wire(CUstream::NULL), Ok(0));
        let (inside, outside) = (Cell::new(0), Cell::new(9));
        let result = with_per_thread_default(|| {
            outside_of_call(|| outside.set(default_wire()));
            inside.set(default_wire());
            with_per_thread_default(|| CUresult::SUCCESS)
        });
        assert_eq!((result, inside.get(), outside.get(), default_wire()), (CUresult::SUCCESS, 2, 0, 0));
        assert_eq!((wire(CU_STREAM_LEGACY), wire(CU_STREAM_PER_THREAD)), (Ok(1), Ok(2)));
    }
}
