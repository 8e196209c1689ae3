//! `ld` from global, generic and shared addresses.
//!
//! Nearly all code reads 32 consecutive values, or one value for all lanes. The instruction itself looks for these two patterns.
//! The `rest` serves them for some of the lanes, and any addresses within one range. All other accesses go lane by lane through
//! `resolve`, which finds the fault if there is one.

#![expect(unsafe_code, reason = "reads memory that was checked a few lines above")]

use super::raw;
use super::raw::Group;
use super::wide::{self, Buffer};
use crate::alu::convert::IntoFloat;
use crate::alu::lanes::dispatched_by_level;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::{FULL_LANE_MASK, Raw, WARP_LANES, lanes_of};
use crate::memory::pointer::{AddressBounds, Pointer};
use crate::memory::word::Word;
use crate::slot::{NO_SLOT, Slot};
use crate::types::Space;
use crate::window;
use std::marker::PhantomData;

/// Parameters of the instruction: the type in memory, the type of the register, and the type of addresses.
pub(crate) trait Access {
    /// Type of the value in memory.
    type Word: Word;
    /// Type of the value in the register.
    type Lane: Raw;
    /// Type of the address register.
    type Pointer: Pointer;
    /// Whether addresses are offsets into shared memory.
    const SHARED: bool;
}

/// Access by global and generic addresses; `Inst::b` tells which (`Space::encode`).
pub(crate) struct DeviceAccess<T, L>(PhantomData<(T, L)>);

/// Access by offsets into the shared memory of the block.
pub(crate) struct SharedAccess<T, L, P>(PhantomData<(T, L, P)>);

impl<T: Word, L: Raw> Access for DeviceAccess<T, L> {
    type Word = T;
    type Lane = L;
    type Pointer = u64;
    const SHARED: bool = false;
}

impl<T: Word, L: Raw, P: Pointer> Access for SharedAccess<T, L, P> {
    type Word = T;
    type Lane = L;
    type Pointer = P;
    const SHARED: bool = true;
}

/// Returns the address in this process of `bytes` bytes at `address`, if they all lie in one range.
#[inline(always)]
pub(crate) fn span<A: Access>(machine: &mut Machine<'_>, address: u64, bytes: u64, write: bool) -> Option<u64> {
    if A::SHARED {
        return machine.block.shared.span(address, bytes);
    }
    // Windows are not ranges of the host, so it is not asked.
    let plain = address < window::SHARED_ADDRESS;
    let allowed = plain && machine.ranges.allow(machine.env.host, machine.pc, address, bytes, write);
    allowed.then_some(address)
}

/// Returns the range of `address` for accesses of `size` bytes, and the address in this process.
#[inline(always)]
fn around<A: Access>(machine: &mut Machine<'_>, address: u64, size: u64, write: bool) -> Option<(u64, u64, u64)> {
    let host = span::<A>(machine, address, size, write)?;
    let (start, end) = if A::SHARED {
        let first = machine.block.shared.first();
        (first, first + machine.block.shared.bytes())
    } else {
        machine.ranges.around(machine.pc)
    };
    Some((host, start, end - start - size))
}

/// Checked accesses of a warp: the address of the first one, and the distances of the others.
pub(crate) struct Spread<P> {
    /// Address in this process of the first lane's access.
    pub(crate) host: u64,
    /// Distance of each lane from `host`, wrapping; 0 for lanes that do not run.
    pub(crate) distances: [P; WARP_LANES],
}

/// Checks all accesses of `size` bytes against the range of the first one; `None` if that is not enough.
#[inline(always)]
pub(crate) fn spread<A: Access>(
    machine: &mut Machine<'_>,
    inst: &Inst,
    size: u64,
    write: bool,
) -> Option<Spread<A::Pointer>> {
    let mask = machine.mask;
    let first = machine.registers.row::<A::Pointer>(inst.a)[(mask.trailing_zeros() & 31) as usize].plus(inst.imm);
    let (host, start, limit) = around::<A>(machine, first, size, write)?;
    let mut distances = [A::Pointer::ZERO; WARP_LANES];
    let span = AddressBounds { imm: inst.imm, start, limit, size };
    let bad = A::Pointer::distances(&mut distances, machine.registers.row(inst.a), mask, first, span);
    (!bad).then_some(Spread { host, distances })
}

