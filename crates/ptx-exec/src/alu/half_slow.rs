//! Arithmetic on `f16` and `bf16` in rare styles: flushed, clamped, and with the sign rules of `.xorsign.abs`.
//!
//! It handles one lane at a time, with the style known at run time: programs use few of the hundreds of combinations.

use super::element::{Bf16, F16};
use super::float::{max_f32, max_nan_f32, min_f32, min_nan_f32, saturate};
use super::half::Small;
use super::round;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;

/// The operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// `add`
    Add,
    /// `sub`
    Sub,
    /// `mul`
    Mul,
    /// `fma`
    Fma,
    /// `min`
    Min,
    /// `max`
    Max,
    /// `neg`
    Neg,
    /// `abs`
    Abs,
}

/// All operations, in the order of their numbers.
const HALF_OPERATIONS: [Operation; 8] = [
    Operation::Add,
    Operation::Sub,
    Operation::Mul,
    Operation::Fma,
    Operation::Min,
    Operation::Max,
    Operation::Neg,
    Operation::Abs,
];

/// Factor of the smallest normal `f16`: values from that product on round up to it, with 11 bits.
const ROUNDS_UP_FACTOR: f32 = 1.0 - 1.0 / 4096.0;

/// An operation and its modifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    /// The operation.
    pub(crate) operation: Operation,
    /// Whether the type is `bf16`, not `f16`.
    pub(crate) bfloat: bool,
    /// Whether each register has two values.
    pub(crate) pair: bool,
    /// `.ftz`: subnormal numbers are zero.
    pub(crate) flush: bool,
    /// `.sat`: clamped to 0..1.
    pub(crate) saturate: bool,
    /// `.relu`: negative results are zero.
    pub(crate) relu: bool,
    /// `.NaN`: a result of `min` or `max` is NaN if an operand is.
    pub(crate) nan_wins: bool,
    /// `.xorsign.abs`: magnitudes are compared, and the signs multiplied.
    pub(crate) sign_product: bool,
    /// `.oob`: the NaN that stands for elements out of bounds makes the result zero.
    pub(crate) bounded: bool,
}

impl Style {
    /// Encodes the style as a number, for `Inst::imm`.
    pub(crate) fn encode(self) -> u64 {
        let operation = HALF_OPERATIONS.iter().position(|one| *one == self.operation).unwrap_or(0);
        let flags = [
            self.bfloat,
            self.pair,
            self.flush,
            self.saturate,
            self.relu,
            self.nan_wins,
            self.sign_product,
            self.bounded,
        ];
        flags.iter().rev().fold(0, |bits, flag| bits << 1 | u64::from(*flag)) << 3 | operation as u64
    }

    /// Decodes a style.
    fn decode(code: u64) -> Self {
        let flag = |index: u32| code >> (3 + index) & 1 != 0;
        Self {
            operation: HALF_OPERATIONS[code as usize & 7],
            bfloat: flag(0),
            pair: flag(1),
            flush: flag(2),
            saturate: flag(3),
            relu: flag(4),
            nan_wins: flag(5),
            sign_product: flag(6),
            bounded: flag(7),
        }
    }

    /// Returns zero for a subnormal number, if the style flushes.
    fn flushed<T: Small>(self, bits: u32) -> u32 {
        let subnormal = bits & T::INFINITY == 0;
        if self.flush && subnormal { bits & 0x8000 } else { bits & 0xffff }
    }

    /// Computes one value.
    fn apply<T: Small>(self, operands: [u32; 3]) -> u32 {
        let [a, b, c] = operands.map(|operand| self.flushed::<T>(operand));
        if self.bounded && [a, b].iter().any(|factor| factor & 0x7fff == OUT_OF_BOUNDS_NAN_BITS) {
            return 0;
        }
        let [x, y, z] = [a, b, c].map(|bits| T::read(bits).wide());
        let bits = match self.operation {
            Operation::Add => self.finish::<T>(x + y),
            Operation::Sub => self.finish::<T>(x - y),
            Operation::Mul => self.finish::<T>(x * y),
            Operation::Fma => self.finish::<T>(round::fma_to_odd_f32(x, y, z)),
            Operation::Neg => a ^ 0x8000,
            Operation::Abs => a & 0x7fff,
            Operation::Min | Operation::Max => return self.extreme::<T>(a, b),
        };
        let nan = bits & 0x7fff > T::INFINITY;
        if nan { 0x7fff } else { self.flushed::<T>(bits) }
    }

