//! Copies in groups: all are checked before the first is queued, and the first wrong one is named.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{
    CUDA_MEMCPY3D, CUDA_MEMCPY3D_BATCH_OP, CUarray, CUdeviceptr, CUmemcpyAttributes, CUresult, CUstream, access_order,
};

use crate::context::stack;
use crate::copy::linear::any_async;
use crate::copy::side::{Claim, locate};
use crate::copy::{array_copy, rows, slices};
use crate::ffi::handle::object;
use crate::sync::{stream, wait};

/// More copies in one call make no sense.
const MAX_COPIES: usize = 1 << 20;
/// What is answered in the place of an index when the fault is in no single copy.
const NO_INDEX: usize = usize::MAX;

/// The arrays of a call.
struct Arrays {
    targets: *mut CUdeviceptr,
    sources: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attributes: *mut CUmemcpyAttributes,
    firsts: *mut usize,
    kinds: usize,
}

/// Target, source, bytes, and how the source may be read.
type Entry = (CUdeviceptr, CUdeviceptr, usize, u32);

impl Arrays {
    /// Reads them, and checks what is not about a single copy.
    ///
    /// # Safety
    ///
    /// The first three are null or have `count` entries, the others `kinds`.
    unsafe fn read(&self) -> Result<Vec<Entry>, CUresult> {
        let missing = self.targets.is_null() || self.sources.is_null() || self.sizes.is_null();
        let unsaid = self.attributes.is_null() || self.firsts.is_null();
        let counts = (1..=MAX_COPIES).contains(&self.count) && (1..=self.count).contains(&self.kinds);
        if missing || unsaid || !counts {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let read = |at: usize| {
            // SAFETY: below `kinds`, by the contract.
            unsafe { (self.firsts.add(at).read_unaligned(), self.attributes.add(at).read_unaligned()) }
        };
        let kinds: Vec<(usize, CUmemcpyAttributes)> = (0..self.kinds).map(read).collect();
        let orders = access_order::STREAM..=access_order::ANY;
        let known = kinds.iter().all(|(_, kind)| orders.contains(&kind.srcAccessOrder) && kind.flags <= 1);
        let ascending = kinds.first().is_some_and(|(first, _)| *first == 0) && kinds.is_sorted_by(|a, b| a.0 < b.0);
        if !known || !ascending {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let one = |at: usize| {
            let kind = kinds.partition_point(|(first, _)| *first <= at) - 1;
            // SAFETY: below `count`, by the contract.
            unsafe {
                let (to, from) = (self.targets.add(at).read_unaligned(), self.sources.add(at).read_unaligned());
                (to, from, self.sizes.add(at).read_unaligned(), kinds[kind].1.srcAccessOrder)
            }
        };
        Ok((0..self.count).map(one).collect())
    }

    /// Checks all copies, then queues them. A wrong one is told by its index.
    ///
    /// # Safety
    ///
    /// As [`Arrays::read`]; sides that are the program's own are valid for their size.
    unsafe fn run(&self, stream: CUstream) -> Result<(), (CUresult, usize)> {
        let whole = |code| (code, NO_INDEX);
        stack::wire().map_err(whole)?;
        stream::takes_groups(stream).map_err(whole)?;
        // SAFETY: handed on.
        let entries = unsafe { self.read() }.map_err(whole)?;
        for (at, (to, from, size, _)) in entries.iter().enumerate() {
            let size = *size as u64;
            let sized = if size > 0 { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) };
            let located = sized.and_then(|()| {
                locate(Claim::Any, *to, size)?;
                locate(Claim::Any, *from, size)
            });
            located.map_err(|code| (code, at))?;
        }
        let mut must_wait = false;
        for (at, (to, from, size, order)) in entries.into_iter().enumerate() {
            // SAFETY: valid for the copy, by the contract.
            unsafe { any_async(to, from, size, stream) }.map_err(|code| (code, at))?;
            must_wait |= order == access_order::DURING_API_CALL;
        }
        // Sources that may be read during the call only have been read by its end.
        if must_wait { wait::synchronize(stream).map_err(whole) } else { Ok(()) }
    }
}

/// Reads and checks copies of boxes; with each, how its source may be read.
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
    let texel = |array: CUarray| object(array).ok().map(|array| array.texel() as usize);
    let one = |at: usize| {
        // SAFETY: below `count`, by the contract.
        let operation = unsafe { operations.add(at).read_unaligned() };
        let copy = operation.as_copy(texel).ok_or((wrong, at))?;
        let has_array = operation.src.array().or(operation.dst.array()).is_some();
        let checked = if has_array { array_copy::check(&copy) } else { rows::sides(&copy).map(drop) };
        checked.map_err(|code| (code, at))?;
        Ok((copy, operation.srcAccessOrder))
    };
    (0..count).map(one).collect()
}

/// Checks all copies of boxes, then queues them. A wrong one is told by its index.
///
/// # Safety
///
/// As [`read_boxes`]; sides that are the program's own are valid for their rows.
unsafe fn run_boxes(
    operations: *const CUDA_MEMCPY3D_BATCH_OP,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result<(), (CUresult, usize)> {
    let whole = |code| (code, NO_INDEX);
    stack::wire().map_err(whole)?;
    stream::takes_groups(stream).map_err(whole)?;
    if flags != 0 {
        return Err(whole(CUresult::ERROR_INVALID_VALUE));
    }
    // SAFETY: handed on.
    let copies = unsafe { read_boxes(operations, count) }?;
    let mut must_wait = false;
    for (at, (copy, order)) in copies.iter().enumerate() {
        // SAFETY: valid for the copy, by the contract.
        unsafe { slices::three_dimensional_async(copy, stream) }.map_err(|code| (code, at))?;
        must_wait |= *order == access_order::DURING_API_CALL;
    }
    if must_wait { wait::synchronize(stream).map_err(whole) } else { Ok(()) }
}

/// Refuses null, which the forms without an index do not take, also where it means the thread's own stream (driver 580.159.04).
fn named(stream: CUstream) -> Result<(), CUresult> {
    if stream == CUstream::NULL { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(()) }
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
        katydid_client::ffi::write_if_given(wrong, NO_INDEX);
        run_boxes(operations, count, flags, stream).map_err(|(code, at)| {
            katydid_client::ffi::write_if_given(wrong, at);
            code
        })
    }
}

/// The form that names no wrong copy.
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
    named(stream)?;
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
        katydid_client::ffi::write_if_given(wrong, NO_INDEX);
        arrays.run(stream).map_err(|(code, at)| {
            katydid_client::ffi::write_if_given(wrong, at);
            code
        })
    }
}

/// The form that names no wrong copy.
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
    named(stream)?;
    let arrays = Arrays { targets, sources, sizes, count, attributes, firsts, kinds };
    // SAFETY: handed on.
    unsafe { arrays.run(stream) }.map_err(|(code, _)| code)
}
