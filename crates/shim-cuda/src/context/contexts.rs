//! Contexts as programs manage them: the worker is asked when one begins, ends, or must be waited for.
//!
//! A primary context has its handle from the start, and a program may make it current before it retains it. Calls that need
//! the GPU then answer 709, as NVIDIA's driver does. The end of a context forgets everything that it held.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use katydid_client::ffi::write_optional;
use katydid_cuda_sys::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUresult, Function};
use katydid_wire::message::{
    cuCtxDestroy_v2, cuCtxSetCacheConfig, kdContextCreate, kdContextRelease, kdContextReset, kdContextSetLimit,
};

use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::device::{
    API_VERSION, FIRST_API_VERSION, asks_for_more, check_cache_config, check_context_flags,
};
use katydid_graph::UncapturedCall;

use crate::context::record::{CONTEXTS, Context};
use crate::context::request::enqueue;
use crate::context::{device, ending, primary, stack, synchronize};
use crate::ffi::arguments::{out, refuse};
use crate::ffi::handle::object;
use crate::graph::model;
use crate::memory::device_backing::{UNKNOWN_IDLE_BYTES, in_need};
use crate::process::session::shim;

/// `CU_CTX_MAP_HOST`: set on every context by today's drivers.
const CTX_MAP_HOST: u32 = 8;
/// Checks the flags of a context: at most one way for the processor to wait may be set.
fn check_flags(flags: u32) -> Result<(), CUresult> {
    check_context_flags(flags)?;
    let scheduling = flags & primary::CTX_SCHED_MASK;
    if scheduling.count_ones() > 1 { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
}

/// Retains the primary context: the same handle every time. The first retain begins it.
///
/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn primary_retain(target: *mut CUcontext, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = &device::device(ordinal)?.primary;
    primary::retain(context, |_| true)?;
    target.write(context.handle());
    Ok(())
}

/// Releases the primary context. The last release ends it; one too many is an error.
pub(crate) fn primary_release(ordinal: CUdevice) -> Result<(), CUresult> {
    let context = &device::device(ordinal)?.primary;
    let mut retains = context.retains.lock().unwrap_or_else(PoisonError::into_inner);
    *retains = retains.checked_sub(1).ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    let last = *retains == 0 && context.is_active();
    drop(retains);
    if last {
        ending::end(context, &kdContextRelease { context: context.wire(), device: context.position as i32 })?;
    }
    Ok(())
}

/// Ends the context and everything in it; those who retained it have yet to release it.
pub(crate) fn primary_reset(ordinal: CUdevice) -> Result<(), CUresult> {
    let context = &device::device(ordinal)?.primary;
    context.flags.store(0, Ordering::Relaxed);
    if context.is_active() {
        ending::end(context, &kdContextReset { context: context.wire(), device: context.position as i32 })?;
    }
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn primary_state(ordinal: CUdevice, flags: *mut u32, active: *mut i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let (flags, active) = unsafe { (out(flags)?, out(active)?) };
    let context = &device::device(ordinal)?.primary;
    flags.write(context.flags.load(Ordering::Relaxed));
    active.write(i32::from(context.is_active()));
    Ok(())
}

/// Sets the flags for the context's next start. They only say how the processor waits, so they are not sent to an active
/// context.
pub(crate) fn primary_set_flags(ordinal: CUdevice, flags: u32) -> Result<(), CUresult> {
    let context = &device::device(ordinal)?.primary;
    check_flags(flags)?;
    context.flags.store(flags, Ordering::Relaxed);
    if context.is_active() { primary::heed(flags) } else { Ok(()) }
}

/// Sets the flags as before CUDA 11: an active context keeps its flags.
pub(crate) fn primary_set_first_flags(ordinal: CUdevice, flags: u32) -> Result<(), CUresult> {
    check_flags(flags)?;
    if device::device(ordinal)?.primary.is_active() {
        return Err(CUresult::ERROR_PRIMARY_CONTEXT_ACTIVE);
    }
    primary_set_flags(ordinal, flags)
}

/// Creates a context, which is current at once.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn create(target: *mut CUcontext, flags: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { create_as(target, flags, ordinal, API_VERSION) }
}

/// Creates a context as CUDA 2 did, but with device pointers of full width.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn create_first(target: *mut CUcontext, flags: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { create_as(target, flags, ordinal, FIRST_API_VERSION) }
}