/// Extends 32 values to the width of registers.
#[inline(always)]
fn extend_row<A: Access>(out: &mut [A::Lane; WARP_LANES], values: &[A::Word; WARP_LANES]) {
    for lane in 0..WARP_LANES {
        out[lane] = A::Lane::narrow(values[lane].extended());
    }
}

/// Returns whether values have the same size in memory as in registers.
#[inline(always)]
pub(crate) fn same_width<A: Access>() -> bool {
    size_of::<A::Word>() == size_of::<A::Lane>()
}

/// Loads one value for each lane.
#[inline(always)]
fn load_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, uniform) = A::Pointer::pattern(row, A::Word::BYTES);
    let first = row[0].plus(inst.imm);
    if machine.mask != FULL_LANE_MASK || !first.is_multiple_of(A::Word::BYTES) {
        return rest::<A>(machine, inst);
    }
    if strided && let Some(host) = span::<A>(machine, first, WARP_LANES as u64 * A::Word::BYTES, false) {
        expect_more::<A>(machine, host, WARP_LANES as u64 * A::Word::BYTES);
        // SAFETY: `span` found all 32 values in one range; the row is the instruction's own.
        unsafe { row_from::<A, LEVEL>(machine, inst, host, FULL_LANE_MASK) };
        return Flow::Next;
    }
    if uniform && let Some(host) = span::<A>(machine, first, A::Word::BYTES, false) {
        // SAFETY: `span` found the value in a range; the address is aligned.
        let value: A::Word = unsafe { raw::load(host) };
        machine.registers.set(inst.d, FULL_LANE_MASK, &[A::Lane::narrow(value.extended()); WARP_LANES]);
        return Flow::Next;
    }
    rest::<A>(machine, inst)
}

/// Prefetches the next address of the instruction, assuming that it goes on in equal steps.
#[inline(always)]
pub(crate) fn expect_more<A: Access>(machine: &mut Machine<'_>, host: u64, bytes: u64) {
    // Shared memory is already in the cache.
    if !A::SHARED {
        let next = machine.ranges.predicted_address(machine.pc, host);
        wide::prefetch(next, bytes);
    }
}

/// Moves 32 values from `host` to the destination, or only those in `mask`.
///
/// # Safety
///
/// All 32 values must be readable.
#[inline(always)]
unsafe fn row_from<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst, host: u64, mask: u32) {
    if same_width::<A>() && mask == FULL_LANE_MASK {
        let from = std::ptr::with_exposed_provenance(host as usize);
        // SAFETY: the caller's promise; the row has the size of 32 values.
        unsafe { wide::copy::<LEVEL>(machine.registers.address(inst.d), from, WARP_LANES * size_of::<A::Word>()) };
        return;
    }
    let (mut buffer, mut out) = (Buffer::uninit(), [A::Lane::ZERO; WARP_LANES]);
    // SAFETY: the caller's promise.
    let values = unsafe { wide::read::<A::Word, LEVEL>(&mut buffer, host, WARP_LANES) };
    if let Some(values) = values.first_chunk() {
        extend_row::<A>(&mut out, values);
    }
    machine.registers.set(inst.d, mask, &out);
}

/// Returns where lane 0 would read, if the running lanes read consecutive values. All 32 are then read, and some dropped.
#[inline(always)]
fn row_of_some<A: Access>(machine: &mut Machine<'_>, inst: &Inst, first: usize) -> Option<u64> {
    let address = machine.registers.row::<A::Pointer>(inst.a)[first].plus(inst.imm);
    let start = address.checked_sub(first as u64 * A::Word::BYTES)?;
    let aligned = start.is_multiple_of(A::Word::BYTES);
    if aligned { span::<A>(machine, start, WARP_LANES as u64 * A::Word::BYTES, false) } else { None }
}

/// Loads one value for each lane, for any addresses.
fn rest<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    // SAFETY: `load_rest` gives what the CPU has.
    unsafe { load_rest::<A>()(machine, inst) }
}

