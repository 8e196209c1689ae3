//! `cvt` to and from 8-bit floats, which come in pairs: one lane at a time, types known at run time.
//!
//! | type | bits of exponent and fraction | largest | beyond |
//! |---|---|---|---|
//! | `e4m3` | 4, 3 | 448 | NaN is `0x7f`; no infinities |
//! | `e5m2` | 5, 2 | 57,344 | the upper half of an `f16` |
//!
//! Results are rounded to nearest even. Too large results become the largest number (`.satfinite`, which is mandatory).

use crate::alu::half_bits::f16_to_f32;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::matrix::element::e4m3_to_f16;

/// Registers and types of a conversion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Two `f32` registers to a pair of bytes; the first one becomes the upper byte.
    Join,
    /// `f16x2` to a pair of bytes.
    Narrow,
    /// A pair of bytes to `f16x2`.
    Widen,
}

/// All forms, in the order of their numbers.
const SMALL_FORMS: [Form; 3] = [Form::Join, Form::Narrow, Form::Widen];

/// A conversion between floats of 8 bits and wider ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Conversion {
    /// Registers and types of the values.
    pub(crate) form: Form,
    /// Whether the bytes are `e4m3`, not `e5m2`.
    pub(crate) four: bool,
    /// `.relu`: negative numbers become zero.
    pub(crate) relu: bool,
}

impl Conversion {
    /// Encodes the conversion as a number, for `Inst::imm`.
    pub(crate) fn encode(self) -> u64 {
        let form = SMALL_FORMS.iter().position(|one| *one == self.form).unwrap_or(0) as u64;
        form << 2 | u64::from(self.four) << 1 | u64::from(self.relu)
    }

    /// Decodes a conversion.
    fn decode(code: u64) -> Self {
        Self { form: SMALL_FORMS[(code >> 2) as usize % SMALL_FORMS.len()], four: code & 2 != 0, relu: code & 1 != 0 }
    }

    /// Converts to a float of a byte or less.
    fn narrow(self, value: f32) -> u32 {
        let value = if self.relu && value < 0.0 { 0.0 } else { value };
        let bits = if self.four { round::<4, 3>(value).min(0x7e) } else { round::<5, 2>(value).min(0x7b) };
        let sign = u32::from(value.is_sign_negative()) << 7;
        match value.is_nan() {
            true => 0x7f,
            // `.relu` also clears the sign of a zero.
            false if self.relu => bits,
            false => bits | sign,
        }
    }

    /// Converts to an `f16`.
    fn widen(self, raw: u32) -> u32 {
        let bits = if self.four { e4m3_to_f16(raw) } else { (raw & 0xff) << 8 };
        let nan = bits & 0x7fff > 0x7c00;
        let negative = self.relu && bits & 0x8000 != 0;
        match (nan, negative) {
            (true, _) => 0x7fff,
            (false, true) => 0,
            (false, false) => bits,
        }
    }

    /// Converts the values of one lane.
    fn apply(self, a: u32, b: u32) -> u32 {
        match self.form {
            Form::Join => self.narrow(f32::from_bits(a)) << 8 | self.narrow(f32::from_bits(b)),
            Form::Narrow => self.narrow(f16_to_f32(a >> 16)) << 8 | self.narrow(f16_to_f32(a)),
            Form::Widen => self.widen(a >> 8) << 16 | self.widen(a),
        }
    }
}

/// Returns the magnitude of `value` in a format, without an upper limit.
fn round<const EXPONENT: u32, const FRACTION: u32>(value: f32) -> u32 {
    // After scaling, the format's subnormal numbers are those of `f32`, so only a shift with rounding remains.
    let bias = (1 << (EXPONENT - 1)) - 1;
    let magnitude = value.abs().to_bits();
    let least = (127 - bias + 1) << 23;
    if magnitude < least {
        // The last place of this addend is that of the format's subnormal numbers, so the addition rounds to them.
        let anchor = f32::from_bits((127 - bias + 1 + 23 - FRACTION) << 23);
        return (value.abs() + anchor).to_bits() - anchor.to_bits();
    }
    let dropped = 23 - FRACTION;
    let half = (1 << (dropped - 1)) - 1 + (magnitude >> dropped & 1);
    (magnitude - ((127 - bias) << 23)).saturating_add(half) >> dropped
}

/// `cvt` as `Inst::imm` describes it.
pub(crate) fn convert(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let conversion = Conversion::decode(inst.imm);
    for lane in lanes_of(machine.mask) {
        let [a, b] = [inst.a, inst.b].map(|slot| machine.registers.row::<u32>(slot)[lane]);
        machine.registers.set_lane(inst.d, lane, conversion.apply(a, b));
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alu::half_bits::f32_to_f16;

    const FOUR: Conversion = Conversion { form: Form::Join, four: true, relu: false };
    const FIVE: Conversion = Conversion { form: Form::Join, four: false, relu: false };

    #[test]
    fn conversions_survive_encoding() {
        for conversion in [FOUR, FIVE, Conversion { form: Form::Widen, relu: true, ..FOUR }] {
            assert_eq!(Conversion::decode(conversion.encode()), conversion);
        }
    }

    #[test]
    fn every_byte_survives_a_round_trip() {
        for raw in 0..0x100 {
            let (four, five) = (f16_to_f32(FOUR.widen(raw)), f16_to_f32(FIVE.widen(raw)));
            let largest = raw & 0x7f == 0x7c;
            assert_eq!(FOUR.narrow(four), if four.is_nan() { 0x7f } else { raw });
            assert_eq!(FIVE.narrow(five), if five.is_nan() { 0x7f } else { raw - u32::from(largest) });
            assert_eq!(f32_to_f16(four), FOUR.widen(raw));
        }
    }

    #[test]
    fn bytes_round_to_nearest_and_clamp() {
        assert_eq!(
            [448.0, 465.0, 1e9, -1e9, f32::INFINITY].map(|value| FOUR.narrow(value)),
            [0x7e, 0x7e, 0x7e, 0xfe, 0x7e]
        );
        assert_eq!([1.0, 1.062_5, 1.187_5, 0.001_953_125, 0.000_976].map(|v| FOUR.narrow(v)), [0x38, 0x38, 0x3a, 1, 0]);
        assert_eq!([57_344.0, 1e9, -0.0].map(|value| FIVE.narrow(value)), [0x7b, 0x7b, 0x80]);
        let relu = Conversion { relu: true, ..FOUR };
        assert_eq!(relu.apply((-1.0_f32).to_bits(), (-0.0_f32).to_bits()), 0);
    }
}
