//! Memory as device code sees it: loads, stores and the checks before them.
//!
//! Every access is checked for alignment and against a known range before `raw` touches memory; the checks are made once
//! for all lanes when their addresses lie in one range, else lane by lane, so that a fault names its lane.
//!
//! Local memory is kept as rows of 8 bytes a lane, so that lanes that use the same offset (they nearly always do) touch
//! one row.

pub(crate) mod load;
pub(crate) mod local;
pub(crate) mod param;
pub(crate) mod place;
pub(crate) mod ranges;
pub(crate) mod raw;
pub(crate) mod store;

use crate::alu::convert::Source;
use crate::registers::{LANES, Raw, lanes_of};

/// What a load or store moves for one lane: an integer of 1 to 8 bytes, whose sign says how it is extended.
pub(crate) trait Word: Source {
    /// Its size in memory.
    const SIZE: u64;
    /// The low bytes of a register.
    fn cut(value: u64) -> Self;
}

macro_rules! words {
    ($($ty:ident)*) => {$(
        impl Word for $ty {
            const SIZE: u64 = size_of::<$ty>() as u64;

            #[inline(always)]
            fn cut(value: u64) -> Self {
                value as Self
            }
        }
    )*};
}

words! { u8 i8 u16 i16 u32 i32 u64 }

/// Registers that hold addresses: 64 bits, or 32 for offsets into shared and local memory.
pub(crate) trait Pointer: Raw {
    /// The address `imm` bytes on, wrapping at the width of the register.
    fn plus(self, imm: u64) -> u64;
    /// Whether the lanes are `size` bytes apart in order, and whether they are all equal.
    fn pattern(row: &[Self; LANES], size: u64) -> (bool, bool);
}

macro_rules! pointers {
    ($($ty:ident)*) => {$(
        impl Pointer for $ty {
            #[inline(always)]
            fn plus(self, imm: u64) -> u64 {
                u64::from(self.wrapping_add(imm as Self))
            }

            #[inline(always)]
            fn pattern(row: &[Self; LANES], size: u64) -> (bool, bool) {
                let (mut strided, mut different) = (0, 0);
                let base = row[0];
                for lane in 0..LANES {
                    let distance = row[lane].wrapping_sub(base);
                    different |= distance;
                    strided |= distance ^ (lane as Self).wrapping_mul(size as Self);
                }
                (strided == 0, different == 0)
            }
        }
    )*};
}

pointers! { u32 u64 }

/// The addresses of all lanes.
#[inline(always)]
fn addresses<P: Pointer>(row: &[P; LANES], imm: u64) -> [u64; LANES] {
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = row[lane].plus(imm);
    }
    out
}

/// Lowest and highest address of the lanes in `mask`, which is not empty.
#[inline(always)]
fn bounds(addresses: &[u64; LANES], mask: u32) -> (u64, u64) {
    let (mut low, mut high) = (u64::MAX, 0);
    for lane in lanes_of(mask) {
        low = low.min(addresses[lane]);
        high = high.max(addresses[lane]);
    }
    (low, high)
}

/// Whether all lanes in `mask` are multiples of `size`, a power of two.
#[inline(always)]
fn aligned(addresses: &[u64; LANES], mask: u32, size: u64) -> bool {
    let mut all = 0;
    for lane in 0..LANES {
        all |= addresses[lane] & u64::from((mask >> lane) & 1).wrapping_neg();
    }
    all & (size - 1) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_tell_strided_from_uniform_rows() {
        let strided: [u64; LANES] = std::array::from_fn(|lane| 100 + 4 * lane as u64);
        assert_eq!(u64::pattern(&strided, 4), (true, false));
        assert_eq!(u64::pattern(&strided, 8), (false, false));
        assert_eq!(u32::pattern(&[7; LANES], 4), (false, true));
    }

    #[test]
    fn offsets_wrap_at_the_width_of_the_register() {
        assert_eq!(16_u32.plus((-8_i64).cast_unsigned()), 8);
        assert_eq!(16_u64.plus((-8_i64).cast_unsigned()), 8);
    }

    #[test]
    fn bounds_and_alignment_look_at_running_lanes_only() {
        let addresses: [u64; LANES] = std::array::from_fn(|lane| if lane == 3 { 1 } else { 8 * lane as u64 });
        assert_eq!(bounds(&addresses, 0b1000), (1, 1));
        assert!(aligned(&addresses, !0b1000, 8) && !aligned(&addresses, 0b1000, 2));
    }
}
