//! Contexts that programs create, and the current context of each thread.
//!
//! A handle of no context fails with 201. Work in a context that has ended but is still current fails with 709, as does work in a
//! primary context that is not retained.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use katydid_cuda_sys::{CUcontext, CUctxCreateParams, CUevent, CUexecAffinityParam, CUresult};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::device::{API_VERSION, FIRST_API_VERSION, asks_for_more, check_cache_config};
use katydid_graph::UncapturedCall;

use crate::context::{contexts, green_ctx, stack, teardown};
use crate::ffi::{MaybeOut, Out, Outcome, api};
use crate::graphs;
use crate::process::{device, state};
use crate::sync::event::{self, Event};
use crate::sync::stream::LiveContext;
use crate::sync::stream_attributes::GREATEST_PRIORITY;
use crate::sync::synchronize;

/// Returns a number as a context handle.
pub(crate) fn as_handle(handle: usize) -> CUcontext {
    CUcontext(std::ptr::without_provenance_mut::<c_void>(handle))
}

/// Returns a context handle as a number.
pub(crate) fn number(context: CUcontext) -> usize {
    context.address() as usize
}

/// Creates a context and makes it current on the calling thread.
fn create(flags: u32, ordinal: i32, api_version: u32) -> Outcome<CUcontext> {
    state::ready()?;
    let context = contexts::create(device::get(ordinal)?, flags, api_version)?;
    stack::push(context.handle)?;
    Ok(as_handle(context.handle))
}

