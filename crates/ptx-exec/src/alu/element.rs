//! The types of PTX, and how rows store their values.
//!
//! Types of up to 32 bits live in 32-bit lanes. A 16-bit value is stored zero-extended; reading it ignores the upper bits.

use super::half_bits;
use crate::engine::registers::Raw;

/// A PTX type as an operand: reads values from lanes and writes them.
pub(crate) trait Element: Copy {
    /// The lane type that holds it.
    type Lane: Raw;
    /// Returns the value in a lane.
    fn read(lane: Self::Lane) -> Self;
    /// Returns the lane that holds the value.
    fn write(self) -> Self::Lane;
}

macro_rules! integers {
    ($($ty:ty, $lane:ty, $unsigned:ty;)*) => {$(
        impl Element for $ty {
            type Lane = $lane;

            #[inline(always)]
            fn read(lane: $lane) -> Self {
                lane as Self
            }

            #[inline(always)]
            fn write(self) -> $lane {
                <$lane>::from(self as $unsigned)
            }
        }
    )*};
}

integers! {
    u8, u32, u8;
    i8, u32, u8;
    u16, u32, u16;
    i16, u32, u16;
    u32, u32, u32;
    i32, u32, u32;
    u64, u64, u64;
    i64, u64, u64;
}

impl Element for f32 {
    type Lane = u32;

    #[inline(always)]
    fn read(lane: u32) -> Self {
        Self::from_bits(lane)
    }

    #[inline(always)]
    fn write(self) -> u32 {
        self.to_bits()
    }
}

impl Element for f64 {
    type Lane = u64;

    #[inline(always)]
    fn read(lane: u64) -> Self {
        Self::from_bits(lane)
    }

    #[inline(always)]
    fn write(self) -> u64 {
        self.to_bits()
    }
}

/// `f16`, held as the `f32` of the same value; writing rounds to nearest even.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct F16(pub(crate) f32);

/// `bf16`, held as the `f32` of the same value; writing rounds to nearest even.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bf16(pub(crate) f32);

impl Element for F16 {
    type Lane = u32;

    #[inline(always)]
    fn read(lane: u32) -> Self {
        Self(half_bits::f16_to_f32(lane))
    }

    #[inline(always)]
    fn write(self) -> u32 {
        half_bits::f32_to_f16(self.0)
    }
}

impl Element for Bf16 {
    type Lane = u32;

    #[inline(always)]
    fn read(lane: u32) -> Self {
        Self(half_bits::bf16_to_f32(lane))
    }

    #[inline(always)]
    fn write(self) -> u32 {
        half_bits::f32_to_bf16(self.0)
    }
}

/// Two 16-bit values in one 32-bit lane, the first in the low half.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Two<T>(pub(crate) T, pub(crate) T);

impl<T: Element<Lane = u32>> Element for Two<T> {
    type Lane = u32;

    #[inline(always)]
    fn read(lane: u32) -> Self {
        Self(T::read(lane & 0xffff), T::read(lane >> 16))
    }

    #[inline(always)]
    fn write(self) -> u32 {
        self.0.write() | (self.1.write() << 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_integers_are_kept_zero_extended() {
        assert_eq!((-1_i16).write(), 0xffff);
        assert_eq!(i16::read(0x1234_fffe), -2);
    }

    #[test]
    fn pairs_keep_the_first_value_low() {
        assert_eq!(Two(F16(1.0), F16(-2.0)).write(), 0xc000_3c00);
        assert_eq!(Two::<F16>::read(0xc000_3c00), Two(F16(1.0), F16(-2.0)));
    }
}
