//! `f32` and `f64` arithmetic with the roundings and modifiers of PTX.
//!
//! An `f32` result that is NaN is always `0x7fffffff`, as on the GPU. The CPU would return a negative one, which prints
//! differently. An `f64` NaN passes through with its payload. `FTZ` flushes subnormal operands and results to zero of the same
//! sign; `SAT` clamps to 0..1.

use super::lanes::operations;
use super::round::{self, mode};

/// The NaN of every `f32` operation of the GPU.
pub(crate) const GPU_NAN: f32 = f32::from_bits(0x7fff_ffff);

/// Replaces any NaN by the canonical one. It works on bits, because all NaN are the same to the compiler.
#[inline(always)]
pub(crate) fn canonical(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { 0x7fff_ffff } else { bits })
}

/// Replaces any NaN among the results of the approximate `f64` instructions, which have 32 significant bits.
#[inline(always)]
fn canonical_upper(value: f64) -> f64 {
    let bits = value.to_bits();
    f64::from_bits(if bits & !(1 << 63) > 0x7ff0_0000_0000_0000 { 0x7fff_ffff_0000_0000 } else { bits })
}

/// Flushes a subnormal to zero of the same sign, if `FTZ`.
#[inline(always)]
pub(crate) fn flush<const FTZ: bool>(value: f32) -> f32 {
    let bits = value.to_bits();
    let flushed = if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits };
    if FTZ { f32::from_bits(flushed) } else { value }
}

/// Clamps to 0..1; NaN becomes 0.
#[inline(always)]
pub(crate) fn saturate(value: f32) -> f32 {
    let low = if value > 0.0 { value } else { 0.0 };
    if low < 1.0 { low } else { 1.0 }
}

/// Finishes every `f32` operation: canonical NaN, flush, clamp.
#[inline(always)]
fn finish<const FTZ: bool, const SAT: bool>(value: f32) -> f32 {
    let value = flush::<FTZ>(value);
    if SAT { saturate(value) } else { canonical(value) }
}

/// Scale of operands, so that their product is not subnormal: `2^64`.
const SQUARE_SCALE: f32 = 18_446_744_073_709_551_616.0;

/// Returns `a` and `b`, the smaller one scaled.
#[inline(always)]
fn scaled(a: f32, b: f32) -> (f32, f32) {
    if a.abs() < 1.0 { (a * SQUARE_SCALE, b) } else { (a, b * SQUARE_SCALE) }
}

/// Returns `value`, or zero of its sign if it is subnormal before rounding. The GPU flushes by the exponent of the unrounded
/// result with a sufficient range. `large`, the scaled result, has that exponent.
#[inline(always)]
fn without_tiny(value: f32, large: f32) -> f32 {
    let tiny = large.abs() < f32::MIN_POSITIVE * SQUARE_SCALE;
    if tiny { f32::from_bits(value.to_bits() & 0x8000_0000) } else { value }
}

/// Picks the bits of `a` or `b` by a comparison that is false for NaN.
macro_rules! min_max {
    ($($(#[$doc:meta])* $name:ident: $ty:ty, |$x:ident, $y:ident| $equal:expr, $less:tt, $finish:path;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name($x: $ty, $y: $ty) -> $ty {
            let ordered = if $x $less $y { $x.to_bits() } else { $y.to_bits() };
            // Zeroes of both signs compare equal, so join their sign bits.
            let value = if $x == $y { $equal } else { ordered };
            let value = if $y.is_nan() { $x.to_bits() } else { value };
            let value = if $x.is_nan() { $y.to_bits() } else { value };
            $finish(<$ty>::from_bits(value))
        }
    )*};
}

min_max! {
    /// The smaller `f32`; a number beats NaN; -0 is below +0.
    min_f32: f32, |x, y| x.to_bits() | y.to_bits(), <, canonical;
    /// The larger `f32`; a number beats NaN; +0 is above -0.
    max_f32: f32, |x, y| x.to_bits() & y.to_bits(), >, canonical;
    /// The smaller `f64`.
    min_f64: f64, |x, y| x.to_bits() | y.to_bits(), <, quieted;
    /// The larger `f64`.
    max_f64: f64, |x, y| x.to_bits() & y.to_bits(), >, quieted;
}

/// The smaller `f32`; NaN wins.
#[inline(always)]
pub(crate) fn min_nan_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() | b.is_nan() { GPU_NAN } else { min_f32(a, b) }
}

/// The larger `f32`; NaN wins.
#[inline(always)]
pub(crate) fn max_nan_f32(a: f32, b: f32) -> f32 {
    if a.is_nan() | b.is_nan() { GPU_NAN } else { max_f32(a, b) }
}

