//! Linear copies: the location of both sides decides the path, and the called function decides which sides are allowed.
//!
//! Both ranges are checked as a whole before anything moves: a range that leaves its block is refused with 1, as
//! NVIDIA's driver does, so a copy is never silently partial.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUcontext, CUdeviceptr, CUresult, CUstream};
use katydid_driver_rules::copy::DeclaredMemory;
use katydid_wire::message::kdCopy;

use crate::context::{stack, synchronize};
use crate::copy::side::{self, CopySide, locate};
use crate::copy::transfer::{MAX_INLINE_OUT_BYTES, StreamIds, copy_in, copy_out};
use crate::ffi::handle::object;
use crate::graph::{capture, operation};
use crate::launch::backpressure;
use crate::process::session::shim;
use crate::sync::{stream, wait};

/// Whether the program waits until the copy is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyWait {
    Yes,
    No,
}

/// Copies between two located sides.
///
/// # Safety
///
/// A side that is the program's own is valid for its part of the copy.
pub(crate) unsafe fn run(
    ids: StreamIds,
    target: CopySide,
    source: CopySide,
    size: u64,
    wait: CopyWait,
) -> Result<(), CUresult> {
    match (target, source) {
        (CopySide::Gpu(target), CopySide::Own(source)) => {
            side::prepare(source, ids)?;
            // SAFETY: the source is readable, by the contract.
            unsafe { copy_in(ids, target, side::pointer(source), size) }?;
            if wait == CopyWait::Yes { wait::synchronize_copy(ids.stream) } else { Ok(()) }
        }
        (CopySide::Own(target), CopySide::Gpu(source)) => {
            side::prepare(target, ids)?;
            // SAFETY: the target is writable, by the contract.
            let copy = || unsafe { copy_out(ids, side::pointer(target), source, size) };
            // For a small copy the worker waits for the whole stream, as the program would.
            if size <= MAX_INLINE_OUT_BYTES { wait::empties(ids, copy) } else { wait::waits_in(ids.stream, copy) }
        }
        (CopySide::Gpu(target), CopySide::Gpu(source)) => between(ids, target, source, size),
        (CopySide::Gpu(target), CopySide::Shared(source))
        | (CopySide::Shared(target), CopySide::Gpu(source) | CopySide::Shared(source)) => {
            between(ids, target, source, size)?;
            if wait == CopyWait::Yes { wait::synchronize_wire(ids.stream) } else { Ok(()) }
        }
        (CopySide::Own(target), CopySide::Own(source) | CopySide::Shared(source))
        | (CopySide::Shared(target), CopySide::Own(source)) => {
            // The processor copies, after all earlier work.
            wait::synchronize_all_before(ids.context, ids.stream)?;
            // SAFETY: both sides are readable and writable, by the contract, or blocks of the pinned arena.
            unsafe { side::pointer(target).copy_from(side::pointer(source), size as usize) };
            Ok(())
        }
    }
}

fn between(ids: StreamIds, destination: u64, source: u64, size: u64) -> Result<(), CUresult> {
    shim()?.session.enqueue(ids.context, &kdCopy { destination, source, size, stream: ids.stream })
}

/// Runs one-dimensional copies of all kinds.
///
/// # Safety
///
/// A side that is the program's own is valid for `size` bytes.
unsafe fn copy(
    target: (DeclaredMemory, u64),
    source: (DeclaredMemory, u64),
    size: usize,
    stream: CUstream,
    wait: CopyWait,
) -> Result<(), CUresult> {
    let context = stream::asked_in(stream)?;
    let is_given = || -> Result<bool, CUresult> {
        Ok(capture::copy(stream, target, source, size)? || operation::copy(stream, target, source, size)?)
    };
    if size == 0 || (wait == CopyWait::No && is_given()?) {
        return Ok(());
    }
    backpressure::take_slot(stream)?;
    let ids = StreamIds { context, stream: stream::wire(stream)? };
    let size = size as u64;
    let (target, source) = (locate(target.0, target.1, size)?, locate(source.0, source.1, size)?);
    // SAFETY: handed on.
    unsafe { run(ids, target, source, size, wait) }
}

