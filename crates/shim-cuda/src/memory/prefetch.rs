//! Prefetching and discarding managed memory in groups: all ranges are checked before anything is noted.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{CUdeviceptr, CUmemLocation, CUresult, CUstream};
use katydid_driver_rules::mem_advise::Target;

use crate::memory::managed;
use crate::sync::stream;

/// More ranges in one call make no sense.
const MAX_RANGES: usize = 1 << 20;

/// Ranges of one call.
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
    if starts.is_null() || sizes.is_null() || count == 0 || count > MAX_RANGES || flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: below `count`, by the contract.
    let one = |at| unsafe { (starts.add(at).read_unaligned(), sizes.add(at).read_unaligned() as u64) };
    let ranges: Vec<_> = (0..count).map(one).collect();
    ranges.iter().try_for_each(|(start, size)| managed::check(*start, *size))?;
    Ok(ranges)
}

/// The place that each of `count` ranges is meant for.
///
/// # Safety
///
/// The arrays are null or have `kinds` entries.
unsafe fn targets(
    places: *const CUmemLocation,
    firsts: *const usize,
    kinds: usize,
    count: usize,
) -> Result<Vec<Target>, CUresult> {
    if places.is_null() || firsts.is_null() || kinds == 0 || kinds > count {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: below `kinds`, by the contract.
    let one = |at| unsafe { (firsts.add(at).read_unaligned(), places.add(at).read_unaligned()) };
    let kinds: Vec<(usize, CUmemLocation)> = (0..kinds).map(one).collect();
    if kinds.first().is_none_or(|(first, _)| *first != 0) || !kinds.is_sorted_by(|one, next| one.0 < next.0) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let place = |at: usize| kinds[kinds.partition_point(|(first, _)| *first <= at) - 1].1;
    (0..count).map(|at| managed::target(place(at))).collect()
}

/// # Safety
///
/// The arrays are null or as long as their counts say; so are those of the functions below.
#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(crate) unsafe fn batch(
    starts: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    places: *mut CUmemLocation,
    firsts: *mut usize,
    kinds: usize,
    flags: u64,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let (ranges, targets) =
        unsafe { (ranges(starts, sizes, count, flags, stream)?, targets(places, firsts, kinds, count)?) };
    for ((start, size), target) in ranges.into_iter().zip(targets) {
        managed::note_prefetch(start, size, target);
    }
    Ok(())
}

/// What the memory holds afterwards is not said: it is left as it is.
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
