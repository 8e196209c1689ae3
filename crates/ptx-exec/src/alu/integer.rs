//! Integer arithmetic: add to mad, in every width, with the edge cases that PTX or the hardware defines.
//!
//! As on the GPU, quotient and remainder of a division by zero are all ones.

use super::element::{Element, Two};
use super::lanes::operations;

/// The integer types of PTX.
pub(crate) trait Integer: Element {
    /// The type of twice the width, for `.wide`.
    type Wide: Element;
    /// `a + b`, wrapping.
    fn add(self, b: Self) -> Self;
    /// `a - b`, wrapping.
    fn sub(self, b: Self) -> Self;
    /// Low half of the product.
    fn mul_lo(self, b: Self) -> Self;
    /// High half of the product.
    fn mul_hi(self, b: Self) -> Self;
    /// The whole product.
    fn mul_wide(self, b: Self) -> Self::Wide;
    /// `a + b` of wide values, wrapping.
    fn wide_add(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// Quotient, truncated.
    fn div(self, b: Self) -> Self;
    /// Remainder, with the sign of the dividend.
    fn rem(self, b: Self) -> Self;
    /// The smaller of two values.
    fn min(self, b: Self) -> Self;
    /// The larger of two values.
    fn max(self, b: Self) -> Self;
    /// Absolute value, wrapping.
    fn abs(self) -> Self;
    /// `|a - b|`
    fn distance(self, b: Self) -> Self;
    /// `a << b`; zero if `b` is the width or more.
    fn shl(self, b: u32) -> Self;
    /// `a >> b`; sign bits or zeroes if `b` is the width or more.
    fn shr(self, b: u32) -> Self;
}

macro_rules! integer {
    ($($ty:ident, $wide:ident, $double:ident, $divide:ident, $remainder:ident, |$a:ident| $abs:expr;)*) => {$(
        impl Integer for $ty {
            type Wide = $wide;

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }

            #[inline(always)]
            fn mul_lo(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }

            #[inline(always)]
            fn mul_hi(self, b: Self) -> Self {
                ((self as $double).wrapping_mul(b as $double) >> Self::BITS) as Self
            }

            #[inline(always)]
            fn mul_wide(self, b: Self) -> $wide {
                (self as $wide).wrapping_mul(b as $wide)
            }

            #[inline(always)]
            fn wide_add(a: $wide, b: $wide) -> $wide {
                a.wrapping_add(b)
            }

            #[inline(always)]
            fn div(self, b: Self) -> Self {
                $divide(self, b)
            }

            #[inline(always)]
            fn rem(self, b: Self) -> Self {
                $remainder(self, b)
            }

            #[inline(always)]
            fn min(self, b: Self) -> Self {
                if self < b { self } else { b }
            }

            #[inline(always)]
            fn max(self, b: Self) -> Self {
                if self > b { self } else { b }
            }

            #[inline(always)]
            fn abs(self) -> Self {
                let $a = self;
                $abs
            }

            #[inline(always)]
            fn distance(self, b: Self) -> Self {
                if self > b { self.wrapping_sub(b) } else { b.wrapping_sub(self) }
            }

            #[inline(always)]
            fn shl(self, b: u32) -> Self {
                if b < Self::BITS { self.wrapping_shl(b) } else { 0 }
            }

            #[inline(always)]
            fn shr(self, b: u32) -> Self {
                let last = Self::BITS - 1;
                let shifted = self.wrapping_shr(if b < last { b } else { last });
                // One more shift for unsigned values: a shift by the width leaves nothing.
                if b > last { shifted >> (Self::BITS - 1) >> u32::from(Self::MIN == 0) } else { shifted }
            }
        }
    )*};
}

integer! {
    u16, u32, u32, div_u16, rem_u16, |a| a;
    i16, i32, i32, div_i16, rem_i16, |a| a.wrapping_abs();
    u32, u64, u64, div_u32, rem_u32, |a| a;
    i32, i64, i64, div_i32, rem_i32, |a| a.wrapping_abs();
    u64, u64, u128, div_u64, rem_u64, |a| a;
    i64, i64, i128, div_i64, rem_i64, |a| a.wrapping_abs();
}

