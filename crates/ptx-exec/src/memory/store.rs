//! `st` to global, generic and shared addresses: the counterpart of `load`.
//!
//! If several lanes write the same address, the highest lane wins; PTX leaves the choice open.

#![expect(unsafe_code, reason = "writes memory that was checked a few lines above")]

use super::load::{Access, Spread, expect_more, same_width, span, spread, step};
use super::raw::Group;
use super::{raw, wide};
use crate::alu::lanes::dispatched_by_level;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{FULL_LANE_MASK, Raw, WARP_LANES, lanes_of};
use crate::memory::pointer::Pointer;
use crate::memory::word::Word;
use crate::slot::{NO_SLOT, Slot};
use crate::types::Space;

/// Cuts 32 registers to the size in memory.
#[inline(always)]
fn cut_row<A: Access>(out: &mut [A::Word; WARP_LANES], values: &[A::Lane; WARP_LANES]) {
    for lane in 0..WARP_LANES {
        out[lane] = A::Word::cut(values[lane].wide());
    }
}

/// Stores one value for each lane.
#[inline(always)]
fn store_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, _) = A::Pointer::pattern(row, A::Word::BYTES);
    let first = row[0].plus(inst.imm);
    if strided
        && machine.mask == FULL_LANE_MASK
        && first.is_multiple_of(A::Word::BYTES)
        && let Some(host) = span::<A>(machine, first, WARP_LANES as u64 * A::Word::BYTES, true)
    {
        expect_more::<A>(machine, host, WARP_LANES as u64 * A::Word::BYTES);
        if same_width::<A>() {
            let to = std::ptr::with_exposed_provenance_mut(host as usize);
            // SAFETY: `span` found all 32 values in one writable range; the row has their size.
            unsafe { wide::copy::<LEVEL>(to, machine.registers.address(inst.b), WARP_LANES * size_of::<A::Word>()) };
        } else {
            let mut values = [A::Word::cut(0); WARP_LANES];
            cut_row::<A>(&mut values, machine.registers.row(inst.b));
            // SAFETY: as above.
            unsafe { wide::write::<A::Word, LEVEL>(host, &values) };
        }
        return Flow::Next;
    }
    // SAFETY: `store_rest` gives what the CPU has.
    unsafe { store_rest::<A>()(machine, inst) }
}

/// Returns where lane 0 would write, if the running lanes write consecutive values.
#[inline(always)]
fn row_of_some<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Option<u64> {
    let mask = machine.mask;
    let (first, last) = ((mask.trailing_zeros() & 31) as usize, 31 - (mask.leading_zeros() & 31) as usize);
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, _) = A::Pointer::pattern_of(row, A::Word::BYTES, mask, first);
    let address = row[first].plus(inst.imm);
    if !strided || !address.is_multiple_of(A::Word::BYTES) {
        return None;
    }
    let host = span::<A>(machine, address, (last - first + 1) as u64 * A::Word::BYTES, true)?;
    Some(host.wrapping_sub(first as u64 * A::Word::BYTES))
}

/// Stores one value for each lane, for any addresses.
#[inline(always)]
fn rest_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if let Some(host) = row_of_some::<A>(machine, inst) {
        let values = machine.registers.row::<A::Lane>(inst.b);
        for lane in lanes_of(machine.mask) {
            let value = A::Word::cut(values[lane].wide());
            // SAFETY: `row_of_some` found the values from the first to the last lane that runs in one writable range.
            unsafe { raw::store(host.wrapping_add(lane as u64 * A::Word::BYTES), value) };
        }
        return Flow::Next;
    }
    match spread::<A>(machine, inst, A::Word::BYTES, true) {
        Some(spread) => scattered::<A>(machine, &spread, inst.b),
        None => return lane_by_lane::<A>(machine, inst),
    }
    Flow::Next
}

/// Stores to any checked addresses.
#[inline(always)]
fn scattered<A: Access>(machine: &Machine<'_>, spread: &Spread<A::Pointer>, slot: Slot) {
    let values = machine.registers.row::<A::Lane>(slot);
    let store_lane = |lane: usize| {
        let value = A::Word::cut(values[lane].wide());
        // SAFETY: `spread` checked range, writability and alignment of every access of a lane that runs.
        unsafe { raw::store(step::<A>(spread.host, spread.distances[lane]), value) };
    };
    if machine.mask == FULL_LANE_MASK {
        (0..WARP_LANES).for_each(store_lane);
    } else {
        lanes_of(machine.mask).for_each(store_lane);
    }
}