#[inline(always)]
fn rest_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let first = (machine.mask.trailing_zeros() & 31) as usize;
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, uniform) = A::Pointer::pattern_of(row, A::Word::BYTES, machine.mask, first);
    if strided
        && !uniform
        && let Some(host) = row_of_some::<A>(machine, inst, first)
    {
        let mask = machine.mask;
        expect_more::<A>(machine, host, WARP_LANES as u64 * A::Word::BYTES);
        // SAFETY: `row_of_some` found all 32 values in one range.
        unsafe { row_from::<A, LEVEL>(machine, inst, host, mask) };
        return Flow::Next;
    }
    let address = machine.registers.row::<A::Pointer>(inst.a)[first].plus(inst.imm);
    if uniform
        && address.is_multiple_of(A::Word::BYTES)
        && let Some(host) = span::<A>(machine, address, A::Word::BYTES, false)
    {
        // SAFETY: `span` found the value in a range; the address is aligned.
        let value: A::Word = unsafe { raw::load(host) };
        machine.registers.set(inst.d, machine.mask, &[A::Lane::narrow(value.extended()); WARP_LANES]);
        return Flow::Next;
    }
    match spread::<A>(machine, inst, A::Word::BYTES, false) {
        Some(spread) => scattered::<A>(machine, &spread, inst.d),
        None => return lane_by_lane::<A>(machine, inst),
    }
    Flow::Next
}

/// Loads from any checked addresses.
#[inline(always)]
fn scattered<A: Access>(machine: &mut Machine<'_>, spread: &Spread<A::Pointer>, slot: Slot) {
    if slot == NO_SLOT {
        return;
    }
    let mut out = [A::Lane::ZERO; WARP_LANES];
    for (out, distance) in out.iter_mut().zip(&spread.distances) {
        // SAFETY: `spread` checked range and alignment of every access; lanes that do not run read that of one that does.
        let value: A::Word = unsafe { raw::load(step::<A>(spread.host, *distance)) };
        *out = A::Lane::narrow(value.extended());
    }
    machine.registers.set(slot, machine.mask, &out);
}

/// Returns `host` plus a distance, which wraps at the width of the address register.
#[inline(always)]
pub(crate) fn step<A: Access>(host: u64, distance: A::Pointer) -> u64 {
    let distance = distance.wide();
    let signed = if size_of::<A::Pointer>() == 4 { i64::from(distance as i32).cast_unsigned() } else { distance };
    host.wrapping_add(signed)
}

/// Loads lane by lane, for any addresses; finds the fault, or serves lanes in different ranges.
#[inline(never)]
fn lane_by_lane<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let count = if inst.c == NO_SLOT { 1 } else { inst.c };
    let space = if A::SHARED { Space::Shared } else { Space::decode(inst.b) };
    let row = *machine.registers.row::<A::Pointer>(inst.a);
    for index in 0..count {
        let slot = if inst.c == NO_SLOT { inst.d } else { machine.env.code.list(inst.x + index) };
        for lane in lanes_of(machine.mask) {
            let address = row[lane].plus(inst.imm);
            let checked = machine.resolve(space, address, A::Word::BYTES * u64::from(count), false);
            let element = address.wrapping_add(u64::from(index) * A::Word::BYTES);
            match checked.and_then(|_| machine.read::<A::Word>(space, lane, element)) {
                Ok(value) if slot != NO_SLOT => {
                    machine.registers.set_lane(slot, lane, A::Lane::narrow(value.extended()))
                }
                Ok(_) => {}
                Err(kind) => return machine.fail(kind, lane),
            }
        }
    }
    Flow::Next
}

/// Loads several values for each lane, which must be aligned to their total size.
#[inline(always)]
fn load_vector_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let size = A::Word::BYTES * u64::from(inst.c);
    let row = machine.registers.row::<A::Pointer>(inst.a);
    let (strided, uniform) = A::Pointer::pattern(row, size);
    let first = row[0].plus(inst.imm);
    if machine.mask != FULL_LANE_MASK || !first.is_multiple_of(size) {
        return vector_rest::<A>(machine, inst);
    }
    if uniform && let Some(host) = span::<A>(machine, first, size, false) {
        // SAFETY: `span` found the values in a range; the address is aligned.
        unsafe { broadcast::<A>(machine, inst, host) };
        return Flow::Next;
    }
    if strided
        && matches!(inst.c, 2 | 4)
        && let Some(host) = span::<A>(machine, first, WARP_LANES as u64 * size, false)
    {
        expect_more::<A>(machine, host, WARP_LANES as u64 * size);
        // SAFETY: `span` found the values of all lanes in one range.
        unsafe {
            match inst.c {
                2 => deal::<A, LEVEL, 2>(machine, inst, host),
                _ => deal::<A, LEVEL, 4>(machine, inst, host),
            }
        }
        return Flow::Next;
    }
    vector_rest::<A>(machine, inst)
}

