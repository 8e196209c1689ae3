//! The only code that touches memory at addresses that device code computed.
//!
//! Other threads of the grid, the host program and the GPU's copy engines may read and write the same bytes at the same
//! time. So single values go through volatile accesses, read-modify-write through atomics, and blocks through assembly: no
//! reference to such memory is ever made, and the compiler may assume nothing about it.

#![expect(unsafe_code, reason = "device addresses are addresses of this process")]

use super::Word;
use crate::registers::LANES;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// A pointer to `address`.
fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Reads one value.
///
/// # Safety
///
/// `address` must be a multiple of the size, in memory that stays readable for the whole launch.
#[inline(always)]
pub(crate) unsafe fn load<T: Word>(address: u64) -> T {
    // SAFETY: the caller checked range and alignment; integers have no invalid bit patterns.
    unsafe { pointer::<T>(address).read_volatile() }
}

/// Writes one value.
///
/// # Safety
///
/// `address` must be a multiple of the size, in memory that stays writable for the whole launch.
#[inline(always)]
pub(crate) unsafe fn store<T: Word>(address: u64, value: T) {
    // SAFETY: the caller checked range and alignment.
    unsafe { pointer::<T>(address).write_volatile(value) }
}

/// Reads 32 values that follow each other.
///
/// # Safety
///
/// As `load`, for all of them.
#[inline(always)]
pub(crate) unsafe fn load_row<T: Word>(address: u64) -> [T; LANES] {
    let mut row = [T::cut(0); LANES];
    // SAFETY: the caller checked the source; the destination is a local array of the same size.
    unsafe { copy(row.as_mut_ptr().cast(), pointer(address), size_of::<T>()) };
    row
}

/// Writes 32 values one after the other.
///
/// # Safety
///
/// As `store`, for all of them.
#[inline(always)]
pub(crate) unsafe fn store_row<T: Word>(address: u64, row: &[T; LANES]) {
    // SAFETY: the caller checked the destination; the source is an array of the same size.
    unsafe { copy(pointer(address), row.as_ptr().cast(), size_of::<T>()) };
}

/// Copies `LANES * size` bytes in pieces of 16, which the compiler cannot look into.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
    for piece in 0..2 * size {
        // SAFETY: the piece lies in both blocks; unaligned moves are used; SSE is part of x86-64.
        unsafe {
            std::arch::asm!(
                "movups {value}, [{from}]",
                "movups [{to}], {value}",
                value = out(xmm_reg) _,
                from = in(reg) from.add(16 * piece),
                to = in(reg) to.add(16 * piece),
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `LANES * size` bytes, one by one: correct anywhere.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
    for byte in 0..LANES * size {
        // SAFETY: the byte lies in both blocks.
        unsafe { to.add(byte).write_volatile(from.add(byte).read_volatile()) };
    }
}

/// Copies `size` bytes, 8 at a time where both places allow it.
///
/// # Safety
///
/// As `load` and `store`, for all bytes.
pub(crate) unsafe fn copy_bytes(to: u64, from: u64, size: u64) {
    let words = if (to | from).is_multiple_of(8) { size / 8 * 8 } else { 0 };
    for at in (0..words).step_by(8) {
        // SAFETY: the caller checked the bytes; both addresses are multiples of 8.
        unsafe { store::<u64>(to + at, load(from + at)) };
    }
    for at in words..size {
        // SAFETY: the caller checked the bytes.
        unsafe { store::<u8>(to + at, load(from + at)) };
    }
}

/// Integers with an atomic counterpart.
pub(crate) trait Atomic: Copy + PartialEq {
    /// Replaces the value by what `change` makes of it, and returns the old one.
    ///
    /// # Safety
    ///
    /// As `store`.
    unsafe fn update(address: u64, change: impl FnMut(Self) -> Self) -> Self;
}

macro_rules! atomics {
    ($($ty:ident, $atomic:ident;)*) => {$(
        impl Atomic for $ty {
            #[inline(always)]
            unsafe fn update(address: u64, mut change: impl FnMut(Self) -> Self) -> Self {
                use std::sync::atomic::Ordering::{Relaxed, SeqCst};
                // SAFETY: the caller checked range and alignment; atomics may race with anything here, since all
                // other accesses to such memory are volatile or assembly.
                let atomic = unsafe { $atomic::from_ptr(pointer(address)) };
                let mut old = atomic.load(Relaxed);
                loop {
                    match atomic.compare_exchange_weak(old, change(old), SeqCst, Relaxed) {
                        Ok(old) => return old,
                        Err(now) => old = now,
                    }
                }
            }
        }
    )*};
}

atomics! {
    u16, AtomicU16;
    u32, AtomicU32;
    u64, AtomicU64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_copied_whole_whatever_their_size_and_place() {
        let mut bytes = [0_u64; 40];
        let at = bytes.as_mut_ptr().expose_provenance() as u64 + 4;
        let row: [u32; LANES] = std::array::from_fn(|lane| lane as u32 * 3);
        // SAFETY: 128 bytes from the second word on lie in the array.
        let back: [u32; LANES] = unsafe {
            store_row(at, &row);
            load_row(at)
        };
        assert_eq!(back, row);
        // SAFETY: as above, for 32 bytes.
        assert_eq!(unsafe { load_row::<u8>(at) }[4], 3);
    }

    #[test]
    fn an_update_returns_the_old_value() {
        let mut value = 5_u32;
        // SAFETY: a local variable of that type.
        let old = unsafe { u32::update((&raw mut value).expose_provenance() as u64, |old| old + 2) };
        assert_eq!((old, value), (5, 7));
    }
}
