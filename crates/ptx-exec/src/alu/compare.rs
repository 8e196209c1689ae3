//! `setp`, `testp`, `isspacep`: comparisons into predicates.

use super::element::{Bf16, Element, F16};
use super::float::flush;
use super::lanes::Compare;
use crate::window;
use std::marker::PhantomData;

/// Declares comparisons of any type that has the operators.
macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name<T>(PhantomData<T>);

        impl<T: Comparable> Compare for $name<T> {
            type A = T;

            #[inline(always)]
            fn apply(a: T, b: T) -> bool {
                let ($a, $b) = (a.key(), b.key());
                $body
            }
        }
    )*};
}

/// Types with an order.
pub(crate) trait Comparable: Element {
    /// Type of the compared value.
    type Key: PartialOrd + Copy;
    /// Returns the compared value.
    fn key(self) -> Self::Key;
}

macro_rules! comparable {
    ($($ty:ty: $key:ty = |$v:ident| $body:expr;)*) => {$(
        impl Comparable for $ty {
            type Key = $key;

            #[inline(always)]
            fn key(self) -> $key {
                let $v = self;
                $body
            }
        }
    )*};
}

comparable! {
    u16: Self = |v| v;
    i16: Self = |v| v;
    u32: Self = |v| v;
    i32: Self = |v| v;
    u64: Self = |v| v;
    i64: Self = |v| v;
    f32: Self = |v| v;
    f64: Self = |v| v;
    F16: f32 = |v| v.0;
    Bf16: f32 = |v| v.0;
    FlushedF32: f32 = |v| flush::<true>(v.0);
    FlushedHalf: f32 = |v| if v.0.abs() < MIN_NORMAL_HALF { 0.0 } else { v.0 };
}

/// An `f32` whose subnormals compare as zero (`.ftz`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushedF32(f32);

impl Element for FlushedF32 {
    type Lane = u32;

    #[inline(always)]
    fn read(lane: u32) -> Self {
        Self(f32::from_bits(lane))
    }

    #[inline(always)]
    fn write(self) -> u32 {
        self.0.to_bits()
    }
}

/// The smallest normal `f16`.
const MIN_NORMAL_HALF: f32 = 6.103_515_6e-5;

/// An `f16` whose subnormals compare as zero.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushedHalf(f32);

impl Element for FlushedHalf {
    type Lane = u32;

    #[inline(always)]
    fn read(lane: u32) -> Self {
        Self(F16::read(lane).0)
    }

    #[inline(always)]
    fn write(self) -> u32 {
        F16(self.0).write()
    }
}

/// Returns whether an operand is NaN.
#[inline(always)]
fn unordered<K: PartialOrd + Copy>(a: K, b: K) -> bool {
    a.partial_cmp(&a).is_none() | b.partial_cmp(&b).is_none()
}

comparisons! {
    /// Equal (ordered).
    Eq = |a, b| a == b;
    /// Different and neither NaN.
    Ne = |a, b| (a != b) & !unordered(a, b);
    /// Less, and neither is NaN.
    Lt = |a, b| a < b;
    /// Less or equal.
    Le = |a, b| a <= b;
    /// Greater, and neither is NaN.
    Gt = |a, b| a > b;
    /// Greater or equal.
    Ge = |a, b| a >= b;
    /// Equal or NaN.
    Equ = |a, b| (a == b) | unordered(a, b);
    /// Different or NaN.
    Neu = |a, b| a != b;
    /// Less or NaN.
    Ltu = |a, b| (a < b) | unordered(a, b);
    /// Less, equal or NaN.
    Leu = |a, b| (a <= b) | unordered(a, b);
    /// Greater or NaN.
    Gtu = |a, b| (a > b) | unordered(a, b);
    /// Greater, equal or NaN.
    Geu = |a, b| (a >= b) | unordered(a, b);
    /// Both are numbers.
    Num = |a, b| !unordered(a, b);
    /// One is NaN.
    Nan = |a, b| unordered(a, b);
}