    /// Rounds and clamps. Flushes values that stay below the normal numbers after rounding with an unlimited exponent.
    fn finish<T: Small>(self, value: f32) -> u32 {
        let least = T::read(T::INFINITY & T::INFINITY.wrapping_neg()).wide();
        let tiny = value.abs() < least * ROUNDS_UP_FACTOR;
        let value = if self.flush && tiny { value * 0.0 } else { value };
        let value = if self.saturate { saturate(value) } else { value };
        let negative = self.relu && value <= 0.0;
        let bits = T::from_wide(if negative { 0.0 } else { value }).write();
        // A value that rounds to minus zero is not negative any more.
        if self.relu && bits == 0x8000 { 0 } else { bits }
    }

    /// `min` and `max`.
    fn extreme<T: Small>(self, a: u32, b: u32) -> u32 {
        let (first, second) = if self.sign_product { (a & 0x7fff, b & 0x7fff) } else { (a, b) };
        let (x, y) = (T::read(first).wide(), T::read(second).wide());
        let value = match (self.operation, self.nan_wins) {
            (Operation::Min, false) => min_f32(x, y),
            (Operation::Min, true) => min_nan_f32(x, y),
            (_, false) => max_f32(x, y),
            (_, true) => max_nan_f32(x, y),
        };
        let bits = T::from_wide(value).write();
        if self.sign_product && !value.is_nan() { bits & 0x7fff | (a ^ b) & 0x8000 } else { bits }
    }
}

/// The NaN that copies of tensors write where there is no element, of either sign and in both types.
const OUT_OF_BOUNDS_NAN_BITS: u32 = 0x7ff7;

/// Computes both halves of three registers.
fn lane<T: Small>(style: Style, operands: [u32; 3]) -> u32 {
    let low = style.apply::<T>(operands);
    if style.pair { low | style.apply::<T>(operands.map(|operand| operand >> 16)) << 16 } else { low }
}

/// `d = f(a, b, c)` with the style in `Inst::imm`. Operands that the operation lacks may be any register.
pub(crate) fn arithmetic(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let style = Style::decode(inst.imm);
    for index in lanes_of(machine.mask) {
        let operands = [inst.a, inst.b, inst.c].map(|slot| machine.registers.row::<u32>(slot)[index]);
        let value = if style.bfloat { lane::<Bf16>(style, operands) } else { lane::<F16>(style, operands) };
        machine.registers.set_lane(inst.d, index, value);
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Style = Style {
        operation: Operation::Add,
        bfloat: false,
        pair: false,
        flush: false,
        saturate: false,
        relu: false,
        nan_wins: false,
        sign_product: false,
        bounded: false,
    };

    #[test]
    fn styles_survive_encoding() {
        for style in [
            PLAIN,
            Style { operation: Operation::Abs, bfloat: true, relu: true, ..PLAIN },
            Style { operation: Operation::Max, pair: true, sign_product: true, bounded: true, ..PLAIN },
            Style { operation: Operation::Fma, flush: true, saturate: true, nan_wins: true, ..PLAIN },
        ] {
            assert_eq!(Style::decode(style.encode()), style);
        }
    }

    #[test]
    fn modifiers_do_what_they_say() {
        let apply = |style: Style, a, b, c| lane::<F16>(style, [a, b, c]);
        assert_eq!(apply(Style { flush: true, ..PLAIN }, 0x0001, 0x8001, 0), 0);
        assert_eq!(apply(Style { saturate: true, pair: true, ..PLAIN }, 0x4000_bc00, 0x3c00_0000, 0), 0x3c00_0000);
        assert_eq!(apply(Style { operation: Operation::Fma, relu: true, ..PLAIN }, 0xbc00, 0x3c00, 0), 0);
        let product = Style { operation: Operation::Max, sign_product: true, ..PLAIN };
        assert_eq!(apply(product, 0xc000, 0x3c00, 0), 0xc000);
        assert_eq!(apply(Style { operation: Operation::Neg, ..PLAIN }, 0x7e01, 0, 0), 0x7fff);
        let bounded = Style { operation: Operation::Fma, bounded: true, ..PLAIN };
        assert_eq!((apply(bounded, 0xfff7, 0x3c00, 0x3c00), apply(bounded, 0x3c00, 0x3c00, 0x7ff7)), (0, 0x7fff));
    }
}
