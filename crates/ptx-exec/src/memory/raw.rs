//! The only code that touches memory at addresses that device code computed.
//!
//! Other threads of the grid, the host program and the GPU's copy engines may read and write the same bytes at the same time. So
//! single values go through volatile accesses, read-modify-write through atomics, and blocks through assembly. No reference to
//! such memory is ever made, and the compiler can assume nothing about it.

#![expect(unsafe_code, reason = "device addresses are addresses of this process")]

use crate::memory::word::Word;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// Returns a pointer to `address`.
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

/// Copies `size` bytes, a multiple of 16, in pieces of 16. The compiler cannot look into these accesses.
///
/// # Safety
///
/// Both blocks must be accessible for the whole launch and must not overlap.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
    for piece in 0..size / 16 {
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

/// Copies `size` bytes one by one, which is correct on any architecture.
///
/// # Safety
///
/// Same as for the other `copy`.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, size: usize) {
    for byte in 0..size {
        // SAFETY: the byte lies in both blocks.
        unsafe { to.add(byte).write_volatile(from.add(byte).read_volatile()) };
    }
}

/// Copies `size` bytes, 8 at a time where both addresses allow it.
///
/// # Safety
///
/// Same as for `load` and `store`, for all bytes.
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

/// Largest number of bytes in one lane's vector.
const MAX_VECTOR_BYTES: usize = 32;

/// The vector of one lane, between memory and registers. Up to 16 bytes move at once: programs such as chained scans put a flag
/// and the data that it guards into one vector. A GPU never tears an aligned vector.
#[derive(Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct Group([u8; MAX_VECTOR_BYTES]);

impl Group {
    /// A group of zeroes.
    pub(crate) const ZERO: Self = Self([0; MAX_VECTOR_BYTES]);

    /// Reads `size` bytes: 2, 4, 8, 16 or 32.
    ///
    /// # Safety
    ///
    /// Same as for the function `load`, for all bytes.
    #[inline(always)]
    pub(crate) unsafe fn load(address: u64, size: u64) -> Self {
        let mut group = Self::ZERO;
        // SAFETY: the caller checked range and alignment; the group has room for `size` bytes.
        unsafe {
            match size {
                2 => group.0[..2].copy_from_slice(&load::<u16>(address).to_le_bytes()),
                4 => group.0[..4].copy_from_slice(&load::<u32>(address).to_le_bytes()),
                8 => group.0[..8].copy_from_slice(&load::<u64>(address).to_le_bytes()),
                _ => copy(group.0.as_mut_ptr(), pointer(address), (size as usize).min(MAX_VECTOR_BYTES)),
            }
        }
        group
    }

    /// Writes `size` bytes: 2, 4, 8, 16 or 32.
    ///
    /// # Safety
    ///
    /// Same as for the function `store`, for all bytes.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, address: u64, size: u64) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        // SAFETY: the caller checked range and alignment; the group has `size` bytes.
        unsafe {
            match size {
                2 => store(address, u16::from_le_bytes([a, b])),
                4 => store(address, u32::from_le_bytes([a, b, c, d])),
                8 => store(address, u64::from_le_bytes([a, b, c, d, e, f, g, h])),
                _ => copy(pointer(address), self.0.as_ptr(), (size as usize).min(MAX_VECTOR_BYTES)),
            }
        }
    }

    /// Returns the element at `index`.
    #[inline(always)]
    pub(crate) fn get<T: Word>(&self, index: usize) -> T {
        let mut bytes = [0; 8];
        let size = size_of::<T>();
        if let Some(element) = self.0.get(index * size..(index + 1) * size) {
            bytes[..size].copy_from_slice(element);
        }
        T::cut(u64::from_le_bytes(bytes))
    }

    /// Replaces the element at `index` by the low bytes of `value`.
    #[inline(always)]
    pub(crate) fn set<T: Word>(&mut self, index: usize, value: u64) {
        let size = size_of::<T>();
        if let Some(element) = self.0.get_mut(index * size..(index + 1) * size) {
            element.copy_from_slice(&value.to_le_bytes()[..size]);
        }
    }
}

/// An integer with an atomic counterpart.
pub(crate) trait Atomic: Copy + PartialEq {
    /// Replaces the value by the result of `change`, and returns the old one.
    ///
    /// # Safety
    ///
    /// Same as for `store`.
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
                        Err(current) => old = current,
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
    fn groups_of_every_size_come_back() {
        let mut memory = [0_u64; 4];
        let at = (&raw mut memory).expose_provenance() as u64;
        for size in [2, 4, 8, 16, 32] {
            let mut group = Group::ZERO;
            (0..size as usize).for_each(|index| group.set::<u8>(index, index as u64 + size));
            // SAFETY: a local array of 32 bytes, at a multiple of 8, which is all that unaligned moves need.
            let back = unsafe {
                group.store(at, size);
                Group::load(at, size)
            };
            assert_eq!(back.0, group.0);
            assert_eq!(back.get::<u16>(0), u16::from_le_bytes([size as u8, size as u8 + 1]));
        }
    }

    #[test]
    fn an_update_returns_the_old_value() {
        let mut value = 5_u32;
        // SAFETY: a local variable of that type.
        let old = unsafe { u32::update((&raw mut value).expose_provenance() as u64, |old| old + 2) };
        assert_eq!((old, value), (5, 7));
    }
}
