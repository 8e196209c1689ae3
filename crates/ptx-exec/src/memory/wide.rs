//! Moves of 32 values at once between memory and rows, in the widest pieces that the CPU has.
//!
//! The next instruction reads a row that was just moved, in pieces of that width. A CPU forwards a store to a load only if the
//! store was no narrower; otherwise the load waits until the store has reached the cache. Other threads share the memory, so as
//! in `raw`, the compiler does not see the accesses.

#![expect(unsafe_code, reason = "moves memory that the caller has checked")]

use super::raw;
use crate::alu::level;
use crate::engine::registers::WARP_LANES;
use crate::memory::word::Word;
use std::mem::MaybeUninit;

/// Copies `size` bytes, a power of two from 32 on or a multiple of 128.
///
/// # Safety
///
/// Both blocks must be accessible for the whole launch and must not overlap; the CPU must have the features of `LEVEL`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) unsafe fn copy<const LEVEL: u8>(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: every piece lies in both blocks; unaligned moves are used; the caller vouches for the CPU.
    unsafe {
        match (LEVEL, size) {
            (level::AVX512, 128..) => {
                (0..size / 128).for_each(|piece| copy_128(to.add(128 * piece), from.add(128 * piece)))
            }
            (level::AVX512, 64) => copy_64(to, from),
            (level::AVX512 | level::AVX2, _) => {
                (0..size / 32).for_each(|piece| copy_32(to.add(32 * piece), from.add(32 * piece)));
            }
            _ => raw::copy(to, from, size),
        }
    }
}

/// Copies `size` bytes, on architectures without code for wide registers.
///
/// # Safety
///
/// Same as for the other `copy`.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) unsafe fn copy<const LEVEL: u8>(to: *mut u8, from: *const u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { raw::copy(to, from, size) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_128(to: *mut u8, from: *const u8) {
    // SAFETY: the caller checked 128 bytes and that the CPU has AVX-512; registers are named as a whole by their low part.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm0, [{from}]",
            "vmovdqu64 zmm1, [{from} + 64]",
            "vmovdqu64 [{to}], zmm0",
            "vmovdqu64 [{to} + 64], zmm1",
            from = in(reg) from,
            to = in(reg) to,
            out("xmm0") _,
            out("xmm1") _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_64(to: *mut u8, from: *const u8) {
    // SAFETY: as in `copy_128`, for 64 bytes.
    unsafe {
        std::arch::asm!(
            "vmovdqu64 zmm0, [{from}]",
            "vmovdqu64 [{to}], zmm0",
            from = in(reg) from,
            to = in(reg) to,
            out("xmm0") _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_32(to: *mut u8, from: *const u8) {
    // SAFETY: as in `copy_128`, for 32 bytes and AVX2.
    unsafe {
        std::arch::asm!(
            "vmovdqu ymm0, [{from}]",
            "vmovdqu [{to}], ymm0",
            from = in(reg) from,
            to = in(reg) to,
            out("xmm0") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Starts to bring the cache lines of `size` bytes at `address` into the cache. Any address is allowed, since nothing is read.
#[inline(always)]
pub(crate) fn prefetch(address: u64, size: u64) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..size.div_ceil(64) + 1 {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // The last byte may lie one line further than the size suggests.
        let at = address.wrapping_add((64 * line).min(size - 1));
        // SAFETY: a hint, allowed for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(at as usize)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, size);
}

/// Returns the number so that the compiler knows nothing about it. Otherwise it uses what it knows of a row's first lane (its
/// distance from itself is zero) and takes the row apart.
#[inline(always)]
pub(crate) fn opaque(value: u64) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut value = value;
        // SAFETY: no instruction at all.
        unsafe { std::arch::asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack, preserves_flags)) };
        value
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(value)
}

/// Largest number of values that one lane moves at once.
const MAX_LANE_VALUES: usize = 4;

/// Values of 32 lanes between memory and registers, `MAX_LANE_VALUES` for each lane.
pub(crate) type Buffer<T> = MaybeUninit<[T; MAX_LANE_VALUES * WARP_LANES]>;

/// Reads `count` consecutive values.
///
/// # Safety
///
/// They must be readable for the whole launch, and `count` must be 32, 64 or 128; the CPU must have the features of `LEVEL`.
#[inline(always)]
pub(crate) unsafe fn read<T: Word, const LEVEL: u8>(buffer: &mut Buffer<T>, address: u64, count: usize) -> &[T] {
    let pointer = buffer.as_mut_ptr().cast::<T>();
    // SAFETY: the caller checked the source; the destination is local and large enough, and then holds `count` values.
    unsafe {
        copy::<LEVEL>(pointer.cast(), std::ptr::with_exposed_provenance(address as usize), count * size_of::<T>());
        std::slice::from_raw_parts(pointer, count)
    }
}

/// Writes consecutive values.
///
/// # Safety
///
/// Same as for `read`, but the memory must be writable.
#[inline(always)]
pub(crate) unsafe fn write<T: Word, const LEVEL: u8>(address: u64, values: &[T]) {
    let pointer = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller checked the destination; the source is a slice of that size.
    unsafe { copy::<LEVEL>(pointer, values.as_ptr().cast(), size_of_val(values)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_sizes_are_copied_whole_at_every_level_that_runs_here() {
        let source: Vec<u8> = (0..1100).map(|n| (n * 7 % 251) as u8).collect();
        for size in [32, 64, 128, 256, 512, 1024] {
            let mut out = vec![0; size + 2];
            // SAFETY: `size` bytes from offset 3 of the one and offset 1 of the other exist.
            unsafe {
                let (to, from) = (out.as_mut_ptr().add(1), source.as_ptr().add(3));
                match crate::alu::level() {
                    level::AVX512 => copy::<{ level::AVX512 }>(to, from, size),
                    level::AVX2 => copy::<{ level::AVX2 }>(to, from, size),
                    _ => copy::<{ level::BASELINE }>(to, from, size),
                }
            }
            assert_eq!((out[0], &out[1..=size], out[size + 1]), (0, &source[3..size + 3], 0));
            // SAFETY: as above; every CPU has this level.
            unsafe { copy::<{ level::BASELINE }>(out.as_mut_ptr(), source.as_ptr(), size) };
            assert_eq!(out[..size], source[..size]);
        }
    }
}