/// Destroys a created context; a primary one is released instead.
fn destroy(argument: CUcontext) -> Outcome {
    state::ready()?;
    let handle = number(argument);
    if handle == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = contexts::living(handle).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    if context.handle != handle || context.device.primary_handle == handle {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    teardown::destroy(&context);
    if stack::handle() == handle {
        stack::pop()?;
    }
    Ok(())
}

/// Returns the context and the event that a call names.
fn with_event(context: CUcontext, event: CUevent) -> Outcome<(Arc<LiveContext>, Arc<Event>)> {
    state::ready()?;
    let context = contexts::living(number(context)).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    let event_record = event::resolve(event)?;
    context.healthy()?;
    graphs::of_process().check_event(event)?;
    graphs::of_process().forbid(UncapturedCall::Context(context.handle))?;
    Ok((context, event_record))
}

/// Pops the current context off the stack.
fn pop(context: &MaybeOut<CUcontext>) -> Outcome {
    state::ready()?;
    context.set(as_handle(stack::pop()?));
    Ok(())
}

/// Pushes a context onto the stack; null is invalid.
fn push(context: CUcontext) -> Outcome {
    state::ready()?;
    if context.address() == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    stack::push(number(context))
}

api! {
    /// Records an event in all streams of the context at once.
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent) {
        let green = green_ctx::or_none(number(context));
        let (context, event) = with_event(context, event)?;
        event.record_all(&context, green)?;
    }

    /// Makes all streams of the context wait for an event.
    fn cuCtxWaitEvent(context: CUcontext, event: CUevent) {
        let green = green_ctx::or_none(number(context));
        let (context, event) = with_event(context, event)?;
        let streams = context.streams();
        streams.iter().filter(|stream| stream.is_of(green)).try_for_each(|stream| event.hold_back(stream))?;
    }

    /// Adds one user of the current context.
    fn cuCtxAttach(context: Out<CUcontext>, flags: u32) {
        check_no_flags(flags.into())?;
        let current = stack::usable()?;
        current.attached.fetch_add(1, Ordering::Relaxed);
        context.set(as_handle(current.handle));
    }

    /// Drops one user of the current context. The last one ends it, if a program created it.
    fn cuCtxDetach(context: CUcontext) {
        let current = stack::usable()?;
        if current.handle != number(context) {
            return Err(CUresult::ERROR_INVALID_CONTEXT);
        }
        let less = |users: u32| users.checked_sub(1);
        if current.attached.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            destroy(context)?;
        }
    }

    /// Replaces the top of the thread's stack; null removes it.
    fn cuCtxSetCurrent(context: CUcontext) {
        state::ready()?;
        stack::set(number(context))?;
    }

    /// Returns the current context; null, with success, if there is none.
    fn cuCtxGetCurrent(context: Out<CUcontext>) {
        state::ready()?;
        context.set(as_handle(stack::handle()));
    }

    /// Pushes a context. It may be an inactive primary context, but not a destroyed one.
    fn cuCtxPushCurrent(context: CUcontext) {
        push(context)?;
    }

    /// Pushes a context. It may be an inactive primary context, but not a destroyed one.
    fn cuCtxPushCurrent_v2(context: CUcontext) {
        push(context)?;
    }

    /// Pops the current context. An empty stack fails with 201.
    fn cuCtxPopCurrent(context: MaybeOut<CUcontext>) {
        pop(&context)?;
    }

    /// Pops the current context. An empty stack fails with 201.
    fn cuCtxPopCurrent_v2(context: MaybeOut<CUcontext>) {
        pop(&context)?;
    }

    /// Returns the device, also of an inactive primary context: runtimes ask before they retain.
    fn cuCtxGetDevice(device: Out<i32>) {
        state::ready()?;
        device.set(stack::device_of(0)?.ordinal);
    }

    /// Returns the device of a context; null means the current one.
    fn cuCtxGetDevice_v2(device: Out<i32>, context: CUcontext) {
        state::ready()?;
        device.set(stack::device_of(number(context))?.ordinal);
    }

    /// Creates a context as the second version does: 64-bit programs never knew the contexts of 32-bit ones.
    fn cuCtxCreate(context: Out<CUcontext>, flags: u32, device: i32) {
        context.set(create(flags, device, FIRST_API_VERSION)?);
    }

    /// Creates a context and makes it current.
    fn cuCtxCreate_v2(context: Out<CUcontext>, flags: u32, device: i32) {
        context.set(create(flags, device, API_VERSION)?);
    }

    /// Creates a context. Execution affinity is for sharing a GPU, which this device is not.
    fn cuCtxCreate_v3(
        context: Out<CUcontext>,
        params: *const CUexecAffinityParam,
        count: i32,
        flags: u32,
        device: i32,
    ) {
        if count != 0 && !params.is_null() {
            return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        context.set(create(flags, device, API_VERSION)?);
    }

    /// Creates a context as the third version does. This device does not share with graphics either.
    fn cuCtxCreate_v4(context: Out<CUcontext>, params: *const CUctxCreateParams, flags: u32, device: i32) {
        // SAFETY: null or readable, by the caller's promise.
        if unsafe { params.as_ref() }.is_some_and(asks_for_more) {
            return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        context.set(create(flags, device, API_VERSION)?);
    }

    /// Waits for the context's work, then ends it. Primary contexts are released instead.
    fn cuCtxDestroy(context: CUcontext) {
        destroy(context)?;
    }

    /// Waits for the context's work, then ends it. Primary contexts are released instead.
    fn cuCtxDestroy_v2(context: CUcontext) {
        destroy(context)?;
    }

    /// Returns the flags, as created or as set since.
    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(stack::active()?.flags());
    }

    /// Stores the flags for queries. How a thread waits makes no difference here.
    fn cuCtxSetFlags(flags: u32) {
        stack::active()?.set_flags(flags)?;
    }

    /// Returns an id that is never used twice, unlike a primary context's handle.
    fn cuCtxGetId(context: CUcontext, id: Out<u64>) {
        id.set(stack::named(number(context))?.id);
    }

    /// Waits for the context's work. In a failed context, returns its error.
    fn cuCtxSynchronize() {
        let context = stack::active()?;
        graphs::of_process().forbid(UncapturedCall::Context(context.handle))?;
        synchronize::context(&context)?;
    }

    /// Waits for the context's work; null means the current context.
    fn cuCtxSynchronize_v2(context: CUcontext) {
        let context = stack::named(number(context))?;
        graphs::of_process().forbid(UncapturedCall::Context(context.handle))?;
        synchronize::context(&context)?;
    }

    /// Returns a limit. Fails with 215 for limits of other devices, with 1 for unknown ones.
    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        value.set(stack::usable()?.limits.get(limit)? as usize);
    }

    /// Sets a limit. Only the heap of `malloc` uses its limit, which cannot change once kernels have used the heap.
    fn cuCtxSetLimit(limit: u32, value: usize) {
        graphs::forbid()?;
        let context = stack::usable()?;
        if limit == katydid_cuda_sys::limit::MALLOC_HEAP_SIZE {
            context.heaps.check_resize()?;
        }
        context.limits.set(limit, value as u64, context.device.memory.capacity())?;
    }

    /// Returns the configuration that was set; the software device has no caches to configure.
    fn cuCtxGetCacheConfig(config: Out<u32>) {
        config.set(stack::usable()?.cache_config.load(Ordering::Relaxed));
    }

    /// Kept for `cuCtxGetCacheConfig`; a hint without effect.
    fn cuCtxSetCacheConfig(config: u32) {
        check_cache_config(config)?;
        stack::usable()?.cache_config.store(config, Ordering::Relaxed);
    }

    /// Returns 1, four bytes: the width of shared memory banks has long been fixed.
    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        stack::usable()?;
        config.set(1);
    }

    /// Checks the arguments; the configuration is an obsolete hint.
    fn cuCtxSetSharedMemConfig(config: u32) {
        if config > 2 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        stack::usable()?;
    }

    /// Returns the API version, by which contexts of the first `cuCtxCreate` differ, as measured on the real driver.
    fn cuCtxGetApiVersion(context: CUcontext, version: Out<u32>) {
        version.set(stack::named(number(context))?.api_version);
    }

    /// Returns the range of priorities. Streams accept them, but all run alike.
    fn cuCtxGetStreamPriorityRange(least: MaybeOut<i32>, greatest: MaybeOut<i32>) {
        stack::usable()?;
        least.set(0);
        greatest.set(GREATEST_PRIORITY);
    }

    /// Checks the context. The device caches nothing, so there is nothing to reset.
    fn cuCtxResetPersistingL2Cache() {
        stack::usable()?;
    }
}
