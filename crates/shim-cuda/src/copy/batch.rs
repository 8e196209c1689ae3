//! Batches of copies: all are checked before the first is queued, and the error names the first wrong one.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUarray, CUdeviceptr, CUmemcpyAttributes, CUresult, CUstream,
};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::copy::DeclaredMemory;
use katydid_driver_rules::copy_batch::{self, Arrays, BatchCopy, BatchOutcome, NO_INDEX};
use katydid_driver_rules::stream::check_named;

use crate::context::stack;
use crate::copy::linear::any_async;
use crate::copy::side::locate;
use crate::copy::{array_copy, rows, slices};
use crate::ffi::handle::object;
use crate::sync::{stream, wait};

/// Checks all copies, then queues them. The error names a wrong one by its index.
///
/// # Safety
///
/// The arrays are null or as long as their counts say; sides that are the program's own are valid for their size.
unsafe fn run(arrays: &Arrays, stream: CUstream) -> BatchOutcome<()> {
    let whole = |code| (code, NO_INDEX);
    stack::wire().map_err(whole)?;
    stream::takes_groups(stream).map_err(whole)?;
    // SAFETY: handed on.
    let entries = unsafe { arrays.read() }.map_err(whole)?;
    copy_batch::check_entries(&entries, |BatchCopy { to, from, size, .. }| {
        locate(DeclaredMemory::Any, *to, *size as u64)?;
        locate(DeclaredMemory::Any, *from, *size as u64).map(drop)
    })?;
    let must_wait = entries.iter().any(|entry| entry.is_now);
    for (at, BatchCopy { to, from, size, .. }) in entries.into_iter().enumerate() {
        // SAFETY: valid for the copy, by the contract.
        unsafe { any_async(to, from, size, stream) }.map_err(|code| (code, at))?;
    }
    // The call has to read sources that may be read only during it.
    if must_wait { wait::synchronize(stream).map_err(whole) } else { Ok(()) }
}

/// Refuses a copy whose memory or arrays do not exist.
fn check_box(operation: &CUDA_MEMCPY3D_BATCH_OP, copy: &CUDA_MEMCPY3D) -> Result<(), CUresult> {
    let has_array = operation.src.array().or(operation.dst.array()).is_some();
    if has_array { array_copy::check(copy) } else { rows::sides(copy).map(drop) }
}

/// Checks all copies of boxes, then queues them. The error names a wrong one by its index.
///
/// # Safety
///
/// `operations` is null or has `count` entries; sides that are the program's own are valid for their rows.
unsafe fn run_boxes(
    operations: *const CUDA_MEMCPY3D_BATCH_OP,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> BatchOutcome<()> {
    let whole = |code| (code, NO_INDEX);
    stack::wire().map_err(whole)?;
    stream::takes_groups(stream).map_err(whole)?;
    check_no_flags(flags).map_err(whole)?;
    let texel = |array: CUarray| object(array).ok().map(|array| array.texel() as usize);
    // SAFETY: handed on.
    let copies = unsafe { copy_batch::boxes(operations, count, texel, check_box) }?;
    for (at, (copy, _)) in copies.iter().enumerate() {
        // SAFETY: valid for the copy, by the contract.
        unsafe { slices::three_dimensional_async(copy, stream) }.map_err(|code| (code, at))?;
    }
    let must_wait = copies.iter().any(|(_, is_now)| *is_now);
    if must_wait { wait::synchronize(stream).map_err(whole) } else { Ok(()) }
}

/// Copies of boxes between memory and arrays.
///
/// # Safety
///
/// `operations` is null or has `count` entries, whose sides are valid; `wrong` is null or writable.
pub(crate) unsafe fn boxes(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    wrong: *mut usize,
    flags: u64,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on; `wrong` is null or writable.
    unsafe {
        katydid_client::ffi::write_optional(wrong, NO_INDEX);
        run_boxes(operations, count, flags, stream).map_err(|(code, at)| {
            katydid_client::ffi::write_optional(wrong, at);
            code
        })
    }
}

/// The form without the index of a wrong copy.
///
/// # Safety
///
/// As [`boxes`].
pub(crate) unsafe fn boxes_unindexed(
    count: usize,
    operations: *mut CUDA_MEMCPY3D_BATCH_OP,
    flags: u64,
    stream: CUstream,
) -> Result<(), CUresult> {
    check_named(stream)?;
    // SAFETY: handed on.
    unsafe { run_boxes(operations, count, flags, stream) }.map_err(|(code, _)| code)
}

/// # Safety
///
/// Arrays are null or as long as their counts say; sides that are the program's own are valid; `wrong` is null or
/// writable.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn first(
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    kinds: usize,
    wrong: *mut usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    let arrays = Arrays { targets, sources, sizes, count, attributes, firsts, kinds };
    // SAFETY: handed on; `wrong` is null or writable.
    unsafe {
        katydid_client::ffi::write_optional(wrong, NO_INDEX);
        run(&arrays, stream).map_err(|(code, at)| {
            katydid_client::ffi::write_optional(wrong, at);
            code
        })
    }
}

/// The form without the index of a wrong copy.
///
/// # Safety
///
/// As [`first`].
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn second(
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    kinds: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    check_named(stream)?;
    let arrays = Arrays { targets, sources, sizes, count, attributes, firsts, kinds };
    // SAFETY: handed on.
    unsafe { run(&arrays, stream) }.map_err(|(code, _)| code)
}
