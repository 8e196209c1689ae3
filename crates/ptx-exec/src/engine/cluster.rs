//! Clusters: blocks that run on one thread, wait for each other and reach each other's shared memory.
//!
//! The blocks of a cluster take turns, a round of warps each, so every one of them makes progress while another waits for
//! it. An address of shared memory has the number of its block in the cluster above bit [`RANK_SHIFT`], as on a GPU: so
//! an address that a block gives away means the same memory everywhere in the cluster. Programs that never look beyond
//! their own block keep plain offsets, which are constants.
//!
//! A warp remembers which of its lanes have arrived at the barrier of the cluster (`Warp::arrived`). It is complete when
//! every thread that has not exited has arrived; nothing else needs to be counted.

use crate::engine::block::{Block, BlockProgress, Round};
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::engine::registers::{LANES, Raw, lanes_of};
use crate::engine::warp::{Split, Wait};
use crate::inst::{Exec, Flow, Inst};
use crate::window;

/// Where the number of a block stands in an address of shared memory.
pub(crate) const RANK_SHIFT: u32 = 24;

/// Most blocks of a cluster, for kernels that ask to go beyond the portable 8.
pub const MAX_CLUSTER: u32 = 16;

/// Offset `address` in block `rank` instead of where it was.
fn moved(address: u64, rank: u32) -> u64 {
    (address & ((1 << RANK_SHIFT) - 1)) | u64::from(rank) << RANK_SHIFT
}

impl Machine<'_> {
    /// The address in block `rank` of the cluster that corresponds to `address`.
    pub(crate) fn address_in_block(&self, address: u64, rank: u32) -> u64 {
        moved(address, rank)
    }

    /// Where `bytes` bytes at `address` are in this process, if they lie in another block of the cluster.
    pub(crate) fn peer_span(&self, address: u64, bytes: u64) -> Option<u64> {
        let rank = usize::try_from(address >> RANK_SHIFT).ok()?;
        self.cluster.get(rank)?.shared.span(address, bytes)
    }

    /// Runs the cluster for about `budget` warp instructions, and takes off what it ran. After a fault the block that
    /// faulted is in its place in the machine.
    pub(crate) fn run_cluster(&mut self, budget: &mut u64) -> Result<BlockProgress, FaultKind> {
        loop {
            let (mut moved, mut done) = (false, true);
            let size = self.cluster.len();
            for _ in 0..size {
                let rank = self.cluster_turn % size;
                self.exchange(rank);
                let round = self.round(budget)?;
                self.exchange(rank);
                self.cluster_turn = rank + 1;
                match round {
                    Round::Paused => {
                        complete_barrier(&mut self.cluster);
                        return Ok(BlockProgress::Paused);
                    }
                    Round::Done => {}
                    Round::Moved => (moved, done) = (true, false),
                    Round::Stuck => done = false,
                }
            }
            if done {
                return Ok(BlockProgress::Done);
            }
            if !complete_barrier(&mut self.cluster) && !moved {
                return Err(self.cluster_deadlock());
            }
        }
    }

    /// Puts a block of the cluster into its place in the machine, or back.
    fn exchange(&mut self, rank: usize) {
        if let Some(place) = self.cluster.get_mut(rank) {
            std::mem::swap(place, &mut self.block);
        }
    }

    /// No block can go on: names a thread of one that has not finished.
    fn cluster_deadlock(&mut self) -> FaultKind {
        if let Some(rank) = self.cluster.iter().position(|block| block.alive() > 0) {
            self.exchange(rank);
        }
        self.deadlock()
    }
}

/// Lets the threads of some blocks go on if all of them have arrived; returns whether that was so.
pub(crate) fn complete_barrier(blocks: &mut [Block]) -> bool {
    let warps = || blocks.iter().flat_map(|block| &block.warps);
    let all = warps().all(|warp| warp.alive & !warp.arrived == 0);
    if !all || warps().all(|warp| warp.alive & warp.arrived == 0) {
        return false;
    }
    for warp in blocks.iter_mut().flat_map(|block| &mut block.warps) {
        warp.arrived = 0;
        for split in warp.splits.iter_mut().filter(|split| split.wait == Wait::Cluster) {
            split.wait = Wait::Ready;
            split.pc += 1;
        }
    }
    true
}

