//! The approximate functions of the GPU's special function unit: `ex2 lg2 sin cos rsqrt tanh`.
//!
//! They are polynomials, exact to about one ulp of `f32`, which is at least as good as the hardware. They have no branches and
//! calls, so that they vectorise. Special values result from the arithmetic or are selected at the end.

use super::float::{canonical, flush};
use super::lanes::operations;

/// `2^x`
#[inline(always)]
pub(crate) fn ex2(x: f32) -> f32 {
    let bounded = if x > 200.0 { 200.0 } else { x };
    let bounded = if bounded < -200.0 { -200.0 } else { bounded };
    // Adding 1.5 * 2^23 rounds to an integer, which then lies in the low bits.
    let magic = 12_582_912.0_f32;
    let shifted = bounded + magic;
    let whole = (shifted.to_bits() as i32).wrapping_sub(magic.to_bits() as i32);
    let fraction = bounded - (shifted - magic);
    // Taylor series of exp(fraction * ln 2), highest power first.
    let mut sum = 1.525_273_4e-5_f32;
    for term in [1.540_353e-4, 1.333_355_8e-3, 9.618_13e-3, 5.550_410_7e-2, 0.240_226_5, std::f32::consts::LN_2, 1.0] {
        sum = sum.mul_add(fraction, term);
    }
    // Two factors, because the exponent may be below that of the smallest normal.
    let half = whole >> 1;
    let power = |exponent: i32| f32::from_bits((exponent.wrapping_add(127) as u32) << 23);
    let value = sum * power(half) * power(whole.wrapping_sub(half));
    canonical(if x.is_nan() { x } else { value })
}

/// Base-2 logarithm.
#[inline(always)]
pub(crate) fn lg2(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 16_777_216.0 } else { x };
    let bits = scaled.to_bits();
    // The mantissa is in sqrt(1/2)..sqrt(2), so that its logarithm is small where the result is.
    let biased = bits.wrapping_sub(0x3f35_04f3);
    let exponent = (biased as i32) >> 23;
    let mantissa = f32::from_bits((biased & 0x007f_ffff).wrapping_add(0x3f35_04f3));
    let ratio = (mantissa - 1.0) / (mantissa + 1.0);
    let square = ratio * ratio;
    // 2 / ln 2 * atanh(ratio)
    let mut sum = 0.262_308_2_f32;
    for term in [0.320_598_9, 0.412_198_6, 0.577_078_04, 0.961_796_7, 2.885_39] {
        sum = sum.mul_add(square, term);
    }
    let offset = if subnormal { -24.0 } else { 0.0 };
    let value = ratio.mul_add(sum, exponent as f32 + offset);
    let value = if x == f32::INFINITY { x } else { value };
    let value = if x == 0.0 { f32::NEG_INFINITY } else { value };
    canonical(if x < 0.0 || x.is_nan() { f32::NAN } else { value })
}

/// Sine of `x` plus `quarter` quarter turns.
#[inline(always)]
fn sine(x: f32, quarter: u64) -> f32 {
    let x = f64::from(x);
    // Adding 1.5 * 2^52 rounds to an integer, which then lies in the low bits.
    let magic = 6_755_399_441_055_744.0_f64;
    let shifted = x * std::f64::consts::FRAC_2_PI + magic;
    let turns = shifted.to_bits().wrapping_add(quarter);
    let whole = shifted - magic;
    let reduced = x - whole * std::f64::consts::FRAC_PI_2 - whole * 6.123_233_995_736_766e-17;
    let square = reduced * reduced;
    let sine = reduced
        + reduced * square * poly(square, [2.755_731_9e-6, -1.984_126_98e-4, 8.333_333_333e-3, -0.166_666_666_67]);
    let cosine = 1.0
        + square
            * poly(square, [-2.755_731_9e-7, 2.480_158_73e-5, -1.388_888_889e-3, 0.041_666_666_667])
                .mul_add(square, -0.5);
    let value = if turns & 1 != 0 { cosine } else { sine };
    canonical((if turns & 2 != 0 { -value } else { value }) as f32)
}

/// Horner's rule, highest power first.
#[inline(always)]
fn poly(x: f64, terms: [f64; 4]) -> f64 {
    terms[0].mul_add(x, terms[1]).mul_add(x, terms[2]).mul_add(x, terms[3])
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let square = x * x;
    // Near zero the quotient below would cancel.
    let small = x * (1.0 - square * (0.333_333_34 - square * 0.133_333_34));
    let large = 1.0 - 2.0 / (ex2(x * 2.885_39) + 1.0);
    canonical(if x.abs() < 0.15 { small } else { large })
}

