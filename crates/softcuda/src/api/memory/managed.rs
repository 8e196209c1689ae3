//! Managed memory, advice about it, prefetching.
//!
//! Ranges must lie in one managed allocation, else 1; codes for places are those of driver 580: an ordinal that is no
//! device gives 101, a location that is none 1 for advice and 101 for prefetching.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUmemLocation, CUresult, CUstream, attach_flags};

use crate::context::stack;
use crate::ffi::{Out, Outcome, api};
use crate::graphs;
use crate::memory::managed::{self, Advice, Target};
use crate::process::{device, state};
use crate::sync::streams::{self, resolve};

/// More ranges or attributes in one call make no sense.
const MAX_RANGES: usize = 1 << 20;

/// Answers one attribute of a range into `size` bytes of the caller.
///
/// # Safety
///
/// `data` must be null or writable for `size` bytes.
unsafe fn answer(data: *mut c_void, size: usize, attribute: u32, (start, length): (u64, usize)) -> Outcome {
    if data.is_null() || size == 0 || !size.is_multiple_of(4) || size > MAX_RANGES {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let values = managed::attribute(start, length as u64, attribute, size / 4)?;
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: `attribute` gives no more values than the caller has room for.
        unsafe { data.cast::<i32>().add(at).write_unaligned(value) };
    }
    Ok(())
}

/// The entry of a caller's array.
///
/// # Safety
///
/// `array` must have more than `at` entries.
unsafe fn entry<T: Copy>(array: *const T, at: usize) -> T {
    // SAFETY: the contract.
    unsafe { array.add(at).read_unaligned() }
}

/// Ranges of one call, and the place that each is meant for.
///
/// # Safety
///
/// `starts` and `sizes` must have `count` entries, `places` and `firsts` `kinds` entries.
unsafe fn batch(
    (starts, sizes, count): (*const u64, *const usize, usize),
    (places, firsts, kinds): (*const CUmemLocation, *const usize, usize),
) -> Outcome<Vec<(u64, u64, Target)>> {
    let missing = starts.is_null() || sizes.is_null() || places.is_null() || firsts.is_null();
    if missing || count == 0 || count > MAX_RANGES || kinds == 0 || kinds > count {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the contract.
    let firsts: Vec<usize> = (0..kinds).map(|at| unsafe { entry(firsts, at) }).collect();
    if firsts.first() != Some(&0) || !firsts.is_sorted_by(|one, next| one < next) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let one = |at: usize| {
        let kind = firsts.partition_point(|first| *first <= at) - 1;
        // SAFETY: `at` is below `count` and `kind` below `kinds`.
        let (start, size, place) = unsafe { (entry(starts, at), entry(sizes, at), entry(places, kind)) };
        Ok((start, size as u64, Target::of_location(place, devices())?))
    };
    (0..count).map(one).collect()
}

/// Devices that advice can name.
fn devices() -> usize {
    device::all().len()
}

api! {
    /// One address for the host and every device.
    fn cuMemAllocManaged(address: Out<u64>, size: usize, flags: u32) {
        graphs::forbid()?;
        address.set(managed::allocate(&*stack::usable()?, size as u64, flags)?);
    }

    /// Kept and told back: the memory is where everybody needs it.
    fn cuMemAdvise(start: u64, size: usize, advice: u32, device: i32) {
        stack::usable()?;
        managed::advise(start, size as u64, Advice::with_ordinal(advice, device, devices())?)?;
    }

    /// The same with a location.
    fn cuMemAdvise_v2(start: u64, size: usize, advice: u32, location: CUmemLocation) {
        stack::usable()?;
        managed::advise(start, size as u64, Advice::with_location(advice, location, devices())?)?;
    }

    /// Nothing has to move.
    fn cuMemPrefetchAsync(start: u64, size: usize, device: i32, stream: CUstream) {
        resolve(stream)?;
        managed::prefetch(start, size as u64, Target::of_ordinal(device, devices())?)?;
    }

    /// The same with a location; there are no flags.
    fn cuMemPrefetchAsync_v2(start: u64, size: usize, location: CUmemLocation, flags: u32, stream: CUstream) {
        resolve(stream)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        managed::prefetch(start, size as u64, Target::of_location(location, devices())?)?;
    }

    /// Every range must be managed memory, or none is prefetched.
    fn cuMemPrefetchBatchAsync(
        starts: *mut u64,
        sizes: *mut usize,
        count: usize,
        places: *mut CUmemLocation,
        firsts: *mut usize,
        kinds: usize,
        flags: u64,
        stream: CUstream,
    ) {
        streams::of_group(stream)?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's arrays have as many entries as it says.
        let ranges = unsafe { batch((starts, sizes, count), (places, firsts, kinds)) }?;
        ranges.iter().try_for_each(|(start, size, _)| managed::check(*start, *size))?;
        ranges.into_iter().try_for_each(|(start, size, target)| managed::prefetch(start, size, target))?;
    }

    /// What the memory holds afterwards is not said: it is left as it is.
    fn cuMemDiscardBatchAsync(starts: *mut u64, sizes: *mut usize, count: usize, flags: u64, stream: CUstream) {
        streams::of_group(stream)?;
        if starts.is_null() || sizes.is_null() || count == 0 || count > MAX_RANGES || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's arrays have as many entries as it says.
        (0..count).try_for_each(|at| unsafe { managed::check(entry(starts, at), entry(sizes, at) as u64) })?;
    }

    /// As prefetching alone: what is discarded is left as it is.
    fn cuMemDiscardAndPrefetchBatchAsync(
        starts: *mut u64,
        sizes: *mut usize,
        count: usize,
        places: *mut CUmemLocation,
        firsts: *mut usize,
        kinds: usize,
        flags: u64,
        stream: CUstream,
    ) {
        // SAFETY: the caller's arrays, handed on.
        unsafe { cuMemPrefetchBatchAsync(starts, sizes, count, places, firsts, kinds, flags, stream) }.ok()?;
    }

    /// The values are 4 bytes each; only the list of accessors has room for several.
    fn cuMemRangeGetAttribute(data: *mut c_void, size: usize, attribute: u32, start: u64, length: usize) {
        state::ready()?;
        // SAFETY: the caller's buffer has `size` bytes.
        unsafe { answer(data, size, attribute, (start, length)) }?;
    }

    /// One after the other; the first that fails ends the call.
    fn cuMemRangeGetAttributes(
        data: *mut *mut c_void,
        sizes: *mut usize,
        attributes: *mut u32,
        count: usize,
        start: u64,
        length: usize,
    ) {
        state::ready()?;
        if data.is_null() || sizes.is_null() || attributes.is_null() || count == 0 || count > MAX_RANGES {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for at in 0..count {
            // SAFETY: all three arrays have `count` entries, and each buffer has the size that is given for it.
            unsafe { answer(entry(data, at), entry(sizes, at), entry(attributes, at), (start, length)) }?;
        }
    }

    /// A whole allocation, named by its start; default streams can be attached to by everybody and the host only.
    fn cuStreamAttachMemAsync(stream: CUstream, address: u64, length: usize, flags: u32) {
        resolve(stream)?;
        if flags == attach_flags::SINGLE && streams::created(stream).is_err() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        managed::check_attachment(address, length as u64, flags)?;
    }
}
