//! `atom.exch.b128` and `atom.cas.b128`, by the 16-byte instruction of x86-64 where the processor has it.
#![expect(unsafe_code, reason = "the processor's instruction works on raw memory")]

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::memory::atom::NARROW_POINTER;
use crate::memory::lane_address::LaneAddress;
use crate::types::Space;

/// Number of bytes in a value.
const VALUE_BYTES: u64 = 16;
/// Lowest bit of the offset in `Inst::imm`; the bits below it are the space, with `NARROW_POINTER`.
pub(crate) const OFFSET_SHIFT: u32 = 8;

/// Returns whether the processor has the instruction.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_there() -> bool {
    std::arch::is_x86_feature_detected!("cmpxchg16b")
}

/// Returns false, since the instruction exists on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn is_there() -> bool {
    false
}

/// Runs `atom.exch.b128`; the list has the address and both halves of the value, the results go to `d` and `a`.
pub(crate) fn exchange(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each_lane(machine, inst, false)
}

/// Runs `atom.cas.b128`; in the list, the halves of the new value follow those of the expected value.
pub(crate) fn swap(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each_lane(machine, inst, true)
}

fn each_lane(machine: &mut Machine<'_>, inst: &Inst, compares: bool) -> Flow {
    machine.spinning = true;
    for lane in lanes_of(machine.mask) {
        match change(machine, inst, lane, compares) {
            Ok(old) => {
                machine.registers.set_lane(inst.d, lane, old as u64);
                machine.registers.set_lane(inst.a, lane, (old >> 64) as u64);
            }
            Err(kind) => return machine.fail(kind, lane),
        }
    }
    Flow::Next
}

/// Changes the value at a lane's address and returns the old one.
fn change(machine: &mut Machine<'_>, inst: &Inst, lane: usize, compares: bool) -> Result<u128, FaultKind> {
    let code = machine.env.code;
    let half = |machine: &Machine<'_>, index: u32| machine.registers.row::<u64>(code.list(inst.x + index))[lane];
    let value = |machine: &Machine<'_>, index| join(half(machine, index), half(machine, index + 1));
    let (encoded, offset) = (inst.imm as u32, (inst.imm.cast_signed() >> OFFSET_SHIFT).cast_unsigned());
    let space = Space::decode(encoded & 3);
    let address = if encoded & NARROW_POINTER != 0 {
        u64::from(machine.registers.row::<u32>(code.list(inst.x))[lane].wrapping_add(offset as u32))
    } else {
        half(machine, 0).wrapping_add(offset)
    };
    let first = value(machine, 1);
    let new = if compares { value(machine, 3) } else { first };
    let next = |old| if compares && old != first { old } else { new };
    match machine.resolve(space, address, VALUE_BYTES, true)? {
        LaneAddress::Host(at) if at.is_multiple_of(VALUE_BYTES) => {
            // SAFETY: `resolve` checked range and writability, the arm the alignment, the decoder the processor.
            Ok(unsafe { update(at, next) })
        }
        // A block whose shared memory is not aligned runs on one thread, and local memory belongs to one lane.
        _ => {
            let old = join(machine.read(space, lane, address)?, machine.read(space, lane, address + VALUE_BYTES / 2)?);
            let new = next(old);
            machine.write(space, lane, address, new as u64)?;
            machine.write(space, lane, address + VALUE_BYTES / 2, (new >> 64) as u64)?;
            Ok(old)
        }
    }
}

fn join(low: u64, high: u64) -> u128 {
    u128::from(low) | u128::from(high) << 64
}

/// Replaces 16 bytes at once and returns the old value.
///
/// # Safety
///
/// `at` must be a multiple of 16 in writable memory, and the processor must have `cmpxchg16b`.
#[cfg(target_arch = "x86_64")]
unsafe fn update(at: u64, next: impl Fn(u128) -> u128) -> u128 {
    let mut old = 0;
    loop {
        // SAFETY: the contract of this function.
        let current = unsafe { compare_exchange(at, old, next(old)) };
        if current == old {
            return old;
        }
        old = current;
    }
}

/// Replaces 16 bytes by `new` if they are `old`, and returns the old value. The standard library's own function may become a call
/// of libatomic, which is not linked.
///
/// # Safety
///
/// Same as for [`update`].
#[cfg(target_arch = "x86_64")]
unsafe fn compare_exchange(at: u64, old: u128, new: u128) -> u128 {
    let (mut low, mut high) = (old as u64, (old >> 64) as u64);
    // SAFETY: 16 bytes at `at` may be read and written, by the contract; `rbx`, which the compiler keeps for itself, is put back, and
    // the stack is not touched.
    unsafe {
        std::arch::asm!(
            "xchg {new_low}, rbx",
            "lock cmpxchg16b xmmword ptr [{at}]",
            "mov rbx, {new_low}",
            at = in(reg) at,
            new_low = inout(reg) new as u64 => _,
            in("rcx") (new >> 64) as u64,
            inout("rax") low,
            inout("rdx") high,
            options(nostack),
        );
    }
    join(low, high)
}

/// Stub that is never called, since the decoder refuses these instructions.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn update(_at: u64, next: impl Fn(u128) -> u128) -> u128 {
    next(0)
}