/// Returns the magnitude of `value` with the product of two signs.
#[inline(always)]
fn with_joined_signs(a: f32, b: f32, value: f32) -> f32 {
    let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
    if value.is_nan() { value } else { f32::from_bits(value.to_bits() ^ sign) }
}

/// Returns the upper half of an `f64`, which the approximate `f64` instructions read and produce.
#[inline(always)]
fn upper(value: f64) -> f64 {
    f64::from_bits(value.to_bits() & 0xffff_ffff_0000_0000)
}

/// The bit that makes a NaN quiet.
const QUIET_NAN_BIT: u64 = 1 << 51;

/// Returns whether these are the bits of a NaN.
#[inline(always)]
fn is_nan_f64(bits: u64) -> bool {
    bits & !(1 << 63) > 0x7ff0_0000_0000_0000
}

/// Returns `result`, or `operand` as a quiet NaN if it is one. Of several NaN, the GPU takes the last factor or term. In a fused
/// multiply-add, it takes the addend after the second factor. The CPU, or the compiler, takes another one.
#[inline(always)]
fn second_nan(operand: f64, result: f64) -> f64 {
    if operand.is_nan() { quiet_f64(operand) } else { result }
}

/// Makes a NaN quiet. It works on bits, because all NaN are the same to the compiler.
#[inline(always)]
fn quiet_f64(nan: f64) -> f64 {
    f64::from_bits(nan.to_bits() | QUIET_NAN_BIT)
}

/// Makes a NaN quiet, and leaves other values.
#[inline(always)]
fn quieted(value: f64) -> f64 {
    if value.is_nan() { quiet_f64(value) } else { value }
}

/// Flushes a subnormal `f64` to zero.
#[inline(always)]
fn flush_f64(value: f64) -> f64 {
    let bits = value.to_bits();
    f64::from_bits(if (bits >> 52) & 0x7ff == 0 { bits & (1 << 63) } else { bits })
}

