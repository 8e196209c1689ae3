//! Clusters: blocks that run on one thread, wait for each other and access each other's shared memory.
//!
//! The blocks of a cluster take turns of one round of warps each, so every block makes progress while another waits for it. As on
//! a GPU, an address of shared memory has the number of its block in the cluster above bit [`BLOCK_RANK_SHIFT`]. So an address
//! means the same memory everywhere in the cluster. Programs that use only their own block have plain offsets, which are
//! constants.
//!
//! A warp remembers which of its lanes have arrived at the barrier of the cluster (`Warp::arrived`). The barrier is complete when
//! every thread that has not exited has arrived, and needs no other counter.

use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::order::{BLOCK_RANK_SHIFT, address_in_block};
use crate::engine::registers::{Raw, WARP_LANES, lanes_of};
use crate::engine::warp::{Split, Wait};
use crate::window;

/// `barrier.cluster.arrive`
pub(crate) fn arrive(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    machine.warp.arrived |= machine.mask;
    Flow::Next
}

/// `barrier.cluster.wait`: waits with lanes that have arrived at an incomplete barrier.
pub(crate) fn wait(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    let waiting = machine.mask & machine.warp.arrived;
    if waiting == 0 {
        return Flow::Next;
    }
    if waiting == machine.mask {
        machine.park_masked_lanes();
        machine.wait = Wait::Cluster;
        return Flow::Wait;
    }
    let (pc, frame, last_slice) = (machine.pc, machine.frame, machine.warp.slices);
    machine.warp.splits.push(Split { pc, frame, lanes: waiting, wait: Wait::Cluster, last_slice });
    machine.lanes &= !waiting;
    machine.mask &= !waiting;
    machine.find_join();
    Flow::Next
}

/// Returns whether lanes wait at an instruction for their cluster.
pub(crate) fn is_wait(inst: &Inst) -> bool {
    std::ptr::fn_addr_eq(inst.exec, wait as Exec)
}

/// `mapa.shared::cluster d, a, b`: the address that corresponds to `a` in block `b`.
pub(crate) fn map_address<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let (addresses, ranks) = (machine.registers.row::<T>(inst.a), machine.registers.row::<u32>(inst.b));
    let out: [T; WARP_LANES] =
        std::array::from_fn(|lane| T::narrow(address_in_block(addresses[lane].wide(), ranks[lane])));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `mapa d, a, b` of generic addresses.
pub(crate) fn map_generic(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let (addresses, ranks) = (machine.registers.row::<u64>(inst.a), machine.registers.row::<u32>(inst.b));
    let out: [u64; WARP_LANES] =
        std::array::from_fn(|lane| match window::offset_in(window::SHARED_ADDRESS, addresses[lane]) {
            Some(offset) => window::SHARED_ADDRESS + address_in_block(offset, ranks[lane]),
            None => addresses[lane],
        });
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `getctarank d, a`: the block of an address, generic or not.
pub(crate) fn rank_of<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let offset = |address: u64| window::offset_in(window::SHARED_ADDRESS, address).unwrap_or(address);
    let out = machine.registers.row::<T>(inst.a).map(|address| (offset(address.wide()) >> BLOCK_RANK_SHIFT) as u32);
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `isspacep.shared::cta`: whether a generic address is in the block's own shared memory.
pub(crate) fn is_own(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let own = machine.block.shared.first() >> BLOCK_RANK_SHIFT;
    let addresses = machine.registers.row::<u64>(inst.a);
    let is_of_block = |lane: &usize| {
        window::offset_in(window::SHARED_ADDRESS, addresses[*lane])
            .is_some_and(|offset| offset >> BLOCK_RANK_SHIFT == own)
    };
    let bits = lanes_of(machine.mask).filter(is_of_block).fold(0, |bits, lane| bits | 1 << lane);
    machine.registers.set_bits(inst.d, machine.mask, bits);
    Flow::Next
}

/// `mov` of the address of a shared variable, `imm` bytes from the start of the block's shared memory.
pub(crate) fn shared_address<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let address = machine.block.shared.first().wrapping_add(inst.imm);
    machine.registers.set(inst.d, machine.mask, &[T::narrow(address); WARP_LANES]);
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_its_block() {
        assert_eq!((address_in_block(0x0300_0010, 0), address_in_block(0x10, 5)), (0x10, 0x0500_0010));
    }
}