/// Returns the exact quotient of 32-bit numbers, through `f64`, which vectorises. A quotient that is not an integer is at least
/// 2^-32 away from one, and the division is exact to 2^-53.
#[inline(always)]
fn div_u32(a: u32, b: u32) -> u32 {
    let quotient = (f64::from(a) / f64::from(b)).floor();
    // Adding 2^52 puts the integer into the low mantissa bits.
    let whole = (quotient + 4_503_599_627_370_496.0).to_bits() as u32;
    if b == 0 { u32::MAX } else { whole }
}

/// The remainder that belongs to `div_u32`.
#[inline(always)]
fn rem_u32(a: u32, b: u32) -> u32 {
    let remainder = a.wrapping_sub(div_u32(a, b).wrapping_mul(b));
    if b == 0 { u32::MAX } else { remainder }
}

/// Divides magnitudes. As on the GPU, `i32::MIN / -1` wraps to itself.
#[inline(always)]
fn div_i32(a: i32, b: i32) -> i32 {
    let magnitude = div_u32(a.unsigned_abs(), b.unsigned_abs()).cast_signed();
    let negative = (a ^ b) < 0;
    if b == 0 {
        -1
    } else if negative {
        magnitude.wrapping_neg()
    } else {
        magnitude
    }
}

/// The remainder that belongs to `div_i32`.
#[inline(always)]
fn rem_i32(a: i32, b: i32) -> i32 {
    let remainder = a.wrapping_sub(div_i32(a, b).wrapping_mul(b));
    if b == 0 { -1 } else { remainder }
}

macro_rules! narrow_division {
    ($($div:ident, $rem:ident, $ty:ident, $by:ident, $rest:ident, $middle:ident;)*) => {$(
        #[inline(always)]
        fn $div(a: $ty, b: $ty) -> $ty {
            $by($middle::from(a), $middle::from(b)) as $ty
        }

        #[inline(always)]
        fn $rem(a: $ty, b: $ty) -> $ty {
            $rest($middle::from(a), $middle::from(b)) as $ty
        }
    )*};
}

narrow_division! {
    div_u16, rem_u16, u16, div_u32, rem_u32, u32;
    div_i16, rem_i16, i16, div_i32, rem_i32, i32;
}

macro_rules! wide_division {
    ($($div:ident, $rem:ident, $ty:ident, $by_zero:expr;)*) => {$(
        #[inline(always)]
        fn $div(a: $ty, b: $ty) -> $ty {
            if b == 0 { $by_zero } else { a.wrapping_div(b) }
        }

        #[inline(always)]
        fn $rem(a: $ty, b: $ty) -> $ty {
            if b == 0 { $by_zero } else { a.wrapping_rem(b) }
        }
    )*};
}

wide_division! {
    div_u64, rem_u64, u64, u64::MAX;
    div_i64, rem_i64, i64, -1;
}

/// Types of 24-bit products.
pub(crate) trait Narrow24: Integer {
    /// The low 24 bits, extended by the type's sign.
    fn low24(self) -> Self;
    /// Bits 47..16 of the 48-bit product of two 24-bit numbers.
    fn product_hi(self, b: Self) -> Self;
}

impl Narrow24 for u32 {
    #[inline(always)]
    fn low24(self) -> Self {
        self & 0x00ff_ffff
    }

    #[inline(always)]
    fn product_hi(self, b: Self) -> Self {
        ((u64::from(self.low24()) * u64::from(b.low24())) >> 16) as Self
    }
}

impl Narrow24 for i32 {
    #[inline(always)]
    fn low24(self) -> Self {
        (self << 8) >> 8
    }

    #[inline(always)]
    fn product_hi(self, b: Self) -> Self {
        ((i64::from(self.low24()) * i64::from(b.low24())) >> 16) as Self
    }
}