/// Stores lane by lane, for any addresses; finds the fault, or serves lanes in different ranges.
#[inline(never)]
fn lane_by_lane<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let count = if inst.c == NO_SLOT { 1 } else { inst.c };
    let space = if A::SHARED { Space::Shared } else { Space::decode(inst.d) };
    let row = *machine.registers.row::<A::Pointer>(inst.a);
    for index in 0..count {
        let slot = if inst.c == NO_SLOT { inst.b } else { machine.env.code.list(inst.x + index) };
        for lane in lanes_of(machine.mask) {
            let value = A::Word::cut(machine.registers.row::<A::Lane>(slot)[lane].wide());
            let address = row[lane].plus(inst.imm);
            let checked = machine.resolve(space, address, A::Word::BYTES * u64::from(count), true);
            let element = address.wrapping_add(u64::from(index) * A::Word::BYTES);
            if let Err(kind) = checked.and_then(|_| machine.write(space, lane, element, value)) {
                return machine.fail(kind, lane);
            }
        }
    }
    Flow::Next
}

/// Stores several values for each lane, which must be aligned to their total size.
#[inline(always)]
fn store_vector_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let size = A::Word::BYTES * u64::from(inst.c);
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, _) = A::Pointer::pattern(row, size);
    let first = row[0].plus(inst.imm);
    if strided
        && machine.mask == FULL_LANE_MASK
        && matches!(inst.c, 2 | 4)
        && first.is_multiple_of(size)
        && let Some(host) = span::<A>(machine, first, WARP_LANES as u64 * size, true)
    {
        // SAFETY: `span` found the values of all lanes in one writable range.
        unsafe {
            match inst.c {
                2 => gather::<A, LEVEL, 2>(machine, inst, host),
                _ => gather::<A, LEVEL, 4>(machine, inst, host),
            }
        }
        return Flow::Next;
    }
    // SAFETY: `store_vector_rest` gives what the CPU has.
    unsafe { store_vector_rest::<A>()(machine, inst) }
}

/// Writes `COUNT` registers of all lanes, with the values of each lane next to each other.
///
/// # Safety
///
/// The values of all lanes must be writable.
#[inline(always)]
unsafe fn gather<A: Access, const LEVEL: u8, const COUNT: usize>(machine: &Machine<'_>, inst: &Inst, host: u64) {
    let mut values = [[A::Word::cut(0); COUNT]; WARP_LANES];
    for (index, number) in (inst.x..).take(COUNT).enumerate() {
        let row = machine.registers.row::<A::Lane>(machine.env.code.list(number));
        for (group, value) in values.iter_mut().zip(row) {
            group[index] = A::Word::cut(value.wide());
        }
    }
    // SAFETY: the caller's promise.
    unsafe { wide::write::<A::Word, LEVEL>(host, values.as_flattened()) };
}

/// Stores several values for each lane, for any addresses.
#[inline(always)]
fn vector_rest_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let size = A::Word::BYTES * u64::from(inst.c);
    let Some(spread) = spread::<A>(machine, inst, size, true) else {
        return lane_by_lane::<A>(machine, inst);
    };
    let mut groups = [Group::ZERO; WARP_LANES];
    for index in 0..inst.c {
        let values = machine.registers.row::<A::Lane>(machine.env.code.list(inst.x + index));
        for (group, value) in groups.iter_mut().zip(values) {
            group.set::<A::Word>(index as usize, value.wide());
        }
    }
    for lane in lanes_of(machine.mask) {
        // SAFETY: `spread` checked range, writability and alignment of every access of a lane that runs.
        unsafe { groups[lane].store(step::<A>(spread.host, spread.distances[lane]), size) };
    }
    Flow::Next
}

dispatched_by_level!(
    /// Code for `st` of one value.
    store, store_body, Access
);
dispatched_by_level!(
    /// Code for `st` of one value, where `store` does not apply.
    store_rest, rest_body, Access
);
dispatched_by_level!(
    /// Code for `st` of a vector.
    store_vector, store_vector_body, Access
);
dispatched_by_level!(
    /// Code for `st` of a vector, where `store_vector` does not apply.
    store_vector_rest, vector_rest_body, Access
);
