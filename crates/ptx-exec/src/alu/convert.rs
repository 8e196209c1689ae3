//! `cvt` between numbers: integers and floats of every size, in every rounding.
//!
//! Conversions to integers saturate. NaN becomes 0, or the bit pattern `1 << (width - 1)` when the source is `f64` or the
//! destination has 64 bits.

use super::element::Element;
use super::float::{canonical, flush, saturate};
use super::half::Small;
use super::lanes::operations;
use super::round::{self, mode};
use crate::engine::registers::Raw;

/// Integers that convert to floats.
pub(crate) trait IntoFloat: Element {
    /// Sign and magnitude, for directed roundings.
    fn parts(self) -> (u64, bool);
    /// To nearest `f32`.
    fn to_f32(self) -> f32;
    /// To nearest `f64`.
    fn to_f64(self) -> f64;
    /// Sign-extended or zero-extended.
    fn extended(self) -> u64;
}

/// Integers to which floats convert.
pub(crate) trait FromFloat: Element {
    /// From an integral `f32`.
    fn from_f32(value: f32) -> Self;
    /// From an integral `f64`.
    fn from_f64(value: f64) -> Self;
}

macro_rules! integers {
    ($($ty:ident, $magnitude:expr, $nan32:expr, $nan64:expr;)*) => {$(
        impl IntoFloat for $ty {
            #[inline(always)]
            fn parts(self) -> (u64, bool) {
                let magnitude: fn($ty) -> u64 = $magnitude;
                #[allow(unused_comparisons, reason = "one expression for both signs")]
                (magnitude(self), self < 0)
            }

            /// Converts an integer to `f32`. The CPU rounds to nearest; other roundings use sign and magnitude.
            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }

            /// Converts an integer to `f64`.
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn extended(self) -> u64 {
                self as u64
            }
        }

        impl FromFloat for $ty {
            #[inline(always)]
            fn from_f32(value: f32) -> Self {
                if value.is_nan() { $nan32 } else { value as Self }
            }

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                if value.is_nan() { $nan64 } else { value as Self }
            }
        }
    )*};
}

integers! {
    u8, |v| u64::from(v), 0, 1 << 7;
    i8, |v| u64::from(v.unsigned_abs()), 0, Self::MIN;
    u16, |v| u64::from(v), 0, 1 << 15;
    i16, |v| u64::from(v.unsigned_abs()), 0, Self::MIN;
    u32, |v| u64::from(v), 0, 1 << 31;
    i32, |v| u64::from(v.unsigned_abs()), 0, Self::MIN;
    u64, |v| v, 1 << 63, 1 << 63;
    i64, |v| v.unsigned_abs(), Self::MIN, Self::MIN;
}

/// Rounds to an integral value.
#[inline(always)]
fn integral_f32<const MODE: u8>(value: f32) -> f32 {
    match MODE {
        mode::ZERO => value.trunc(),
        mode::DOWN => value.floor(),
        mode::UP => value.ceil(),
        _ => value.round_ties_even(),
    }
}

/// Rounds to an integral value.
#[inline(always)]
fn integral_f64<const MODE: u8>(value: f64) -> f64 {
    match MODE {
        mode::ZERO => value.trunc(),
        mode::DOWN => value.floor(),
        mode::UP => value.ceil(),
        _ => value.round_ties_even(),
    }
}

#[inline(always)]
fn to_f32<S: IntoFloat, const MODE: u8>(value: S) -> f32 {
    if MODE == mode::NEAREST {
        return value.to_f32();
    }
    let (magnitude, negative) = value.parts();
    round::integer_to_f32::<MODE>(magnitude, negative)
}

#[inline(always)]
fn to_f64<S: IntoFloat, const MODE: u8>(value: S) -> f64 {
    if MODE == mode::NEAREST {
        return value.to_f64();
    }
    let (magnitude, negative) = value.parts();
    round::integer_to_f64::<MODE>(magnitude, negative)
}

/// Returns the canonical NaN, if the instruction flushes: it then is arithmetic and no mere move.
#[inline(always)]
fn nan<const FTZ: bool>(value: f32) -> f32 {
    if FTZ { canonical(value) } else { value }
}

/// Clamps to 0..1; NaN becomes 0.
#[inline(always)]
fn clamp_f64(value: f64) -> f64 {
    let low = if value > 0.0 { value } else { 0.0 };
    if low < 1.0 { low } else { 1.0 }
}

