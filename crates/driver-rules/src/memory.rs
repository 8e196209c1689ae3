//! Allocation: pinned, registered, pitched, managed memory, and the virtual memory API.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{
    CUmemLocation, CUresult, attach_flags, host_alloc_flags, host_register_flags as register, location_type,
};

use crate::caller::{self, Runs};
use crate::outcome::{INVALID_VALUE, Outcome, check};

/// Sizes and addresses of mapped memory are multiples of this on every GPU so far.
pub const GRANULARITY_BYTES: u64 = 2 << 20;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: the only supported kind of sharing.
pub const HANDLE_TYPE_FILE_DESCRIPTOR: u32 = 1;
/// The end of a program's addresses.
const ADDRESS_END: u64 = 1 << 47;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, which every open of another process's memory needs.
const LAZY_PEER_ACCESS: u32 = 1;
/// Most ranges, or bytes of answers, of one call: more make no sense.
const MAX_RANGES: usize = 1 << 20;

/// Returns the flags of a block of pinned memory: every block is mapped, as unified addressing requires. Refuses unknown
/// flags.
pub const fn pinned_flags(flags: u32) -> Outcome<u32> {
    const HOST_ALLOC_FLAGS: u32 =
        host_alloc_flags::PORTABLE | host_alloc_flags::DEVICEMAP | host_alloc_flags::WRITECOMBINED;
    if flags & !HOST_ALLOC_FLAGS == 0 { Ok(flags | host_alloc_flags::DEVICEMAP) } else { Err(INVALID_VALUE) }
}

/// Memory of the program to be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// The address after its last byte.
    pub end: u64,
    /// Flags that queries return.
    pub flags: u32,
    /// Whether the memory may be read-only (`CU_MEMHOSTREGISTER_READ_ONLY`).
    pub is_read_only: bool,
}

impl Registration {
    /// Checks that programs can have the range, and its flags. The driver counts the pages before it checks flags, and has
    /// fewer than a program can address. Memory of a device on the bus cannot be registered.
    ///
    /// # Errors
    ///
    /// `ERROR_INVALID_VALUE`, `ERROR_OUT_OF_MEMORY` beyond all addresses.
    pub fn new(start: u64, size: u64, flags: u32) -> Outcome<Self> {
        const REGISTER_FLAGS: u32 = register::PORTABLE | register::DEVICEMAP | register::READ_ONLY;
        let end = start.checked_add(size).filter(|_| start != 0 && size != 0).ok_or(INVALID_VALUE)?;
        if end > ADDRESS_END {
            return Err(CUresult::ERROR_OUT_OF_MEMORY);
        }
        check(flags & !REGISTER_FLAGS == 0)?;
        let is_read_only = flags & register::READ_ONLY != 0;
        Ok(Self { end, flags: flags & register::PORTABLE | register::DEVICEMAP, is_read_only })
    }
}

/// Checks the arguments of `cuMemAllocPitch`: elements of 4, 8 or 16 bytes, and no empty block.
pub const fn check_pitched(width: u64, height: u64, element: u32) -> Outcome {
    check(width > 0 && height > 0 && matches!(element, 4 | 8 | 16))
}

/// Returns the bytes from row to row, a multiple of `step`, and of all rows. Refuses sizes that overflow.
pub fn pitched(width: u64, height: u64, step: u64) -> Outcome<(u64, u64)> {
    let pitch = width.checked_next_multiple_of(step).ok_or(INVALID_VALUE)?;
    Ok((pitch, pitch.checked_mul(height).ok_or(INVALID_VALUE)?))
}

/// Checks the arguments of `cuMemAllocManaged`.
/// Refuses a size of 0, and unknown flags.
pub const fn check_managed(size: u64, flags: u32) -> Outcome {
    check(size > 0 && (flags == attach_flags::GLOBAL || flags == attach_flags::HOST))
}

/// Checks the arguments of `cuStreamAttachMemAsync`: a whole block of managed memory, given by its start and size. A single
/// stream must be one that the program created.
pub fn check_attachment(
    (address, length): (u64, u64),
    (start, size): (u64, u64),
    flags: u32,
    is_made: impl FnOnce() -> bool,
) -> Outcome {
    let is_whole = start == address && (length == 0 || length == size);
    let is_known = match flags {
        attach_flags::GLOBAL | attach_flags::HOST => true,
        attach_flags::SINGLE => is_made(),
        _ => false,
    };
    check(is_whole && is_known)
}

