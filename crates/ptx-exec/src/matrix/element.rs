//! Element types of matrices, and their values as numbers.

use crate::alu::half_bits::{bf16_to_f32, f16_to_f32};

/// Element type of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
    /// `.tf32`: the upper 19 bits of an `f32`
    Tf32,
    /// `.f64`
    F64,
    /// `.e4m3`
    E4m3,
    /// `.e5m2`
    E5m2,
    /// `.u8`
    U8,
    /// `.s8`
    S8,
    /// `.u4`
    U4,
    /// `.s4`
    S4,
    /// `.b1`
    B1,
    /// `.f32`, `.s32`: only in accumulators
    Word,
}

impl Element {
    /// Returns the type called `name`.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f64" => Self::F64,
            "e4m3" => Self::E4m3,
            "e5m2" => Self::E5m2,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "u4" => Self::U4,
            "s4" => Self::S4,
            "b1" => Self::B1,
            "f32" | "s32" => Self::Word,
            _ => return None,
        })
    }

    /// Returns its size in registers and in memory.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::F64 => 64,
            Self::Tf32 | Self::Word => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 | Self::U8 | Self::S8 => 8,
            Self::U4 | Self::S4 => 4,
            Self::B1 => 1,
        }
    }

    /// Returns whether products are integers.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::U8 | Self::S8 | Self::U4 | Self::S4)
    }

    /// Returns whether products are of 8-bit floats.
    pub(crate) fn is_tiny(self) -> bool {
        matches!(self, Self::E4m3 | Self::E5m2)
    }

    /// Returns the integer in the low bits of `raw`.
    pub(crate) fn integer(self, raw: u32) -> i32 {
        let unused = 32 - self.bits();
        match self {
            Self::S8 | Self::S4 => (raw << unused).cast_signed() >> unused,
            _ => (raw << unused >> unused).cast_signed(),
        }
    }

    /// Returns the number in the low bits of `raw` as an `f32`, which holds it exactly.
    pub(crate) fn value(self, raw: u32) -> f32 {
        match self {
            Self::F16 => f16_to_f32(raw),
            Self::Bf16 => bf16_to_f32(raw),
            Self::E4m3 => f16_to_f32(e4m3_to_f16(raw)),
            Self::E5m2 => f16_to_f32((raw & 0xff) << 8),
            _ => f32::from_bits(raw),
        }
    }

    /// Returns sign, significand and exponent of the float in the low bits of `raw`.
    pub(crate) fn part(self, raw: u32) -> UnpackedFloat {
        match self {
            Self::F16 => UnpackedFloat::new(raw, 5, 10),
            Self::Bf16 => UnpackedFloat::new(raw, 8, 7),
            Self::Tf32 => UnpackedFloat::new(raw >> 13, 8, 10),
            // The hardware multiplies 8-bit floats as the `f16` of the same value.
            Self::E4m3 => UnpackedFloat::new(e4m3_to_f16(raw), 5, 10),
            Self::E5m2 => UnpackedFloat::new((raw & 0xff) << 8, 5, 10),
            _ => UnpackedFloat::new(raw, 8, 23),
        }
    }
}

/// Returns the `f16` of the same value; NaN becomes `0x7fff`.
pub(crate) fn e4m3_to_f16(raw: u32) -> u32 {
    let (sign, magnitude) = ((raw & 0x80) << 8, raw & 0x7f);
    // Puts exponent and mantissa in their places. The multiplication then adds 8 to the exponent and normalises.
    let scaled = f16_to_f32(magnitude << 7) * 256.0;
    let finite = crate::alu::half_bits::f32_to_f16(scaled) | sign;
    if magnitude == 0x7f { 0x7fff } else { finite }
}

/// Kind of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// A finite number, zero included.
    Finite,
    /// An infinity of either sign.
    Infinite,
    /// Not a number.
    Nan,
}

/// A float taken apart: `significand * 2^(exponent - 23)`, where a normal number has a significand of 24 bits.
///
/// Subnormal numbers stay as they are: the hardware does not normalise them either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnpackedFloat {
    /// Whether the number is below zero.
    pub(crate) negative: bool,
    /// The significand, of up to 24 bits.
    pub(crate) significand: u32,
    /// Exponent of the significand's highest bit.
    pub(crate) exponent: i32,
    /// Class of the number; significand and exponent count only if it is finite.
    pub(crate) class: Class,
}

impl UnpackedFloat {
    /// Takes apart a float with `exponent_bits` bits of exponent and `fraction_bits` bits of fraction.
    fn new(raw: u32, exponent_bits: u32, fraction_bits: u32) -> Self {
        let most = (1_u32 << exponent_bits) - 1;
        let fraction = raw & ((1 << fraction_bits) - 1);
        let exponent = (raw >> fraction_bits) & most;
        let class = match (exponent == most, fraction) {
            (false, _) => Class::Finite,
            (true, 0) => Class::Infinite,
            (true, _) => Class::Nan,
        };
        let hidden = u32::from(exponent != 0) << fraction_bits;
        Self {
            negative: (raw >> (exponent_bits + fraction_bits)) & 1 != 0,
            significand: (fraction | hidden) << (23 - fraction_bits),
            exponent: exponent.max(1).cast_signed() - (most >> 1).cast_signed(),
            class,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_read_as_their_values() {
        assert_eq!(
            (Element::E4m3.value(0x38), Element::E4m3.value(0x7e), Element::E4m3.value(0x01)),
            (1.0, 448.0, 0.001_953_125)
        );
        assert_eq!((Element::E5m2.value(0xbc), Element::E5m2.value(0x7b)), (-1.0, 57_344.0));
        assert!(Element::E4m3.value(0xff).is_nan() && Element::E5m2.value(0x7c).is_infinite());
        assert_eq!((Element::S4.integer(0x1f), Element::U4.integer(0x1f), Element::S8.integer(0x80)), (-1, 15, -128));
    }

    #[test]
    fn parts_keep_subnormal_numbers_as_they_are() {
        let one = Element::F16.part(0x3c00);
        assert_eq!((one.significand, one.exponent, one.class), (1 << 23, 0, Class::Finite));
        let least = Element::F16.part(0x8001);
        assert_eq!((least.negative, least.significand, least.exponent), (true, 1 << 13, -14));
        assert_eq!(Element::Tf32.part(0x7f80_2000).class, Class::Nan);
    }
}
