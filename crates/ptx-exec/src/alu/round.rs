//! Roundings that the CPU lacks: towards zero, up and down, and to odd.
//!
//! A result rounded *to odd* at a higher precision can be rounded again correctly in any direction. Sums and products of `f32`
//! are rounded to odd in `f64` from the exact error of the operation, without a branch.

/// Directions of rounding.
pub(crate) mod mode {
    /// To nearest, ties to even.
    pub(crate) const NEAREST: u8 = 0;
    /// Towards zero.
    pub(crate) const ZERO: u8 = 1;
    /// Towards minus infinity.
    pub(crate) const DOWN: u8 = 2;
    /// Towards plus infinity.
    pub(crate) const UP: u8 = 3;
}

/// Returns the exact error of `sum = a + b` rounded to nearest.
#[inline(always)]
fn two_sum_error(a: f64, b: f64, sum: f64) -> f64 {
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

/// Moves `value`, whose exact value is `value + error`, to the neighbour with an odd last bit unless it is exact.
#[inline(always)]
fn to_odd(value: f64, error: f64) -> f64 {
    let bits = value.to_bits();
    let inexact = error != 0.0 && !error.is_nan();
    let even = bits & 1 == 0;
    // Away from zero when the error has the sign of the value.
    let away = (error > 0.0) == (value > 0.0);
    let step = if away { 1_u64 } else { u64::MAX };
    f64::from_bits(if inexact & even { bits.wrapping_add(step) } else { bits })
}

/// `a + b`, rounded to odd at `f64` precision. Operands that came from `f32` cannot overflow.
#[inline(always)]
fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    to_odd(sum, two_sum_error(a, b, sum))
}

