//! The life of the library in its process: before `cuInit`, ready, in a forked child, after exit began.
//!
//! Every call that needs a device passes [`ready`] first, so that it gives the driver's code for the state: 3 before
//! `cuInit` and in a child of an initialised parent, 4 once the exit handlers ran.

#![expect(unsafe_code, reason = "registers handlers with the C library")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use katydid_cuda_sys::CUresult;

use crate::device;
use crate::facts;

/// `cuInit` has not been called.
const FRESH: u8 = 0;
/// Calls are served.
const READY: u8 = 1;
/// A child of a process that was ready.
const FORKED: u8 = 2;
/// The process is ending.
const EXITED: u8 = 3;

/// One of the four.
static STATE: AtomicU8 = AtomicU8::new(FRESH);

/// `cuInit`: makes the devices, and registers the handlers for fork and exit, once.
pub(crate) fn initialise(flags: u32) -> Result<(), CUresult> {
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    static HANDLERS: OnceLock<()> = OnceLock::new();
    match STATE.load(Ordering::Acquire) {
        FRESH | READY => {}
        _ => return ready(),
    }
    if device::all().is_empty() {
        return Err(CUresult::ERROR_NO_DEVICE);
    }
    HANDLERS.get_or_init(register_handlers);
    facts::install();
    let _ = STATE.compare_exchange(FRESH, READY, Ordering::AcqRel, Ordering::Acquire);
    ready()
}

/// Ok while calls can be served, else the code that every call then gives.
pub(crate) fn ready() -> Result<(), CUresult> {
    match STATE.load(Ordering::Acquire) {
        READY => Ok(()),
        EXITED => Err(CUresult::ERROR_DEINITIALIZED),
        _ => Err(CUresult::ERROR_NOT_INITIALIZED),
    }
}

/// Once a process; they are inherited by children, where they find their state changed already.
fn register_handlers() {
    // SAFETY: both handlers only store one atomic, which is allowed in a forked child and during exit. A failed
    // registration leaves the state as it is, which is all that can be done about it.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(exited);
    }
}

/// The executor's threads do not exist in a child, so nothing can be served there any more.
extern "C" fn forked() {
    let _ = STATE.compare_exchange(READY, FORKED, Ordering::AcqRel, Ordering::Acquire);
}

/// What the program's own exit handlers still call finds a driver that is gone, as they are used to.
extern "C" fn exited() {
    let _ = STATE.compare_exchange(READY, EXITED, Ordering::AcqRel, Ordering::Acquire);
}
