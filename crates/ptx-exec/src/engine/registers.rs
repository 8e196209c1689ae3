//! The register rows of the running warp: the only module where slots become memory.
//!
//! A row is a value for each of 32 lanes. Reads return references; writes take the mask of lanes to change. The decoder made all
//! checks: a slot lies inside its frame or inside the constants, and constants are never destinations.

#![expect(unsafe_code, reason = "a bounds check for each operand would cost a third of the speed")]

use katydid_ptx::WARP_THREADS;

use crate::slot::{CONSTANT_BIT, Slot};

/// Lanes of a warp, one for each of its threads.
pub(crate) const WARP_LANES: usize = WARP_THREADS as usize;

/// The mask of all lanes.
pub(crate) const FULL_LANE_MASK: u32 = u32::MAX;

/// 32 words, aligned for the widest vector loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(128))]
pub(crate) struct Row(pub(crate) [u32; WARP_LANES]);

impl Row {
    /// A row with all lanes zero.
    pub(crate) const ZERO: Self = Self([0; WARP_LANES]);
}

/// Values of the lanes of a row.
///
/// # Safety
///
/// Every bit pattern must be a value, and the size must be 4 or 8 bytes.
pub(crate) unsafe trait Raw: Copy + PartialEq {
    /// A row of it, as an array.
    const ZERO: Self;
    /// Returns the value, zero-extended.
    fn wide(self) -> u64;
    /// Returns the low bits of `value`.
    fn narrow(value: u64) -> Self;
    /// Returns `a` if `take`, else `b`, without a branch.
    fn select(take: bool, a: Self, b: Self) -> Self;
}

// SAFETY: an integer of 4 bytes.
unsafe impl Raw for u32 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn wide(self) -> u64 {
        u64::from(self)
    }

    #[inline(always)]
    fn narrow(value: u64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn select(take: bool, a: Self, b: Self) -> Self {
        let keep = Self::from(take).wrapping_neg();
        (a & keep) | (b & !keep)
    }
}

// SAFETY: an integer of 8 bytes.
unsafe impl Raw for u64 {
    const ZERO: Self = 0;

    #[inline(always)]
    fn wide(self) -> u64 {
        self
    }

    #[inline(always)]
    fn narrow(value: u64) -> Self {
        value
    }

    #[inline(always)]
    fn select(take: bool, a: Self, b: Self) -> Self {
        let keep = Self::from(take).wrapping_neg();
        (a & keep) | (b & !keep)
    }
}

/// Addresses of the running function's frame and of the constants.
#[derive(Debug)]
pub(crate) struct Registers {
    bases: [*mut u32; 2],
}

impl Registers {
    /// Returns the registers of a frame: `frame` is its rows, `constants` those of the program.
    ///
    /// The value is valid until the memory of the frames changes: the machine makes a new one whenever it enters a frame.
    pub(crate) fn new(frame: &mut [Row], constants: &[Row]) -> Self {
        Self { bases: [frame.as_mut_ptr().cast(), constants.as_ptr().cast_mut().cast()] }
    }

    /// Returns registers that must not be read yet.
    pub(crate) const fn none() -> Self {
        Self { bases: [std::ptr::null_mut(); 2] }
    }

    /// Returns the address of a slot. The top bit selects frame or constants without a branch.
    #[inline(always)]
    fn at(&self, slot: Slot) -> *mut u32 {
        let base = self.bases[(slot >> 31) as usize];
        // SAFETY: the decoder makes only slots below the size of the frame (or of the constants), and the machine set
        // `bases` to memory of that size.
        unsafe { base.add((slot & !CONSTANT_BIT) as usize) }
    }

    /// Returns the row at `slot`.
    #[inline(always)]
    pub(crate) fn row<T: Raw>(&self, slot: Slot) -> &[T; WARP_LANES] {
        // SAFETY: rows are 128-byte aligned, those of 8-byte lanes take two adjacent ones (the decoder's `Width`), all
        // bit patterns are values (`Raw`), and writes need `&mut self`.
        unsafe { &*self.at(slot).cast() }
    }