operations! {
    /// `add.f32`
    AddF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32, f32) -> f32 = |a, b| {
        finish::<FTZ, SAT>(round::add_f32::<MODE>(flush::<FTZ>(a), flush::<FTZ>(b)))
    };
    /// `sub.f32`
    SubF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32, f32) -> f32 = |a, b| {
        finish::<FTZ, SAT>(round::add_f32::<MODE>(flush::<FTZ>(a), -flush::<FTZ>(b)))
    };
    /// `mul.f32`
    MulF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32, f32) -> f32 = |a, b| {
        let (a, b) = (flush::<FTZ>(a), flush::<FTZ>(b));
        let value = round::mul_f32::<MODE>(a, b);
        let (large_a, large_b) = scaled(a, b);
        finish::<FTZ, SAT>(if FTZ { without_tiny(value, round::mul_f32::<MODE>(large_a, large_b)) } else { value })
    };
    /// `fma.f32`, `mad.f32`
    FmaF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32, f32, f32) -> f32 = |a, b, c| {
        let (a, b, c) = (flush::<FTZ>(a), flush::<FTZ>(b), flush::<FTZ>(c));
        let value = round::fma_f32::<MODE>(a, b, c);
        let (large_a, large_b) = scaled(a, b);
        finish::<FTZ, SAT>(if FTZ {
            without_tiny(value, round::fma_f32::<MODE>(large_a, large_b, c * SQUARE_SCALE))
        } else {
            value
        })
    };
    /// `mul.f32` and `add.f32` in one, with optional negations of the product and of the addend.
    ContractedF32 [const FTZ: bool, const SAT: bool, const NEGATIVE: bool, const SUBTRACTS: bool] (f32, f32, f32) -> f32 = |a, b, c| {
        let (a, c) = (if NEGATIVE { -a } else { a }, if SUBTRACTS { -c } else { c });
        FmaF32::<{ mode::NEAREST }, FTZ, SAT>::apply(a, b, c)
    };
    /// `div.f32`
    DivF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32, f32) -> f32 = |a, b| {
        let (a, b) = (flush::<FTZ>(a), flush::<FTZ>(b));
        let value = round::div_f32::<MODE>(a, b);
        let large = if a.abs() < SQUARE_SCALE / 2.0 { round::div_f32::<MODE>(a * SQUARE_SCALE, b) } else { 1.0 };
        finish::<FTZ, SAT>(if FTZ { without_tiny(value, large) } else { value })
    };
    /// `sqrt.f32`
    SqrtF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32) -> f32 = |a| {
        finish::<FTZ, SAT>(round::sqrt_f32::<MODE>(flush::<FTZ>(a)))
    };
    /// `rcp.f32`: subnormal results are flushed before rounding.
    RcpF32 [const MODE: u8, const FTZ: bool, const SAT: bool] (f32) -> f32 = |a| {
        let value = round::div_f32::<MODE>(1.0, flush::<FTZ>(a));
        let tiny = FTZ && a.abs() > f32::from_bits(0x7e80_0000);
        finish::<FTZ, SAT>(if tiny { value * 0.0 } else { value })
    };
    /// `div.approx.f32`: a divisor above 2^126 gives zero (or NaN for an infinite dividend).
    DivApproxF32 [const FTZ: bool] (f32, f32) -> f32 = |a, b| {
        let (a, b) = (flush::<FTZ>(a), flush::<FTZ>(b));
        let huge = b.abs() > f32::from_bits(0x7e80_0000) && b.abs() < f32::INFINITY;
        let zero = f32::from_bits((a.to_bits() ^ b.to_bits()) & 0x8000_0000);
        let beyond = if a.is_finite() { zero } else { GPU_NAN };
        finish::<FTZ, false>(if huge { beyond } else { a / b })
    };
    /// `min.f32`
    MinF32 [const FTZ: bool, const NAN_WINS: bool] (f32, f32) -> f32 = |a, b| {
        let (a, b) = (flush::<FTZ>(a), flush::<FTZ>(b));
        if NAN_WINS { min_nan_f32(a, b) } else { min_f32(a, b) }
    };
    /// `max.f32`
    MaxF32 [const FTZ: bool, const NAN_WINS: bool] (f32, f32) -> f32 = |a, b| {
        let (a, b) = (flush::<FTZ>(a), flush::<FTZ>(b));
        if NAN_WINS { max_nan_f32(a, b) } else { max_f32(a, b) }
    };
    /// `min.xorsign.abs.f32`: the minimum of the magnitudes, with both signs joined.
    MinXorsignF32 [const FTZ: bool, const NAN_WINS: bool] (f32, f32) -> f32 = |a, b| {
        with_joined_signs(a, b, MinF32::<FTZ, NAN_WINS>::apply(a.abs(), b.abs()))
    };
    /// `max.xorsign.abs.f32`
    MaxXorsignF32 [const FTZ: bool, const NAN_WINS: bool] (f32, f32) -> f32 = |a, b| {
        with_joined_signs(a, b, MaxF32::<FTZ, NAN_WINS>::apply(a.abs(), b.abs()))
    };
    /// `neg.f32`
    NegF32 [const FTZ: bool] (f32) -> f32 = |a| canonical(-flush::<FTZ>(a));
    /// `abs.f32`
    AbsF32 [const FTZ: bool] (f32) -> f32 = |a| canonical(flush::<FTZ>(a).abs());
    /// `copysign.f32`: the sign of the first on the second.
    CopysignF32(u32, u32) -> u32 = |a, b| (a & 0x8000_0000) | (b & 0x7fff_ffff);
    /// `add.f64`
    AddF64 [const MODE: u8] (f64, f64) -> f64 = |a, b| second_nan(b, round::add_f64::<MODE>(a, b));
    /// `sub.f64`
    SubF64 [const MODE: u8] (f64, f64) -> f64 = |a, b| second_nan(b, round::add_f64::<MODE>(a, -b));
    /// `mul.f64`
    MulF64 [const MODE: u8] (f64, f64) -> f64 = |a, b| second_nan(b, round::mul_f64::<MODE>(a, b));
    /// `fma.f64`
    FmaF64 [const MODE: u8] (f64, f64, f64) -> f64 = |a, b, c| {
        second_nan(b, second_nan(c, second_nan(a, round::fma_f64::<MODE>(a, b, c))))
    };
    /// `mul.f64` and `add.f64` in one.
    ContractedF64 [const NEGATIVE: bool, const SUBTRACTS: bool] (f64, f64, f64) -> f64 = |a, b, c| {
        let (a, c) = (if NEGATIVE { -a } else { a }, if SUBTRACTS { -c } else { c });
        FmaF64::<{ mode::NEAREST }>::apply(a, b, c)
    };
    /// `div.f64`
    DivF64 [const MODE: u8] (f64, f64) -> f64 = |a, b| round::div_f64::<MODE>(a, b);
    /// `sqrt.f64`
    SqrtF64 [const MODE: u8] (f64) -> f64 = |a| round::sqrt_f64::<MODE>(a);
    /// `rcp.f64`
    RcpF64 [const MODE: u8] (f64) -> f64 = |a| round::div_f64::<MODE>(1.0, a);
    /// `rcp.approx.ftz.f64`: the upper half of the reciprocal of the upper half.
    RcpApproxF64(f64) -> f64 = |a| canonical_upper(upper(flush_f64(1.0 / flush_f64(upper(a)))));
    /// `rsqrt.approx.f64`
    RsqrtApproxF64(f64) -> f64 = |a| 1.0 / a.sqrt();
    /// `rsqrt.approx.ftz.f64`
    RsqrtApproxFtzF64(f64) -> f64 = |a| canonical_upper(upper(flush_f64(1.0 / flush_f64(upper(a)).sqrt())));
    /// `min.f64`
    MinF64(f64, f64) -> f64 = |a, b| min_f64(a, b);
    /// `max.f64`
    MaxF64(f64, f64) -> f64 = |a, b| max_f64(a, b);
    /// `neg.f64`: a NaN keeps its sign, since the GPU subtracts.
    NegF64(u64) -> u64 = |a| if is_nan_f64(a) { a | QUIET_NAN_BIT } else { a ^ (1 << 63) };
    /// `abs.f64`: a NaN keeps its sign.
    AbsF64(u64) -> u64 = |a| if is_nan_f64(a) { a | QUIET_NAN_BIT } else { a & !(1 << 63) };
    /// `copysign.f64`
    CopysignF64(u64, u64) -> u64 = |a, b| (a & (1 << 63)) | (b & !(1 << 63));
}

