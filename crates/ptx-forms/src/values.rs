//! The values of operands: edges of their type, plain bits, and values close to another operand's.
//!
//! A sequence of values depends only on its seed, type and domain. So all forms with the same operands get the same question, and
//! their equal answers are stored once.

use crate::kind::{Content, DOUBLE_FORMAT, Format, OperandKind, SINGLE_FORMAT};
use crate::rng::Rng;

/// The subset of its type from which an operand's values come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Domain {
    /// Everything: edges, any bits, ordinary values.
    Edge,
    /// Random bits, of any meaning.
    Random,
    /// Finite floats around one, or integers of any size.
    Range,
    /// Floats from -1 to 1.
    Unit,
    /// Floats from -pi to pi; a few zeroes, infinities and NaN.
    Trig,
    /// NaN of every sort, some infinities and numbers.
    Nan,
    /// 0 to 255; floats too.
    Small,
    /// -2 to 2; floats too.
    Tiny,
    /// Counts of bits: 0 to 70, and now and then a large one.
    Shift,
    /// Numbers of lanes: 0 to 40.
    Lane,
    /// One number, 0 to 40, for all lanes of a warp.
    One,
    /// 0, 1, 2 and so on.
    Iota,
    /// Nothing but zero.
    Zero,
}

/// Lanes of a warp.
const WARP_LANES: usize = 32;

impl Domain {
    /// Returns the domain called `name`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "edge" => Self::Edge,
            "random" => Self::Random,
            "range" => Self::Range,
            "unit" => Self::Unit,
            "trig" => Self::Trig,
            "nan" => Self::Nan,
            "small" => Self::Small,
            "tiny" => Self::Tiny,
            "shift" => Self::Shift,
            "lane" => Self::Lane,
            "one" => Self::One,
            "iota" => Self::Iota,
            "zero" => Self::Zero,
            _ => return None,
        })
    }
}

/// Returns `count` values of a type; `near` are those of the previous operand, if that has the same type.
pub(crate) fn values(
    kind: OperandKind,
    domain: Domain,
    count: usize,
    near: Option<&[u128]>,
    rng: &mut Rng,
) -> Vec<u128> {
    let edges = edges(kind);
    let mut out: Vec<u128> = Vec::with_capacity(count);
    for index in 0..count {
        let value = match domain {
            Domain::One if index % WARP_LANES != 0 => out[index - 1],
            Domain::Edge => edge_value(kind, &edges, near.map(|near| near[index]), index, rng),
            _ => value(kind, domain, index, rng),
        };
        out.push(value & mask(kind.bits));
    }
    out
}

/// Returns a value of the widest domain. A single operand sees every edge; others draw.
fn edge_value(kind: OperandKind, edges: &[u128], near: Option<u128>, index: usize, rng: &mut Rng) -> u128 {
    let draw = rng.below(10);
    match (near, kind.content) {
        (_, Content::Predicate) => u128::from(rng.below(2)),
        (None, _) if index < edges.len() && draw < 8 => edges[index],
        (Some(near), _) if draw < 2 => related(near, kind.bits, rng),
        (_, Content::Two(_)) if draw < 6 => *rng.pick(edges) & mask(16) | (*rng.pick(edges) & mask(16)) << 16,
        _ if draw < 6 => *rng.pick(edges),
        _ if draw < 8 => value(kind, Domain::Range, index, rng),
        _ => bits(rng),
    }
}

/// Returns a value close to `near`: the same, its opposite, or one bit away.
fn related(near: u128, width: u32, rng: &mut Rng) -> u128 {
    let sign = 1_u128 << (width - 1);
    match rng.below(6) {
        0 => near,
        1 => near ^ sign,
        2 => near.wrapping_add(1),
        3 => near.wrapping_sub(1) ^ sign,
        4 => near.wrapping_neg(),
        _ => near ^ (1 << rng.below(u64::from(width))),
    }
}

