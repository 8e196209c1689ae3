//! Weighted sums of texels, bit for bit as in the texture unit of an H200.
//!
//! All weights are whole 256ths that add up to 256. They are split from direction to direction: if rounding makes one half
//! larger, the other half becomes smaller. Integers are summed as they are. Floats are first aligned to the largest one with a
//! weight, with a few bits to spare; the bits below are cut off. The sum itself is exact, and rounded once, half away from zero.

use super::coordinate::Pair;

/// Largest number of texels in a weighted sum.
pub(crate) const MAX_FILTER_TEXELS: usize = 8;

/// Number of bits that an aligned float keeps below the last place of the largest one.
const SPARE_BITS: i32 = 4;

/// Number of bits in a mantissa in single precision.
pub(crate) const SINGLE_MANTISSA_BITS: u32 = 24;

/// Number of bits in a mantissa in half precision.
pub(crate) const HALF_MANTISSA_BITS: u32 = 11;

/// Number of bits behind the point of a weight.
const WEIGHT_FRACTION_BITS: i32 = 8;

/// Number of texels that are aligned to each other: a cell is summed plane by plane.
pub(crate) const PLANE_TEXELS: usize = 4;

/// Bits of the NaN that filtering returns.
const FILTER_NAN_BITS: u32 = 0x7fff_ffff;

/// Returns the product of two numbers of 256ths, rounded half up.
fn share(whole: u32, part: u32) -> u32 {
    (whole * part + 128) >> 8
}

/// Returns the weights of a cell's corners, whose sum is `whole`; the index of a corner is `x + 2 y + 4 z`.
pub(crate) fn weights(x: Pair, y: Pair, z: Pair, whole: u32) -> [u32; MAX_FILTER_TEXELS] {
    let mut weights = [0; MAX_FILTER_TEXELS];
    let far = share(whole, z.weight);
    for (plane, of_plane) in [whole - far, far].into_iter().enumerate() {
        let right = share(of_plane, x.weight);
        let left = of_plane - right;
        let (left_low, right_high) = (share(left, 256 - y.weight), share(right, y.weight));
        let corners = &mut weights[4 * plane..4 * plane + 4];
        corners.copy_from_slice(&[left_low, right - right_high, left - left_low, right_high]);
    }
    weights
}

/// Returns a sum of integers in 256ths.
fn total(texels: impl Iterator<Item = i64>, weights: &[u32]) -> i64 {
    texels.zip(weights).map(|(texel, weight)| texel * i64::from(*weight)).sum()
}

/// Returns a sum of integers, rounded half up.
pub(crate) fn integers(texels: impl Iterator<Item = i32>, weights: &[u32]) -> i32 {
    ((total(texels.map(i64::from), weights) + 128) >> WEIGHT_FRACTION_BITS) as i32
}

/// Returns a sum of integers, rounded down, as for 32-bit integers.
pub(crate) fn cut(texels: impl Iterator<Item = i64>, weights: &[u32]) -> i64 {
    total(texels, weights) >> WEIGHT_FRACTION_BITS
}

/// Returns a sum of signed 8-bit integers, spread over 16 bits: a 127th is 258 and a little. About one result in twenty is off by
/// one in the 16th bit.
pub(crate) fn spread(texels: impl Iterator<Item = i32>, weights: &[u32]) -> i32 {
    let sum = total(texels.map(i64::from), weights);
    ((sum * 258 + (sum >> 7) + 128) >> WEIGHT_FRACTION_BITS) as i32
}

/// Returns mantissa and exponent of a float: its value is `mantissa * 2^exponent`, with the sign in the mantissa. Denormals are
/// zero.
fn parts(bits: u32) -> (i64, i32) {
    let exponent = (bits >> 23 & 0xff).cast_signed();
    if exponent == 0 {
        return (0, i32::MIN);
    }
    let mantissa = i64::from(bits & 0x7f_ffff | 0x80_0000);
    (if bits >> 31 != 0 { -mantissa } else { mantissa }, exponent - 150)
}

/// Returns the sum if not all texels are finite; `None` if they are.
fn special(texels: &[u32], weights: &[u32]) -> Option<u32> {
    let (mut infinite, mut nan) = (None, false);
    for bits in texels.iter().zip(weights).filter(|(_, weight)| **weight != 0).map(|(bits, _)| *bits) {
        if bits & 0x7f80_0000 == 0x7f80_0000 {
            nan |= bits & 0x7f_ffff != 0 || infinite.is_some_and(|other| other != bits);
            infinite = Some(bits);
        }
    }
    if nan { Some(FILTER_NAN_BITS) } else { infinite }
}

/// Returns the sum of the texels in one plane of a cell, aligned within the plane, and its exponent.
fn plane(texels: &[u32], weights: &[u32], precision: u32) -> Option<(i64, i32)> {
    let counting = || texels.iter().zip(weights).filter(|(_, weight)| **weight != 0);
    let largest = counting().map(|(bits, _)| parts(*bits).1).max().filter(|exponent| *exponent != i32::MIN)?;
    let base = largest + (SINGLE_MANTISSA_BITS - precision).cast_signed() - SPARE_BITS;
    let aligned = |bits: u32| {
        let (mantissa, exponent) = parts(bits);
        match exponent.saturating_sub(base) {
            shift @ 0.. => mantissa << shift,
            // Bits are cut from magnitudes, so the value goes towards zero.
            shift => mantissa.signum() * (mantissa.abs() >> shift.unsigned_abs().min(63)),
        }
    };
    let sum = counting().map(|(bits, weight)| aligned(*bits) * i64::from(*weight)).sum();
    Some((sum, base - WEIGHT_FRACTION_BITS))
}

