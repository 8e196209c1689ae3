//! The life of the library in its process: before `cuInit`, ready, in a forked child, and after exit began.
//!
//! Every call that needs a device calls [`ready`] first, which returns the driver's code for the state. The code is 3 before
//! `cuInit` and in a child of an initialised parent, however that was made. It is 4 once the exit handlers ran.

#![expect(unsafe_code, reason = "registers handlers with the C library")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::wiped::WipedByte;

/// Before `cuInit`, or in a child whose creation called no fork handler.
const STATE_FRESH: u8 = 0;
/// Calls are served.
const STATE_READY: u8 = 1;
/// A child of a process that was ready.
const STATE_FORKED: u8 = 2;
/// The process is ending.
const STATE_EXITED: u8 = 3;

/// One of the four states.
static PROCESS_STATE: WipedByte = WipedByte::new();
/// The process that registered the handlers for fork and exit. Its children inherit them.
static FORK_HANDLERS: OnceLock<u32> = OnceLock::new();

fn state() -> &'static AtomicU8 {
    PROCESS_STATE.get()
}

/// Returns whether `cuInit` may make the process ready: not after a fork, and not when the process ends.
pub(crate) fn may_begin() -> bool {
    match state().load(Ordering::Acquire) {
        STATE_FRESH if FORK_HANDLERS.get().is_some_and(|process| *process != std::process::id()) => {
            forked();
            true
        }
        STATE_FRESH | STATE_READY => true,
        _ => false,
    }
}

/// Registers the handlers for fork and exit, and runs `first`, once per process.
pub(crate) fn watch(first: impl FnOnce()) {
    FORK_HANDLERS.get_or_init(|| {
        register_handlers();
        first();
        std::process::id()
    });
}

/// Makes the process ready, unless it has forked or is ending.
pub(crate) fn begin() {
    let _ = state().compare_exchange(STATE_FRESH, STATE_READY, Ordering::AcqRel, Ordering::Acquire);
}

/// Succeeds while the process is ready, else fails with the code of every call.
pub(crate) fn ready() -> Result<(), CUresult> {
    match state().load(Ordering::Acquire) {
        STATE_READY => Ok(()),
        STATE_EXITED => Err(CUresult::ERROR_DEINITIALIZED),
        _ => Err(CUresult::ERROR_NOT_INITIALIZED),
    }
}

/// Registers the handlers, once per process. Children inherit them, but find their state changed already.
fn register_handlers() {
    // SAFETY: both handlers only store one atomic, which is allowed in a forked child and during exit. A failed
    // registration leaves the state as it is, which is all that can be done about it.
    unsafe {
        libc::pthread_atfork(None, None, Some(forked));
        libc::atexit(exited);
    }
    // Without support of the system, a child made past the C library is not refused.
    let _ = PROCESS_STATE.wipe_in_children();
}

/// Refuses calls in a child, where the executor's threads do not exist.
extern "C" fn forked() {
    for expected in [STATE_READY, STATE_FRESH] {
        let _ = state().compare_exchange(expected, STATE_FORKED, Ordering::AcqRel, Ordering::Acquire);
    }
}

/// Refuses later calls of the program's exit handlers, which expect that of a driver.
extern "C" fn exited() {
    let _ = state().compare_exchange(STATE_READY, STATE_EXITED, Ordering::AcqRel, Ordering::Acquire);
}
