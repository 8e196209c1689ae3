//! `f16` and `bf16`: conversions to and from `f32`, and arithmetic.
//!
//! Sums, differences and products of 16-bit floats are rounded a second time from `f32`. This gives the correctly rounded result,
//! because `f32` has more than twice their precision plus two bits. A fused multiply-add does not have this property, so it goes
//! through `f64`, rounded to odd.

use super::element::{Bf16, Element, F16, Two};
use super::float::{canonical, max_f32, max_nan_f32, min_f32, min_nan_f32, saturate};
use super::lanes::operations;
use super::round;

/// A 16-bit float, represented as an `f32`.
pub(crate) trait Small: Element<Lane = u32> {
    /// The bits of plus infinity.
    const INFINITY: u32;
    /// The exact value.
    fn wide(self) -> f32;
    /// Returns the value, which is rounded on writing.
    fn from_wide(value: f32) -> Self;
    /// Returns the value for `cvt`. In `bf16` NaN keeps its bits, since the conversion only moves bits.
    fn converted(self) -> f32;
    /// Applies an operation of `f32`.
    #[inline(always)]
    fn map(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Self::from_wide(f(self.wide(), b.wide()))
    }
}

impl Small for F16 {
    const INFINITY: u32 = 0x7c00;

    #[inline(always)]
    fn converted(self) -> f32 {
        canonical(self.0)
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        self.0
    }

    #[inline(always)]
    fn from_wide(value: f32) -> Self {
        Self(value)
    }
}

impl Small for Bf16 {
    const INFINITY: u32 = 0x7f80;

    #[inline(always)]
    fn converted(self) -> f32 {
        self.0
    }

    #[inline(always)]
    fn wide(self) -> f32 {
        self.0
    }

    #[inline(always)]
    fn from_wide(value: f32) -> Self {
        Self(value)
    }
}

/// `a * b + c` with a single rounding, whatever the precision of the result.
#[inline(always)]
fn fused<T: Small>(a: T, b: T, c: T) -> T {
    T::from_wide(round::fma_to_odd_f32(a.wide(), b.wide(), c.wide()))
}

/// Returns `result`, or the canonical NaN if `operand` is NaN.
#[inline(always)]
fn ordered<T: Small>(operand: u32, result: u32) -> u32 {
    if operand & 0x7fff > T::INFINITY { 0x7fff } else { result }
}

/// Returns zero for negative values; NaN passes.
#[inline(always)]
fn relu(value: f32) -> f32 {
    if value > 0.0 || value.is_nan() { value } else { 0.0 }
}

/// Rounds `value` towards zero.
#[inline(always)]
fn truncate<T: Small>(value: f32) -> T {
    let nearest = T::from_wide(value).write();
    let back = T::read(nearest).wide();
    T::read(if back.abs() > value.abs() { nearest.wrapping_sub(1) } else { nearest })
}

/// `2^a`, truncated as on the GPU. Too large results are infinite, and an argument below its 23 bits of fraction is zero.
#[inline(always)]
fn power<T: Small>(a: T) -> T {
    let argument = if a.wide().abs() < f32::EPSILON { 0.0 * a.wide() } else { a.wide() };
    let value = super::approx::ex2(argument);
    let rounded = T::from_wide(value).write() & 0x7fff;
    let cut = truncate::<T>(value).write();
    // For `bf16`, the instruction always flushes: subnormal results are zero.
    let flushed = if T::INFINITY == 0x7f80 && cut & 0x7f80 == 0 { 0 } else { cut };
    T::read(if rounded >= T::INFINITY { rounded } else { flushed })
}

/// `tanh(a)`, truncated as on the GPU. Small arguments are their own result.
#[inline(always)]
fn tangent<T: Small>(a: T) -> T {
    let small = a.wide().abs() < 0.003_934;
    let value = super::approx::tanh(a.wide());
    let cut = truncate::<T>(value).write();
    T::read(if small { a.write() } else { cut })
}