/// Returns a sum of floats, rounded to `precision` bits of mantissa: `SINGLE_MANTISSA_BITS` or `HALF_MANTISSA_BITS`.
pub(crate) fn floats(texels: &[u32], weights: &[u32], precision: u32) -> u32 {
    if let Some(bits) = special(texels, weights) {
        return bits;
    }
    let planes = texels.chunks(PLANE_TEXELS).zip(weights.chunks(PLANE_TEXELS));
    let sums = planes.filter_map(|(texels, weights)| plane(texels, weights, precision));
    let total = sums.fold(None, |total: Option<(i64, i32)>, next| match total {
        None => Some(next),
        Some(sum) => Some(add(sum, next)),
    });
    match total {
        Some((sum, exponent)) if sum != 0 => round(sum, exponent, precision),
        // A sum of zeroes keeps their sign if it is the same for all.
        _ => {
            let counting = texels.iter().zip(weights).filter(|(_, weight)| **weight != 0);
            counting.fold(1 << 31, |sign, (bits, _)| sign & bits)
        }
    }
}

/// Adds two sums; the bits of the smaller one that do not fit are cut.
fn add(a: (i64, i32), b: (i64, i32)) -> (i64, i32) {
    let (large, small) = if a.1 >= b.1 { (a, b) } else { (b, a) };
    // A plane has at most 38 bits, so that this many more fit.
    let shift = (large.1 - small.1).min(20);
    let excess = (large.1 - small.1 - shift).min(63);
    ((large.0 << shift) + (small.0 >> excess), large.1 - shift)
}

/// Returns the float nearest to `sum * 2^exponent`, rounded half away from zero.
fn round(sum: i64, exponent: i32, precision: u32) -> u32 {
    let magnitude = sum.unsigned_abs();
    let bits = 64 - magnitude.leading_zeros();
    let extra = bits.saturating_sub(precision);
    let rounded = if extra == 0 { magnitude } else { ((magnitude >> (extra - 1)) + 1) >> 1 };
    let value = rounded as f64 * f64::from(exponent + extra.cast_signed()).exp2();
    let value = if sum < 0 { -value } else { value } as f32;
    // Denormal results become zero as well.
    if value.is_subnormal() { value.to_bits() & 1 << 31 } else { value.to_bits() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(weight: u32) -> Pair {
        Pair { low: Some(0), high: Some(1), weight }
    }

    #[test]
    fn weights_are_those_of_an_h200() {
        assert_eq!(weights(pair(38), pair(17), pair(36), 256), [175, 31, 12, 2, 29, 5, 2, 0]);
        assert_eq!(weights(pair(88), pair(192), pair(96), 256), [26, 14, 79, 41, 16, 8, 47, 25]);
        for seed in 0..2000_u32 {
            let part = |step: u32| pair(seed.wrapping_mul(2_654_435_761).rotate_right(step) & 255);
            assert_eq!(weights(part(0), part(9), part(17), 256).iter().sum::<u32>(), 256);
        }
    }

    #[test]
    fn integers_round_half_up_whatever_their_sign() {
        let sum = |texels: [i32; 2], weights: [u32; 2]| integers(texels.into_iter(), &weights);
        assert_eq!((sum([0, 1], [128, 128]), sum([0, -1], [128, 128])), (1, 0));
        assert_eq!(sum([-9992, 12140], [224, 32]), -7225);
    }

    #[test]
    fn floats_are_aligned_cut_summed_and_rounded_away_from_zero() {
        let sum = |texels: [f32; 2], weights: [u32; 2]| {
            f32::from_bits(floats(&texels.map(f32::to_bits), &weights, SINGLE_MANTISSA_BITS))
        };
        assert_eq!(sum([1.0, 3.0], [128, 128]), 2.0);
        assert_eq!(sum([3e38, 3e38], [100, 156]), 3e38);
        assert_eq!(sum([1e30, 1e-30], [0, 256]), 1e-30, "what does not count does not align");
        assert_eq!(
            f32::from_bits(floats(&[(-61.75_f32).to_bits(), (-82.0_f32).to_bits()], &[224, 32], HALF_MANTISSA_BITS)),
            -64.3125
        );
    }

    #[test]
    fn infinities_stay_and_meet_as_nan() {
        let (plus, minus) = (f32::INFINITY.to_bits(), f32::NEG_INFINITY.to_bits());
        assert_eq!(floats(&[plus, 0], &[1, 255], SINGLE_MANTISSA_BITS), plus);
        assert_eq!(floats(&[plus, 0x3f80_0000], &[0, 256], SINGLE_MANTISSA_BITS), 0x3f80_0000);
        assert_eq!(floats(&[plus, minus], &[1, 255], SINGLE_MANTISSA_BITS), FILTER_NAN_BITS);
        assert_eq!(floats(&[0x7fc0_0000, 0], &[1, 255], SINGLE_MANTISSA_BITS), FILTER_NAN_BITS);
    }
}
