//! `cp.async`, `cp.async.bulk`, `cp.reduce.async.bulk`: copies that PTX allows at any time until they are waited for.
//!
//! They run when they are issued: the interpreter would gain nothing from a delay, and a paused grid has no copies in flight. So
//! there is nothing to do for commits and waits on groups, and a barrier that tracks a copy counts its bytes at once.

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::order;
use crate::engine::registers::lanes_of;
use crate::memory::atom::{self, NARROW_POINTER, Operation};
use crate::memory::word::Word;
use crate::slot::NO_SLOT;
use crate::types::Space;

/// `Inst::x` of `cp.async`: its size in bytes, the flag `NARROW_POINTER` next to it, and the meaning of `c`.
pub(crate) mod how {
    /// Mask of the size in bytes, 4 to 16.
    pub(crate) const SIZE_MASK: u32 = 31 << 8;
    /// Lowest bit of the size.
    pub(crate) const SIZE_SHIFT: u32 = 8;
    /// `c` is a predicate that tells whether to ignore the source.
    pub(crate) const IGNORE: u32 = 1 << 16;
}

/// Runs `cp.async [a + low imm], [b + high imm], size, c`, and fills bytes that the source does not supply with zeroes.
pub(crate) fn copy(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let size = u64::from((inst.x & how::SIZE_MASK) >> how::SIZE_SHIFT);
    let ignored = if inst.x & how::IGNORE != 0 { machine.registers.bits(inst.c) } else { 0 };
    for lane in lanes_of(machine.mask) {
        let registers = &machine.registers;
        let source_bytes = match inst.c {
            _ if (ignored >> lane) & 1 != 0 => 0,
            NO_SLOT => size,
            _ if inst.x & how::IGNORE != 0 => size,
            slot => u64::from(registers.row::<u32>(slot)[lane]).min(size),
        };
        let (to, from) = addresses(machine, inst, inst.x & NARROW_POINTER != 0, lane);
        if let Err(kind) = copy_padded(machine, to, from, source_bytes, size) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// Returns the destination of a lane's `cp.async` in shared memory, and its source; `narrow` is a 32-bit destination register.
pub(crate) fn addresses(machine: &Machine<'_>, inst: &Inst, narrow: bool, lane: usize) -> (u64, u64) {
    let (registers, offset) = (&machine.registers, inst.imm as u32);
    let to = if narrow {
        u64::from(registers.row::<u32>(inst.a)[lane].wrapping_add(offset))
    } else {
        registers.row::<u64>(inst.a)[lane].wrapping_add(signed(offset))
    };
    (to, registers.row::<u64>(inst.b)[lane].wrapping_add(signed((inst.imm >> 32) as u32)))
}

/// Extends an address offset to 64 bits.
fn signed(offset: u32) -> u64 {
    i64::from(offset.cast_signed()).cast_unsigned()
}

/// Copies `source_bytes` of `size` bytes into shared memory and clears the rest.
fn copy_padded(machine: &mut Machine<'_>, to: u64, from: u64, source_bytes: u64, size: u64) -> Result<(), FaultKind> {
    for address in [to, from] {
        if !address.is_multiple_of(size) {
            return Err(FaultKind::MisalignedAddress(address));
        }
    }
    if source_bytes > 0 {
        machine.copy_stretch((Space::Shared, to), (Space::Global, from), source_bytes)?;
    }
    if source_bytes < size {
        machine.clear_stretch((Space::Shared, to + source_bytes), size - source_bytes)
    } else {
        Ok(())
    }
}

/// Flags of a bulk copy, in `Inst::imm`.
pub(crate) mod bulk {
    /// The source is shared memory.
    pub(crate) const FROM_SHARED: u64 = 1;
    /// The destination is shared memory, and a barrier there counts the bytes.
    pub(crate) const TO_SHARED: u64 = 2;
    /// The copy goes to every block of the cluster that a mask names.
    pub(crate) const MULTICAST: u64 = 4;
}

/// Alignment of addresses and sizes of bulk copies.
const BULK_ALIGN_BYTES: u64 = 16;

/// Operands of a bulk copy for one lane: a list of registers at `Inst::x`, in this order.
#[derive(Debug, Clone, Copy)]
struct Bulk {
    to: u64,
    from: u64,
    size: u64,
    barrier: u64,
    /// Blocks of the cluster that a multicast writes to.
    blocks: u32,
}

impl Bulk {
    /// Reads the operands; sizes and addresses must be multiples of 16.
    fn read(machine: &Machine<'_>, inst: &Inst, lane: usize) -> Result<Self, FaultKind> {
        let wide = |index: u32| machine.registers.row::<u64>(machine.env.code.list(inst.x + index))[lane];
        let word = |index: u32| machine.registers.row::<u32>(machine.env.code.list(inst.x + index))[lane];
        let bulk = Self {
            to: wide(0),
            from: wide(1),
            size: u64::from(word(2)),
            barrier: if inst.imm & bulk::TO_SHARED != 0 { wide(3) } else { 0 },
            blocks: if inst.imm & bulk::MULTICAST != 0 { word(4) & 0xffff } else { 0 },
        };
        let crooked = [bulk.to, bulk.from, bulk.size].into_iter().find(|value| !value.is_multiple_of(BULK_ALIGN_BYTES));
        crooked.map_or(Ok(bulk), |value| Err(FaultKind::MisalignedAddress(value)))
    }

    /// Returns the spaces of source and destination.
    fn spaces(flags: u64) -> (Space, Space) {
        let space = |flag| if flags & flag != 0 { Space::Shared } else { Space::Global };
        (space(bulk::FROM_SHARED), space(bulk::TO_SHARED))
    }
}

/// Runs `cp.async.bulk [to], [from], size, [barrier], blocks`.
pub(crate) fn copy_bulk(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each_bulk(machine, inst, |machine, bulk, (from, to)| {
        machine.copy_stretch((to, bulk.to), (from, bulk.from), bulk.size)
    })
}

/// Does `work` for each lane and each block of a multicast, and counts the bytes on the barriers.
fn each_bulk(
    machine: &mut Machine<'_>,
    inst: &Inst,
    work: impl Fn(&mut Machine<'_>, Bulk, (Space, Space)) -> Result<(), FaultKind>,
) -> Flow {
    let spaces = Bulk::spaces(inst.imm);
    let counted = inst.imm & bulk::TO_SHARED != 0;
    machine.spinning = true;
    for lane in lanes_of(machine.mask) {
        let bulk = match Bulk::read(machine, inst, lane) {
            Ok(bulk) => bulk,
            Err(kind) => return machine.fail(kind, lane),
        };
        let targets = if inst.imm & bulk::MULTICAST != 0 { bulk.blocks } else { 1 };
        for rank in lanes_of(targets) {
            let mut bulk = bulk;
            if inst.imm & bulk::MULTICAST != 0 {
                bulk.to = order::address_in_block(bulk.to, rank as u32);
                bulk.barrier = order::address_in_block(bulk.barrier, rank as u32);
            }
            let done = work(machine, bulk, spaces)
                .and_then(|()| if counted { machine.complete_bytes(lane, bulk.barrier, bulk.size) } else { Ok(()) });
            if let Err(kind) = done {
                return machine.fail(kind, lane);
            }
        }
    }
    Flow::Next
}

/// Runs `cp.reduce.async.bulk.OP` element by element, each one atomically.
fn reduce_bulk<O: Operation>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    each_bulk(machine, inst, |machine, bulk, (from, to)| {
        for at in (0..bulk.size).step_by(O::Word::BYTES as usize) {
            let value = machine.read::<O::Word>(from, 0, bulk.from.wrapping_add(at))?;
            let to_address = bulk.to.wrapping_add(at);
            machine.update::<O::Word>(to, 0, to_address, |old| O::apply(old, value, O::Word::cut(0)))?;
        }
        Ok(())
    })
}

/// Makes code for a bulk reduction with an operation of `atom`.
struct ReduceBulk;

impl atom::Visitor for ReduceBulk {
    type Code = Exec;

    fn visit<O: Operation>(self) -> Exec {
        reduce_bulk::<O>
    }
}

/// Returns the code for a bulk reduction; `None` for combinations that do not exist.
pub(crate) fn reduction(name: &str, ty: &str) -> Option<Exec> {
    atom::visit(name, ty, ReduceBulk)
}
