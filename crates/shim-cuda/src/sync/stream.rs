//! Streams: minted here, created in the worker without waiting; their properties are answered from the record.
//!
//! Handle 0 is the default stream of the calling function's kind: the legacy one, or, inside the variants that end in
//! `_ptsz` and `_ptds`, the thread's own. Handles 1 and 2 name these two outright.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use katydid_client::slab::Slot;
use katydid_cuda_sys::{CUcontext, CUdevice, CUevent, CUgreenCtx, CUresult, CUstream, stream_flags};
use katydid_wire::message::{
    cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent,
};

use katydid_graph::{Call, Place, Taken};

use crate::context::contexts::{self, Context, Home};
use crate::context::device::handle;
use crate::context::{green, stack};
use crate::copy::transfer::Way;
use crate::ffi::guard::{enqueue, out};
use crate::ffi::handle::{glance, object};
use crate::graph;
use crate::launch::backpressure;
use crate::memory::pinned;
use crate::process::session::{Shim, shim};

/// Handles and wire ids of the default streams.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
/// `CU_EVENT_WAIT_EXTERNAL`: in a capture, a node that waits.
const EXTERNAL: u32 = 1;
/// Wire ids below this are the default streams'.
const FIRST_WIRE: u32 = 3;
/// The id that a driver's first stream, the legacy one, has.
static NEXT_ID: AtomicU64 = AtomicU64::new(7);

thread_local! {
    /// Whether the function being called means the thread's own default stream.
    static PER_THREAD_DEFAULT: Cell<bool> = const { Cell::new(false) };
    /// The stream that this thread has found to have done everything, which speaks for one wait.
    static EMPTY: Cell<Option<Empty>> = const { Cell::new(None) };
}

/// That a stream had nothing left to do, when so many messages had been sent. It stays so while no other is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Empty {
    /// Wire ids of context and stream.
    place: (u32, u32),
    sent: u64,
}

/// What there is now whose work does not come after that of a context's default stream by itself.
static APART: AtomicUsize = AtomicUsize::new(0);

/// One such thing, as long as it lives.
pub(crate) struct Apart(());