/// The rounding modes as constants, for callers that match on modifiers.
pub(crate) use mode::{DOWN, NEAREST, UP, ZERO};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alu::lanes::{Binary, Ternary, Unary};

    #[test]
    fn nan_results_are_canonical() {
        assert_eq!(AddF32::<0, false, false>::apply(f32::INFINITY, f32::NEG_INFINITY).to_bits(), 0x7fff_ffff);
        assert_eq!(SqrtF32::<0, false, false>::apply(-1.0).to_bits(), 0x7fff_ffff);
        assert_eq!(FmaF32::<2, false, false>::apply(0.0, f32::INFINITY, 1.0).to_bits(), 0x7fff_ffff);
    }

    #[test]
    fn flushing_and_saturation() {
        let tiny = f32::from_bits(1);
        assert_eq!(AddF32::<0, true, false>::apply(-tiny, 0.0).to_bits(), 0);
        assert_eq!(MulF32::<0, true, false>::apply(-1e-30, 1e-10).to_bits(), 0x8000_0000);
        assert_eq!(AddF32::<0, false, false>::apply(tiny, 0.0), tiny);
        // Rounded as a subnormal number this would be the smallest normal one.
        let below = f32::from_bits(0x00ff_ffff);
        assert_eq!(
            (MulF32::<0, false, false>::apply(below, 0.5), MulF32::<0, true, false>::apply(below, 0.5)),
            (f32::MIN_POSITIVE, 0.0)
        );
        assert_eq!(
            (FmaF32::<0, true, false>::apply(below, 0.5, 0.0), DivF32::<0, true, false>::apply(below, 2.0)),
            (0.0, 0.0)
        );
        assert_eq!(MulF32::<0, true, false>::apply(f32::MIN_POSITIVE, 1.0), f32::MIN_POSITIVE);
        assert_eq!((saturate(f32::NAN), saturate(-2.0), saturate(2.0), saturate(0.25)), (0.0, 0.0, 1.0, 0.25));
    }

    #[test]
    fn minimum_and_maximum_order_zeroes_and_ignore_nan() {
        assert_eq!(min_f32(0.0, -0.0).to_bits(), 0x8000_0000);
        assert_eq!(max_f64(-0.0, 0.0).to_bits(), 0);
        assert_eq!((min_f32(f32::NAN, 3.0), max_f64(3.0, f64::NAN)), (3.0, 3.0));
        assert_eq!(min_f32(f32::NAN, -f32::NAN).to_bits(), 0x7fff_ffff);
        assert!(MinF32::<false, true>::apply(1.0, f32::NAN).is_nan());
    }

    #[test]
    fn approximate_division_underflows_for_huge_divisors() {
        assert_eq!(DivApproxF32::<false>::apply(1e38, 2e38), 0.0);
        assert!(DivApproxF32::<false>::apply(f32::INFINITY, 2e38).is_nan());
        assert_eq!(DivApproxF32::<false>::apply(6.0, 3.0), 2.0);
        assert_eq!(RcpApproxF64::apply(2.0), 0.5);
    }
}