operations! {
    /// `add`
    Add<T: Integer>(T, T) -> T = |a, b| a.add(b);
    /// `sub`
    Sub<T: Integer>(T, T) -> T = |a, b| a.sub(b);
    /// `mul.lo`
    MulLo<T: Integer>(T, T) -> T = |a, b| a.mul_lo(b);
    /// `mul.hi`
    MulHi<T: Integer>(T, T) -> T = |a, b| a.mul_hi(b);
    /// `mul.wide`
    MulWide<T: Integer>(T, T) -> T::Wide = |a, b| a.mul_wide(b);
    /// `mad.lo`
    MadLo<T: Integer>(T, T, T) -> T = |a, b, c| a.mul_lo(b).add(c);
    /// `mad.hi`
    MadHi<T: Integer>(T, T, T) -> T = |a, b, c| a.mul_hi(b).add(c);
    /// `mad.wide`
    MadWide<T: Integer>(T, T, T::Wide) -> T::Wide = |a, b, c| T::wide_add(a.mul_wide(b), c);
    /// `mul24.lo`
    Mul24Lo<T: Narrow24>(T, T) -> T = |a, b| a.low24().mul_lo(b.low24());
    /// `mul24.hi`
    Mul24Hi<T: Narrow24>(T, T) -> T = |a, b| a.product_hi(b);
    /// `mad24.lo`
    Mad24Lo<T: Narrow24>(T, T, T) -> T = |a, b, c| a.low24().mul_lo(b.low24()).add(c);
    /// `mad24.hi`
    Mad24Hi<T: Narrow24>(T, T, T) -> T = |a, b, c| a.product_hi(b).add(c);
    /// `div`
    Div<T: Integer>(T, T) -> T = |a, b| a.div(b);
    /// `rem`
    Rem<T: Integer>(T, T) -> T = |a, b| a.rem(b);
    /// `min`
    Min<T: Integer>(T, T) -> T = |a, b| a.min(b);
    /// `max`
    Max<T: Integer>(T, T) -> T = |a, b| a.max(b);
    /// `abs`
    Abs<T: Integer>(T) -> T = |a| a.abs();
    /// `neg`
    Neg<T: Integer>(T) -> T = |a| a.sub(a).sub(a);
    /// `sad`
    Sad<T: Integer>(T, T, T) -> T = |a, b, c| a.distance(b).add(c);
    /// `shl`
    Shl<T: Integer>(T, u32) -> T = |a, b| a.shl(b);
    /// `shr`
    Shr<T: Integer>(T, u32) -> T = |a, b| a.shr(b);
    /// `add.sat.s32`
    AddSat(i32, i32) -> i32 = |a, b| a.saturating_add(b);
    /// `sub.sat.s32`
    SubSat(i32, i32) -> i32 = |a, b| a.saturating_sub(b);
    /// `mad.hi.sat.s32`
    MadHiSat(i32, i32, i32) -> i32 = |a, b, c| a.mul_hi(b).saturating_add(c);
    /// `mad24.hi.sat.s32`
    Mad24HiSat(i32, i32, i32) -> i32 = |a, b, c| a.product_hi(b).saturating_add(c);
    /// `add.s16x2`, `add.u16x2`
    Add2<T: Integer16>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.add(b.0), a.1.add(b.1));
    /// `min.s16x2`, `min.u16x2`
    Min2<T: Integer16>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.min(b.0), a.1.min(b.1));
    /// `min.relu.s32`
    MinRelu(i32, i32) -> i32 = |a, b| Integer::max(Integer::min(a, b), 0);
    /// `max.relu.s32`
    MaxRelu(i32, i32) -> i32 = |a, b| Integer::max(Integer::max(a, b), 0);
    /// `min.relu.s16x2`
    MinRelu2(Two<i16>, Two<i16>) -> Two<i16> = |a, b| {
        Two(Integer::max(Integer::min(a.0, b.0), 0), Integer::max(Integer::min(a.1, b.1), 0))
    };
    /// `max.relu.s16x2`
    MaxRelu2(Two<i16>, Two<i16>) -> Two<i16> = |a, b| {
        Two(Integer::max(Integer::max(a.0, b.0), 0), Integer::max(Integer::max(a.1, b.1), 0))
    };
    /// `max.s16x2`, `max.u16x2`
    Max2<T: Integer16>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.max(b.0), a.1.max(b.1));
    /// `slct`: `a` where `c` is not negative.
    SelectSigned<T: Integer>(T, T, i32) -> T = |a, b, c| if c >= 0 { a } else { b };
    /// `slct` by a float.
    SelectFloat<T: Integer>(T, T, f32) -> T = |a, b, c| if c >= 0.0 { a } else { b };
    /// `slct.ftz`: a negative subnormal is zero.
    SelectFlushed<T: Integer>(T, T, f32) -> T = |a, b, c| if super::float::flush::<true>(c) >= 0.0 { a } else { b };
}

