//! `st` to global, generic and shared addresses: the mirror of `load`.
//!
//! When lanes write the same address, the highest lane wins; PTX leaves the choice open.

#![expect(unsafe_code, reason = "writes memory that was checked a few lines above")]

use super::load::{Access, Spread, span, spread, step};
use super::place::Space;
use super::{Pointer, Word, raw};
use crate::alu::lanes::dispatched;
use crate::inst::{Flow, Inst, NONE, Slot};
use crate::machine::Machine;
use crate::registers::{FULL, LANES, Raw, lanes_of};

/// Cuts 32 registers to the size in memory.
#[inline(always)]
fn cut_row<A: Access>(out: &mut [A::Word; LANES], values: &[A::Lane; LANES]) {
    for lane in 0..LANES {
        out[lane] = A::Word::cut(values[lane].wide());
    }
}

/// One value a lane.
#[inline(always)]
fn store_body<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, _) = A::Pointer::pattern(row, A::Word::SIZE);
    let first = row[0].plus(inst.imm);
    if strided
        && machine.mask == FULL
        && first.is_multiple_of(A::Word::SIZE)
        && let Some(host) = span::<A>(machine, first, LANES as u64 * A::Word::SIZE, true)
    {
        let mut values = [A::Word::cut(0); LANES];
        cut_row::<A>(&mut values, machine.registers.row(inst.b));
        // SAFETY: `span` found all 32 values in one writable range; the address is aligned.
        unsafe { raw::store_row(host, &values) };
        return Flow::Next;
    }
    match spread::<A>(machine, inst, A::Word::SIZE, true) {
        Some(spread) => scattered::<A>(machine, &spread, 0, inst.b),
        None => return lane_by_lane::<A>(machine, inst),
    }
    Flow::Next
}

/// Any allowed addresses; the value is `offset` bytes into the access.
#[inline(always)]
fn scattered<A: Access>(machine: &Machine<'_>, spread: &Spread<A::Pointer>, offset: u64, slot: Slot) {
    let host = spread.host.wrapping_add(offset);
    let values = machine.registers.row::<A::Lane>(slot);
    let one = |lane: usize| {
        let value = A::Word::cut(values[lane].wide());
        // SAFETY: `spread` checked range, writability and alignment of every access of a lane that runs.
        unsafe { raw::store(step::<A>(host, spread.distances[lane]), value) };
    };
    if machine.mask == FULL {
        (0..LANES).for_each(one);
    } else {
        lanes_of(machine.mask).for_each(one);
    }
}

/// Whatever the addresses: finds the fault, or the lanes that lie in different ranges.
#[inline(never)]
fn lane_by_lane<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let count = if inst.c == NONE { 1 } else { inst.c };
    let space = if A::SHARED { Space::Shared } else { Space::decode(inst.d) };
    let row = *machine.registers.row::<A::Pointer>(inst.a);
    for index in 0..count {
        let slot = if inst.c == NONE { inst.b } else { machine.env.code.list(inst.x + index) };
        for lane in lanes_of(machine.mask) {
            let value = A::Word::cut(machine.registers.row::<A::Lane>(slot)[lane].wide());
            let address = row[lane].plus(inst.imm);
            let checked = machine.place(space, address, A::Word::SIZE * u64::from(count), true);
            let element = address.wrapping_add(u64::from(index) * A::Word::SIZE);
            if let Err(kind) = checked.and_then(|_| machine.write(space, lane, element, value)) {
                return machine.fail(kind, lane);
            }
        }
    }
    Flow::Next
}

/// Several values a lane, which must be aligned to all of them together.
#[inline(always)]
fn store_vector_body<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let Some(spread) = spread::<A>(machine, inst, A::Word::SIZE * u64::from(inst.c), true) else {
        return lane_by_lane::<A>(machine, inst);
    };
    for index in 0..inst.c {
        let slot = machine.env.code.list(inst.x + index);
        scattered::<A>(machine, &spread, u64::from(index) * A::Word::SIZE, slot);
    }
    Flow::Next
}

dispatched!(
    /// Code for `st` of one value.
    store, store_avx2, store_body, Access
);
dispatched!(
    /// Code for `st` of a vector.
    store_vector, store_vector_avx2, store_vector_body, Access
);
