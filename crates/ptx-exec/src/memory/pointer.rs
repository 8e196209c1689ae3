//! Registers that hold addresses, and patterns in the addresses of a row.

use super::wide;
use crate::engine::registers::{Raw, WARP_LANES};

/// A register that holds an address: 64 bits, or 32 for offsets into shared and local memory.
pub(crate) trait Pointer: Raw {
    /// Returns the address `imm` bytes further, wrapping at the width of the register.
    fn plus(self, imm: u64) -> u64;
    /// Returns whether the lanes are `size` bytes apart in order, and whether they are all equal.
    fn pattern(row: &[Self; WARP_LANES], size: u64) -> (bool, bool);
    /// Returns whether the lanes in `mask` are `size` bytes apart in order, and whether they are all equal. `first` is one of
    /// these lanes.
    fn pattern_of(row: &[Self; WARP_LANES], size: u64, mask: u32, first: usize) -> (bool, bool);
    /// Sets `out` to the distance of each lane from the address `first`; 0 for lanes not in `mask`. Returns whether a lane in
    /// `mask` is not a multiple of `size` or is more than `limit` bytes above `start`.
    fn distances(
        out: &mut [Self; WARP_LANES],
        row: &[Self; WARP_LANES],
        mask: u32,
        first: u64,
        span: AddressBounds,
    ) -> bool;
}

/// Limits of the start addresses of accesses, and their alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddressBounds {
    /// Constant part of the addresses.
    pub(crate) imm: u64,
    /// Lowest address.
    pub(crate) start: u64,
    /// Highest address, relative to `start`.
    pub(crate) limit: u64,
    /// Alignment, a power of two.
    pub(crate) size: u64,
}

macro_rules! pointers {
    ($($ty:ident)*) => {$(
        impl Pointer for $ty {
            #[inline(always)]
            fn plus(self, imm: u64) -> u64 {
                u64::from(self.wrapping_add(imm as Self))
            }

            #[inline(always)]
            fn pattern(row: &[Self; WARP_LANES], size: u64) -> (bool, bool) {
                let (mut strided, mut different) = (0, 0);
                let base = wide::opaque(row[0].into()) as Self;
                for lane in 0..WARP_LANES {
                    let distance = row[lane].wrapping_sub(base);
                    different |= distance;
                    strided |= distance ^ (lane as Self).wrapping_mul(size as Self);
                }
                (strided == 0, different == 0)
            }

            #[inline(always)]
            fn pattern_of(row: &[Self; WARP_LANES], size: u64, mask: u32, first: usize) -> (bool, bool) {
                let (mut strided, mut different) = (0, 0);
                let base = wide::opaque(row[first].into()) as Self;
                let offset_before = (first as Self).wrapping_mul(size as Self);
                for lane in 0..WARP_LANES {
                    let active = Self::from((mask >> lane) & 1).wrapping_neg();
                    let distance = row[lane].wrapping_sub(base);
                    different |= distance & active;
                    strided |= (distance.wrapping_add(offset_before) ^ (lane as Self).wrapping_mul(size as Self)) & active;
                }
                (strided == 0, different == 0)
            }

            #[inline(always)]
            fn distances(out: &mut [Self; WARP_LANES], row: &[Self; WARP_LANES], mask: u32, first: u64, span: AddressBounds) -> bool {
                let (imm, first, low_bits) = (span.imm as Self, first as Self, (span.size - 1) as Self);
                let (lead, limit) = (first.wrapping_sub(span.start as Self), span.limit as Self);
                let mut bad = 0;
                for lane in 0..WARP_LANES {
                    let active = Self::from((mask >> lane) & 1).wrapping_neg();
                    let address = row[lane].wrapping_add(imm);
                    let distance = address.wrapping_sub(first) & active;
                    out[lane] = distance;
                    let beyond = Self::from(distance.wrapping_add(lead) > limit);
                    bad |= (address & low_bits & active) | beyond;
                }
                bad != 0
            }
        }
    )*};
}

pointers! { u32 u64 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_tell_strided_from_uniform_rows() {
        let strided: [u64; WARP_LANES] = std::array::from_fn(|lane| 100 + 4 * lane as u64);
        assert_eq!(u64::pattern(&strided, 4), (true, false));
        assert_eq!(u64::pattern(&strided, 8), (false, false));
        assert_eq!(u32::pattern(&[7; WARP_LANES], 4), (false, true));
        let mut some = strided;
        (some[0], some[9]) = (5, 6);
        assert_eq!(u64::pattern_of(&some, 4, 0x00ff_f0f0, 4), (true, false));
        assert_eq!(u64::pattern_of(&some, 4, 0x0000_0200, 9), (true, true));
        assert_eq!(u64::pattern_of(&some, 4, 0x0000_0300, 8), (false, false));
    }

    #[test]
    fn offsets_wrap_at_the_width_of_the_register() {
        assert_eq!(16_u32.plus((-8_i64).cast_unsigned()), 8);
        assert_eq!(16_u64.plus((-8_i64).cast_unsigned()), 8);
    }

    #[test]
    fn distances_look_at_running_lanes_only() {
        let row: [u64; WARP_LANES] = std::array::from_fn(|lane| if lane == 3 { 1 } else { 100 + 8 * lane as u64 });
        let span = AddressBounds { imm: 4, start: 96, limit: 256, size: 8 };
        let mut out = [9; WARP_LANES];
        assert!(!u64::distances(&mut out, &row, !0b1000, 104, span));
        assert_eq!((out[0], out[3], out[31]), (0, 0, 248));
        assert!(u64::distances(&mut out, &row, 0b1000, 5, span), "misaligned and below the start");
        assert!(u64::distances(&mut out, &row, !0b1000, 104, AddressBounds { limit: 255, ..span }), "one byte too far");
    }
}