/// 16-bit integers, which come in pairs too.
pub(crate) trait Integer16: Integer + Element<Lane = u32> {}

impl Integer16 for u16 {}
impl Integer16 for i16 {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alu::lanes::{Binary, Ternary, Unary};

    #[test]
    fn division_is_exact_at_the_edges_and_defined_for_zero() {
        for (a, b) in [(u32::MAX, 1), (u32::MAX, u32::MAX), (u32::MAX - 1, u32::MAX), (7, 2), (1 << 31, 3), (0, 5)] {
            assert_eq!((a.div(b), a.rem(b)), (a / b, a % b));
        }
        for (a, b) in [(i32::MIN, 1), (i32::MIN, i32::MAX), (-7, 2), (7, -2), (i32::MAX, -1)] {
            assert_eq!((a.div(b), a.rem(b)), (a / b, a % b));
        }
        assert_eq!((Integer::div(i32::MIN, -1), Integer::rem(i32::MIN, -1)), (i32::MIN, 0));
        assert_eq!((Integer::div(5_u32, 0), Integer::rem(5_u32, 0)), (u32::MAX, u32::MAX));
        assert_eq!((Integer::div(5_u64, 0), Integer::rem(5_i64, 0)), (u64::MAX, -1));
        assert_eq!((Integer::div(-7_i16, 2), Integer::rem(-7_i16, 2)), (-3, -1));
    }

    #[test]
    fn shifts_beyond_the_width_clamp() {
        assert_eq!((Integer::shl(1_u32, 32), Integer::shr(u32::MAX, 32), Integer::shr(u32::MAX, 31)), (0, 0, 1));
        assert_eq!((Integer::shr(-8_i32, 99), Integer::shr(-8_i64, 2), Integer::shr(5_u16, 16)), (-1, -2, 0));
    }

    #[test]
    fn products_keep_their_high_halves() {
        assert_eq!(Integer::mul_hi(u64::MAX, u64::MAX), u64::MAX - 1);
        assert_eq!(Integer::mul_hi(-1_i32, 1), -1);
        assert_eq!(MulWide::<i16>::apply(-300, 300), -90_000);
        assert_eq!(MadWide::<u32>::apply(u32::MAX, u32::MAX, u64::MAX), 0xffff_fffe_0000_0000);
        assert_eq!(MulWide::<u32>::apply(u32::MAX, 2), 0x1_ffff_fffe);
    }

    #[test]
    fn twenty_four_bit_products_take_bits_47_to_16() {
        assert_eq!(Mul24Hi::<u32>::apply(0x00ff_ffff, 0x00ff_ffff), 0xffff_fe00);
        assert_eq!(Mul24Hi::<i32>::apply(-1, 0x0040_0000), -64);
        assert_eq!(Mul24Lo::<i32>::apply(0x0100_0003, -2), -6);
    }

    #[test]
    fn saturation_negation_and_absolute_values() {
        assert_eq!(AddSat::apply(i32::MAX, 1), i32::MAX);
        assert_eq!(SubSat::apply(i32::MIN, 1), i32::MIN);
        assert_eq!((Neg::<i32>::apply(5), Neg::<i64>::apply(i64::MIN)), (-5, i64::MIN));
        assert_eq!(Abs::<i32>::apply(i32::MIN), i32::MIN);
        assert_eq!(Sad::<i32>::apply(-5, 7, 1), 13);
        assert_eq!(Add2::<u16>::apply(Two(0xffff, 1), Two(1, 1)).0, 0);
    }
}
