//! What Katydid asks of the software device beyond CUDA: to stop kernels in the middle, to take them along, to end them.
//!
//! A worker finds these symbols beside the driver API (`dlsym`) when its driver is this library (`katydid_softcuda_marker`).
//! A checkpoint is: `hold`, `save` once for each launch in progress, device memory; then `release` here, or, in another
//! process, modules loaded and memory restored at the same addresses, and `continue` in the stream of each launch.
//!
//! | symbol | what it does |
//! |---|---|
//! | `katydid_softcuda_hold` | pauses every running kernel and starts no other; returns when nothing runs |
//! | `katydid_softcuda_save` | gives each paused launch: context, stream, its state as bytes |
//! | `katydid_softcuda_release` | lets everything go on |
//! | `katydid_softcuda_continue` | puts a launch that was saved into a stream |
//! | `katydid_softcuda_cancel` | ends every kernel at once; their contexts fail |
//! | `katydid_softcuda_heaps` | gives the books of each heap that device code allocates from: of a context, as bytes |
//! | `katydid_softcuda_heap` | makes such a heap again; what is in it is then written to its addresses |
//! | `katydid_softcuda_untouched` | how many bytes from an address on were never written to |
//! | `katydid_softcuda_executed` | warp instructions that this process has run so far |

#![expect(unsafe_code, reason = "exported symbols, and buffers of C callers")]
#![allow(missing_docs, unreachable_pub, reason = "the table above says it")]

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult, CUstream};

use crate::code::launch;
use crate::context::contexts;
use crate::ffi::{Outcome, report};
use crate::memory::device_heap::HeapState;
use crate::memory::{allocation, virtual_memory};
use crate::sync::stream::LiveContext;
use crate::sync::{hold, streams};

/// Called with each paused launch. A result other than 0 ends the iteration and is returned.
type Visit = unsafe extern "C" fn(user: *mut c_void, CUcontext, CUstream, state: *const u8, size: usize) -> CUresult;

/// Runs `body` and stops panics, as every function of the driver API does.
fn guarded(what: &str, body: impl FnOnce() -> Outcome) -> CUresult {
    let outcome = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        report(&format!("{what}: internal error in Katydid; please report it"));
        Err(CUresult::ERROR_UNKNOWN)
    });
    outcome.into()
}

fn handle(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

fn living(context: CUcontext) -> Outcome<Arc<LiveContext>> {
    contexts::living(context.address() as usize).ok_or(CUresult::ERROR_INVALID_CONTEXT)
}

#[unsafe(no_mangle)]
pub extern "C" fn katydid_softcuda_hold() -> CUresult {
    guarded("hold", || {
        hold::hold();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn katydid_softcuda_release() -> CUresult {
    guarded("release", || {
        hold::release();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn katydid_softcuda_cancel() -> CUresult {
    guarded("cancel", || {
        hold::cancel();
        Ok(())
    })
}

/// # Safety
///
/// `visit` must be a function that takes `user`; the bytes are lent for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn katydid_softcuda_save(visit: Option<Visit>, user: *mut c_void) -> CUresult {
    guarded("save", || {
        let visit = visit.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        for (origin, state) in hold::states() {
            let (context, stream) = (CUcontext(handle(origin.context)), CUstream(handle(origin.stream)));
            // SAFETY: the caller's promise; the state lives during the call.
            unsafe { visit(user, context, stream, state.as_ptr(), state.len()) }.ok()?;
        }
        Ok(())
    })
}

/// # Safety
///
/// `state` must be readable for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn katydid_softcuda_continue(into: CUstream, state: *const u8, size: usize) -> CUresult {
    guarded("continue", || {
        if state.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's promise; not null.
        let state = unsafe { std::slice::from_raw_parts(state, size) };
        launch::resume(&streams::resolve(into)?, state)
    })
}

/// Called with the allocator state of each heap, and with its memory, which the process may read and write.
type VisitHeap = unsafe extern "C" fn(
    user: *mut c_void,
    allocator_state: *const u8,
    size: usize,
    memory: *mut u8,
    length: usize,
) -> CUresult;

/// # Safety
///
/// `visit` must be a function that takes `user`; the books are lent for the call, the memory as long as the context lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn katydid_softcuda_heaps(
    context: CUcontext,
    visit: Option<VisitHeap>,
    user: *mut c_void,
) -> CUresult {
    guarded("heaps", || {
        let visit = visit.ok_or(CUresult::ERROR_INVALID_VALUE)?;
        for state in living(context)?.heaps.states() {
            let (allocator_state, (start, end)) = (state.to_bytes(), state.range);
            let memory = std::ptr::with_exposed_provenance_mut(start as usize);
            // SAFETY: the caller's promise; the books live during the call.
            unsafe { visit(user, allocator_state.as_ptr(), allocator_state.len(), memory, (end - start) as usize) }
                .ok()?;
        }
        Ok(())
    })
}

/// # Safety
///
/// `allocator_state` must be readable for `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn katydid_softcuda_heap(
    context: CUcontext,
    allocator_state: *const u8,
    size: usize,
) -> CUresult {
    guarded("heap", || {
        if allocator_state.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's promise; not null.
        let allocator_state = unsafe { std::slice::from_raw_parts(allocator_state, size) };
        let state = HeapState::from_bytes(allocator_state).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        allocation::make_heap(&*living(context)?, &state)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn katydid_softcuda_untouched(address: u64, size: u64) -> u64 {
    catch_unwind(|| virtual_memory::untouched(address, size)).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn katydid_softcuda_executed() -> u64 {
    hold::executed()
}