/// `barrier.cluster.arrive`
pub(crate) fn arrive(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    machine.warp.arrived |= machine.mask;
    Flow::Next
}

/// `barrier.cluster.wait`: for lanes that have arrived at a barrier that is not complete yet.
pub(crate) fn wait(machine: &mut Machine<'_>, _: &Inst) -> Flow {
    let waiting = machine.mask & machine.warp.arrived;
    if waiting == 0 {
        return Flow::Next;
    }
    if waiting == machine.mask {
        machine.park_rest();
        machine.wait = Wait::Cluster;
        return Flow::Wait;
    }
    let (pc, frame, turn) = (machine.pc, machine.frame, machine.warp.turns);
    machine.warp.splits.push(Split { pc, frame, lanes: waiting, wait: Wait::Cluster, turn });
    machine.lanes &= !waiting;
    machine.mask &= !waiting;
    machine.find_join();
    Flow::Next
}

/// Whether an instruction is one that lanes wait at for their cluster.
pub(crate) fn is_wait(inst: &Inst) -> bool {
    std::ptr::fn_addr_eq(inst.exec, wait as Exec)
}

/// `mapa.shared::cluster d, a, b`: the address that corresponds to `a` in block `b`.
pub(crate) fn map_address<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let (addresses, ranks) = (machine.registers.row::<T>(inst.a), machine.registers.row::<u32>(inst.b));
    let out: [T; LANES] = std::array::from_fn(|lane| T::narrow(moved(addresses[lane].wide(), ranks[lane])));
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `mapa d, a, b` of generic addresses.
pub(crate) fn map_generic(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let (addresses, ranks) = (machine.registers.row::<u64>(inst.a), machine.registers.row::<u32>(inst.b));
    let out: [u64; LANES] = std::array::from_fn(|lane| match window::offset_in(window::SHARED, addresses[lane]) {
        Some(offset) => window::SHARED + moved(offset, ranks[lane]),
        None => addresses[lane],
    });
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `getctarank d, a`: the block that an address, generic or not, belongs to.
pub(crate) fn rank_of<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let offset = |address: u64| window::offset_in(window::SHARED, address).unwrap_or(address);
    let out = machine.registers.row::<T>(inst.a).map(|address| (offset(address.wide()) >> RANK_SHIFT) as u32);
    machine.registers.set(inst.d, machine.mask, &out);
    Flow::Next
}

/// `isspacep.shared::cta`: whether a generic address is one of the block's own shared memory.
pub(crate) fn is_own(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let own = machine.block.shared.first() >> RANK_SHIFT;
    let addresses = machine.registers.row::<u64>(inst.a);
    let mine = |lane: &usize| {
        window::offset_in(window::SHARED, addresses[*lane]).is_some_and(|offset| offset >> RANK_SHIFT == own)
    };
    let bits = lanes_of(machine.mask).filter(mine).fold(0, |bits, lane| bits | 1 << lane);
    machine.registers.set_bits(inst.d, machine.mask, bits);
    Flow::Next
}

/// `mov` of the address of a shared variable, `imm` bytes from the start of the block's shared memory.
pub(crate) fn shared_address<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let address = machine.block.shared.first().wrapping_add(inst.imm);
    machine.registers.set(inst.d, machine.mask, &[T::narrow(address); LANES]);
    Flow::Next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::warp::Warp;

    fn block(alive: u32, arrived: u32) -> Block {
        let split = Split { pc: 5, frame: 0, lanes: arrived, wait: Wait::Cluster, turn: 0 };
        Block { warps: vec![Warp { alive, arrived, splits: vec![split], ..Warp::default() }], ..Block::default() }
    }

    #[test]
    fn a_barrier_is_complete_when_all_that_live_have_arrived() {
        assert!(!complete_barrier(&mut [block(0xff, 0xff), block(0xff, 0x7f)]));
        let mut blocks = [block(0xff, 0xff), block(0x0f, 0xff), block(0, 0)];
        assert!(complete_barrier(&mut blocks) && !complete_barrier(&mut blocks));
        let split = blocks[0].warps[0].splits[0];
        assert_eq!((split.wait, split.pc), (Wait::Ready, 6));
    }

    #[test]
    fn an_address_names_its_block() {
        assert_eq!((moved(0x0300_0010, 0), moved(0x10, 5)), (0x10, 0x0500_0010));
    }
}
