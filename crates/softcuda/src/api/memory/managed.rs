//! Managed memory, advice about it, and prefetching.
//!
//! A range must lie in one managed allocation, else a call fails with 1. Codes for locations are those of driver 580. An ordinal
//! of no device fails with 101. An invalid location fails with 1 for advice, and with 101 for prefetching.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUmemLocation, CUstream};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::memory::{check_range_attributes, locations, range_answers, ranges};

use crate::context::stack;
use crate::ffi::{Out, Outcome, api};
use crate::graphs;
use crate::memory::managed::{self, Advice, AdviceTarget};
use crate::process::{device, state};
use crate::sync::streams::{self, resolve};

/// Writes one attribute of a range into `size` bytes of the caller.
///
/// # Safety
///
/// `data` must be null or writable for `size` bytes.
unsafe fn answer(data: *mut c_void, size: usize, attribute: u32, (start, length): (u64, usize)) -> Outcome {
    let answers = range_answers(data, size)?;
    let values = managed::attribute(start, length as u64, attribute, answers)?;
    for (at, value) in values.into_iter().enumerate() {
        // SAFETY: `attribute` gives no more values than the caller has room for.
        unsafe { data.cast::<i32>().add(at).write_unaligned(value) };
    }
    Ok(())
}

/// Returns an entry of a caller's array.
///
/// # Safety
///
/// `array` must have more than `at` entries.
unsafe fn entry<T: Copy>(array: *const T, at: usize) -> T {
    // SAFETY: the contract.
    unsafe { array.add(at).read_unaligned() }
}

/// Returns the number of devices that advice can name.
fn devices() -> usize {
    device::all().len()
}

api! {
    /// Allocates memory with one address for the host and every device.
    fn cuMemAllocManaged(address: Out<u64>, size: usize, flags: u32) {
        graphs::forbid()?;
        address.set(managed::allocate(&*stack::usable()?, size as u64, flags)?);
    }

    /// Stores advice for queries. Host and devices share the memory anyway.
    fn cuMemAdvise(start: u64, size: usize, advice: u32, device: i32) {
        stack::usable()?;
        managed::advise(start, size as u64, Advice::with_ordinal(advice, device, devices())?)?;
    }

    /// Stores advice for a location, for queries.
    fn cuMemAdvise_v2(start: u64, size: usize, advice: u32, location: CUmemLocation) {
        stack::usable()?;
        managed::advise(start, size as u64, Advice::with_location(advice, location, devices())?)?;
    }

    /// Checks the arguments. Nothing has to move.
    fn cuMemPrefetchAsync(start: u64, size: usize, device: i32, stream: CUstream) {
        resolve(stream)?;
        managed::prefetch(start, size as u64, AdviceTarget::of_ordinal(device, devices())?)?;
    }

    /// Checks the arguments, which have no flags. Nothing has to move.
    fn cuMemPrefetchAsync_v2(start: u64, size: usize, location: CUmemLocation, flags: u32, stream: CUstream) {
        resolve(stream)?;
        check_no_flags(flags.into())?;
        managed::prefetch(start, size as u64, AdviceTarget::of_location(location, devices())?)?;
    }

    /// Checks that every range is managed memory. Otherwise none is prefetched.
    fn cuMemPrefetchBatchAsync(
        starts: *mut u64,
        sizes: *mut usize,
        count: usize,
        location_list: *mut CUmemLocation,
        firsts: *mut usize,
        kinds: usize,
        flags: u64,
        stream: CUstream,
    ) {
        streams::of_group(stream)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        let (ranges, locations) =
            unsafe { (ranges(starts, sizes, count, flags)?, locations(location_list, firsts, kinds, count)?) };
        let target = |location| AdviceTarget::of_location(location, devices());
        let targets = locations.into_iter().map(target).collect::<Outcome<Vec<_>>>()?;
        ranges.iter().try_for_each(|(start, size)| managed::check(*start, *size))?;
        let mut both = ranges.into_iter().zip(targets);
        both.try_for_each(|((start, size), target)| managed::prefetch(start, size, target))?;
    }

    /// Leaves the memory as it is: its contents after a discard are undefined.
    fn cuMemDiscardBatchAsync(starts: *mut u64, sizes: *mut usize, count: usize, flags: u64, stream: CUstream) {
        streams::of_group(stream)?;
        // SAFETY: the caller's arrays have as many entries as it says.
        let ranges = unsafe { ranges(starts, sizes, count, flags) }?;
        ranges.into_iter().try_for_each(|(start, size)| managed::check(start, size))?;
    }

    /// Prefetches only: the discard leaves the memory as it is.
    fn cuMemDiscardAndPrefetchBatchAsync(
        starts: *mut u64,
        sizes: *mut usize,
        count: usize,
        location_list: *mut CUmemLocation,
        firsts: *mut usize,
        kinds: usize,
        flags: u64,
        stream: CUstream,
    ) {
        // SAFETY: the caller's arrays, handed on.
        unsafe { cuMemPrefetchBatchAsync(starts, sizes, count, location_list, firsts, kinds, flags, stream) }.ok()?;
    }

    /// Returns an attribute in values of 4 bytes each. Only the list of accessors may have several.
    fn cuMemRangeGetAttribute(data: *mut c_void, size: usize, attribute: u32, start: u64, length: usize) {
        state::ready()?;
        // SAFETY: the caller's buffer has `size` bytes.
        unsafe { answer(data, size, attribute, (start, length)) }?;
    }

    /// Returns several attributes in turn, up to the first that fails.
    fn cuMemRangeGetAttributes(
        data: *mut *mut c_void,
        sizes: *mut usize,
        attributes: *mut u32,
        count: usize,
        start: u64,
        length: usize,
    ) {
        state::ready()?;
        check_range_attributes(data, sizes, attributes, count)?;
        for at in 0..count {
            // SAFETY: all three arrays have `count` entries, and each buffer has the size that is given for it.
            unsafe { answer(entry(data, at), entry(sizes, at), entry(attributes, at), (start, length)) }?;
        }
    }

    /// Attaches an allocation, named by its start. Default streams accept only `CU_MEM_ATTACH_GLOBAL` and the host alone.
    fn cuStreamAttachMemAsync(stream: CUstream, address: u64, length: usize, flags: u32) {
        resolve(stream)?;
        managed::check_attachment(address, length as u64, flags, || streams::created(stream).is_ok())?;
    }
}
