//! Video instructions: `vadd vsub vabsdiff vmin vmax vavrg vset vshl vshr vmad`, on words, halves and bytes.
//!
//! They select parts of their operands, extend them, compute in 33 bits and more, and clamp. Then they combine the result with a
//! third operand, or insert it there. They handle one lane at a time; only the values are unknown at decoding.
//!
//! Where an H200 deviates from the PTX ISA, this code does what the H200 does. An unsigned word is clamped at 0 but wraps above,
//! and the upper half of a result replaces the upper half of its target without a shift.

pub(crate) mod operation;

use crate::alu::video::operation::{Join, Operation, Video};
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;

/// Clamps `value` to the range of a type. Above the largest unsigned word it wraps.
fn clamp(value: i128, signed: bool, bits: u32) -> i128 {
    if bits == 32 && !signed {
        return value.max(0);
    }
    let (low, high) = if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1_i128 << bits) - 1) };
    value.clamp(low, high)
}

impl Video {
    /// Returns a part of a source, extended.
    fn part(&self, source: usize, index: usize, words: u64) -> i64 {
        let (first, bits) = self.select[source][index % 4];
        let raw = words >> first << (64 - bits);
        if self.signed[source + 1] { raw.cast_signed() >> (64 - bits) } else { (raw >> (64 - bits)).cast_signed() }
    }

    /// Computes the result of one pair of parts, before the clamp.
    fn compute(&self, a: i64, b: i64, c: u32) -> i128 {
        let distance = |wrap: bool| if wrap { b & 31 } else { b.clamp(0, 32) };
        i128::from(match self.operation {
            Operation::Add => a + b,
            Operation::Subtract => a - b,
            Operation::Distance => (a - b).abs(),
            Operation::Min => a.min(b),
            Operation::Max => a.max(b),
            Operation::Average => (a + b + i64::from(a + b >= 0)) >> 1,
            Operation::Compare(comparison) => i64::from(comparison.holds(a, b)),
            Operation::Left(wrap) => a << distance(wrap),
            Operation::Right(wrap) => a >> distance(wrap),
            Operation::Multiply(shift) => return self.multiply(a, b, c) >> shift,
        })
    }

    /// Returns whether the sum of `vmad` is signed.
    fn signed_sum(&self) -> bool {
        self.signed[1] || self.signed[2] || self.negate[0] || self.negate[1]
    }

    /// `a * b + c`, with its negations.
    fn multiply(&self, a: i64, b: i64, c: u32) -> i128 {
        let product = i128::from(a) * i128::from(b);
        let addend = if self.signed_sum() { i128::from(c.cast_signed()) } else { i128::from(c) };
        let product = if self.negate[0] { -product } else { product };
        let addend = if self.negate[1] { -addend } else { addend };
        product + addend + i128::from(self.plus_one)
    }

    /// Computes the result of one lane.
    fn apply(&self, a: u32, b: u32, c: u32) -> u32 {
        if self.bits == 32 { self.scalar(a, b, c) } else { self.parts(a, b, c) }
    }

    /// Computes one value, from whole operands or parts of them.
    fn scalar(&self, a: u32, b: u32, c: u32) -> u32 {
        let (bits, shift) = self.target;
        let (a, b) = (self.part(0, 0, u64::from(a)), self.part(1, 0, u64::from(b)));
        let value = self.compute(a, b, c);
        let signed = if matches!(self.operation, Operation::Multiply(_)) { self.signed_sum() } else { self.signed[0] };
        let value = if self.saturate { clamp(value, signed, bits) } else { value };
        let word = value as u32;
        // In an unsigned comparison, a negative result counts as larger than any word.
        let (first, second) = if self.signed[0] {
            (i64::from(word.cast_signed()) as u64 ^ 1 << 63, i64::from(c.cast_signed()) as u64 ^ 1 << 63)
        } else {
            (value as u64, u64::from(c))
        };
        match self.join {
            Join::Add => word.wrapping_add(c),
            Join::Min => first.min(second) as u32,
            Join::Max => first.max(second) as u32,
            Join::Merge if bits == 32 => word,
            Join::Merge => {
                let mask = ((1 << bits) - 1) << shift;
                let shifted = if bits == 16 { word } else { word << shift };
                (c & !mask) | (shifted & mask)
            }
        }
    }

    /// Computes all halves or bytes at once.
    fn parts(&self, a: u32, b: u32, c: u32) -> u32 {
        let words = u64::from(a) | u64::from(b) << 32;
        let mask = u32::MAX >> (32 - self.bits);
        let (mut joined, mut sum) = (c, c);
        for index in 0..32 / self.bits {
            if self.mask >> index & 1 == 0 {
                continue;
            }
            let (a, b) = (self.part(0, index as usize, words), self.part(1, index as usize, words));
            let value = self.compute(a, b, c);
            let value = if self.saturate { clamp(value, self.signed[0], self.bits) } else { value };
            let shift = index * self.bits;
            joined = (joined & !(mask << shift)) | (value as u32 & mask) << shift;
            sum = sum.wrapping_add(value as u32);
        }
        if self.join == Join::Add { sum } else { joined }
    }
}

/// `d = f(a, b, c)`; `Inst::imm` is the description's index in `Code::videos`.
pub(crate) fn video(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let Some(video) = machine.env.code.videos.get(inst.imm as usize).copied() else { return Flow::Next };
    for lane in lanes_of(machine.mask) {
        let [a, b, c] = [inst.a, inst.b, inst.c].map(|slot| machine.registers.row::<u32>(slot)[lane]);
        machine.registers.set_lane(inst.d, lane, video.apply(a, b, c));
    }
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: Video = Video {
        operation: Operation::Add,
        bits: 32,
        signed: [true; 3],
        saturate: false,
        join: Join::Merge,
        mask: 1,
        target: (32, 0),
        select: [[(0, 32); 4]; 2],
        negate: [false; 2],
        plus_one: false,
    };

    #[test]
    fn single_values_are_picked_clamped_and_joined() {
        let clamped = Video { saturate: true, ..WORDS };
        assert_eq!(clamped.apply(0x7fff_ffff, 1, 0), 0x7fff_ffff);
        let bytes = Video { select: [[(24, 8); 4], [(0, 8); 4]], join: Join::Add, ..WORDS };
        assert_eq!(bytes.apply(0xff00_0000, 2, 10), 11);
        let merged = Video { target: (8, 16), ..WORDS };
        assert_eq!(merged.apply(0x11, 0x22, 0xaaaa_aaaa), 0xaa33_aaaa);
    }

    #[test]
    fn parts_are_computed_side_by_side() {
        let select = [[(0, 8), (8, 8), (16, 8), (24, 8)], [(32, 8), (40, 8), (48, 8), (56, 8)]];
        let bytes = Video { bits: 8, signed: [false; 3], mask: 0b0101, select, ..WORDS };
        assert_eq!(bytes.apply(0x01ff_03ff, 0x0101_0101, 0xaaaa_aaaa), 0xaa00_aa00);
        let sum = Video { operation: Operation::Distance, join: Join::Add, mask: 0b1111, ..bytes };
        assert_eq!(sum.apply(0x0102_0304, 0x0403_0201, 100), 108);
    }

    #[test]
    fn products_keep_their_signs_and_shift() {
        let shifted = Video { operation: Operation::Multiply(7), saturate: true, negate: [true, false], ..WORDS };
        assert_eq!(shifted.apply(256, 1, 128), 0xffff_ffff);
        assert_eq!(Video { negate: [false; 2], plus_one: true, ..shifted }.apply(256, 1, 127), 3);
    }
}
