//! `cvt` between integers with saturation, and other rare pairs: one lane at a time, with types known at run time.

use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::types::IntegerKind;

/// `Inst::imm`: the source type, above it the destination type, above it `saturate` and the two lane widths.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conversion {
    /// The type of the source.
    pub(crate) from: IntegerKind,
    /// The type of the destination.
    pub(crate) to: IntegerKind,
    /// Whether the result is clamped; otherwise it wraps.
    pub(crate) saturate: bool,
    /// Whether the source register has 64 bits.
    pub(crate) wide_source: bool,
    /// Whether the destination register has 64 bits.
    pub(crate) wide_target: bool,
}

impl Conversion {
    /// Encodes the immediate that `convert` reads.
    pub(crate) fn encode(self) -> u64 {
        let flags = u64::from(self.saturate) | u64::from(self.wide_source) << 1 | u64::from(self.wide_target) << 2;
        self.from.encode() | self.to.encode() << 8 | flags << 16
    }

    fn decode(code: u64) -> Self {
        Self {
            from: IntegerKind::decode(code),
            to: IntegerKind::decode(code >> 8),
            saturate: code >> 16 & 1 != 0,
            wide_source: code >> 17 & 1 != 0,
            wide_target: code >> 18 & 1 != 0,
        }
    }

    /// Converts the value of one lane.
    fn apply(self, raw: u64) -> u64 {
        let value = self.from.read(raw);
        let value = if self.saturate { self.to.clamp(value) } else { value };
        // Narrow results are extended with the destination's sign to the width of the register.
        self.to.read(value as u64) as u64
    }
}

/// `cvt` as `Inst::imm` describes it.
pub(crate) fn convert(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let conversion = Conversion::decode(inst.imm);
    for lane in lanes_of(machine.mask) {
        let registers = &mut machine.registers;
        let raw = if conversion.wide_source {
            registers.row::<u64>(inst.a)[lane]
        } else {
            u64::from(registers.row::<u32>(inst.a)[lane])
        };
        let value = conversion.apply(raw);
        if conversion.wide_target {
            registers.set_lane::<u64>(inst.d, lane, value);
        } else {
            registers.set_lane::<u32>(inst.d, lane, value as u32);
        }
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(from: (u32, bool), to: (u32, bool), saturate: bool, raw: i64) -> u64 {
        let kind = |(bits, signed)| IntegerKind { bits, signed };
        let conversion = Conversion { from: kind(from), to: kind(to), saturate, wide_source: true, wide_target: true };
        Conversion::decode(conversion.encode()).apply(raw.cast_unsigned())
    }

    #[test]
    fn saturation_clamps_to_the_destination() {
        assert_eq!(apply((32, true), (8, true), true, 300), 127);
        assert_eq!(apply((32, true), (8, false), true, -5), 0);
        assert_eq!(apply((64, false), (64, true), true, -1), i64::MAX.cast_unsigned());
        assert_eq!(apply((64, true), (32, true), true, i64::MIN), i64::from(i32::MIN).cast_unsigned());
    }

    #[test]
    fn a_type_holds_narrower_ones_of_its_sign() {
        let kind = |bits, signed| IntegerKind { bits, signed };
        assert!(kind(16, true).holds(kind(8, false)) && kind(8, false).holds(kind(8, false)));
        assert!(!kind(16, false).holds(kind(8, true)) && !kind(8, true).holds(kind(8, false)));
    }

    #[test]
    fn wrapping_extends_by_the_destinations_sign() {
        assert_eq!(apply((32, false), (8, true), false, 0xff), u64::MAX);
        assert_eq!(apply((16, true), (32, false), false, 0xffff), 0xffff_ffff);
    }
}