operations! {
    /// `add.f16`, `add.bf16`
    Add<T: Small>(T, T) -> T = |a, b| a.map(b, |a, b| a + b);
    /// `sub.f16`, `sub.bf16`
    Sub<T: Small>(T, T) -> T = |a, b| a.map(b, |a, b| a - b);
    /// `mul.f16`, `mul.bf16`
    Mul<T: Small>(T, T) -> T = |a, b| a.map(b, |a, b| a * b);
    /// `add.sat`
    AddSat<T: Small>(T, T) -> T = |a, b| a.map(b, |a, b| saturate(a + b));
    /// `sub.sat`
    SubSat<T: Small>(T, T) -> T = |a, b| a.map(b, |a, b| saturate(a - b));
    /// `mul.sat`
    MulSat<T: Small>(T, T) -> T = |a, b| a.map(b, |a, b| saturate(a * b));
    /// `fma.rn`
    Fma<T: Small>(T, T, T) -> T = |a, b, c| fused(a, b, c);
    /// `fma.rn.sat`
    FmaSat<T: Small>(T, T, T) -> T = |a, b, c| T::from_wide(saturate(fused(a, b, c).wide()));
    /// `fma.rn.relu`
    FmaRelu<T: Small>(T, T, T) -> T = |a, b, c| T::from_wide(relu(fused(a, b, c).wide()));
    /// `min`
    Min<T: Small>(T, T) -> T = |a, b| a.map(b, min_f32);
    /// `max`
    Max<T: Small>(T, T) -> T = |a, b| a.map(b, max_f32);
    /// `min.NaN`
    MinNan<T: Small>(T, T) -> T = |a, b| a.map(b, min_nan_f32);
    /// `max.NaN`
    MaxNan<T: Small>(T, T) -> T = |a, b| a.map(b, max_nan_f32);
    /// `add.f16x2`
    Add2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, |a, b| a + b), a.1.map(b.1, |a, b| a + b));
    /// `sub.f16x2`
    Sub2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, |a, b| a - b), a.1.map(b.1, |a, b| a - b));
    /// `mul.f16x2`
    Mul2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, |a, b| a * b), a.1.map(b.1, |a, b| a * b));
    /// `fma.rn.f16x2`
    Fma2<T: Small>(Two<T>, Two<T>, Two<T>) -> Two<T> = |a, b, c| Two(fused(a.0, b.0, c.0), fused(a.1, b.1, c.1));
    /// `fma.rn.relu.f16x2`
    FmaRelu2<T: Small>(Two<T>, Two<T>, Two<T>) -> Two<T> = |a, b, c| {
        let (low, high) = (fused(a.0, b.0, c.0), fused(a.1, b.1, c.1));
        Two(T::from_wide(relu(low.wide())), T::from_wide(relu(high.wide())))
    };
    /// `min.f16x2`
    Min2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, min_f32), a.1.map(b.1, min_f32));
    /// `max.f16x2`
    Max2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, max_f32), a.1.map(b.1, max_f32));
    /// `min.NaN.f16x2`
    MinNan2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, min_nan_f32), a.1.map(b.1, min_nan_f32));
    /// `max.NaN.f16x2`
    MaxNan2<T: Small>(Two<T>, Two<T>) -> Two<T> = |a, b| Two(a.0.map(b.0, max_nan_f32), a.1.map(b.1, max_nan_f32));
    /// `ex2.approx`
    Ex2<T: Small>(T) -> T = |a| power(a);
    /// `tanh.approx`
    Tanh<T: Small>(T) -> T = |a| tangent(a);
    /// `ex2.approx.f16x2`
    Ex2Pair<T: Small>(Two<T>) -> Two<T> = |a| Two(power(a.0), power(a.1));
    /// `tanh.approx.f16x2`
    TanhPair<T: Small>(Two<T>) -> Two<T> = |a| Two(tangent(a.0), tangent(a.1));
    /// `neg`
    Neg<T: Small>(u32) -> u32 = |a| ordered::<T>(a, (a ^ 0x8000) & 0xffff);
    /// `neg.f16x2`
    Neg2<T: Small>(u32) -> u32 = |a| {
        let (low, high) = (a & 0xffff, a >> 16);
        ordered::<T>(low, low ^ 0x8000) | ordered::<T>(high, high ^ 0x8000) << 16
    };
    /// `abs`
    Abs<T: Small>(u32) -> u32 = |a| ordered::<T>(a, a & 0x7fff);
    /// `abs.f16x2`
    Abs2<T: Small>(u32) -> u32 = |a| {
        let (low, high) = (a & 0xffff, a >> 16);
        ordered::<T>(low, low & 0x7fff) | ordered::<T>(high, high & 0x7fff) << 16
    };
    /// `cvt.rn.f16x2.f32`: the first source goes to the upper half.
    Pack<T: Small>(f32, f32) -> Two<T> = |a, b| Two(T::from_wide(b), T::from_wide(a));
    /// `cvt.rn.relu.f16x2.f32`
    PackRelu<T: Small>(f32, f32) -> Two<T> = |a, b| Two(T::from_wide(relu(b)), T::from_wide(relu(a)));
    /// `cvt.f32.f16`
    Widen<T: Small>(T) -> f32 = |a| a.converted();
    /// `cvt.rn.f16.f32`
    Round<T: Small>(f32) -> T = |a| T::from_wide(a);
    /// `cvt.rn.relu.f16.f32`
    RoundRelu<T: Small>(f32) -> T = |a| T::from_wide(relu(a));
    /// `cvt.rz.f16.f32`: rounds the magnitude down.
    RoundZero<T: Small>(f32) -> T = |a| truncate(a);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alu::half_bits::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
    use crate::alu::lanes::{Binary, Ternary, Unary};

    /// Rounds by comparing with both neighbours, the slow and obvious way.
    fn nearest_f16(value: f32) -> u32 {
        let exact = f64::from(value.abs());
        let step = |bits: u32| f64::from(f16_to_f32(bits));
        let mut low = 0;
        while low < 0x7bff && step(low + 1) <= exact {
            low += 1;
        }
        let limit = if low == 0x7bff { 65_536.0 } else { step(low + 1) };
        let (below, above) = (exact - step(low), limit - exact);
        let up = above < below || (above == below && low & 1 == 1);
        (low + u32::from(up)) | u32::from(value.is_sign_negative()) << 15
    }

    #[test]
    fn every_half_survives_a_round_trip() {
        for bits in (0..0x1_0000).filter(|bits| bits & 0x7fff <= 0x7c00) {
            assert_eq!(f32_to_f16(f16_to_f32(bits)), bits);
            assert_eq!(f32_to_bf16(bf16_to_f32(bits & 0xff80)), bits & 0xff80);
        }
    }

    #[test]
    fn rounding_to_half_is_to_nearest_even() {
        let tiny = 2.0_f32.powi(-24);
        for value in
            [1.0, 1.000_488_3, 1.000_488_4, 65_519.0, 65_520.0, tiny, tiny * 0.5, tiny * 0.500_001, tiny * 1.5, -3.3]
        {
            assert_eq!(f32_to_f16(value), nearest_f16(value), "{value}");
        }
        assert_eq!((f32_to_f16(f32::NAN), f32_to_f16(f32::NEG_INFINITY), f32_to_f16(1e9)), (0x7fff, 0xfc00, 0x7c00));
    }

    #[test]
    fn a_fused_multiply_add_rounds_once() {
        // 1 + 2^-11 + 2^-24 * 1: rounding to f32 first would lose the last bit and round down.
        let (a, b, c) = (F16(f16_to_f32(0x3c01)), F16(f16_to_f32(0x3801)), F16(f16_to_f32(0x0001)));
        let exact = f64::from(a.0) * f64::from(b.0) + f64::from(c.0);
        let rounded = f16_to_f32(Fma::<F16>::apply(a, b, c).write());
        assert!((f64::from(rounded) - exact).abs() <= 2.0_f64.powi(-12));
        assert_eq!(FmaRelu::<F16>::apply(F16(-1.0), F16(1.0), F16(0.0)).write(), 0);
    }

    #[test]
    fn packing_puts_the_first_source_on_top() {
        assert_eq!(Pack::<F16>::apply(1.0, 2.0).write(), 0x3c00_4000);
        assert_eq!(RoundZero::<F16>::apply(1.000_9).write(), 0x3c00);
    }
}
