//! `bar` and `barrier`: threads of a block wait for each other.
//!
//! A thread counts when it arrives. The block completes barriers between rounds of its warps (`Block::complete_barriers`).

use crate::engine::block::{BARRIERS_PER_BLOCK, Barrier};
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::{Registers, WARP_LANES, lanes_of};
use crate::engine::warp::Wait;
use crate::slot::NO_SLOT;

/// `Inst::imm`: the effects of a barrier instruction besides waiting.
pub(crate) mod kind {
    /// Waits for the other threads.
    pub(crate) const SYNC: u64 = 0;
    /// Counts without waiting.
    pub(crate) const ARRIVE: u64 = 1;
    /// Waits, and returns whether all predicates are true.
    pub(crate) const AND: u64 = 2;
    /// Waits, and returns whether any predicate is true.
    pub(crate) const OR: u64 = 3;
    /// Waits, and returns the number of true predicates.
    pub(crate) const POPC: u64 = 4;
    /// Flag: the predicate is negated.
    pub(crate) const NEGATE: u64 = 8;
}

/// `bar`: barrier `a`, `b` threads (0 for all), predicate `c`.
pub(crate) fn barrier(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let Some(lane) = lanes_of(machine.mask).next() else { return Flow::Next };
    let id = machine.registers.row::<u32>(inst.a)[lane];
    let expected = machine.registers.row::<u32>(inst.b)[lane];
    let votes = if inst.c == NO_SLOT { 0 } else { machine.registers.bits(inst.c) };
    let votes = if inst.imm & kind::NEGATE != 0 { !votes } else { votes };
    let mask = machine.mask;
    let Some(barrier) = machine.block.barriers.get_mut(id as usize).filter(|_| (id as usize) < BARRIERS_PER_BLOCK)
    else {
        return machine.fail(FaultKind::Trap, lane);
    };
    barrier.arrived = barrier.arrived.saturating_add(mask.count_ones());
    barrier.expected = expected;
    barrier.votes = barrier.votes.saturating_add((votes & mask).count_ones());
    if inst.imm & 7 == kind::ARRIVE {
        return Flow::Next;
    }
    machine.park_masked_lanes();
    machine.wait = Wait::Barrier(id as u8);
    Flow::Wait
}

/// Returns whether lanes wait at an instruction for a barrier.
pub(crate) fn is_barrier(inst: &Inst) -> bool {
    std::ptr::fn_addr_eq(inst.exec, barrier as Exec)
}

/// Gives lanes that wait at `inst` the result of the completed barrier.
pub(crate) fn deliver(registers: &mut Registers, inst: &Inst, lanes: u32, barrier: Barrier) {
    if inst.d == NO_SLOT {
        return;
    }
    let lanes_if = |truth: bool| if truth { u32::MAX } else { 0 };
    match inst.imm & 7 {
        kind::AND => registers.set_bits(inst.d, lanes, lanes_if(barrier.votes == barrier.arrived)),
        kind::OR => registers.set_bits(inst.d, lanes, lanes_if(barrier.votes > 0)),
        kind::POPC => registers.set(inst.d, lanes, &[barrier.votes; WARP_LANES]),
        _ => {}
    }
}