/// Gives the same values to every running lane.
///
/// # Safety
///
/// The values must be readable and aligned.
#[inline(always)]
unsafe fn broadcast<A: Access>(machine: &mut Machine<'_>, inst: &Inst, host: u64) {
    // SAFETY: the caller's promise.
    let group = unsafe { Group::load(host, A::Word::BYTES * u64::from(inst.c)) };
    for index in 0..inst.c {
        let slot = machine.env.code.list(inst.x + index);
        let value: A::Word = group.get(index as usize);
        if slot != NO_SLOT {
            machine.registers.set(slot, machine.mask, &[A::Lane::narrow(value.extended()); WARP_LANES]);
        }
    }
}

/// Distributes consecutive values to `COUNT` registers of all lanes.
///
/// # Safety
///
/// The values of all lanes must be readable.
#[inline(always)]
unsafe fn deal<A: Access, const LEVEL: u8, const COUNT: usize>(machine: &mut Machine<'_>, inst: &Inst, host: u64) {
    let mut buffer = Buffer::uninit();
    // SAFETY: the caller's promise.
    let values = unsafe { wide::read::<A::Word, LEVEL>(&mut buffer, host, COUNT * WARP_LANES) };
    let (groups, _) = values.as_chunks::<COUNT>();
    let Some(groups) = groups.first_chunk::<WARP_LANES>() else { return };
    for (index, number) in (inst.x..).take(COUNT).enumerate() {
        let slot = machine.env.code.list(number);
        if slot != NO_SLOT {
            let mut out = [A::Lane::ZERO; WARP_LANES];
            for (out, group) in out.iter_mut().zip(groups) {
                *out = A::Lane::narrow(group[index].extended());
            }
            machine.registers.set(slot, FULL_LANE_MASK, &out);
        }
    }
}

/// Loads several values for each lane, for any addresses.
fn vector_rest<A: Access>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    // SAFETY: `load_vector_rest` gives what the CPU has.
    unsafe { load_vector_rest::<A>()(machine, inst) }
}

#[inline(always)]
fn vector_rest_body<A: Access, const LEVEL: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let size = A::Word::BYTES * u64::from(inst.c);
    let Some(spread) = spread::<A>(machine, inst, size, false) else {
        return lane_by_lane::<A>(machine, inst);
    };
    let uniform = spread.distances.iter().fold(0, |all, distance| all | distance.wide()) == 0;
    if uniform {
        // SAFETY: `spread` checked the values, which are the same for all lanes that run.
        unsafe { broadcast::<A>(machine, inst, spread.host) };
        return Flow::Next;
    }
    // SAFETY: `spread` checked every access; lanes that do not run read that of one that does.
    let groups = spread.distances.map(|distance| unsafe { Group::load(step::<A>(spread.host, distance), size) });
    for index in 0..inst.c {
        let slot = machine.env.code.list(inst.x + index);
        if slot != NO_SLOT {
            let out = groups.map(|group| A::Lane::narrow(group.get::<A::Word>(index as usize).extended()));
            machine.registers.set(slot, machine.mask, &out);
        }
    }
    Flow::Next
}

dispatched_by_level!(
    /// Code for `ld` of one value.
    load, load_body, Access
);
dispatched_by_level!(
    /// Code for `ld` of one value, where `load` does not apply.
    load_rest, rest_body, Access
);
dispatched_by_level!(
    /// Code for `ld` of a vector.
    load_vector, load_vector_body, Access
);
dispatched_by_level!(
    /// Code for `ld` of a vector, where `load_vector` does not apply.
    load_vector_rest, vector_rest_body, Access
);