operations! {
    /// `ex2.approx`
    Ex2 [const FTZ: bool] (f32) -> f32 = |a| flush::<FTZ>(ex2(flush::<FTZ>(a)));
    /// `lg2.approx`
    Lg2 [const FTZ: bool] (f32) -> f32 = |a| lg2(flush::<FTZ>(a));
    /// `sin.approx`: subnormals are zero even without `.ftz`, and the sign of a zero stays.
    Sin [const FTZ: bool] (f32) -> f32 = |a| {
        let a = flush::<true>(a);
        if a == 0.0 { a } else { flush::<FTZ>(sine(a, 0)) }
    };
    /// `cos.approx`
    Cos [const FTZ: bool] (f32) -> f32 = |a| flush::<FTZ>(sine(flush::<FTZ>(a), 1));
    /// `rsqrt.approx`
    Rsqrt [const FTZ: bool] (f32) -> f32 = |a| {
        let a = flush::<FTZ>(a);
        let value = (1.0 / f64::from(a).sqrt()) as f32;
        canonical(value)
    };
    /// `tanh.approx`
    Tanh [const FTZ: bool] (f32) -> f32 = |a| tanh(flush::<FTZ>(a));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alu::lanes::Unary;

    fn close(value: f32, exact: f64, ulps: f64) -> bool {
        let ulp = f64::from((exact as f32).abs().next_up() - (exact as f32).abs());
        (f64::from(value) - exact).abs() <= ulp * ulps
    }

    #[test]
    fn powers_of_two_are_good_to_two_ulps_and_have_their_limits() {
        for step in -15_000..12_799 {
            let x = step as f32 / 100.0 + 0.003;
            assert!(close(ex2(x), f64::from(x).exp2(), 2.0), "{x}: {}", ex2(x));
        }
        assert_eq!((ex2(0.0), ex2(10.0), ex2(-149.0)), (1.0, 1024.0, f32::from_bits(1)));
        assert_eq!((ex2(f32::INFINITY), ex2(f32::NEG_INFINITY), ex2(128.0)), (f32::INFINITY, 0.0, f32::INFINITY));
        assert_eq!((ex2(f32::NAN).to_bits(), Ex2::<true>::apply(-130.0)), (0x7fff_ffff, 0.0));
    }

    #[test]
    fn logarithms_are_good_to_two_ulps_and_have_their_limits() {
        for step in 1..20_000 {
            let x = (step as f32 / 1000.0).powi(3);
            assert!(close(lg2(x), f64::from(x).log2(), 2.5), "{x}: {} {}", lg2(x), f64::from(x).log2());
        }
        assert_eq!((lg2(8.0), lg2(0.0), lg2(f32::INFINITY)), (3.0, f32::NEG_INFINITY, f32::INFINITY));
        assert!(lg2(-1.0).is_nan());
        assert_eq!((lg2(f32::from_bits(1)), Lg2::<true>::apply(f32::from_bits(1))), (-149.0, f32::NEG_INFINITY));
    }

    #[test]
    fn sines_are_good_far_beyond_one_turn() {
        for step in -10_000..10_000 {
            let x = step as f32 / 7.0;
            assert!((f64::from(Sin::<false>::apply(x)) - f64::from(x).sin()).abs() < 1e-7, "{x}");
            assert!((f64::from(Cos::<false>::apply(x)) - f64::from(x).cos()).abs() < 1e-7, "{x}");
        }
        assert_eq!((Sin::<false>::apply(0.0), Cos::<false>::apply(0.0)), (0.0, 1.0));
        assert_eq!(Sin::<false>::apply(f32::INFINITY).to_bits(), 0x7fff_ffff);
    }

    #[test]
    fn tanh_and_rsqrt() {
        for step in -600..600 {
            let x = step as f32 / 50.0;
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() <= 2e-6 * f64::from(x).tanh().abs(), "{x}");
        }
        assert_eq!((Rsqrt::<false>::apply(4.0), Rsqrt::<false>::apply(0.0)), (0.5, f32::INFINITY));
        assert!(Rsqrt::<false>::apply(-1.0).is_nan());
    }
}
