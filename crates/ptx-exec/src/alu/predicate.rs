//! The result of a comparison: combined with a predicate, and written to one or two destinations.

use crate::engine::machine::{Inst, Machine};
use crate::slot::NO_SLOT;

/// `Inst::imm` of a comparison that writes only `d`.
pub(crate) const COMPARE_ONLY: u64 = 0;

/// Combines with predicate `c` by `and`.
pub(crate) const COMPARE_AND: u64 = 1;

/// Combines with predicate `c` by `or`.
pub(crate) const COMPARE_OR: u64 = 2;

/// Combines with predicate `c` by `xor`.
pub(crate) const COMPARE_XOR: u64 = 3;

/// No combination, but a second destination `x`.
pub(crate) const COMPARE_WRITES_BOTH: u64 = 4;

/// Flag: `c` is negated.
pub(crate) const NEGATE_C: u64 = 8;

/// Writes the result of a comparison. Combines it with a predicate and writes a second destination, if the instruction has them.
#[inline(always)]
pub(crate) fn finish(machine: &mut Machine<'_>, inst: &Inst, bits: u32) {
    if inst.imm == COMPARE_ONLY {
        machine.registers.set_bits(inst.d, machine.mask, bits);
    } else {
        finish_combined(machine, inst, bits);
    }
}

/// Writes the rare forms. It is separate from the comparison loops, which are many copies of the same code.
#[inline(never)]
fn finish_combined(machine: &mut Machine<'_>, inst: &Inst, bits: u32) {
    let operation = inst.imm & 7;
    let mut other = if operation == COMPARE_WRITES_BOTH { 0 } else { machine.registers.bits(inst.c) };
    if inst.imm & NEGATE_C != 0 {
        other = !other;
    }
    let combine = |bits: u32| match operation {
        COMPARE_AND => bits & other,
        COMPARE_OR => bits | other,
        COMPARE_XOR => bits ^ other,
        _ => bits,
    };
    let mask = machine.mask;
    for (slot, value) in [(inst.d, combine(bits)), (inst.x, combine(!bits))] {
        if slot != NO_SLOT {
            machine.registers.set_bits(slot, mask, value);
        }
    }
}
