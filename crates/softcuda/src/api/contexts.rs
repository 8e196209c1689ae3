//! Contexts.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use katydid_cuda_sys::{CUcontext, CUctxCreateParams, CUexecAffinityParam, CUresult};

use crate::border::{MaybeOut, Out, Outcome, api};
use crate::stream::GREATEST_PRIORITY;
use crate::{context, current, device, process};

/// What `cuCtxGetApiVersion` says of every context.
const API_VERSION: u32 = 3020;

/// A number as a context handle.
pub(super) fn as_handle(handle: usize) -> CUcontext {
    CUcontext(std::ptr::without_provenance_mut::<c_void>(handle))
}

/// A context handle as a number.
pub(super) fn number(context: CUcontext) -> usize {
    context.address() as usize
}

/// A new context, current on the calling thread.
fn create(flags: u32, ordinal: i32) -> Outcome<CUcontext> {
    process::ready()?;
    let context = context::create(device::get(ordinal)?, flags)?;
    current::push(context.handle)?;
    Ok(as_handle(context.handle))
}

/// Ends a created context; a primary one is released instead.
fn destroy(argument: CUcontext) -> Outcome {
    process::ready()?;
    let handle = number(argument);
    let context = context::living(handle).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    if context.device.primary.handle == handle {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    context::destroy(&context);
    if current::handle() == handle {
        current::pop()?;
    }
    Ok(())
}

/// Takes the current context off the stack.
fn pop(context: &MaybeOut<CUcontext>) -> Outcome {
    process::ready()?;
    context.set(as_handle(current::pop()?));
    Ok(())
}

api! {
    fn cuCtxSetCurrent(context: CUcontext) {
        process::ready()?;
        current::set(number(context))?;
    }

    fn cuCtxGetCurrent(context: Out<CUcontext>) {
        process::ready()?;
        context.set(as_handle(current::handle()));
    }

    fn cuCtxPushCurrent(context: CUcontext) {
        process::ready()?;
        current::push(number(context))?;
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        process::ready()?;
        current::push(number(context))?;
    }

    fn cuCtxPopCurrent(context: MaybeOut<CUcontext>) {
        pop(&context)?;
    }

    fn cuCtxPopCurrent_v2(context: MaybeOut<CUcontext>) {
        pop(&context)?;
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        process::ready()?;
        device.set(current::device_of(0)?.ordinal);
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: CUcontext) {
        process::ready()?;
        device.set(current::device_of(number(context))?.ordinal);
    }

    fn cuCtxCreate_v2(context: Out<CUcontext>, flags: u32, device: i32) {
        context.set(create(flags, device)?);
    }

    /// Execution affinity is for sharing a GPU, which this is not.
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
        context.set(create(flags, device)?);
    }

    fn cuCtxCreate_v4(context: Out<CUcontext>, params: *const CUctxCreateParams, flags: u32, device: i32) {
        // SAFETY: null or readable, by the caller's promise.
        if let Some(params) = unsafe { params.as_ref() }
            && (params.numExecAffinityParams != 0 || !params.cigParams.is_null())
        {
            return Err(CUresult::ERROR_UNSUPPORTED_EXEC_AFFINITY);
        }
        context.set(create(flags, device)?);
    }

    fn cuCtxDestroy(context: CUcontext) {
        destroy(context)?;
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        destroy(context)?;
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(current::active()?.flags());
    }

    fn cuCtxSetFlags(flags: u32) {
        current::active()?.set_flags(flags)?;
    }

    fn cuCtxGetId(context: CUcontext, id: Out<u64>) {
        id.set(current::named(number(context))?.id);
    }

    fn cuCtxSynchronize() {
        current::active()?.synchronise()?;
    }

    fn cuCtxSynchronize_v2(context: CUcontext) {
        current::named(number(context))?.synchronise()?;
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        value.set(current::usable()?.limits.get(limit)? as usize);
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        current::usable()?.limits.set(limit, value as u64)?;
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        config.set(current::usable()?.cache_config.load(Ordering::Relaxed));
    }

    fn cuCtxSetCacheConfig(config: u32) {
        if config > 3 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        current::usable()?.cache_config.store(config, Ordering::Relaxed);
    }

    /// Banks of shared memory have a fixed width since long: four bytes.
    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        current::usable()?;
        config.set(1);
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        if config > 2 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        current::usable()?;
    }

    fn cuCtxGetApiVersion(context: CUcontext, version: Out<u32>) {
        current::named(number(context))?;
        version.set(API_VERSION);
    }

    fn cuCtxGetStreamPriorityRange(least: MaybeOut<i32>, greatest: MaybeOut<i32>) {
        current::usable()?;
        least.set(0);
        greatest.set(GREATEST_PRIORITY);
    }

    /// There is no such cache.
    fn cuCtxResetPersistingL2Cache() {
        current::usable()?;
    }
}