/// The nearest number of `BITS` bits.
#[inline(always)]
fn packed<const BITS: u32, const SIGNED: bool>(value: i32) -> u32 {
    let mask = (1 << BITS) - 1;
    let (least, most) = if SIGNED { (-(mask / 2) - 1, mask / 2) } else { (0, mask) };
    (value.clamp(least, most) & mask).cast_unsigned()
}

/// Drops the 13 bits that `tf32` lacks; with `RELU`, negative numbers become zero. Where results must be finite, a value with the
/// exponent of infinity, even NaN, is lowered by one step, as on the GPU.
#[inline(always)]
fn tf32<const RELU: bool, const FINITE: bool>(source: u32, rounded: u32) -> u32 {
    let is_nan = source & 0x7fff_ffff > 0x7f80_0000;
    let cut = rounded & 0xffff_e000;
    let cut = if FINITE && cut & 0x7f80_0000 == 0x7f80_0000 { cut - 0x2000 } else { cut };
    if RELU && !is_nan && source >> 31 != 0 { 0 } else { cut }
}

/// `Op<T, MODE>`: an operation with a type and a rounding, which `operations!` cannot express.
macro_rules! rounded {
    ($($(#[$doc:meta])* $name:ident<$t:ident: $bound:ident>($a:ty) -> $d:ty = |$v:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name<$t, const MODE: u8>(std::marker::PhantomData<$t>);

        impl<$t: $bound, const MODE: u8> super::lanes::Unary for $name<$t, MODE> {
            type A = $a;
            type D = $d;

            #[inline(always)]
            fn apply($v: $a) -> $d {
                $body
            }
        }
    )*};
}

rounded! {
    /// `cvt.rn.f32.s32`
    ToF32<S: IntoFloat>(S) -> f32 = |v| to_f32::<S, MODE>(v);
    /// `cvt.rn.sat.f32.s32`
    ToF32Sat<S: IntoFloat>(S) -> f32 = |v| saturate(to_f32::<S, MODE>(v));
    /// `cvt.rn.f64.s32`
    ToF64<S: IntoFloat>(S) -> f64 = |v| to_f64::<S, MODE>(v);
    /// `cvt.rzi.s32.f32`
    FromF32<D: FromFloat>(f32) -> D = |v| D::from_f32(integral_f32::<MODE>(v));
    /// `cvt.rzi.ftz.s32.f32`
    FromF32Ftz<D: FromFloat>(f32) -> D = |v| D::from_f32(integral_f32::<MODE>(flush::<true>(v)));
    /// `cvt.rzi.s32.f64`
    FromF64<D: FromFloat>(f64) -> D = |v| D::from_f64(integral_f64::<MODE>(v));
}

/// `cvt.s64.s32`: extends by the sign of `E` to the lane of `L`.
pub(crate) struct Extend<E, L>(std::marker::PhantomData<(E, L)>);

impl<E: IntoFloat, L: Element<Lane = L> + Raw> super::lanes::Unary for Extend<E, L> {
    type A = E;
    type D = L;

    #[inline(always)]
    fn apply(a: E) -> L {
        L::narrow(a.extended())
    }
}

operations! {
    /// `cvt.rni.f32.f32`
    IntegralF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32) -> f32 = |a| {
        let value = integral_f32::<MODE>(flush::<FTZ>(a));
        if SAT { saturate(value) } else { canonical(value) }
    };
    /// `cvt.f32.f32`, `cvt.sat.f32.f32`
    SameF32 [const FTZ: bool, const SAT: bool] (f32) -> f32 = |a| {
        let value = flush::<FTZ>(a);
        if SAT { saturate(value) } else { nan::<FTZ>(value) }
    };
    /// `cvt.rni.f64.f64`
    IntegralF64 [const MODE: u8] (f64) -> f64 = |a| integral_f64::<MODE>(a);
    /// `cvt.sat.f64.f64`
    SatF64(f64) -> f64 = |a| clamp_f64(a);
    /// `cvt.f64.f32`
    Widen [const FTZ: bool] (f32) -> f64 = |a| f64::from(nan::<FTZ>(flush::<FTZ>(a)));
    /// `cvt.rn.f32.f64`
    Narrow [const MODE: u8, const FTZ: bool, const SAT: bool] (f64) -> f32 = |a| {
        let value = if MODE == mode::NEAREST { a as f32 } else { round::narrow::<MODE>(a) };
        let value = flush::<FTZ>(value);
        if SAT { saturate(value) } else { value }
    };
    /// `cvt.pack.sat.u8.s32.b32`: two clamped numbers, above them the remaining bits of the third.
    PackSat [const BITS: u32, const SIGNED: bool] (i32, i32, u32) -> u32 = |a, b, c| {
        let above = (u64::from(c) << (2 * BITS)) as u32;
        above | packed::<BITS, SIGNED>(a) << BITS | packed::<BITS, SIGNED>(b)
    };
    /// `cvt.f64.f16`: the payload of a NaN is kept, as in the other widening conversions.
    WidenHalf<T: Small>(T) -> f64 = |a| f64::from(a.wide());
    /// `cvt.rna.tf32.f32`: 10 bits of mantissa, ties away from zero; NaN keeps its upper bits.
    ToTf32Away [const FINITE: bool] (u32) -> u32 = |a| {
        let half = if a & 0x7f80_0000 == 0x7f80_0000 { 0 } else { 0x1000 };
        tf32::<false, FINITE>(a, a.wrapping_add(half))
    };
    /// `cvt.rn.tf32.f32`
    ToTf32 [const RELU: bool] (u32) -> u32 = |a| {
        let rounded = a.wrapping_add(0x0fff).wrapping_add((a >> 13) & 1);
        tf32::<RELU, false>(a, if a & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { rounded })
    };
    /// `cvt.rz.tf32.f32`
    ToTf32Zero [const RELU: bool] (u32) -> u32 = |a| {
        tf32::<RELU, false>(a, if a & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { a })
    };
}

