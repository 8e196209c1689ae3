//! The calling thread's stack of contexts, which no other thread sees and the worker never learns of.
//!
//! The main thread's stack outlives the thread's other locals: exit handlers and static objects run after those are gone,
//! and make calls with the context that was current.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use katydid_client::stack::ContextStack;
use katydid_cuda_sys::{CUcontext, CUresult};

use crate::context::record::{Context, ContextIds};
use crate::ffi::arguments;
use crate::ffi::handle::object;

thread_local! {
    static STACK: ManuallyDrop<RefCell<ContextStack<Arc<Context>>>> =
        const { ManuallyDrop::new(RefCell::new(ContextStack::new())) };
    /// Empties the stack of a thread that ends while the process goes on.
    static END: StackEnd = const { StackEnd };
}

struct StackEnd;

impl Drop for StackEnd {
    fn drop(&mut self) {
        let is_main = rustix::thread::gettid() == rustix::process::getpid();
        if !is_main {
            let _ = STACK.try_with(|stack| stack.take());
        }
    }
}

/// Reads the current context, active or not; none without one, and for a thread whose locals are gone.
fn with_current<R>(read: impl FnOnce(&Context) -> R) -> Option<R> {
    STACK.try_with(|stack| stack.borrow().current().map(|context| read(context))).ok().flatten()
}

/// Returns the ids of the current context, active or not.
pub(crate) fn ids() -> Option<ContextIds> {
    with_current(Context::ids)
}

/// Returns the ids of the current context, which must be there and active. Unlike [`active`], this takes no reference.
///
/// # Errors
///
/// As [`active`].
pub(crate) fn active_ids() -> Result<ContextIds, CUresult> {
    with_current(|context| context.check_active().map(|()| context.ids()))
        .unwrap_or(Err(CUresult::ERROR_INVALID_CONTEXT))
}

/// Returns the current context, active or not.
pub(crate) fn get() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow().current().cloned()).ok().flatten()
}

/// Returns the current context, which must be there.
///
/// # Errors
///
/// `ERROR_INVALID_CONTEXT`.
pub(crate) fn required() -> Result<Arc<Context>, CUresult> {
    get().ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

/// Returns the current context, which must be there and active.
///
/// # Errors
///
/// `ERROR_INVALID_CONTEXT`, `ERROR_CONTEXT_IS_DESTROYED`.
pub(crate) fn active() -> Result<Arc<Context>, CUresult> {
    let context = required()?;
    context.check_active()?;
    Ok(context)
}

/// Returns the context of a handle (0: the current one).
pub(crate) fn or_current(handle: usize) -> Result<Arc<Context>, CUresult> {
    if handle == 0 { required() } else { object(CUcontext(arguments::handle(handle))) }
}

fn active_wire(context: &Context) -> Result<u32, CUresult> {
    context.check_active().map(|()| context.wire())
}

/// Returns the wire id of the current context, which must be there and active: the hot path of all queued calls.
///
/// # Errors
///
/// As [`active`].
pub(crate) fn wire() -> Result<u32, CUresult> {
    with_current(active_wire).unwrap_or(Err(CUresult::ERROR_INVALID_CONTEXT))
}

/// Returns the wire id of the current context. On a thread without one, returns that of the context of the call's object:
/// the driver looks at the handle alone.
///
/// # Errors
///
/// As [`wire`].
pub(crate) fn wire_or_of(object: &Context) -> Result<u32, CUresult> {
    with_current(active_wire).unwrap_or_else(|| active_wire(object))
}

/// Makes a context current in place of the top, or removes the top.
pub(crate) fn set(context: Option<Arc<Context>>) {
    let _ = END.try_with(|_| ());
    let _ = STACK.try_with(|stack| stack.borrow_mut().set(context));
}

/// Makes a context current on top of the others.
pub(crate) fn push(context: Arc<Context>) {
    let _ = END.try_with(|_| ());
    let _ = STACK.try_with(|stack| stack.borrow_mut().push(context));
}

/// Removes the top and returns it.
pub(crate) fn pop() -> Option<Arc<Context>> {
    STACK.try_with(|stack| stack.borrow_mut().pop()).ok().flatten()
}

/// Runs `work` with another context as the current one.
pub(crate) fn within<T>(context: Arc<Context>, work: impl FnOnce() -> T) -> T {
    struct PushGuard;
    impl Drop for PushGuard {
        fn drop(&mut self) {
            pop();
        }
    }
    push(context);
    let _pushed = PushGuard;
    work()
}