/// Creates a context that reports `api_version`.
///
/// # Safety
///
/// As [`primary_retain`].
unsafe fn create_as(target: *mut CUcontext, flags: u32, ordinal: CUdevice, api_version: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let position = device::device(ordinal)?.position;
    check_flags(flags)?;
    let (session, contexts) = (&shim()?.session, CONTEXTS.get()?);
    let new_context = |slot| Context { api_version, ..Context::new(slot, ordinal as u32, position as u32, flags) };
    let context = contexts.insert(new_context).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let message = kdContextCreate { context: context.wire(), device: position as i32, flags };
    let result = session.call(0, &message).and_then(|reply| context.begin(&reply.facts));
    if let Err(code) = result {
        contexts.remove(context.slot.handle);
        return Err(code);
    }
    target.write(context.handle());
    stack::push(context);
    primary::heed(flags)
}

/// Creates a context with execution affinities, of which any is refused.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn create_v3(
    target: *mut CUcontext,
    _affinities: *mut CUexecAffinityParam,
    count: i32,
    flags: u32,
    ordinal: CUdevice,
) -> Result<(), CUresult> {
    if count != 0 {
        return Err(refuse(Function::cuCtxCreate_v3, "with execution affinity is not supported yet"));
    }
    // SAFETY: handed on.
    unsafe { create(target, flags, ordinal) }
}

/// Creates a context with parameters, which are refused if they ask for anything.
///
/// # Safety
///
/// As [`primary_retain`]; `params` is null or readable.
pub(crate) unsafe fn create_v4(
    target: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: u32,
    ordinal: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: null or readable, by the contract.
    let has_parameters = !params.is_null() && asks_for_more(&unsafe { params.read_unaligned() });
    if has_parameters {
        return Err(refuse(Function::cuCtxCreate_v4, "with parameters is not supported yet"));
    }
    // SAFETY: handed on.
    unsafe { create(target, flags, ordinal) }
}

/// Ends a context that the program created. On the calling thread it is no longer current; on others it stays current, but
/// ended.
pub(crate) fn destroy(handle: CUcontext) -> Result<(), CUresult> {
    if handle.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let context = object(handle)?;
    if context.is_primary || context.green().is_some() {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let ended = ending::end(&context, &cuCtxDestroy_v2 { ctx: context.wire() });
    if stack::get().is_some_and(|top| top.slot == context.slot) {
        stack::pop();
    }
    CONTEXTS.get()?.remove(context.slot.handle);
    ended
}

/// Adds a user to the current context.
///
/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn attach(target: *mut CUcontext, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    check_no_flags(flags.into())?;
    let context = stack::active()?;
    context.attached.fetch_add(1, Ordering::Relaxed);
    target.write(context.handle());
    Ok(())
}

/// Removes a user from the current context. The last one is its creator, which ends it.
pub(crate) fn detach(handle: CUcontext) -> Result<(), CUresult> {
    let context = stack::active()?;
    if context.handle() != handle {
        return Err(CUresult::ERROR_INVALID_CONTEXT);
    }
    let less = |users: u32| users.checked_sub(1);
    if context.attached.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
        return Ok(());
    }
    destroy(handle)
}

/// Answers `cuCtxSetCurrent`; null removes the top of the stack.
pub(crate) fn set_current(handle: CUcontext) -> Result<(), CUresult> {
    stack::set(if handle.is_null() { None } else { Some(object(handle)?) });
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn get_current(target: *mut CUcontext) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    unsafe { out(target) }?.write(stack::get().map_or(CUcontext::NULL, |context| context.handle()));
    Ok(())
}

