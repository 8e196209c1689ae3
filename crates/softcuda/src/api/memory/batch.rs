//! Copies in groups: many copies of one row with one call, each with its own way of reading its source.
//!
//! All entries are checked before the first is submitted, and the first wrong one is named; the legacy default stream gives 1,
//! as on driver 580.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUarray, CUmemcpyAttributes, CUresult, CUstream, access_order,
};

use crate::copy::linear::{When, check, copy};
use crate::copy::side::Side;
use crate::ffi::{MaybeOut, Outcome, api};
use crate::sync::stream::Stream;
use crate::sync::streams;
use crate::texture::{array, volume};

/// More copies in one call make no sense.
const MAX_COPIES: usize = 1 << 20;

/// What a batch gives in the place of the index of a wrong copy when the fault is in no single one.
const NO_INDEX: usize = usize::MAX;

/// One copy of a batch.
struct Entry {
    to: u64,
    from: u64,
    size: usize,
    /// How its source may be read.
    order: u32,
}

/// The arrays of a call.
struct Arrays {
    targets: *mut u64,
    sources: *mut u64,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    kinds: usize,
}

impl Arrays {
    /// Reads them, and checks what is not about a single copy.
    ///
    /// # Safety
    ///
    /// The first three have `count` entries, the others `kinds`.
    unsafe fn read(&self) -> Outcome<Vec<Entry>> {
        let missing = self.targets.is_null() || self.sources.is_null() || self.sizes.is_null();
        let unsaid = self.attributes.is_null() || self.firsts.is_null();
        let counts = (1..=MAX_COPIES).contains(&self.count) && (1..=self.count).contains(&self.kinds);
        if missing || unsaid || !counts {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: `kinds` entries each, by the contract.
        let read =
            |at: usize| unsafe { (self.firsts.add(at).read_unaligned(), self.attributes.add(at).read_unaligned()) };
        let kinds: Vec<(usize, CUmemcpyAttributes)> = (0..self.kinds).map(read).collect();
        let orders = access_order::STREAM..=access_order::ANY;
        let known = kinds.iter().all(|(_, kind)| orders.contains(&kind.srcAccessOrder) && kind.flags <= 1);
        let ascending = kinds.first().is_some_and(|(first, _)| *first == 0) && kinds.is_sorted_by(|a, b| a.0 < b.0);
        if !known || !ascending {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let one = |at: usize| {
            let kind = kinds.partition_point(|(first, _)| *first <= at) - 1;
            // SAFETY: `at` is below `count`.
            let (to, from, size) = unsafe {
                (
                    self.targets.add(at).read_unaligned(),
                    self.sources.add(at).read_unaligned(),
                    self.sizes.add(at).read_unaligned(),
                )
            };
            Entry { to, from, size, order: kinds[kind].1.srcAccessOrder }
        };
        Ok((0..self.count).map(one).collect())
    }
}

/// Checks a whole batch, then submits it. A wrong copy is told by its index.
fn submit(stream: &Arc<Stream>, entries: &[Entry]) -> Result<(), (CUresult, usize)> {
    let context = stream.context().map_err(|code| (code, NO_INDEX))?;
    for (at, entry) in entries.iter().enumerate() {
        let sized = if entry.size > 0 { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) };
        let checked = sized.and_then(|()| check(&context, (Side::Any, entry.to), (Side::Any, entry.from), entry.size));
        checked.map_err(|code| (code, at))?;
    }
    for (at, entry) in entries.iter().enumerate() {
        // A source that may only be read during the call is read before it returns.
        let when = if entry.order == access_order::DURING_API_CALL { When::Now } else { When::Later };
        copy(stream, (Side::Any, entry.to), (Side::Any, entry.from), entry.size, when).map_err(|code| (code, at))?;
    }
    Ok(())
}

/// Reads copies of boxes and checks each in itself; with each, how its source may be read.
///
/// # Safety
///
/// `operations` is null or has `count` entries.
unsafe fn read_boxes(
    operations: *const CUDA_MEMCPY3D_BATCH_OP,
    count: usize,
) -> Result<Vec<(CUDA_MEMCPY3D, u32)>, (CUresult, usize)> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    if operations.is_null() || !(1..=MAX_COPIES).contains(&count) {
        return Err((wrong, NO_INDEX));
    }
    let texel = |handle: CUarray| array::resolve(handle).ok().map(|array| array.format.texel_bytes() as usize);
    let one = |at: usize| {
        // SAFETY: below `count`, by the contract.
        let operation = unsafe { operations.add(at).read_unaligned() };
        operation.as_copy(texel).map(|copy| (copy, operation.srcAccessOrder)).ok_or((wrong, at))
    };
    (0..count).map(one).collect()
}

/// Checks all copies of boxes, then submits them. A wrong one is told by its index.
fn submit_boxes(
    stream: Outcome<Arc<Stream>>,
    flags: u64,
    copies: Result<Vec<(CUDA_MEMCPY3D, u32)>, (CUresult, usize)>,
) -> Result<(), (CUresult, usize)> {
    let whole = |code| (code, NO_INDEX);
    let stream = stream.map_err(whole)?;
    if flags != 0 {
        return Err(whole(CUresult::ERROR_INVALID_VALUE));
    }
    let (copies, context) = (copies?, stream.context().map_err(whole)?);
    for (at, (copy, _)) in copies.iter().enumerate() {
        volume::check(&context, copy).map_err(|code| (code, at))?;
    }
    for (at, (copy, order)) in copies.iter().enumerate() {
        let when = if *order == access_order::DURING_API_CALL { When::Now } else { When::Later };
        volume::copy(&stream, copy, when).map_err(|code| (code, at))?;
    }
    Ok(())
}

/// The same as a group's, but null, which the functions without an index refuse, also where it means the thread's own.
fn named(handle: CUstream) -> Outcome<Arc<Stream>> {
    if handle.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { streams::of_group(handle) }
}

api! {
    /// The index of a wrong copy is answered; the greatest number if the fault is in no single one.
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

    /// Without an index.
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
    /// Boxes of memory and of arrays.
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

    /// Without an index.
    fn cuMemcpy3DBatchAsync_v2(count: usize, operations: *mut CUDA_MEMCPY3D_BATCH_OP, flags: u64, stream: CUstream) {
        // SAFETY: the caller's array has as many entries as it says.
        let copies = unsafe { read_boxes(operations, count) };
        submit_boxes(named(stream), flags, copies).map_err(|(code, _)| code)?;
    }
}
