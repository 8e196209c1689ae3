//! The current context: a stack of handles per thread.
//!
//! A handle stays on the stack after its context has ended. Using it then fails with `CONTEXT_IS_DESTROYED`, as does using a
//! primary context that is not retained.

#![expect(unsafe_code, reason = "asks which thread this is")]

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use katydid_cuda_sys::CUresult;

use crate::context::contexts;
use crate::ffi::Outcome;
use crate::process::device::{self, Device};
use crate::process::state;
use crate::sync::stream::LiveContext;

thread_local! {
    /// Handles, the current one last. Being current keeps no context alive. Exit handlers run after the main thread's other
    /// locals are gone, so its stack is never dropped.
    static STACK: ManuallyDrop<RefCell<Vec<usize>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
    /// Frees the stack of a thread that ends while the process goes on.
    static END: StackRelease = const { StackRelease };
}

struct StackRelease;

impl Drop for StackRelease {
    fn drop(&mut self) {
        // SAFETY: asks for numbers only.
        let is_main = unsafe { libc::gettid() == libc::getpid() };
        if !is_main {
            let _ = STACK.try_with(|stack| stack.take());
        }
    }
}

/// Runs `body` on the calling thread's stack.
fn with<T: Default>(body: impl FnOnce(&mut Vec<usize>) -> T) -> T {
    let _ = END.try_with(|_| ());
    STACK.try_with(|stack| body(&mut stack.borrow_mut())).unwrap_or_default()
}

/// Returns the handle on top, 0 if there is none.
pub(crate) fn handle() -> usize {
    with(|stack| stack.last().copied().unwrap_or(0))
}

/// Refuses a handle that is neither a live context nor a primary one.
fn require_context(handle: usize) -> Outcome {
    let is_context = contexts::living(handle).is_some() || device::by_primary(handle).is_some();
    if is_context { Ok(()) } else { Err(CUresult::ERROR_INVALID_CONTEXT) }
}

/// `cuCtxSetCurrent`: replaces the top; 0 removes it.
pub(crate) fn set(handle: usize) -> Outcome {
    if handle != 0 {
        require_context(handle)?;
    }
    with(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

/// `cuCtxPushCurrent`.
pub(crate) fn push(handle: usize) -> Outcome {
    require_context(handle)?;
    with(|stack| stack.push(handle));
    Ok(())
}

/// `cuCtxPopCurrent`: returns the handle that was on top.
pub(crate) fn pop() -> Outcome<usize> {
    with(Vec::pop).ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// Returns the current context, if it can do work. Fails with `INVALID_CONTEXT` without one, with `CONTEXT_IS_DESTROYED` if it is
/// not active, and with its sticky error if it has one.
pub(crate) fn usable() -> Outcome<Arc<LiveContext>> {
    let context = active()?;
    context.healthy()?;
    Ok(context)
}

/// Returns the current context, healthy or not.
pub(crate) fn active() -> Outcome<Arc<LiveContext>> {
    state::ready()?;
    match handle() {
        0 => Err(CUresult::ERROR_INVALID_CONTEXT),
        handle => contexts::living(handle).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED),
    }
}

/// Returns the context that a handle argument means; 0 is the current one.
pub(crate) fn named(handle: usize) -> Outcome<Arc<LiveContext>> {
    state::ready()?;
    match handle {
        0 => active(),
        handle => {
            require_context(handle)?;
            contexts::living(handle).ok_or(CUresult::ERROR_CONTEXT_IS_DESTROYED)
        }
    }
}

/// Returns the device of the context that a handle argument means. An inactive primary context has one too.
pub(crate) fn device_of(argument: usize) -> Outcome<&'static Device> {
    let handle = if argument == 0 { handle() } else { argument };
    if let Some(context) = contexts::living(handle) {
        return Ok(context.device);
    }
    match device::by_primary(handle) {
        Some(device) => Ok(device),
        None if handle != 0 && argument == 0 => Err(CUresult::ERROR_CONTEXT_IS_DESTROYED),
        None => Err(CUresult::ERROR_INVALID_CONTEXT),
    }
}