/// Makes a context current on top of the others (`cuCtxPushCurrent`).
pub(crate) fn push_current(handle: CUcontext) -> Result<(), CUresult> {
    if handle.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    stack::push(object(handle)?);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`]; null is allowed here.
pub(crate) unsafe fn pop_current(target: *mut CUcontext) -> Result<(), CUresult> {
    let context = stack::pop().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
    // SAFETY: null or writable, by the contract.
    unsafe { write_optional(target, context.handle()) };
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn device(target: *mut CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::required()?.device as CUdevice);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn device_of(target: *mut CUdevice, handle: CUcontext) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::or_current(handle.0.addr())?.device as CUdevice);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn flags(target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::required()?;
    let mapped = if context.is_primary { CTX_MAP_HOST } else { 0 };
    target.write(context.flags.load(Ordering::Relaxed) | mapped);
    Ok(())
}

/// Answers `cuCtxSetFlags`: the shim keeps the flags, which only say how the processor waits.
pub(crate) fn set_flags(flags: u32) -> Result<(), CUresult> {
    let context = stack::active()?;
    check_flags(flags)?;
    context.flags.store(flags, Ordering::Relaxed);
    primary::heed(flags)
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn id(handle: CUcontext, target: *mut u64) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::or_current(handle.0.addr())?.id()?);
    Ok(())
}

/// Waits for all work of the current context (`cuCtxSynchronize`).
pub(crate) fn synchronize() -> Result<(), CUresult> {
    model::forbid_context()?;
    synchronize::synchronize(&*stack::active()?)
}

/// Answers `cuCtxSynchronize` for any context.
pub(crate) fn synchronize_of(handle: CUcontext) -> Result<(), CUresult> {
    let context = stack::or_current(handle.0.addr())?;
    context.check_active()?;
    model::of_process().forbid(UncapturedCall::Context(context.slot.handle))?;
    synchronize::synchronize(&context)
}

/// Sets a limit; the worker answers the resulting value.
pub(crate) fn set_limit(limit: u32, value: usize) -> Result<(), CUresult> {
    model::forbid()?;
    let context = stack::active()?;
    let message = kdContextSetLimit { limit, value: value as u64 };
    let shim = shim()?;
    let set = || shim.session.call(context.wire(), &message);
    let actual = in_need(context.device, UNKNOWN_IDLE_BYTES, set)?.actual;
    context.change_facts(|facts| {
        if let Some(answer) = facts.limits.get_mut(limit as usize) {
            answer.value = actual;
        }
    });
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn limit(target: *mut usize, limit: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let answer = stack::required()?.with_facts(|facts| facts.limits.get(limit as usize).copied())?;
    let answer = answer.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    CUresult(answer.code).ok()?;
    target.write(answer.value as usize);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn cache_config(target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::required()?.with_facts(|facts| facts.cache_config)?);
    Ok(())
}

/// Sets the preference between cache and shared memory, 0 to 3.
pub(crate) fn set_cache_config(config: u32) -> Result<(), CUresult> {
    let context = stack::active()?;
    check_cache_config(config)?;
    enqueue(&cuCtxSetCacheConfig { config })?;
    context.change_facts(|facts| facts.cache_config = config);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn shared_mem_config(target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(stack::required()?.with_facts(|facts| facts.shared_config)?);
    Ok(())
}

/// Accepted without effect, as drivers for sm_50 and later do.
pub(crate) fn set_shared_mem_config(_config: u32) -> Result<(), CUresult> {
    stack::active().map(drop)
}

/// # Safety
///
/// As [`primary_retain`].
pub(crate) unsafe fn api_version(handle: CUcontext, target: *mut u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::or_current(handle.0.addr())?;
    context.check_active().map_err(|_| CUresult::ERROR_INVALID_CONTEXT)?;
    target.write(context.api_version);
    Ok(())
}

/// # Safety
///
/// As [`primary_retain`]; null is allowed here.
pub(crate) unsafe fn stream_priority_range(least: *mut i32, greatest: *mut i32) -> Result<(), CUresult> {
    let range = stack::required()?.with_facts(|facts| (facts.least_priority, facts.greatest_priority))?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_optional(least, range.0);
        write_optional(greatest, range.1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_one_way_of_waiting_may_be_asked_for() {
        for flags in [0, 1, 2, 4, 4 | CTX_MAP_HOST, 0x10, 0x80] {
            assert_eq!(check_flags(flags), Ok(()), "{flags:#x}");
        }
        for flags in [3, 7, 0xff, 0x100, 0xffff] {
            assert_eq!(check_flags(flags), Err(CUresult::ERROR_INVALID_VALUE), "{flags:#x}");
        }
    }
}
