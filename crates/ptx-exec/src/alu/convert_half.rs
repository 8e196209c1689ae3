//! `cvt` to 16-bit floats in rare styles: one lane at a time, with everything known at run time.
//!
//! `.ftz` is not included: the GPU rounds subnormal sources like any other, also up and down.
//!
//! Every source first becomes an `f32` rounded to odd, which has enough bits for a second rounding in any direction.

use super::element::{Bf16, F16};
use super::float::saturate;
use super::half::Small;
use super::round::{self, mode};
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::types::IntegerKind;

/// Type of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// `f32`
    Single,
    /// `f64`
    Double,
    /// An integer of this type.
    Integer(IntegerKind),
}

/// A conversion; `Inst::imm` holds it as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Narrowing {
    /// The source's type.
    pub(crate) from: From,
    /// Whether the result is `bf16`, not `f16`.
    pub(crate) brain: bool,
    /// Rounding of the result.
    pub(crate) rounding: u8,
    /// Whether results are clamped to 0..1.
    pub(crate) saturate: bool,
    /// Whether negative results are zero.
    pub(crate) relu: bool,
    /// Whether results that are too large become the largest number.
    pub(crate) finite: bool,
}

impl Narrowing {
    /// Encodes the immediate that `narrow` reads.
    pub(crate) fn encode(self) -> u64 {
        let from = match self.from {
            From::Single => 0,
            From::Double => 1,
            From::Integer(kind) => 2 | kind.encode() << 2,
        };
        let flags = [self.brain, self.saturate, self.relu, self.finite];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u64::from(*flag));
        u64::from(self.rounding) | flags << 2 | from << 8
    }

    fn decode(code: u64) -> Self {
        let flag = |index: u32| code >> (2 + index) & 1 != 0;
        let from = match code >> 8 & 3 {
            0 => From::Single,
            1 => From::Double,
            _ => From::Integer(IntegerKind::decode(code >> 10)),
        };
        Self { from, rounding: (code & 3) as u8, brain: flag(0), saturate: flag(1), relu: flag(2), finite: flag(3) }
    }

    /// Returns whether the source register has 64 bits.
    fn is_wide(self) -> bool {
        match self.from {
            From::Single => false,
            From::Double => true,
            From::Integer(kind) => kind.bits == 64,
        }
    }

    /// Converts the value of one lane.
    fn apply(self, raw: u64) -> u32 {
        if self.brain { self.rounded::<Bf16>(raw) } else { self.rounded::<F16>(raw) }
    }

    fn rounded<T: Small>(self, raw: u64) -> u32 {
        let value = match self.from {
            From::Single => f32::from_bits(raw as u32),
            From::Double if f64::from_bits(raw).is_nan() && !self.saturate => return nan_of_double::<T>(raw),
            From::Double => round::f64_to_f32_odd(f64::from_bits(raw)),
            From::Integer(kind) => from_integer(kind.read(raw)),
        };
        let value = if self.saturate { saturate(value) } else { value };
        let value = if self.relu && value <= 0.0 { 0.0 } else { value };
        let result = directed::<T>(value, self.rounding);
        if self.finite && result & 0x7fff == T::INFINITY { result - 1 } else { result }
    }
}

/// Converts a NaN, which keeps its sign and the upper part of its fraction.
fn nan_of_double<T: Small>(raw: u64) -> u32 {
    let fraction = !T::INFINITY & 0x7fff;
    let quiet = (fraction + 1) >> 1;
    let shift = 52 - fraction.count_ones();
    (raw >> 48) as u32 & 0x8000 | T::INFINITY | (raw >> shift) as u32 & fraction | quiet
}

/// Converts an integer of up to 64 bits, rounded to odd.
fn from_integer(value: i128) -> f32 {
    let magnitude = value.unsigned_abs() as u64;
    let shift = 11_u32.saturating_sub(magnitude.leading_zeros());
    let lost = magnitude & !(u64::MAX << shift);
    let odd = (magnitude >> shift | u64::from(lost != 0)) as f64 * (1_u64 << shift) as f64;
    round::f64_to_f32_odd(if value < 0 { -odd } else { odd })
}

