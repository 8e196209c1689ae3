//! The calling thread's current context: a stack of its own for every thread, never shared, never asked of the worker.

use std::cell::RefCell;
use std::sync::Arc;

use katydid_client::stack::ContextStack;
use katydid_cuda_sys::CUresult;

use crate::context::Context;

thread_local! {
    static STACK: RefCell<ContextStack<Arc<Context>>> = const { RefCell::new(ContextStack::new()) };
}

/// The current context, active or not. None after the thread's locals are gone, as on a thread without context.
pub(crate) fn get() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow().current().cloned()).ok().flatten()
}

/// The current context, which must be there.
///
/// # Errors
///
/// `ERROR_INVALID_CONTEXT`.
pub(crate) fn required() -> Result<Arc<Context>, CUresult> {
    get().ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// The current context, which must be there and active.
///
/// # Errors
///
/// `ERROR_INVALID_CONTEXT`, `ERROR_CONTEXT_IS_DESTROYED`.
pub(crate) fn active() -> Result<Arc<Context>, CUresult> {
    let context = required()?;
    context.check_active()?;
    Ok(context)
}

/// Wire id of the current context, which must be there and active: the hot path of everything that is queued.
///
/// # Errors
///
/// As [`active`].
pub(crate) fn wire() -> Result<u32, CUresult> {
    STACK
        .try_with(|stack| {
            let stack = stack.borrow();
            let context = stack.current().ok_or(CUresult::ERROR_INVALID_CONTEXT)?;
            context.check_active()?;
            Ok(context.wire())
        })
        .unwrap_or(Err(CUresult::ERROR_INVALID_CONTEXT))
}

/// Makes a context current in the place of the top, or removes the top.
pub(crate) fn set(context: Option<Arc<Context>>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().set(context));
}

/// Makes a context current on top of the others.
pub(crate) fn push(context: Arc<Context>) {
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(context));
}

/// Takes the top away.
pub(crate) fn pop() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten()
}
