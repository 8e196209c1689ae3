//! Contexts: retain, create, end; their limits.
//!
//! The program counts references to primary contexts; the first retain and the last release come here.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdContextCreate, kdContextCreateReply, kdContextLimit, kdContextLimitReply, kdContextRelease,
    kdContextReleaseReply, kdContextReset, kdContextResetReply, kdContextRetain, kdContextRetainReply,
    kdContextSetLimit, kdContextSetLimitReply,
};

use crate::calls::busy_poll::note_schedule_flags;
use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::device::gather;
use crate::handlers::{CallResult, success};
use crate::state::Session;

/// Activates a device's primary context and returns its facts.
pub(crate) fn kdContextRetain(
    session: &mut Session,
    _head: &FrameHead,
    message: kdContextRetain,
) -> CallResult<kdContextRetainReply> {
    session.tables.contexts.check_new(message.context)?;
    session.hold_context(message.context, message.device)?;
    let result = set_flags(session, message.device, message.flags).and_then(|()| retain(session, message.device));
    let handle = result.inspect_err(|_| session.forget_context(message.context))?;
    let facts = begin(session, message.context, handle, Some(message.device))?;
    note_schedule_flags(&mut session.main_loop.busy_poll, message.flags);
    success(kdContextRetainReply { facts })
}

/// Sets the flags in the driver if they differ.
fn set_flags(session: &Session, device: i32, flags: u32) -> Result<(), CUresult> {
    let (mut now, mut active) = (0, 0);
    // SAFETY: both outputs are locals.
    unsafe { session.driver().cuDevicePrimaryCtxGetState(device, &raw mut now, &raw mut active) }.ok()?;
    if now == flags {
        return Ok(());
    }
    // SAFETY: takes numbers only.
    unsafe { session.driver().cuDevicePrimaryCtxSetFlags_v2(device, flags) }.ok()
}

/// Returns the worker's own reference if it took one in advance, otherwise a new one.
fn retain(session: &mut Session, device: i32) -> Result<CUcontext, CUresult> {
    if let Some(at) = session.warm.iter().position(|warm| warm.device == device) {
        return Ok(session.warm.swap_remove(at).handle);
    }
    // SAFETY: the output is a local.
    ask(|out| unsafe { session.driver().cuDevicePrimaryCtxRetain(out, device) })
}

/// Binds a new context and gathers its facts. `primary` is the device of a primary one.
fn begin(session: &mut Session, id: u32, handle: CUcontext, primary: Option<i32>) -> Result<Vec<u8>, Fault> {
    session.begin_context(id, handle)?;
    session.snapshots.enter(&session.shared.driver, primary, handle);
    Ok(gather::context(session.driver(), handle).encode())
}

/// Releases the reference to a primary context, which ends it.
pub(crate) fn kdContextRelease(
    session: &mut Session,
    _head: &FrameHead,
    message: kdContextRelease,
) -> CallResult<kdContextReleaseReply> {
    let handle = session.tables.contexts.get(message.context)?;
    session.snapshots.leave(handle);
    // SAFETY: takes a number; a device without a retained context is refused.
    let status = unsafe { session.driver().cuDevicePrimaryCtxRelease_v2(message.device) };
    session.end_context(message.context);
    session.synchronized = true;
    Ok((status, kdContextReleaseReply {}))
}

/// Ends a primary context, even while others hold it. The reference is released too: the program will retain it again.
pub(crate) fn kdContextReset(
    session: &mut Session,
    _head: &FrameHead,
    message: kdContextReset,
) -> CallResult<kdContextResetReply> {
    let handle = session.tables.contexts.get(message.context)?;
    session.snapshots.leave(handle);
    // SAFETY: takes a number.
    let status = unsafe { session.driver().cuDevicePrimaryCtxReset_v2(message.device) };
    // SAFETY: as above; a driver that dropped the reference in the reset refuses, which is as good.
    let _ = unsafe { session.driver().cuDevicePrimaryCtxRelease_v2(message.device) };
    session.end_context(message.context);
    session.synchronized = true;
    Ok((status, kdContextResetReply {}))
}

/// Creates a context. The driver pushes it on this thread's stack, which has only one entry in the main loop.
pub(crate) fn kdContextCreate(
    session: &mut Session,
    _head: &FrameHead,
    message: kdContextCreate,
) -> CallResult<kdContextCreateReply> {
    session.tables.contexts.check_new(message.context)?;
    session.hold_context(message.context, message.device)?;
    // SAFETY: the output is a local.
    let result = ask(|out| unsafe { session.driver().cuCtxCreate_v2(out, message.flags, message.device) });
    let handle = result.inspect_err(|_| session.forget_context(message.context))?;
    // SAFETY: the output is a local; the popped context is the one just pushed.
    ask::<CUcontext>(|out| unsafe { session.driver().cuCtxPopCurrent_v2(out) })?;
    let facts = begin(session, message.context, handle, None)?;
    note_schedule_flags(&mut session.main_loop.busy_poll, message.flags);
    success(kdContextCreateReply { facts })
}

/// Answers `cuCtxGetLimit` in the current context.
pub(crate) fn kdContextLimit(
    session: &mut Session,
    _head: &FrameHead,
    message: kdContextLimit,
) -> CallResult<kdContextLimitReply> {
    let value = limit(session.driver(), message.limit)?;
    success(kdContextLimitReply { value: value as u64 })
}

fn limit(driver: &Driver, limit_kind: u32) -> Result<usize, CUresult> {
    // SAFETY: the output is a local.
    ask(|out| unsafe { driver.cuCtxGetLimit(out, limit_kind) })
}

/// Answers `cuCtxSetLimit` in the current context. Returns the driver's resulting value, which counts against the memory
/// limit.
pub(crate) fn kdContextSetLimit(
    session: &mut Session,
    _head: &FrameHead,
    message: kdContextSetLimit,
) -> CallResult<kdContextSetLimitReply> {
    let (driver, limit_kind) = (Arc::clone(&session.shared.driver), message.limit);
    let previous_limit = limit(&driver, limit_kind);
    // SAFETY: takes numbers only.
    unsafe { driver.cuCtxSetLimit(limit_kind, message.value as usize) }.ok()?;
    let actual = limit(&driver, limit_kind)?;
    let previous_limit = previous_limit.unwrap_or(actual);
    session.hold_limit(limit_kind, previous_limit as u64, actual as u64).inspect_err(|_| {
        // SAFETY: as above.
        let _ = unsafe { driver.cuCtxSetLimit(limit_kind, previous_limit) };
    })?;
    success(kdContextSetLimitReply { actual: actual as u64 })
}