    /// Writes the lanes in `mask`.
    #[inline(always)]
    pub(crate) fn set<T: Raw>(&mut self, slot: Slot, mask: u32, values: &[T; WARP_LANES]) {
        debug_assert!(slot & CONSTANT_BIT == 0, "constants are never written");
        // SAFETY: as in `row`; `&mut self` excludes other references.
        let row: &mut [T; WARP_LANES] = unsafe { &mut *self.at(slot).cast() };
        if mask == FULL_LANE_MASK {
            *row = *values;
        } else {
            blend(row, values, mask);
        }
    }

    /// Returns the address of the row at `slot`, for copies between rows and memory without Rust values.
    #[inline(always)]
    pub(crate) fn address(&self, slot: Slot) -> *mut u8 {
        self.at(slot).cast()
    }

    /// Writes one lane.
    #[inline(always)]
    pub(crate) fn set_lane<T: Raw>(&mut self, slot: Slot, lane: usize, value: T) {
        debug_assert!(slot & CONSTANT_BIT == 0, "constants are never written");
        // SAFETY: as in `set`.
        let row: &mut [T; WARP_LANES] = unsafe { &mut *self.at(slot).cast() };
        row[lane] = value;
    }

    /// Returns a predicate: one bit per lane.
    #[inline(always)]
    pub(crate) fn bits(&self, slot: Slot) -> u32 {
        // SAFETY: as in `at`; a word is always aligned.
        unsafe { *self.at(slot) }
    }

    /// Writes the lanes in `mask` of a predicate.
    #[inline(always)]
    pub(crate) fn set_bits(&mut self, slot: Slot, mask: u32, bits: u32) {
        debug_assert!(slot & CONSTANT_BIT == 0, "constants are never written");
        let word = self.at(slot);
        // SAFETY: as in `at`; `&mut self` excludes other references.
        unsafe { *word = (*word & !mask) | (bits & mask) };
    }
}

/// Replaces the lanes in `mask` by those of `values`.
#[inline(always)]
fn blend<T: Raw>(row: &mut [T; WARP_LANES], values: &[T; WARP_LANES], mask: u32) {
    for lane in 0..WARP_LANES {
        row[lane] = T::select((mask >> lane) & 1 != 0, values[lane], row[lane]);
    }
}

/// Returns the lanes of a mask, lowest first.
pub(crate) fn lanes_of(mask: u32) -> impl Iterator<Item = usize> {
    let mut remaining = mask;
    std::iter::from_fn(move || {
        let lane = remaining.trailing_zeros();
        remaining &= remaining.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_masked_write_changes_only_its_lanes() {
        let mut frame = vec![Row::ZERO; 3];
        let mut registers = Registers::new(&mut frame, &[]);
        registers.set::<u32>(0, 0x8000_0001, &[7; 32]);
        registers.set::<u64>(32, 0b10, &[u64::MAX; 32]);
        assert_eq!((registers.row::<u32>(0)[0], registers.row::<u32>(0)[1], registers.row::<u32>(0)[31]), (7, 0, 7));
        assert_eq!(registers.row::<u64>(32)[..3], [0, u64::MAX, 0]);
    }

    #[test]
    fn predicates_are_bits_of_a_word() {
        let mut frame = vec![Row::ZERO];
        let mut registers = Registers::new(&mut frame, &[]);
        registers.set_bits(5, 0xff, 0x0f0f);
        assert_eq!(registers.bits(5), 0x0f);
    }

    #[test]
    fn lanes_come_lowest_first() {
        assert_eq!(lanes_of(0x8000_0005).collect::<Vec<_>>(), [0, 2, 31]);
        assert_eq!(lanes_of(0).count(), 0);
    }
}