/// Returns how many answers about a range of managed memory fit: they are 4 bytes each. Refuses a missing buffer, and
/// invalid sizes.
pub fn range_answers<T>(buffer: *const T, size: usize) -> Outcome<usize> {
    check(!buffer.is_null() && size > 0 && size.is_multiple_of(4) && size <= MAX_RANGES)?;
    Ok(size / 4)
}

/// Checks the arrays of `cuMemRangeGetAttributes`. Refuses a missing array, and an empty list.
pub const fn check_range_attributes<A, B, C>(
    data: *const A,
    sizes: *const B,
    attributes: *const C,
    count: usize,
) -> Outcome {
    let is_there = !data.is_null() && !sizes.is_null() && !attributes.is_null();
    check(is_there && count > 0 && count <= MAX_RANGES)
}

/// Returns starts and sizes of the ranges of one call. There are no flags.
///
/// # Safety
///
/// The arrays are null or have `count` entries.
pub unsafe fn ranges(starts: *const u64, sizes: *const usize, count: usize, flags: u64) -> Outcome<Vec<(u64, u64)>> {
    check(flags == 0)?;
    // SAFETY: handed on.
    let (starts, sizes) =
        unsafe { (caller::array(starts, count, MAX_RANGES)?, caller::array(sizes, count, MAX_RANGES)?) };
    Ok(starts.into_iter().zip(sizes.into_iter().map(|size| size as u64)).collect())
}

/// Returns the location of each of `ranges` ranges.
///
/// # Safety
///
/// The arrays are null or have `count` entries.
pub unsafe fn locations(
    locations: *const CUmemLocation,
    firsts: *const usize,
    count: usize,
    ranges: usize,
) -> Outcome<Vec<CUmemLocation>> {
    // SAFETY: handed on.
    let runs = unsafe { Runs::read(locations, firsts, count, ranges) }?;
    (0..ranges).map(|range| runs.of(range)).collect()
}

/// Returns the alignment of the addresses that `cuMemAddressReserve` is to reserve. Refuses sizes and addresses that are no
/// multiples of [`GRANULARITY_BYTES`], and flags.
pub const fn reservation(size: u64, align: u64, address: u64, flags: u64) -> Outcome<u64> {
    let is_whole = size != 0 && size.is_multiple_of(GRANULARITY_BYTES) && address.is_multiple_of(GRANULARITY_BYTES);
    if flags != 0 || !is_whole || (align != 0 && !align.is_power_of_two()) {
        return Err(INVALID_VALUE);
    }
    Ok(if align > GRANULARITY_BYTES { align } else { GRANULARITY_BYTES })
}

/// Checks the part of a block that is mapped. Refuses a size of 0, and parts beyond the block.
pub fn check_mapping(size: u64, offset: u64, block: u64) -> Outcome {
    check(size > 0 && offset.checked_add(size).is_some_and(|end| end <= block))
}

/// Returns whether a location is the host, any of its nodes.
#[inline]
pub const fn is_host(location: CUmemLocation) -> bool {
    location.type_ >= location_type::HOST && location.type_ <= location_type::HOST_NUMA_CURRENT
}

/// Returns a location as queries report it: the host as the first of its nodes.
pub const fn reported_location(location: CUmemLocation) -> CUmemLocation {
    match location.type_ {
        location_type::HOST => CUmemLocation { type_: location_type::HOST_NUMA, id: 0 },
        _ => location,
    }
}

/// Checks the flags of `cuIpcOpenMemHandle`.
pub const fn check_open(flags: u32) -> Outcome {
    check(flags == LAZY_PEER_ACCESS)
}

