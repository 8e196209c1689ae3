//! What every exported symbol passes: who may call when, panics, errors to codes, tracing.
//!
//! The rule: nothing unwinds into the program, and a call that comes before `cuInit`, after a fork or during process
//! exit is answered without touching the session.
#![expect(unsafe_code, reason = "turns pointers of C callers into checked references")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use katydid_client::api_code::ApiCode;
use katydid_client::life::{self, Life};
use katydid_client::output::say;
use katydid_cuda_sys::{CUresult, Function};
use katydid_driver_state::log;
use katydid_wire::codec::Message;

use crate::context::stack;
use crate::process::session::shim;
use crate::process::tracing::{self, Detail};
use crate::sync::stream;

/// Runs the body of an exported function.
pub(crate) fn entry(function: Function, body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    if tracing::is_off() {
        return run(function, body);
    }
    tracing::traced(function, None, || run(function, body))
}

/// The same of a function whose parameters say what work it gives the GPU, or how much memory it is about.
pub(crate) fn detailed(
    function: Function,
    detail: impl FnOnce() -> Detail,
    body: impl FnOnce() -> Result<(), CUresult>,
) -> CUresult {
    if tracing::is_off() {
        return run(function, body);
    }
    tracing::traced(function, Some(detail()), || run(function, body))
}

fn run(function: Function, body: impl FnOnce() -> Result<(), CUresult>) -> CUresult {
    if life::now() != Life::Running
        && let Err(code) = admit(function)
    {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CUresult::SUCCESS,
        Ok(Err(code)) => {
            // A listener may call any function.
            stream::outside_of_call(|| log::note(function.name(), code));
            code
        }
        Err(_) => {
            let name = function.name();
            say(format_args!("{name} met a defect of Katydid's (the lines above say where); please report it"));
            CUresult::ERROR_UNKNOWN
        }
    }
}

/// Whether a function may be called while no session is up.
#[cold]
fn admit(function: Function) -> Result<(), CUresult> {
    let always = matches!(
        function,
        Function::cuDriverGetVersion
            | Function::cuCheckpointProcessGetRestoreThreadId
            | Function::cuCheckpointProcessGetState
            | Function::cuCheckpointProcessLock
            | Function::cuCheckpointProcessCheckpoint
            | Function::cuCheckpointProcessRestore
            | Function::cuCheckpointProcessUnlock
            | Function::cuGetErrorName
            | Function::cuGetErrorString
            | Function::cuGetExportTable
            | Function::cuGetProcAddress
            | Function::cuGetProcAddress_v2
    );
    match life::now() {
        _ if always => Ok(()),
        Life::Exiting => Err(CUresult::ERROR_DEINITIALIZED),
        Life::Fresh if function == Function::cuInit => Ok(()),
        Life::Fresh | Life::Forked => Err(CUresult::ERROR_NOT_INITIALIZED),
        Life::Lost => Err(CUresult::LOST),
        Life::Running => Ok(()),
    }
}

/// The answer of functions that are not built: their name, once, and `ERROR_NOT_SUPPORTED`.
pub(crate) fn refused(function: Function) -> CUresult {
    entry(function, || Err(refuse(function, "is not supported yet")))
}

/// Says once which function was refused and why.
#[cold]
pub(crate) fn refuse(function: Function, why: &str) -> CUresult {
    static SAID: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];
    let first = SAID.get(usize::from(function.number())).is_none_or(|said| !said.swap(true, Ordering::Relaxed));
    if first {
        say(format_args!("{} {why}", function.name()));
    }
    CUresult::ERROR_NOT_SUPPORTED
}

/// Where a function writes a result. Plain stores: an output may be unaligned for Rust's taste, never for C's.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result.
    pub(crate) fn write(self, value: T) {
        // SAFETY: `out` refused null, and its caller promised that anything else is writable for the whole call.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// An output that must be given.
///
/// # Safety
///
/// `pointer` is null, or valid for writing one `T` until the call returns.
pub(crate) unsafe fn out<T>(pointer: *mut T) -> Result<Out<T>, CUresult> {
    if pointer.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(Out(pointer)) }
}

/// An output that may be left out.
///
/// # Safety
///
/// As [`out`].
pub(crate) unsafe fn write_if_given<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not null, so writable by this function's contract.
        unsafe { pointer.write_unaligned(value) }
    }
}

/// The text of a C string argument, as bytes without the terminator.
///
/// # Safety
///
/// `pointer` is null, or a C string that lives as long as the call.
pub(crate) unsafe fn text<'a>(pointer: *const std::ffi::c_char) -> Result<&'a [u8], CUresult> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: a C string by this function's contract.
    Ok(unsafe { std::ffi::CStr::from_ptr(pointer) }.to_bytes())
}

/// Queues a message in the current context.
pub(crate) fn enqueue<M: Message>(message: &M) -> Result<(), CUresult> {
    let context = stack::wire()?;
    shim()?.session.enqueue(context, message)
}

/// Sends a message in the current context and waits for its reply.
pub(crate) fn call<M: Message>(message: &M) -> Result<M::Reply, CUresult> {
    let context = stack::wire()?;
    shim()?.session.call(context, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_init_only_the_functions_that_need_no_session_run() {
        assert_eq!(entry(Function::cuDeviceGetCount, || Ok(())), CUresult::ERROR_NOT_INITIALIZED);
        assert_eq!(entry(Function::cuDriverGetVersion, || Ok(())), CUresult::SUCCESS);
        assert_eq!(refused(Function::cuGLInit), CUresult::ERROR_NOT_INITIALIZED);
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(entry(Function::cuGetErrorName, || panic!("on purpose")), CUresult::ERROR_UNKNOWN);
    }

    #[test]
    fn outputs_are_checked_and_written() {
        let mut value = 0u32;
        // SAFETY: null, and a local.
        unsafe {
            assert_eq!(out::<u32>(std::ptr::null_mut()).err(), Some(CUresult::ERROR_INVALID_VALUE));
            out(&mut value).unwrap().write(7);
            write_if_given(std::ptr::null_mut(), 9u32);
        }
        assert_eq!(value, 7);
    }
}
