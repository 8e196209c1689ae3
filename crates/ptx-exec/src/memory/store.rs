//! `st` to global, generic and shared addresses: the mirror of `load`.
//!
//! When lanes write the same address, the highest lane wins; PTX leaves the choice open.

#![expect(unsafe_code, reason = "writes memory that was checked a few lines above")]

use super::load::{Access, span};
use super::place::Space;
use super::{Pointer, Word, addresses, aligned, bounds, raw};
use crate::alu::lanes::dispatched;
use crate::inst::{Flow, Inst};
use crate::machine::Machine;
use crate::registers::{FULL, LANES, Raw, lanes_of};

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
    if strided && machine.mask == FULL && first.is_multiple_of(A::Word::SIZE) {
        if let Some(host) = span::<A>(machine, first, LANES as u64 * A::Word::SIZE, true) {
            let mut values = [A::Word::cut(0); LANES];
            cut_row::<A>(&mut values, machine.registers.row(inst.b));
            // SAFETY: `span` found all 32 values in one writable range; the address is aligned.
            unsafe { raw::store_row(host, &values) };
            return Flow::Next;
        }
    }
    let addresses = addresses(machine.registers.row::<A::Pointer>(inst.a), inst.imm);
    scattered::<A>(machine, inst, &addresses, 0, A::Word::SIZE, inst.b)
}

/// Any addresses; see `load::scattered`.
#[inline(always)]
fn scattered<A: Access>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    addresses: &[u64; LANES],
    offset: u64,
    alignment: u64,
    slot: u32,
) -> Flow {
    let (low, high) = bounds(addresses, machine.mask);
    let bytes = (high - low).saturating_add(alignment);
    let host = span::<A>(machine, low, bytes, true).filter(|_| aligned(addresses, machine.mask, alignment));
    let Some(host) = host else { return lane_by_lane::<A>(machine, inst, addresses, offset, alignment, slot) };
    let values = machine.registers.row::<A::Lane>(slot);
    for lane in lanes_of(machine.mask) {
        // SAFETY: `span` found everything from the lowest address to the end of the highest access in one writable
        // range, and all addresses are aligned; `offset` stays inside an access of `alignment` bytes.
        unsafe { raw::store(host + (addresses[lane] - low) + offset, A::Word::cut(values[lane].wide())) };
    }
    Flow::Next
}

#[inline(never)]
fn lane_by_lane<A: Access>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    addresses: &[u64; LANES],
    offset: u64,
    alignment: u64,
    slot: u32,
) -> Flow {
    let space = if A::SHARED { Space::Shared } else { Space::decode(inst.d) };
    for lane in lanes_of(machine.mask) {
        let value = A::Word::cut(machine.registers.row::<A::Lane>(slot)[lane].wide());
        let checked = machine.place(space, addresses[lane], alignment, true);
        let written = checked.and_then(|_| machine.write(space, lane, addresses[lane].wrapping_add(offset), value));
        if let Err(kind) = written {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// Several values a lane, which must be aligned to all of them together.
#[inline(always)]
fn store_vector_body<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let addresses = addresses(machine.registers.row::<A::Pointer>(inst.a), inst.imm);
    let total = A::Word::SIZE * u64::from(inst.c);
    for index in 0..inst.c {
        let slot = machine.env.code.list(inst.x + index);
        let offset = u64::from(index) * A::Word::SIZE;
        let flow = scattered::<A>(machine, inst, &addresses, offset, total, slot);
        if flow != Flow::Next {
            return flow;
        }
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