/// Checks the flags of `cuIpcOpenMemHandle` in the form of CUDA 4.1, which refuses a handle that is open already (driver
/// 580.159.04). [`check_open`] refuses other flags.
///
/// # Errors
///
/// `ERROR_ALREADY_MAPPED`, and those of `is_open`.
pub fn check_open_once(flags: u32, is_open: impl FnOnce() -> Outcome<bool>) -> Outcome {
    if flags == LAZY_PEER_ACCESS && is_open()? { Err(CUresult::ERROR_ALREADY_MAPPED) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_memory_is_always_mapped() {
        assert_eq!([0, 1, 4, 8].map(pinned_flags), [Ok(2), Ok(3), Ok(6), Err(INVALID_VALUE)]);
    }

    #[test]
    fn pages_are_counted_before_flags_are_looked_at() {
        let full = Err(CUresult::ERROR_OUT_OF_MEMORY);
        assert_eq!(
            (Registration::new(4096, 1 << 47, 99), Registration::new(4096, u64::MAX, 0)),
            (full, Err(INVALID_VALUE))
        );
        for (start, size, flags) in [(0, 1, 0), (1, 0, 0), (1, 1, 4), (1, 1, 16)] {
            assert_eq!(Registration::new(start, size, flags), Err(INVALID_VALUE), "{start} {size} {flags}");
        }
        let read_only = Registration { end: 10, flags: 3, is_read_only: true };
        assert_eq!(Registration::new(5, 5, 1 | 8), Ok(read_only));
    }

    #[test]
    fn rows_begin_at_multiples() {
        assert_eq!((pitched(100, 3, 512), pitched(512, 3, 512)), (Ok((512, 1536)), Ok((512, 1536))));
        assert_eq!(
            (pitched(u64::MAX, 1, 512), pitched(1 << 40, 1 << 40, 512)),
            (Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
        assert_eq!(
            [(1, 1, 4), (1, 1, 5), (0, 1, 4), (1, 0, 4)].map(|(w, h, e)| check_pitched(w, h, e).is_ok()),
            [true, false, false, false]
        );
    }

    #[test]
    fn managed_memory_is_attached_as_a_whole() {
        assert_eq!(
            (check_managed(1, 1), check_managed(1, 4), check_managed(0, 1)),
            (Ok(()), Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
        let attach = |range, flags, is_made| check_attachment(range, (4096, 100), flags, || is_made).is_ok();
        assert!(attach((4096, 0), 1, false) && attach((4096, 100), 4, true));
        assert!(!attach((4096, 100), 4, false) && !attach((4096, 99), 1, false) && !attach((4097, 0), 1, false));
        assert!(!attach((4096, 0), 3, true));
    }

    #[test]
    fn answers_about_ranges_have_4_bytes() {
        let buffer = [0_u32; 2];
        assert_eq!(
            [4, 8, 0, 6, 1 << 21].map(|size| range_answers(buffer.as_ptr(), size)),
            [Ok(1), Ok(2), Err(INVALID_VALUE), Err(INVALID_VALUE), Err(INVALID_VALUE)]
        );
        assert_eq!(range_answers(std::ptr::null::<u32>(), 4), Err(INVALID_VALUE));
    }

    #[test]
    fn reservations_are_whole() {
        let (whole, large) = (GRANULARITY_BYTES, 1 << 30);
        assert_eq!(
            (reservation(whole, 0, 0, 0), reservation(whole, large, whole, 0)),
            (Ok(GRANULARITY_BYTES), Ok(large))
        );
        for (size, align, address, flags) in
            [(0, 0, 0, 0), (5, 0, 0, 0), (whole, 3, 0, 0), (whole, 0, 5, 0), (whole, 0, 0, 1)]
        {
            assert_eq!(reservation(size, align, address, flags), Err(INVALID_VALUE));
        }
        assert_eq!(
            (check_mapping(4, 4, 8), check_mapping(5, 4, 8), check_mapping(0, 4, 8)),
            (Ok(()), Err(INVALID_VALUE), Err(INVALID_VALUE))
        );
    }

    #[test]
    fn the_host_is_told_as_its_first_node() {
        let location = |type_, id| CUmemLocation { type_, id };
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(|type_| is_host(location(type_, 0))),
            [false, false, true, true, true, false]
        );
        assert_eq!((reported_location(location(2, 7)).type_, reported_location(location(1, 7)).id), (3, 7));
    }

    #[test]
    fn the_first_form_opens_no_handle_twice() {
        let mapped = Err(CUresult::ERROR_ALREADY_MAPPED);
        assert_eq!((check_open_once(1, || Ok(true)), check_open_once(1, || Ok(false))), (mapped, Ok(())));
        assert_eq!(
            (check_open_once(0, || Ok(true)), check_open(0), check_open(1)),
            (Ok(()), Err(INVALID_VALUE), Ok(()))
        );
    }
}
