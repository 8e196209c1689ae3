//! `ld` from global, generic and shared addresses.
//!
//! Three shapes of addresses are served at once: 32 values in a row, one value for all, and any others within one range.
//! What remains goes lane by lane through `place`, which finds the fault if there is one.

#![expect(unsafe_code, reason = "reads memory that was checked a few lines above")]

use super::place::Space;
use super::{Pointer, Word, addresses, aligned, bounds, raw};
use crate::alu::lanes::dispatched;
use crate::inst::{Flow, Inst, NONE};
use crate::machine::Machine;
use crate::registers::{FULL, LANES, Raw, lanes_of};
use crate::window;
use std::marker::PhantomData;

/// The instruction: what is read, the register it goes to, and how addresses are held.
pub(crate) trait Access {
    /// What is in memory.
    type Word: Word;
    /// What is in the register.
    type Lane: Raw;
    /// The address register.
    type Pointer: Pointer;
    /// Whether addresses are offsets into shared memory.
    const SHARED: bool;
}

/// Global and generic addresses; `Inst::b` tells which (`Space::encode`).
pub(crate) struct Device<T, L>(PhantomData<(T, L)>);

/// Shared memory.
pub(crate) struct Shared<T, L, P>(PhantomData<(T, L, P)>);

impl<T: Word, L: Raw> Access for Device<T, L> {
    type Word = T;
    type Lane = L;
    type Pointer = u64;
    const SHARED: bool = false;
}

impl<T: Word, L: Raw, P: Pointer> Access for Shared<T, L, P> {
    type Word = T;
    type Lane = L;
    type Pointer = P;
    const SHARED: bool = true;
}

/// Where `bytes` bytes at `address` are in this process, if they all lie in one range.
#[inline(always)]
pub(crate) fn span<A: Access>(machine: &mut Machine<'_>, address: u64, bytes: u64, write: bool) -> Option<u64> {
    if A::SHARED {
        return machine.block.shared.span(address, bytes);
    }
    // Windows are no ranges of the host: do not ask it.
    let plain = address < window::SHARED;
    let allowed = plain && machine.ranges.allow(machine.env.host, machine.pc, address, bytes, write);
    allowed.then_some(address)
}

#[inline(always)]
fn extend_row<A: Access>(out: &mut [A::Lane; LANES], values: &[A::Word; LANES]) {
    use crate::alu::convert::Source;
    for lane in 0..LANES {
        out[lane] = A::Lane::narrow(values[lane].extended());
    }
}

/// One value a lane.
#[inline(always)]
fn load_body<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, uniform) = A::Pointer::pattern(row, A::Word::SIZE);
    let first = row[0].plus(inst.imm);
    let mut out = [A::Lane::ZERO; LANES];
    if strided && machine.mask == FULL && first.is_multiple_of(A::Word::SIZE) {
        if let Some(host) = span::<A>(machine, first, LANES as u64 * A::Word::SIZE, false) {
            // SAFETY: `span` found all 32 values in one range; the address is aligned.
            extend_row::<A>(&mut out, &unsafe { raw::load_row(host) });
            machine.registers.set(inst.d, FULL, &out);
            return Flow::Next;
        }
    }
    if uniform && first.is_multiple_of(A::Word::SIZE) {
        if let Some(host) = span::<A>(machine, first, A::Word::SIZE, false) {
            // SAFETY: `span` found the value in a range; the address is aligned.
            extend_row::<A>(&mut out, &[unsafe { raw::load(host) }; LANES]);
            machine.registers.set(inst.d, machine.mask, &out);
            return Flow::Next;
        }
    }
    let addresses = addresses(machine.registers.row::<A::Pointer>(inst.a), inst.imm);
    scattered::<A>(machine, inst, &addresses, 0, A::Word::SIZE, inst.d)
}

/// Any addresses: all in one range, or lane by lane. `alignment` is what the addresses must be multiples of, and the
/// value is `offset` bytes after them.
#[inline(always)]
fn scattered<A: Access>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    addresses: &[u64; LANES],
    offset: u64,
    alignment: u64,
    slot: u32,
) -> Flow {
    use crate::alu::convert::Source;
    let (low, high) = bounds(addresses, machine.mask);
    let bytes = (high - low).saturating_add(alignment);
    let host = span::<A>(machine, low, bytes, false).filter(|_| aligned(addresses, machine.mask, alignment));
    let Some(host) = host else { return lane_by_lane::<A>(machine, inst, addresses, offset, alignment, slot) };
    let mut out = [A::Lane::ZERO; LANES];
    for lane in lanes_of(machine.mask) {
        // SAFETY: `span` found everything from the lowest address to the end of the highest access in one range, and all
        // addresses are aligned; `offset` stays inside an access of `alignment` bytes.
        let value: A::Word = unsafe { raw::load(host + (addresses[lane] - low) + offset) };
        out[lane] = A::Lane::narrow(value.extended());
    }
    if slot != NONE {
        machine.registers.set(slot, machine.mask, &out);
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
    use crate::alu::convert::Source;
    let space = if A::SHARED { Space::Shared } else { Space::decode(inst.b) };
    let mut out = [A::Lane::ZERO; LANES];
    for lane in lanes_of(machine.mask) {
        let checked = machine.place(space, addresses[lane], alignment, false);
        let value = checked.and_then(|_| machine.read::<A::Word>(space, lane, addresses[lane].wrapping_add(offset)));
        match value {
            Ok(value) => out[lane] = A::Lane::narrow(value.extended()),
            Err(kind) => return machine.fail(kind, lane),
        }
    }
    if slot != NONE {
        machine.registers.set(slot, machine.mask, &out);
    }
    Flow::Next
}

/// Several values a lane, which must be aligned to all of them together.
#[inline(always)]
fn load_vector_body<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
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
    /// Code for `ld` of one value.
    load, load_avx2, load_body, Access
);
dispatched!(
    /// Code for `ld` of a vector.
    load_vector, load_vector_avx2, load_vector_body, Access
);