impl Apart {
    fn begin() -> Self {
        APART.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// Other programs have memory of this one, or it has theirs: from now on, since it is not told when that ends.
    pub(crate) fn begin_for_good() {
        std::mem::forget(Self::begin());
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        APART.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A stream of the program's own.
pub(crate) struct Stream {
    pub(crate) slot: Slot,
    pub(crate) context: Arc<Context>,
    flags: u32,
    priority: i32,
    id: u64,
    /// Of a stream that does not wait for the default stream.
    _apart: Option<Apart>,
}

impl Stream {
    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + FIRST_WIRE
    }
}

/// Runs a function whose default stream is the thread's own.
pub(crate) fn with_per_thread_default(body: impl FnOnce() -> CUresult) -> CUresult {
    with_default(true, body)
}

/// Runs a function of the program's in the middle of a call: what it calls is no part of that call.
pub(crate) fn outside_of_call(body: impl FnOnce()) {
    with_default(false, body);
}

fn with_default<T>(is_per_thread: bool, body: impl FnOnce() -> T) -> T {
    let before = PER_THREAD_DEFAULT.try_with(|flag| flag.replace(is_per_thread)).unwrap_or(false);
    let result = body();
    let _ = PER_THREAD_DEFAULT.try_with(|flag| flag.set(before));
    result
}

/// Wire id of the default stream that the function being called means.
pub(crate) fn default_wire() -> u32 {
    let per_thread = PER_THREAD_DEFAULT.try_with(Cell::get).unwrap_or(false);
    if per_thread { PER_THREAD as u32 } else { 0 }
}

/// Whether work of one stream is in order with that of another, each given by wire ids of context and stream: they are the same,
/// or one is the default stream of a context and the other one of those that it waits for.
pub(crate) fn are_in_order(one: (u32, u32), other: (u32, u32)) -> bool {
    let is_legacy = |it: (u32, u32)| it.1 <= LEGACY as u32;
    match (is_legacy(one), is_legacy(other)) {
        (true, true) => one.0 == other.0,
        (true, false) => waits_for_legacy(other, one.0),
        (false, true) => waits_for_legacy(one, other.0),
        (false, false) => one.1 == other.1 && !is_of_thread(one.1),
    }
}

/// Whether a stream that is not the legacy one of a context waits for that.
fn waits_for_legacy((here, stream): (u32, u32), context: u32) -> bool {
    if is_of_thread(stream) {
        return here == context;
    }
    let made = shim().ok().and_then(|shim| shim.streams.get_index(stream - FIRST_WIRE));
    made.is_some_and(|made| made.flags & stream_flags::NON_BLOCKING == 0 && made.context.wire() == context)
}

/// Refuses what work in groups is not given to: the legacy default stream, by whatever name, and what is no stream.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
pub(crate) fn takes_groups(stream: CUstream) -> Result<(), CUresult> {
    let takes = match stream.0.addr() {
        0 => is_of_thread(default_wire()),
        LEGACY => false,
        PER_THREAD => true,
        _ => object(stream).is_ok(),
    };
    if takes { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Whether a wire id means another stream in each thread.
pub(crate) fn is_of_thread(wire: u32) -> bool {
    wire == PER_THREAD as u32
}

/// Wire id of a stream.
///
/// # Errors
///
/// `ERROR_INVALID_HANDLE`.
pub(crate) fn wire(stream: CUstream) -> Result<u32, CUresult> {
    // The caller is about to use the stream: what can be part of a graph was taken into it before.
    graph::capture::refuse(stream)?;
    match stream.0.addr() {
        0 => Ok(default_wire()),
        default @ (LEGACY | PER_THREAD) => Ok(default as u32),
        _ => glance(stream).map(|stream| stream.index + FIRST_WIRE),
    }
}

/// The same, and the home of a stream of the program's own: it need not be `here`, the current context's.
///
/// # Errors
///
/// As [`wire`].
pub(crate) fn wire_and_home(stream: CUstream, here: Option<Home>) -> Result<(u32, Option<Home>), CUresult> {
    let wire = wire(stream)?;
    if wire < FIRST_WIRE {
        return Ok((wire, None));
    }
    let context = glance(stream)?.brief;
    let home = match here.filter(|here| here.wire == context) {
        Some(here) => here,
        None => object(stream)?.context.home(),
    };
    Ok((wire, Some(home)))
}

/// Wire id of a stream of the context with wire id `context`, if that is the current one too, and active, and nothing is
/// captured.
pub(crate) fn wire_in_current(stream: CUstream, context: u32) -> Option<u32> {
    if stack::wire() != Ok(context) || !graph::of_process().is_quiet() {
        return None;
    }
    let is_there = stream.0.addr() <= PER_THREAD || glance(stream).is_ok_and(|seen| seen.brief == context);
    wire(stream).ok().filter(|_| is_there)
}

/// A stream of either sort.
enum Which {
    /// A default stream of a context: 0 the legacy one, 1 the thread's own.
    Default(Arc<Context>, usize),
    Made(Arc<Stream>),
}

fn which(stream: CUstream) -> Result<Which, CUresult> {
    let default = |index| stack::active().map(|context| Which::Default(context, index));
    match stream.0.addr() {
        0 => default(usize::from(default_wire() != 0)),
        LEGACY => default(0),
        PER_THREAD => default(1),
        _ if stack::get().is_some() => {
            stack::active()?;
            object(stream).map(Which::Made)
        }
        // A handle says which context is meant.
        _ => object(stream).map(Which::Made),
    }
}

/// The context in which to send what is about a stream.
pub(crate) fn asked_in(stream: CUstream) -> Result<u32, CUresult> {
    match which(stream)? {
        Which::Default(..) => stack::wire(),
        Which::Made(stream) => stack::wire_or_of(&stream.context),
    }
}

/// A number that no stream of the process has had.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// What stream capture knows a stream by. A thread's default streams have keys of their own, above all ids.
pub(crate) fn place(stream: CUstream) -> Result<Place, CUresult> {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    Ok(match which(stream)? {
        Which::Made(stream) => Place {
            key: stream.id,
            is_legacy: false,
            is_blocking: stream.flags & stream_flags::NON_BLOCKING == 0,
            context: stream.context.slot.handle,
        },
        Which::Default(context, index) => {
            let thread = if index == 0 { 0 } else { THREAD.try_with(|thread| *thread + 1).unwrap_or(0) };
            let key = 1 << 63 | thread << 24 | u64::from(context.slot.index) << 1 | index as u64;
            Place { key, is_legacy: index == 0, is_blocking: index == 1, context: context.slot.handle }
        }
    })
}

/// The context whose work a stream takes.
pub(crate) fn context_of(stream: CUstream) -> Result<Arc<Context>, CUresult> {
    Ok(match which(stream)? {
        Which::Default(context, _) => context,
        Which::Made(stream) => Arc::clone(&stream.context),
    })
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn create(target: *mut CUstream, flags: u32) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { create_with_priority(target, flags, 0) }
}

/// A priority outside the device's range is moved to its nearer end.
///
/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn create_with_priority(target: *mut CUstream, flags: u32, priority: i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let (stream, priority) = mint(stack::active()?, flags, priority)?;
    enqueue(&cuStreamCreateWithPriority { phStream: stream.wire(), flags, priority })?;
    target.write(CUstream(handle(stream.slot.handle)));
    Ok(())
}

/// A record of a stream that the worker has yet to make, and its priority.
pub(crate) fn mint(context: Arc<Context>, flags: u32, priority: i32) -> Result<(Arc<Stream>, i32), CUresult> {
    if flags & !stream_flags::NON_BLOCKING != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let priority = context.with_facts(|facts| priority.min(facts.least_priority).max(facts.greatest_priority))?;
    let (id, wire) = (next_id(), context.wire());
    let make = |slot| {
        let _apart = (flags & stream_flags::NON_BLOCKING != 0).then(Apart::begin);
        Stream { slot, context, flags, priority, id, _apart }
    };
    let stream = shim()?.streams.insert_with(wire, make).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    Ok((stream, priority))
}

/// The handle ends at once, the work in the stream goes on.
pub(crate) fn destroy(stream: CUstream) -> Result<(), CUresult> {
    let stream = shim()?.streams.remove(stream.0.addr()).ok_or(CUresult::ERROR_INVALID_HANDLE)?;
    graph::of_process().forget_stream(stream.id);
    shim()?.session.enqueue(stream.context.wire(), &cuStreamDestroy_v2 { hStream: stream.wire() })
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn priority(stream: CUstream, target: *mut i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(if let Which::Made(stream) = which(stream)? { stream.priority } else { 0 });
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn flags(stream: CUstream, target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(if let Which::Made(stream) = which(stream)? { stream.flags } else { 0 });
    Ok(())
}

/// # Safety
///
/// As [`create`].
pub(crate) unsafe fn id(stream: CUstream, target: *mut u64) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(match which(stream)? {
        Which::Default(context, index) => context.default_streams[index].load(Ordering::Relaxed),
        Which::Made(stream) => stream.id,
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

/// The context of a stream; of one that belongs to a green context, that and its primary context.
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
    green.write(green::handle_of(&context));
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

/// Refuses to wait for a stream, or to ask how it is, while a stream capture forbids it.
fn forbid(stream: CUstream) -> Result<(), CUresult> {
    let graphs = graph::of_process();
    if graphs.is_quiet() { Ok(()) } else { graphs.forbid(Call::Stream(place(stream)?)) }
}

/// Waits for everything in the stream.
pub(crate) fn synchronize(stream: CUstream) -> Result<(), CUresult> {
    let context = asked_in(stream)?;
    forbid(stream)?;
    let (shim, stream) = (shim()?, wire(stream)?);
    if is_empty(shim, (context, stream)) {
        return Ok(());
    }
    waits_in(stream, || shim.session.call(context, &cuStreamSynchronize { hStream: stream })).map(drop)
}

/// Whether the thread's last copy out has waited for the stream, and nothing was sent since. Told once: who waits again is to
/// hear what other work has come to.
fn is_empty(shim: &Shim, place: (u32, u32)) -> bool {
    let now = Empty { place, sent: shim.session.enqueued() };
    EMPTY.take() == Some(now) && !shim.session.is_lost()
}

/// As [`waits_in`], for a copy that waits for everything in its stream: who then waits for that need not ask again, where each
/// question is a round trip.
pub(crate) fn empties<T>(way: Way, copy: impl FnOnce() -> Result<T, CUresult>) -> Result<T, CUresult> {
    let sent = shim()?.session.enqueued();
    let got = waits_in(way.stream, copy)?;
    // The id of a thread's own stream means another one in each thread, and is not told apart here.
    EMPTY.set((!is_of_thread(way.stream)).then_some(Empty { place: (way.context, way.stream), sent }));
    Ok(got)
}

/// Runs what returns when everything in the stream before it is done, so that the program may look at what that wrote.
pub(crate) fn waits_in<T>(stream: u32, run: impl FnOnce() -> Result<T, CUresult>) -> Result<T, CUresult> {
    let epoch = shim()?.session.enqueued();
    let got = run()?;
    pinned::pull_of(stream, epoch)?;
    Ok(got)
}

/// Waits for everything in the stream of a wire id.
pub(crate) fn synchronize_wire(stream: u32) -> Result<(), CUresult> {
    synchronize_in(stack::wire()?, stream)
}

/// The same, asked in a context of a wire id.
pub(crate) fn synchronize_in(context: u32, stream: u32) -> Result<(), CUresult> {
    let shim = shim()?;
    waits_in(stream, || shim.session.call(context, &cuStreamSynchronize { hStream: stream })).map(drop)
}

/// Waits for everything that a copy would come after if it were given to the stream now, in a context of a wire id: work of the
/// default stream too, where the two are in order. Who only waits for the stream is not.
pub(crate) fn synchronize_all_before(context: u32, stream: u32) -> Result<(), CUresult> {
    if stream > LEGACY as u32 && waits_for_legacy((context, stream), context) {
        synchronize_in(context, LEGACY as u32)?;
    }
    synchronize_in(context, stream)
}

/// Ends a copy from the program's memory for which the program waits. Its bytes were read, so the program may go on as soon
/// as nothing can overtake the copy: work of the same stream, and of streams that wait for it, comes after it anyway.
pub(crate) fn settle_copy(stream: u32) -> Result<(), CUresult> {
    let can_be_overtaken = is_of_thread(stream) || APART.load(Ordering::Relaxed) > 0 || contexts::are_several();
    if can_be_overtaken { synchronize_wire(stream) } else { Ok(()) }
}

/// Whether everything in the stream is done; `ERROR_NOT_READY` when it is not.
pub(crate) fn query(stream: CUstream) -> Result<(), CUresult> {
    let context = asked_in(stream)?;
    forbid(stream)?;
    let (shim, stream) = (shim()?, wire(stream)?);
    waits_in(stream, || shim.session.call(context, &cuStreamQuery { hStream: stream })).map(drop)
}

/// The stream waits for what the event recorded.
pub(crate) fn wait_event(stream: CUstream, event: CUevent, flags: u32) -> Result<(), CUresult> {
    let waited = object(event)?;
    if flags > 1 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if !graph::of_process().is_quiet() {
        let was_recorded = waited.was_recorded.load(Ordering::Relaxed);
        if graph::of_process().wait(event, place(stream)?, flags == EXTERNAL, was_recorded)? == Taken::Yes {
            return Ok(());
        }
    }
    backpressure::take_place(stream)?;
    // Outside of captures the flag means nothing.
    let message = cuStreamWaitEvent { hStream: wire(stream)?, hEvent: waited.wire(), Flags: 0 };
    shim()?.session.enqueue(asked_in(stream)?, &message)
}

/// What a private table calls a stream's object: an address inside its record, never the handle itself.
pub(crate) fn object_address(stream: CUstream) -> Result<usize, CUresult> {
    Ok(match which(stream)? {
        Which::Default(context, index) => context.slot.handle + 1 + index,
        Which::Made(stream) => stream.slot.handle + 1,
    })
}

/// The id of the stream that an address of [`object_address`] stands for.
pub(crate) fn id_of_object(object: usize) -> Result<u64, CUresult> {
    let shim = shim()?;
    if let Some(stream) = shim.streams.get(object.wrapping_sub(1)) {
        return Ok(stream.id);
    }
    for index in 0..2 {
        if let Some(context) = shim.contexts.get(object.wrapping_sub(1 + index)) {
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
        let (seen, outside) = (Cell::new(0), Cell::new(9));
        let result = with_per_thread_default(|| {
            outside_of_call(|| outside.set(default_wire()));
            seen.set(default_wire());
            with_per_thread_default(|| CUresult::SUCCESS)
        });
        assert_eq!((result, seen.get(), outside.get(), default_wire()), (CUresult::SUCCESS, 2, 0, 0));
        assert_eq!((wire(CU_STREAM_LEGACY), wire(CU_STREAM_PER_THREAD)), (Ok(1), Ok(2)));
    }
}