/// Returns a value of any domain but the widest.
fn value(kind: OperandKind, domain: Domain, index: usize, rng: &mut Rng) -> u128 {
    match domain {
        Domain::Zero => 0,
        Domain::Shift if rng.below(8) == 0 => u128::from(rng.next() >> rng.below(64)),
        Domain::Shift => u128::from(rng.below(71)),
        Domain::Lane => u128::from(rng.below(41)),
        Domain::Random => bits(rng),
        Domain::Nan => nan(kind, rng),
        Domain::Trig if rng.below(8) == 0 => *rng.pick(&special(kind)),
        _ => match kind.content {
            Content::Predicate => u128::from(rng.below(2)),
            Content::Integer => integer(domain, index, rng),
            Content::Float(format) => float(format, domain, index, rng),
            Content::Two(None) => integer(domain, index, rng) & mask(16) | integer(domain, index, rng) << 16,
            Content::Two(Some(format)) => float(format, domain, index, rng) | float(format, domain, index, rng) << 16,
        },
    }
}

/// Returns an integer of a domain.
fn integer(domain: Domain, index: usize, rng: &mut Rng) -> u128 {
    match domain {
        Domain::Iota => index as u128,
        Domain::Small => u128::from(rng.below(256)),
        Domain::Tiny => (i128::from(rng.below(5)) - 2).cast_unsigned(),
        // Small and large magnitudes are equally frequent.
        _ => (i128::from(rng.next().cast_signed()) >> rng.below(63)).cast_unsigned(),
    }
}

/// Returns a float of a domain.
fn float(format: Format, domain: Domain, index: usize, rng: &mut Rng) -> u128 {
    // 53 bits after the point.
    let unit = (rng.next() >> 11) as f64 / (1_u64 << 53) as f64;
    encode(
        format,
        match domain {
            Domain::Iota => index as f64,
            Domain::Small => rng.below(256) as f64,
            Domain::Tiny => rng.below(5) as f64 - 2.0,
            Domain::Unit => unit * 2.0 - 1.0,
            Domain::Trig => (unit * 2.0 - 1.0) * std::f64::consts::PI,
            _ => {
                let scale = f64::from(rng.below(12) as i32 - 6).exp2();
                (unit + 0.5) * scale * if rng.below(2) == 0 { 1.0 } else { -1.0 }
            }
        },
    )
}

/// Returns 128 random bits.
fn bits(rng: &mut Rng) -> u128 {
    u128::from(rng.next()) << 64 | u128::from(rng.next())
}