#[cfg(test)]
mod tests {
    use super::mode::{DOWN, NEAREST, UP, ZERO};
    use super::*;
    use crate::alu::lanes::Unary;

    #[test]
    fn floats_saturate_and_nan_becomes_what_ptx_says() {
        assert_eq!(FromF32::<i32, ZERO>::apply(3e9), i32::MAX);
        assert_eq!(FromF32::<u32, ZERO>::apply(-3.0), 0);
        assert_eq!(FromF32::<i8, NEAREST>::apply(-200.0), -128);
        assert_eq!(FromF32::<i32, ZERO>::apply(f32::NAN), 0);
        assert_eq!(FromF32::<i64, ZERO>::apply(f32::NAN), i64::MIN);
        assert_eq!(FromF64::<u32, ZERO>::apply(f64::NAN), 1 << 31);
        assert_eq!(FromF64::<i32, ZERO>::apply(f64::NAN), i32::MIN);
    }

    #[test]
    fn every_rounding_to_integers() {
        assert_eq!(FromF32::<i32, NEAREST>::apply(2.5), 2);
        assert_eq!(FromF32::<i32, ZERO>::apply(-2.7), -2);
        assert_eq!(FromF32::<i32, DOWN>::apply(-2.1), -3);
        assert_eq!(FromF32::<i32, UP>::apply(2.1), 3);
        assert_eq!(IntegralF32::<NEAREST, false, false>::apply(-0.5).to_bits(), 0x8000_0000);
        assert_eq!(FromF32Ftz::<i32, UP>::apply(f32::from_bits(1)), 0);
    }

    #[test]
    fn integers_to_floats_in_every_rounding() {
        assert_eq!(ToF32::<i32, NEAREST>::apply(i32::MIN), -2_147_483_648.0);
        assert_eq!(ToF32::<u32, ZERO>::apply(u32::MAX), 4_294_967_040.0);
        assert_eq!(ToF64::<i64, UP>::apply((1 << 53) + 1), 9_007_199_254_740_994.0);
        assert_eq!(ToF32::<i8, DOWN>::apply(-3), -3.0);
        assert_eq!(ToF32Sat::<i32, NEAREST>::apply(7), 1.0);
    }

    #[test]
    fn floats_to_floats() {
        assert_eq!(Narrow::<DOWN, false, false>::apply(0.1), 0.099_999_994);
        assert_eq!(Narrow::<NEAREST, false, false>::apply(1e300), f32::INFINITY);
        assert_eq!(Narrow::<ZERO, false, false>::apply(1e300), f32::MAX);
        assert_eq!(Narrow::<NEAREST, true, false>::apply(1e-40), 0.0);
        assert_eq!(SameF32::<false, true>::apply(5.0), 1.0);
        assert_eq!(Extend::<i8, u64>::apply(-1), u64::MAX);
        assert_eq!(Extend::<u16, u32>::apply(0xffff), 0xffff);
    }
}