/// # Safety
///
/// An address in the program's own memory is valid for `size` bytes; this holds for every function below.
pub(crate) unsafe fn any(target: CUdeviceptr, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((DeclaredMemory::Any, target), (DeclaredMemory::Any, source), size, CUstream::NULL, CopyWait::Yes) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn any_async(
    target: CUdeviceptr,
    source: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((DeclaredMemory::Any, target), (DeclaredMemory::Any, source), size, stream, CopyWait::No) }
}

/// Runs a synchronous copy between contexts: after all their earlier work, and before all their later work. In the current
/// context's default stream alone it would have no order with work of the others.
pub(crate) fn among(contexts: [CUcontext; 2], copy: impl FnOnce() -> Result<(), CUresult>) -> Result<(), CUresult> {
    let Some(current) = stack::get() else { return copy() };
    let mut later = Vec::new();
    for context in contexts.into_iter().filter(|context| !context.is_null()) {
        let context = object(context)?;
        if context.slot != current.slot && context.is_active() {
            later.push(context);
        }
    }
    if later.is_empty() {
        return copy();
    }
    later.iter().try_for_each(|other| synchronize::synchronize(other))?;
    synchronize::synchronize(&current)?;
    copy()?;
    synchronize::synchronize(&current)
}

/// Copies between contexts. They only say what the copy is in order with, since addresses say the rest; wrong ones are
/// refused. No driver takes such copies into graphs.
///
/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn peer(
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    size: usize,
) -> Result<(), CUresult> {
    let stream = CUstream::NULL;
    // SAFETY: handed on.
    let copy = || unsafe { peer_async(target, target_context, source, source_context, size, stream) };
    among([target_context, source_context], copy)
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn peer_async(
    target: CUdeviceptr,
    target_context: CUcontext,
    source: CUdeviceptr,
    source_context: CUcontext,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    for context in [target_context, source_context] {
        if !context.is_null() {
            object(context)?;
        }
    }
    if size > 0 {
        stream::refuse_captured(stream)?;
    }
    // SAFETY: handed on.
    unsafe { copy((DeclaredMemory::Device, target), (DeclaredMemory::Device, source), size, stream, CopyWait::No) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn host_to_device(target: CUdeviceptr, source: *const c_void, size: usize) -> Result<(), CUresult> {
    let source = source.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe {
        copy((DeclaredMemory::Device, target), (DeclaredMemory::Host, source), size, CUstream::NULL, CopyWait::Yes)
    }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn host_to_device_async(
    target: CUdeviceptr,
    source: *const c_void,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let source = source.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe { copy((DeclaredMemory::Device, target), (DeclaredMemory::Host, source), size, stream, CopyWait::No) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_host(target: *mut c_void, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    let target = target.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe {
        copy((DeclaredMemory::Host, target), (DeclaredMemory::Device, source), size, CUstream::NULL, CopyWait::Yes)
    }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_host_async(
    target: *mut c_void,
    source: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let target = target.expose_provenance() as u64;
    // SAFETY: handed on.
    unsafe { copy((DeclaredMemory::Host, target), (DeclaredMemory::Device, source), size, stream, CopyWait::No) }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_device(target: CUdeviceptr, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe {
        copy((DeclaredMemory::Device, target), (DeclaredMemory::Device, source), size, CUstream::NULL, CopyWait::Yes)
    }
}

/// # Safety
///
/// As [`any`].
pub(crate) unsafe fn device_to_device_async(
    target: CUdeviceptr,
    source: CUdeviceptr,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy((DeclaredMemory::Device, target), (DeclaredMemory::Device, source), size, stream, CopyWait::No) }
}