/// Returns the value of a float.
pub(crate) fn decode(format: Format, bits: u64) -> f64 {
    let fraction = bits & ((1 << format.fraction) - 1);
    let exponent = (bits >> format.fraction) & ((1 << format.exponent) - 1);
    let magnitude = match exponent {
        0 => fraction as f64 * f64::from(1 - format.bias() - format.fraction as i32).exp2(),
        _ if u128::from(exponent) == mask(format.exponent) => {
            if fraction == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => {
            let scaled = (fraction | 1 << format.fraction) as f64;
            // Two steps, since the smallest power alone would be zero.
            scaled * f64::from(-(format.fraction as i32)).exp2() * f64::from(exponent as i32 - format.bias()).exp2()
        }
    };
    if bits >> (format.bits() - 1) & 1 == 0 { magnitude } else { -magnitude }
}

/// Returns a mask of the low `bits` bits.
fn mask(bits: u32) -> u128 {
    if bits >= 128 { u128::MAX } else { (1 << bits) - 1 }
}

/// Returns the edges of a type.
fn edges(kind: OperandKind) -> Vec<u128> {
    match kind.content {
        Content::Predicate => vec![0, 1],
        Content::Integer => integer_edges(kind.bits),
        Content::Float(format) => float_edges(format),
        Content::Two(None) => integer_edges(16),
        Content::Two(Some(format)) => float_edges(format),
    }
}

/// Returns values around zero and around every power of two, and a few patterns.
fn integer_edges(bits: u32) -> Vec<u128> {
    let mut out =
        vec![0, u128::MAX, u128::MAX - 1, 3, 5, 10, 0x5555 * (u128::MAX / 0xffff), 0xaaaa * (u128::MAX / 0xffff)];
    let powers = [1, 3, 4, 7, 8, 15, 16, 23, 24, 30, 31, 32, 47, 52, 53, 62, 63, 64, 96, 126, 127];
    for power in powers.into_iter().filter(|power| *power < bits) {
        out.extend([(1 << power) - 1, 1 << power, (1 << power) + 1]);
    }
    out.sort_unstable();
    out.dedup();
    out
}

/// Returns a NaN of either sign, quiet or signalling, with payloads of all sizes; or infinities, zeroes and ones.
fn nan(kind: OperandKind, rng: &mut Rng) -> u128 {
    let Content::Float(format) = kind.content else { return 0 };
    let (fraction, infinity) = (mask(format.fraction), mask(format.exponent) << format.fraction);
    let sign = u128::from(rng.below(2)) << (format.bits() - 1);
    let payload = match rng.below(4) {
        0 => 1 << rng.below(u64::from(format.fraction)),
        1 => bits(rng) & fraction,
        2 => fraction >> rng.below(u64::from(format.fraction)),
        _ => 1 << (format.fraction - 1) | 1 << rng.below(u64::from(format.fraction)),
    };
    match rng.below(12) {
        0 => sign,
        1 => sign | infinity,
        2 => sign | encode(format, 1.0),
        _ => sign | infinity | payload,
    }
}

/// Returns zeroes, a subnormal, infinities and a NaN.
fn special(kind: OperandKind) -> Vec<u128> {
    let Content::Float(format) = kind.content else { return vec![0] };
    let (sign, infinity) = (1 << (format.bits() - 1), mask(format.exponent) << format.fraction);
    vec![0, sign, 1, sign | 5, infinity, sign | infinity, infinity | 1]
}

/// Numbers at which float conversions change: whole and half numbers, ends of integer ranges, ends of narrower floats.
const EDGE_NUMBERS: &[f64] = &[
    0.25,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    10.0,
    127.0,
    127.5,
    128.0,
    255.0,
    255.5,
    256.0,
    448.0,
    464.0,
    480.0,
    32767.0,
    32767.5,
    32768.0,
    65504.0,
    65519.0,
    65520.0,
    65535.0,
    65535.5,
    65536.0,
    57344.0,
    61440.0,
    8_388_607.5,
    8_388_608.0,
    16_777_215.0,
    16_777_216.0,
    2_147_483_647.0,
    2_147_483_648.0,
    4_294_967_295.0,
    4_294_967_296.0,
    9_007_199_254_740_992.0,
    9_223_372_036_854_775_807.0,
    18_446_744_073_709_551_615.0,
];

/// Exponents at which narrower floats become subnormal, or end.
const EDGE_EXPONENTS: &[i32] =
    &[-6, -9, -10, -14, -16, -17, -24, -25, -126, -127, -133, -134, -149, -150, 126, 127, 128, -1022, 1023];

/// Returns zero, subnormals, the ends, infinities, NaN of every sort, and the numbers above, each with both signs.
fn float_edges(format: Format) -> Vec<u128> {
    let one = 1_u128 << format.fraction;
    let infinity = (mask(format.exponent)) << format.fraction;
    let mut out = vec![0, 1, 2, one / 2, one - 1, one, one + 1, one * 2 - 1, infinity - 1, infinity - 2, infinity];
    out.extend([infinity + 1, infinity | (one / 2), infinity | (one - 1), infinity | (one / 2) | 5]);
    for number in EDGE_NUMBERS {
        let bits = encode(format, *number);
        out.extend([bits - 1, bits, bits + 1]);
    }
    for exponent in EDGE_EXPONENTS {
        let bits = encode(format, f64::from(*exponent).exp2());
        if bits > 1 && bits < infinity {
            out.extend([bits - 1, bits, bits + 1, bits | (one / 2)]);
        }
    }
    if format == DOUBLE_FORMAT {
        // Half way between neighbours of narrower floats, and just beside.
        for narrow in [0x0000_0001_u32, 0x0080_0000, 0x3f80_0000, 0x3f80_0001, 0x7f7f_ffff] {
            let bits = u128::from(f64::from(f32::from_bits(narrow)).to_bits());
            out.extend([bits + (1 << 28) - 1, bits + (1 << 28), bits + (1 << 28) + 1]);
        }
    }
    if format == SINGLE_FORMAT {
        out.extend([0x3f80_0fff, 0x3f80_1000, 0x3f80_1001, 0x3f80_3000, 0x3f80_7fff, 0x3f80_8000, 0x3f81_8000]);
    }
    out.sort_unstable();
    out.dedup();
    let sign = 1 << (format.bits() - 1);
    out.iter().flat_map(|bits| [*bits, *bits | sign]).collect()
}

/// Returns the bits of the float at or below the magnitude of a number; the largest float for all numbers beyond it.
pub(crate) fn encode(format: Format, number: f64) -> u128 {
    let bits = number.abs().to_bits();
    let sign = u128::from(number.is_sign_negative()) << (format.bits() - 1);
    let (exponent, fraction) = ((bits >> 52) as i32 - DOUBLE_FORMAT.bias(), bits & ((1 << 52) - 1));
    let largest = (mask(format.exponent) << format.fraction) - 1;
    let magnitude = if number == 0.0 || exponent < 1 - format.bias() - format.fraction as i32 {
        0
    } else if exponent > format.bias() {
        largest
    } else {
        let whole = u128::from(fraction | 1 << 52) >> (DOUBLE_FORMAT.fraction - format.fraction);
        let normal = exponent + format.bias();
        // Below the normal numbers, the leading one is part of the fraction.
        if normal > 0 { ((normal as u128 - 1) << format.fraction) + whole } else { whole >> (1 - normal) }
    };
    sign | magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(name: &str) -> OperandKind {
        OperandKind::parse(name).unwrap()
    }

    #[test]
    fn numbers_become_the_bits_of_their_format() {
        for number in
            [0.0, 1.0, -2.5, 1.5 * 127_f64.exp2(), f64::from(f32::MIN_POSITIVE), (-140_f64).exp2(), (-149_f64).exp2()]
        {
            assert_eq!(encode(SINGLE_FORMAT, number), u128::from((number as f32).to_bits()), "{number}");
        }
        let Content::Float(half) = kind("f16").content else { unreachable!() };
        assert_eq!(encode(half, 65504.0), 0x7bff);
        assert_eq!(encode(half, 2.0_f64.powi(-24)), 1);
        assert_eq!(encode(DOUBLE_FORMAT, -0.1), u128::from((-0.1_f64).to_bits()));
    }

    #[test]
    fn floats_are_read_back() {
        for number in [0.0_f32, 1.0, -2.5, 1e-40, 3e38, f32::MIN_POSITIVE, -1e-45, f32::NEG_INFINITY] {
            assert_eq!(decode(SINGLE_FORMAT, u64::from(number.to_bits())), f64::from(number));
        }
        for number in [0.1, -5e-324, f64::MIN_POSITIVE, f64::MAX] {
            assert_eq!(decode(DOUBLE_FORMAT, number.to_bits()), number);
        }
        assert!(decode(SINGLE_FORMAT, 0x7f80_0001).is_nan());
    }

    #[test]
    fn a_single_operand_sees_nearly_every_edge() {
        let edges = edges(kind("f32"));
        let tried = values(kind("f32"), Domain::Edge, 512, None, &mut Rng::new(1));
        assert!(edges.len() < 400, "{}", edges.len());
        assert!(edges.iter().filter(|edge| tried.contains(edge)).count() > edges.len() * 8 / 10);
    }

    #[test]
    fn a_warp_has_one_value_when_asked() {
        let tried = values(kind("u32"), Domain::One, 64, None, &mut Rng::new(2));
        assert!(tried[..32].iter().all(|value| *value == tried[0]) && tried[32] != tried[0]);
    }

    #[test]
    fn domains_keep_their_bounds() {
        let floats = values(kind("f64"), Domain::Unit, 100, None, &mut Rng::new(3));
        assert!(floats.iter().all(|bits| f64::from_bits(*bits as u64).abs() <= 1.0));
        let lanes = values(kind("u32"), Domain::Lane, 100, None, &mut Rng::new(4));
        assert!(lanes.iter().all(|lane| *lane <= 40));
    }
}
