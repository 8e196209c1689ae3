//! Carry chains: `add.cc addc sub.cc subc mad.cc madc`. The carry flag is an ordinary predicate.
//!
//! A difference is the sum `a + !b + 1`, and the flag is the carry of that sum: set when nothing was borrowed. Programs see it
//! when `addc` follows `sub.cc`, as in the compiler's own division of 128-bit integers.

use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::{Raw, WARP_LANES};

/// `Inst::imm` flag: take the carry from predicate `x`.
pub(crate) const CARRY_IN: u64 = 1;
/// `Inst::imm` flag: put the carry into predicate `x`.
pub(crate) const CARRY_OUT: u64 = 2;

/// The term that a step adds to the accumulator, or subtracts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    /// `a + b`
    Add,
    /// `a - b`; the flag is set when nothing is borrowed.
    Sub,
    /// Low half of `a * b`, plus `c`.
    MadLo,
    /// High half of `a * b`, plus `c`.
    MadHi,
    /// High half of `a * b`, plus `c`, saturated to the signed range, without a carry out.
    MadHiSat,
}

/// The widths of chains.
pub(crate) trait Limb: Raw {
    /// Returns result and carry of one step.
    fn step(chain: Chain, signed: bool, a: Self, b: Self, c: Self, carry: bool) -> (Self, bool);
}

macro_rules! limbs {
    ($($ty:ident, $signed:ident, $double:ident, $signed_double:ident;)*) => {$(
        impl Limb for $ty {
            fn step(chain: Chain, signed: bool, a: Self, b: Self, c: Self, carry: bool) -> (Self, bool) {
                let product = if signed {
                    ((a as $signed as $signed_double) * (b as $signed as $signed_double)) as $double
                } else {
                    (a as $double) * (b as $double)
                };
                if chain == Chain::MadHiSat {
                    let sum = (product as $signed_double >> Self::BITS)
                        + $signed_double::from(c as $signed)
                        + $signed_double::from(carry);
                    let ends = ($signed_double::from($signed::MIN), $signed_double::from($signed::MAX));
                    return (sum.clamp(ends.0, ends.1) as Self, false);
                }
                let (left, right) = match chain {
                    Chain::Add | Chain::Sub => (a, b),
                    Chain::MadLo => (product as Self, c),
                    Chain::MadHi | Chain::MadHiSat => ((product >> Self::BITS) as Self, c),
                };
                left.carrying(if chain == Chain::Sub { !right } else { right }, carry)
            }
        }

        impl Carrying for $ty {
            fn carrying(self, b: Self, carry: bool) -> (Self, bool) {
                let (sum, first) = self.overflowing_add(b);
                let (sum, second) = sum.overflowing_add(Self::from(carry));
                (sum, first | second)
            }
        }
    )*};
}

/// Sums with a flag in and out.
trait Carrying: Sized {
    /// `self + b + carry`
    fn carrying(self, b: Self, carry: bool) -> (Self, bool);
}

limbs! {
    u32, i32, u64, i64;
    u64, i64, u128, i128;
}

/// One instruction of a chain; `SIGNED` matters only to `MadHi`.
fn body<T: Limb, const CHAIN: u8, const SIGNED: bool>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let chain = match CHAIN {
        0 => Chain::Add,
        1 => Chain::Sub,
        2 => Chain::MadLo,
        3 => Chain::MadHi,
        _ => Chain::MadHiSat,
    };
    let registers = &machine.registers;
    let (a, b, c) = (registers.row::<T>(inst.a), registers.row::<T>(inst.b), registers.row::<T>(inst.c));
    let first = if chain == Chain::Sub { u32::MAX } else { 0 };
    let carries = if inst.imm & CARRY_IN != 0 { registers.bits(inst.x) } else { first };
    let mut out = [T::ZERO; WARP_LANES];
    let mut flags = 0;
    for lane in 0..WARP_LANES {
        let (value, flag) = T::step(chain, SIGNED, a[lane], b[lane], c[lane], carries >> lane & 1 != 0);
        out[lane] = value;
        flags |= u32::from(flag) << lane;
    }
    machine.registers.set(inst.d, machine.mask, &out);
    if inst.imm & CARRY_OUT != 0 {
        machine.registers.set_bits(inst.x, machine.mask, flags);
    }
    Flow::Next
}

/// Code for one instruction of a chain.
pub(crate) fn chain<T: Limb>(chain: Chain, signed: bool) -> Exec {
    match (chain, signed) {
        (Chain::Add, _) => body::<T, 0, false>,
        (Chain::Sub, _) => body::<T, 1, false>,
        (Chain::MadLo, _) => body::<T, 2, false>,
        (Chain::MadHi, false) => body::<T, 3, false>,
        (Chain::MadHi, true) => body::<T, 3, true>,
        (Chain::MadHiSat, _) => body::<T, 4, true>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_and_borrows_pass_on() {
        assert_eq!(u32::step(Chain::Add, false, u32::MAX, 0, 0, true), (0, true));
        assert_eq!(u32::step(Chain::Sub, false, 0, 0, 0, false), (u32::MAX, false));
        assert_eq!(u32::step(Chain::Sub, false, 5, 2, 0, true), (3, true));
        assert_eq!(u64::step(Chain::Add, false, 1, 2, 0, false), (3, false));
    }

    #[test]
    fn products_give_their_half_before_the_sum() {
        assert_eq!(u32::step(Chain::MadLo, false, u32::MAX, u32::MAX, 1, true), (3, false));
        assert_eq!(u32::step(Chain::MadHi, false, u32::MAX, u32::MAX, 2, false), (0, true));
        assert_eq!(u32::step(Chain::MadHi, true, u32::MAX, 1, 0, false), (u32::MAX, false));
        let (most, least) = (i32::MAX.cast_unsigned(), i32::MIN.cast_unsigned());
        assert_eq!(u32::step(Chain::MadHiSat, true, 1 << 30, 16, most - 4, true), (most, false));
        assert_eq!(u32::step(Chain::MadHiSat, true, 1 << 30, 16, most - 5, true), (most, false));
        assert_eq!(u32::step(Chain::MadHiSat, true, 1 << 30, 16, most - 6, true), (most - 1, false));
        assert_eq!(
            u32::step(Chain::MadHiSat, true, (-16_i32).cast_unsigned(), 1 << 30, least + 3, true),
            (least, false)
        );
    }
}
