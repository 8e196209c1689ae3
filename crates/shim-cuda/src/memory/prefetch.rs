//! Batches that prefetch and discard managed memory: all ranges are checked before anything is stored.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{CUdeviceptr, CUmemLocation, CUresult, CUstream};
use katydid_driver_rules::mem_advise::AdviceTarget;
use katydid_driver_rules::memory::{self as rules, locations};

use crate::memory::managed;
use crate::sync::stream;

/// Reads and checks the ranges of one call.
///
/// # Safety
///
/// The arrays are null or have `count` entries.
unsafe fn ranges(
    starts: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
    flags: u64,
    of: CUstream,
) -> Result<Vec<(u64, u64)>, CUresult> {
    stream::takes_groups(of)?;
    // SAFETY: handed on.
    let ranges = unsafe { rules::ranges(starts, sizes, count, flags) }?;
    ranges.iter().try_for_each(|(start, size)| managed::check(*start, *size))?;
    Ok(ranges)
}

/// Returns the target of each of `count` ranges.
///
/// # Safety
///
/// The arrays are null or have `kinds` entries.
unsafe fn targets(
    location_list: *const CUmemLocation,
    firsts: *const usize,
    kinds: usize,
    count: usize,
) -> Result<Vec<AdviceTarget>, CUresult> {
    // SAFETY: handed on.
    unsafe { locations(location_list, firsts, kinds, count) }?.into_iter().map(managed::target).collect()
}

/// # Safety
///
/// The arrays are null or as long as their counts say; so are those of the functions below.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn batch(
    starts: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    location_list: *mut CUmemLocation,
    firsts: *mut usize,
    kinds: usize,
    flags: u64,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let (ranges, targets) =
        unsafe { (ranges(starts, sizes, count, flags, stream)?, targets(location_list, firsts, kinds, count)?) };
    for ((start, size), target) in ranges.into_iter().zip(targets) {
        managed::note_prefetch(start, size, target);
    }
    Ok(())
}

/// Only checks the ranges: CUDA does not say what the memory holds afterwards, so it is left unchanged.
///
/// # Safety
///
/// As [`batch`].
pub(crate) unsafe fn discard(
    starts: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: u64,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { ranges(starts, sizes, count, flags, stream) }.map(drop)
}