/// Rounds `value` in the direction `MODE`. It must be exact or rounded to odd.
#[inline(always)]
pub(crate) fn narrow<const MODE: u8>(value: f64) -> f32 {
    let nearest = value as f32;
    let bits = nearest.to_bits();
    let back = f64::from(nearest);
    // One step of the bit pattern is one ulp of the magnitude.
    let (too_low, too_high) = (back < value, back > value);
    let negative = nearest.is_sign_negative();
    let move_up = (MODE == mode::UP && too_low) || (MODE == mode::ZERO && too_low && negative);
    let move_down = (MODE == mode::DOWN && too_high) || (MODE == mode::ZERO && too_high && !negative);
    let up = if negative { bits.wrapping_sub(1) } else { bits.wrapping_add(1) };
    let down = if negative { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f32::from_bits(if move_up {
        up
    } else if move_down {
        down
    } else {
        bits
    })
}

/// Corrects the sign of an exact zero sum: minus only when rounding down, or when both terms are negative.
#[inline(always)]
fn zero_sign<const MODE: u8>(result: f32, a: f64, b: f64) -> f32 {
    let opposite = a.is_sign_negative() != b.is_sign_negative();
    if MODE == mode::DOWN && result == 0.0 && a == -b && opposite { -0.0 } else { result }
}

/// `a + b` in `f32`.
#[inline(always)]
pub(crate) fn add_f32<const MODE: u8>(a: f32, b: f32) -> f32 {
    if MODE == mode::NEAREST {
        return a + b;
    }
    let (a, b) = (f64::from(a), f64::from(b));
    zero_sign::<MODE>(narrow::<MODE>(sum_to_odd(a, b)), a, b)
}

/// `a * b` in `f32`; the product of two `f32` is exact in `f64`.
#[inline(always)]
pub(crate) fn mul_f32<const MODE: u8>(a: f32, b: f32) -> f32 {
    if MODE == mode::NEAREST { a * b } else { narrow::<MODE>(f64::from(a) * f64::from(b)) }
}

/// `a * b + c` in `f32` with one rounding.
#[inline(always)]
pub(crate) fn fma_f32<const MODE: u8>(a: f32, b: f32, c: f32) -> f32 {
    if MODE == mode::NEAREST {
        return a.mul_add(b, c);
    }
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    zero_sign::<MODE>(narrow::<MODE>(sum_to_odd(product, c)), product, c)
}

/// `a * b + c`, rounded to odd at `f32` precision, to be rounded again to a 16-bit type.
#[inline(always)]
pub(crate) fn fma_to_odd_f32(a: f32, b: f32, c: f32) -> f32 {
    f64_to_f32_odd(sum_to_odd(f64::from(a) * f64::from(b), f64::from(c)))
}

/// `value` rounded to odd at `f32` precision.
#[inline(always)]
pub(crate) fn f64_to_f32_odd(value: f64) -> f32 {
    let cut = narrow::<{ mode::ZERO }>(value);
    let inexact = f64::from(cut) != value && !value.is_nan();
    f32::from_bits(cut.to_bits() | u32::from(inexact))
}

/// `a / b` in `f32`. The remainder of a quotient is exact, so its sign tells the side of the quotient.
#[inline(always)]
pub(crate) fn div_f32<const MODE: u8>(a: f32, b: f32) -> f32 {
    if MODE == mode::NEAREST {
        return a / b;
    }
    // The 53 bits of the quotient, made odd if inexact: the error is `-remainder / b`.
    let (a, b) = (f64::from(a), f64::from(b));
    let quotient = a / b;
    let remainder = (-quotient).mul_add(b, a);
    narrow::<MODE>(to_odd(quotient, remainder / b))
}

/// Square root in `f32`.
#[inline(always)]
pub(crate) fn sqrt_f32<const MODE: u8>(a: f32) -> f32 {
    if MODE == mode::NEAREST {
        return a.sqrt();
    }
    let a = f64::from(a);
    let root = a.sqrt();
    narrow::<MODE>(to_odd(root, (-root).mul_add(root, a)))
}

/// Returns the `f64` next to `value`, towards plus infinity if `up`, else towards minus infinity.
fn step(value: f64, up: bool) -> f64 {
    if up { value.next_up() } else { value.next_down() }
}

/// Corrects `nearest`. Its distance from the exact result has the sign of `error`.
fn direct<const MODE: u8>(nearest: f64, error: f64) -> f64 {
    let towards_up = match MODE {
        mode::UP => true,
        mode::DOWN => false,
        _ => nearest < 0.0 || (nearest == 0.0 && error < 0.0),
    };
    if nearest.is_nan() || error == 0.0 || error.is_nan() {
        return nearest;
    }
    if nearest.is_infinite() {
        // Overflow: the exact value is finite, and `error` points towards it.
        return if (nearest > 0.0) == towards_up { nearest } else { step(nearest, towards_up) };
    }
    if (error > 0.0) == towards_up { step(nearest, towards_up) } else { nearest }
}

/// The sign of `a * b + c - nearest`, computed exactly, for rounding in any direction.
///
/// The product has up to 106 bits, and product and addend may be any distance apart.
fn fma_sign_of_error(a: f64, b: f64, c: f64, nearest: f64) -> f64 {
    let scale = |value: f64| -> (i128, i32) {
        let bits = value.to_bits();
        let exponent = ((bits >> 52) & 0x7ff) as i32;
        let fraction = i128::from(bits & ((1 << 52) - 1));
        let mantissa = if exponent == 0 { fraction } else { fraction | (1 << 52) };
        (if value.is_sign_negative() { -mantissa } else { mantissa }, exponent.max(1) - 1075)
    };
    let ((a, a_exponent), (b, b_exponent)) = (scale(a), scale(b));
    let mut terms = [(a * b, a_exponent + b_exponent), scale(c), scale(-nearest)];
    sign_of_sum(&mut terms)
}

/// The sign of the sum of `mantissa * 2^exponent`, as -1, 0 or 1.
fn sign_of_sum(terms: &mut [(i128, i32); 3]) -> f64 {
    let lowest = terms.iter().filter(|term| term.0 != 0).map(|term| term.1).min().unwrap_or(0);
    // Little-endian limbs of 32 bits in i64 hold any sum of shifted terms: exponents differ by less than 4,400 bits.
    let mut limbs = [0_i64; 148];
    for (mantissa, exponent) in terms {
        if *mantissa != 0 {
            add_shifted(&mut limbs, *mantissa, (*exponent - lowest) as usize);
        }
    }
    let mut carry = 0_i64;
    for limb in &mut limbs {
        let sum = *limb + carry;
        *limb = sum & 0xffff_ffff;
        carry = sum >> 32;
    }
    let nonzero = limbs.iter().any(|limb| *limb != 0);
    if carry < 0 { -1.0 } else { f64::from(u8::from(nonzero || carry > 0)) }
}

/// Adds `mantissa << shift` to the limbs, each of which takes a signed part.
fn add_shifted(limbs: &mut [i64; 148], mantissa: i128, shift: usize) {
    let sign = if mantissa < 0 { -1 } else { 1 };
    let mut remaining = mantissa.unsigned_abs();
    let (mut index, bit) = (shift / 32, shift % 32);
    let first = (remaining << bit) as u32;
    remaining >>= 32 - bit;
    for part in std::iter::once(first).chain((0..4).map(|i| (remaining >> (32 * i)) as u32)) {
        if let Some(limb) = limbs.get_mut(index) {
            *limb += sign * i64::from(part);
        }
        index += 1;
    }
}

/// `a * b + c` in `f64`.
#[inline(always)]
pub(crate) fn fma_f64<const MODE: u8>(a: f64, b: f64, c: f64) -> f64 {
    let nearest = a.mul_add(b, c);
    if MODE == mode::NEAREST { nearest } else { fma_f64_directed::<MODE>(a, b, c, nearest) }
}

/// Corrects the nearest result by the sign of its exact error. It is rare, so exactness matters more than speed.
#[inline(never)]
fn fma_f64_directed<const MODE: u8>(a: f64, b: f64, c: f64, nearest: f64) -> f64 {
    if !(a.is_finite() && b.is_finite() && c.is_finite()) {
        return nearest;
    }
    if nearest.is_infinite() {
        return direct::<MODE>(nearest, -nearest.signum());
    }
    let error = fma_sign_of_error(a, b, c, nearest);
    let opposite = (a.is_sign_negative() ^ b.is_sign_negative()) != c.is_sign_negative();
    if nearest == 0.0 && error == 0.0 && opposite {
        return if MODE == mode::DOWN { -0.0 } else { 0.0 };
    }
    direct::<MODE>(nearest, error)
}

/// `a + b` in `f64`.
#[inline(always)]
pub(crate) fn add_f64<const MODE: u8>(a: f64, b: f64) -> f64 {
    if MODE == mode::NEAREST { a + b } else { fma_f64_directed::<MODE>(a, 1.0, b, a + b) }
}

/// `a * b` in `f64`.
#[inline(always)]
pub(crate) fn mul_f64<const MODE: u8>(a: f64, b: f64) -> f64 {
    // A zero of the product's sign as the addend changes nothing.
    let zero = f64::from_bits((a.to_bits() ^ b.to_bits()) & (1 << 63));
    if MODE == mode::NEAREST { a * b } else { fma_f64_directed::<MODE>(a, b, zero, a * b) }
}

/// `a / b` in `f64`.
#[inline(always)]
pub(crate) fn div_f64<const MODE: u8>(a: f64, b: f64) -> f64 {
    let nearest = a / b;
    if MODE == mode::NEAREST || b == 0.0 || !a.is_finite() || !b.is_finite() {
        return nearest;
    }
    if nearest.is_infinite() {
        return direct::<MODE>(nearest, -nearest.signum());
    }
    // sign(a/b - q) = sign(a - q*b) * sign(b)
    direct::<MODE>(nearest, fma_sign_of_error(-nearest, b, a, 0.0) * b.signum())
}

/// Square root in `f64`.
#[inline(always)]
pub(crate) fn sqrt_f64<const MODE: u8>(a: f64) -> f64 {
    let nearest = a.sqrt();
    if MODE == mode::NEAREST || !nearest.is_finite() {
        return nearest;
    }
    direct::<MODE>(nearest, fma_sign_of_error(-nearest, nearest, a, 0.0))
}

/// Returns a 64-bit magnitude as an `f64`, rounded in the direction `MODE`; `negative` is its sign.
#[inline(always)]
pub(crate) fn integer_to_f64<const MODE: u8>(magnitude: u64, negative: bool) -> f64 {
    let shift = 11_u32.saturating_sub(magnitude.leading_zeros());
    let truncated = magnitude >> shift;
    let lost = magnitude & !(u64::MAX << shift);
    let away = (MODE == mode::UP && !negative) || (MODE == mode::DOWN && negative);
    let rounded = (truncated + u64::from(away && lost != 0)) as f64 * (1_u64 << shift) as f64;
    let value = if MODE == mode::NEAREST { magnitude as f64 } else { rounded };
    if negative { -value } else { value }
}

/// Returns a 64-bit magnitude as an `f32`, rounded in the direction `MODE`.
#[inline(always)]
pub(crate) fn integer_to_f32<const MODE: u8>(magnitude: u64, negative: bool) -> f32 {
    if MODE == mode::NEAREST {
        let value = magnitude as f32;
        return if negative { -value } else { value };
    }
    // 53 bits with the rest as a sticky last bit: odd if inexact.
    let shift = 11_u32.saturating_sub(magnitude.leading_zeros());
    let lost = magnitude & !(u64::MAX << shift);
    let odd = ((magnitude >> shift) | u64::from(lost != 0)) as f64 * (1_u64 << shift) as f64;
    narrow::<MODE>(if negative { -odd } else { odd })
}

#[cfg(test)]
mod tests {
    use super::mode::{DOWN, UP, ZERO};
    use super::*;

    /// Returns numbers that visit all exponents and signs.
    fn numbers() -> impl Iterator<Item = u64> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        std::iter::repeat_with(move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        })
    }

    #[test]
    fn directed_f32_results_bracket_the_nearest_one() {
        let bits: Vec<u32> = numbers().map(|number| number as u32).take(3000).collect();
        for three in bits.chunks_exact(3) {
            let [a, b, c] = [f32::from_bits(three[0]), f32::from_bits(three[1]), f32::from_bits(three[2])];
            if !(a * b).is_finite() || !(a * b + c).is_finite() {
                continue;
            }
            let (down, up, zero) = (fma_f32::<DOWN>(a, b, c), fma_f32::<UP>(a, b, c), fma_f32::<ZERO>(a, b, c));
            let nearest = a.mul_add(b, c);
            assert!(down <= nearest && nearest <= up, "{a} {b} {c}: {down} {nearest} {up}");
            assert!(up == down || up == down.next_up(), "{a} {b} {c}: {down} {up}");
            assert_eq!(zero, if nearest > 0.0 { down } else { up });
        }
    }

    #[test]
    fn directed_sums_know_on_which_side_they_are() {
        assert_eq!(add_f32::<UP>(1.0, 1e-30), 1.0_f32.next_up());
        assert_eq!(add_f32::<DOWN>(1.0, 1e-30), 1.0);
        assert_eq!(add_f32::<DOWN>(1.0, -1e-30), 1.0_f32.next_down());
        assert_eq!(add_f32::<ZERO>(-1.0, 1e-30), -(1.0_f32.next_down()));
        assert_eq!(add_f32::<ZERO>(f32::MAX, f32::MAX), f32::MAX);
        assert_eq!(add_f32::<DOWN>(1.0, -1.0).to_bits(), (-0.0_f32).to_bits());
        assert_eq!(add_f64::<UP>(1.0, 1e-300), 1.0_f64.next_up());
        assert_eq!(add_f64::<DOWN>(1.0, -1e-300), 1.0_f64.next_down());
        assert_eq!(add_f64::<DOWN>(1.0, -1.0).to_bits(), (-0.0_f64).to_bits());
        assert_eq!(mul_f64::<ZERO>(f64::MAX, 2.0), f64::MAX);
        assert_eq!(mul_f64::<UP>(f64::MIN_POSITIVE, f64::MIN_POSITIVE), f64::from_bits(1));
    }

    #[test]
    fn directed_quotients_and_roots() {
        assert_eq!(div_f32::<DOWN>(1.0, 3.0), 0.333_333_3);
        assert_eq!(div_f32::<UP>(1.0, 3.0), 0.333_333_34);
        assert!(div_f64::<DOWN>(1.0, 3.0) < div_f64::<UP>(1.0, 3.0));
        assert_eq!(div_f64::<UP>(1.0, 4.0), 0.25);
        assert_eq!(sqrt_f32::<UP>(2.0), sqrt_f32::<DOWN>(2.0).next_up());
        assert_eq!(sqrt_f64::<UP>(2.0), sqrt_f64::<DOWN>(2.0).next_up());
        assert_eq!(sqrt_f32::<DOWN>(4.0), 2.0);
    }

    #[test]
    fn the_sign_of_an_fma_error_is_exact() {
        for three in numbers().take(3000).collect::<Vec<_>>().chunks_exact(3) {
            let [a, b, c] = [three[0], three[1], three[2]].map(|bits| (bits >> 40) as f64 / 1024.0 - 8000.0);
            let error = fma_sign_of_error(a, b, c, a.mul_add(b, c));
            assert_eq!(error, 0.0, "short numbers have exact results: {a} {b} {c}");
        }
        assert_eq!(fma_sign_of_error(1.0, 1.0, f64::MIN_POSITIVE, 1.0), 1.0);
        assert_eq!(fma_sign_of_error(f64::MAX, f64::MAX, -1.0, 1.0), 1.0);
        assert_eq!(fma_sign_of_error(1.0, 1.0, -f64::from_bits(1), 1.0), -1.0);
    }

    #[test]
    fn integers_round_in_every_direction() {
        assert_eq!(integer_to_f32::<ZERO>(u64::from(u32::MAX), false), 4_294_967_040.0);
        assert_eq!(integer_to_f32::<UP>(u64::from(u32::MAX), false), 4_294_967_296.0);
        assert_eq!(integer_to_f32::<DOWN>(16_777_217, true), -16_777_218.0);
        assert_eq!(integer_to_f64::<UP>(u64::MAX, false), 18_446_744_073_709_551_616.0);
        assert_eq!(integer_to_f64::<ZERO>(u64::MAX, false), 18_446_744_073_709_549_568.0);
        assert_eq!(integer_to_f64::<DOWN>((1 << 53) + 1, true), -9_007_199_254_740_994.0);
    }
}
