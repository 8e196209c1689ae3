//! Batches: one call for many copies of a row, each with its own rule for reading its source.
//!
//! All entries are checked before the first is submitted. The error names the first wrong one. The legacy default stream fails
//! with 1, as on driver 580.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUarray, CUmemcpyAttributes, CUstream};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::copy_batch::{self, Arrays, BatchCopy, BatchOutcome, NO_INDEX};
use katydid_driver_rules::stream::check_named;

use crate::copy::linear::{CallMode, check, copy};
use crate::copy::side::CopySide;
use crate::ffi::{MaybeOut, Outcome, api};
use crate::sync::stream::Stream;
use crate::sync::streams;
use crate::texture::{array, volume};

/// Returns the mode of a copy whose source may be read only during the call (`is_now`), or later.
fn call_mode(is_now: bool) -> CallMode {
    if is_now { CallMode::Blocking } else { CallMode::Asynchronous }
}

/// Checks a whole batch, then submits it. The error names a wrong copy by its index.
fn submit(stream: &Arc<Stream>, entries: &[BatchCopy]) -> BatchOutcome<()> {
    let context = stream.context().map_err(|code| (code, NO_INDEX))?;
    let sides = |entry: &BatchCopy| ((CopySide::Any, entry.to), (CopySide::Any, entry.from));
    copy_batch::check_entries(entries, |entry| {
        let (to, from) = sides(entry);
        check(&context, to, from, entry.size)
    })?;
    for (at, entry) in entries.iter().enumerate() {
        let (to, from) = sides(entry);
        copy(stream, to, from, entry.size, call_mode(entry.is_now)).map_err(|code| (code, at))?;
    }
    Ok(())
}

/// Reads box copies and checks each by itself. The flag of each tells whether its source may be read only during the call.
///
/// # Safety
///
/// `operations` is null or has `count` entries.
unsafe fn read_boxes(
    operations: *const CUDA_MEMCPY3D_BATCH_OP,
    count: usize,
) -> BatchOutcome<Vec<(CUDA_MEMCPY3D, bool)>> {
    let texel = |handle: CUarray| array::resolve(handle).ok().map(|array| array.format.texel_bytes() as usize);
    // SAFETY: handed on.
    unsafe { copy_batch::boxes(operations, count, texel, |_, _| Ok(())) }
}

/// Checks all copies of boxes, then submits them. The error names a wrong one by its index.
fn submit_boxes(
    stream: Outcome<Arc<Stream>>,
    flags: u64,
    copies: BatchOutcome<Vec<(CUDA_MEMCPY3D, bool)>>,
) -> BatchOutcome<()> {
    let whole = |code| (code, NO_INDEX);
    let stream = stream.map_err(whole)?;
    check_no_flags(flags).map_err(whole)?;
    let (copies, context) = (copies?, stream.context().map_err(whole)?);
    for (at, (copy, _)) in copies.iter().enumerate() {
        volume::check(&context, copy).map_err(|code| (code, at))?;
    }
    for (at, (copy, is_now)) in copies.iter().enumerate() {
        volume::copy(&stream, copy, call_mode(*is_now)).map_err(|code| (code, at))?;
    }
    Ok(())
}

/// Returns the stream of a batch. The functions without an index refuse null, even where null means the thread's own stream.
fn named(handle: CUstream) -> Outcome<Arc<Stream>> {
    check_named(handle)?;
    streams::of_group(handle)
}

api! {
    /// Submits a batch. On failure sets the index of the wrong copy, or the largest number if no single one is wrong.
    fn cuMemcpyBatchAsync(
        targets: *mut u64,
        sources: *mut u64,
        sizes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        firsts: *mut usize,
        kinds: usize,
        wrong: MaybeOut<usize>,
        stream: CUstream,
    ) {
        wrong.set(NO_INDEX);
        let stream = streams::of_group(stream)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        let entries = unsafe { Arrays { targets, sources, sizes, count, attributes, firsts, kinds }.read() }?;
        submit(&stream, &entries).map_err(|(code, at)| {
            wrong.set(at);
            code
        })?;
    }

    /// Does the same as the first version, without the output for the failing index.
    fn cuMemcpyBatchAsync_v2(
        targets: *mut u64,
        sources: *mut u64,
        sizes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        firsts: *mut usize,
        kinds: usize,
        stream: CUstream,
    ) {
        let stream = named(stream)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        let entries = unsafe { Arrays { targets, sources, sizes, count, attributes, firsts, kinds }.read() }?;
        submit(&stream, &entries).map_err(|(code, _)| code)?;
    }
    /// Copies boxes of memory and of arrays.
    fn cuMemcpy3DBatchAsync(
        count: usize,
        operations: *mut CUDA_MEMCPY3D_BATCH_OP,
        wrong: MaybeOut<usize>,
        flags: u64,
        stream: CUstream,
    ) {
        wrong.set(NO_INDEX);
        // SAFETY: the caller's array has as many entries as it says.
        let copies = unsafe { read_boxes(operations, count) };
        submit_boxes(streams::of_group(stream), flags, copies).map_err(|(code, at)| {
            wrong.set(at);
            code
        })?;
    }

    /// Does the same as the first version, without the output for the failing index.
    fn cuMemcpy3DBatchAsync_v2(count: usize, operations: *mut CUDA_MEMCPY3D_BATCH_OP, flags: u64, stream: CUstream) {
        // SAFETY: the caller's array has as many entries as it says.
        let copies = unsafe { read_boxes(operations, count) };
        submit_boxes(named(stream), flags, copies).map_err(|(code, _)| code)?;
    }
}