/// Returns the bits of `value`, rounded in the direction `rounding`.
fn directed<T: Small>(value: f32, rounding: u8) -> u32 {
    let nearest = T::from_wide(value).write();
    let back = T::read(nearest).wide();
    let negative = nearest & 0x8000 != 0;
    let (too_low, too_high) = (back < value, back > value);
    let up = too_low && (rounding == mode::UP || (rounding == mode::ZERO && negative));
    let down = too_high && (rounding == mode::DOWN || (rounding == mode::ZERO && !negative));
    // One step of the bit pattern is one step of the magnitude.
    match (up, down) {
        (true, _) if negative => nearest - 1,
        (true, _) => nearest + 1,
        (_, true) if negative => nearest + 1,
        (_, true) => nearest - 1,
        _ => nearest,
    }
}

/// `cvt` as `Inst::imm` describes it.
pub(crate) fn narrow(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let narrowing = Narrowing::decode(inst.imm);
    for lane in lanes_of(machine.mask) {
        let registers = &mut machine.registers;
        let raw = if narrowing.is_wide() {
            registers.row::<u64>(inst.a)[lane]
        } else {
            u64::from(registers.row::<u32>(inst.a)[lane])
        };
        registers.set_lane::<u32>(inst.d, lane, narrowing.apply(raw));
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(from: From, rounding: u8) -> Narrowing {
        Narrowing { from, brain: false, rounding, saturate: false, relu: false, finite: false }
    }

    #[test]
    fn conversions_survive_being_numbers() {
        let kind = IntegerKind { bits: 64, signed: true };
        for narrowing in [
            plain(From::Double, mode::UP),
            Narrowing { brain: true, relu: true, ..plain(From::Integer(kind), mode::ZERO) },
            Narrowing { finite: true, saturate: true, ..plain(From::Single, mode::NEAREST) },
        ] {
            assert_eq!(Narrowing::decode(narrowing.encode()), narrowing);
        }
    }

    #[test]
    fn every_direction_is_one_step_from_the_nearest() {
        let third = u64::from((1.0_f32 / 3.0).to_bits());
        let bits = [mode::NEAREST, mode::ZERO, mode::DOWN, mode::UP].map(|mode| plain(From::Single, mode).apply(third));
        assert_eq!(bits, [0x3555, 0x3555, 0x3555, 0x3556]);
        let large = u64::from(1e6_f32.to_bits());
        assert_eq!(plain(From::Single, mode::ZERO).apply(large), 0x7bff);
        assert_eq!(plain(From::Single, mode::NEAREST).apply(large), 0x7c00);
        assert_eq!(Narrowing { finite: true, ..plain(From::Single, mode::NEAREST) }.apply(large), 0x7bff);
    }

    #[test]
    fn integers_round_once() {
        let kind = IntegerKind { bits: 64, signed: false };
        // 2049 lies half way between two f16; one more bit far below decides.
        assert_eq!(plain(From::Integer(kind), mode::NEAREST).apply(2049), 0x6800);
        assert_eq!(plain(From::Integer(kind), mode::UP).apply(2049), 0x6801);
        assert_eq!(plain(From::Integer(kind), mode::UP).apply(u64::MAX), 0x7c00);
    }

    #[test]
    fn negative_results_and_nan() {
        let minus = u64::from((-1.0_f32).to_bits());
        assert_eq!(Narrowing { relu: true, ..plain(From::Single, mode::ZERO) }.apply(minus), 0);
        assert_eq!(plain(From::Double, mode::NEAREST).apply(0xfff0_0000_0000_0001), 0xfe00);
        assert_eq!(Narrowing { brain: true, ..plain(From::Double, mode::ZERO) }.apply(0x7ff8_0000_0000_0005), 0x7fc0);
    }
}