/// Declares tests of one operand, which the code gets twice.
macro_rules! tests_of_one {
    ($($(#[$doc:meta])* $name:ident($ty:ty) = |$a:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Compare for $name {
            type A = $ty;

            #[inline(always)]
            fn apply($a: $ty, _: $ty) -> bool {
                $body
            }
        }
    )*};
}

tests_of_one! {
    /// `testp.finite.f32`
    Finite32(f32) = |a| a.is_finite();
    /// `testp.infinite.f32`
    Infinite32(f32) = |a| a.is_infinite();
    /// `testp.number.f32`
    Number32(f32) = |a| !a.is_nan();
    /// `testp.notanumber.f32`
    NotANumber32(f32) = |a| a.is_nan();
    /// `testp.normal.f32`: zero counts as normal.
    Normal32(f32) = |a| a.is_normal() | (a == 0.0);
    /// `testp.subnormal.f32`
    Subnormal32(f32) = |a| (a.abs() < f32::MIN_POSITIVE) & (a != 0.0);
    /// `testp.finite.f64`
    Finite64(f64) = |a| a.is_finite();
    /// `testp.infinite.f64`
    Infinite64(f64) = |a| a.is_infinite();
    /// `testp.number.f64`
    Number64(f64) = |a| !a.is_nan();
    /// `testp.notanumber.f64`
    NotANumber64(f64) = |a| a.is_nan();
    /// `testp.normal.f64`: zero counts as normal.
    Normal64(f64) = |a| a.is_normal() | (a == 0.0);
    /// `testp.subnormal.f64`
    Subnormal64(f64) = |a| (a.abs() < f64::MIN_POSITIVE) & (a != 0.0);
    /// `isspacep.shared`
    InShared(u64) = |a| a.wrapping_sub(window::SHARED_ADDRESS) < window::GENERIC_WINDOW_BYTES;
    /// `isspacep.local`
    InLocal(u64) = |a| a.wrapping_sub(window::LOCAL_ADDRESS) < window::GENERIC_WINDOW_BYTES;
    /// `isspacep.param`
    InParam(u64) = |a| a.wrapping_sub(window::PARAM_ADDRESS) < window::GENERIC_WINDOW_BYTES;
    /// `isspacep.global`: addresses in no window, and the workspace, which is global memory to device code.
    InGlobal(u64) = |a| (a < window::SHARED_ADDRESS) | (a.wrapping_sub(window::WORKSPACE_ADDRESS) < window::GENERIC_WINDOW_BYTES);
    /// `isspacep.const`: constant variables lie in global memory here.
    Never(u64) = |_a| false;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordered_comparisons_are_false_for_nan_and_unordered_ones_true() {
        let nan = f32::NAN;
        assert!(!Eq::<f32>::apply(nan, nan) && !Ne::<f32>::apply(nan, 1.0) && !Lt::<f32>::apply(nan, 1.0));
        assert!(Equ::<f32>::apply(nan, 1.0) && Neu::<f32>::apply(nan, nan) && Geu::<f32>::apply(1.0, nan));
        assert!(Num::<f64>::apply(1.0, 2.0) && Nan::<f64>::apply(1.0, f64::NAN) && Ne::<f64>::apply(1.0, 2.0));
    }

    #[test]
    fn integers_compare_by_their_sign() {
        assert!(Lt::<i32>::apply(-1, 0) && !Lt::<u32>::apply(u32::MAX, 0) && Ge::<i16>::apply(i16::read(0x1_0000), 0));
    }

    #[test]
    fn flushed_subnormals_equal_zero() {
        assert!(Eq::<FlushedF32>::apply(FlushedF32(f32::from_bits(1)), FlushedF32(-0.0)));
        assert!(
            Normal32::apply(0.0, 0.0) && !Subnormal32::apply(-0.0, 0.0) && Subnormal64::apply(f64::from_bits(9), 0.0)
        );
    }

    #[test]
    fn windows_tell_the_spaces_apart() {
        assert!(InShared::apply(window::SHARED_ADDRESS + 4, 0) && !InShared::apply(window::LOCAL_ADDRESS, 0));
        assert!(InGlobal::apply(0x2000_0000_0000, 0) && !InGlobal::apply(window::LOCAL_ADDRESS, 0));
    }
}
