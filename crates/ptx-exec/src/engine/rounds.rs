//! Turns of the warps of a block, and of the blocks of a cluster.
//!
//! A warp runs until all its lanes wait or its slice is used up; slices let warps spin for each other without barriers. Barriers
//! count threads, not warps, so the lanes of a diverged warp may arrive one after the other. Barriers are completed here, between
//! two turns, because only here no warp runs. If a whole round finds no warp that can run and no barrier to complete, the block
//! can never end, and that is a fault rather than a hang.
//!
//! The blocks of a cluster take turns of one round of warps each, so every block makes progress while another waits for it.

use crate::control::barrier::deliver;
use crate::engine::block::{BARRIERS_PER_BLOCK, Barrier, Block};
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Code, Env, Machine};
use crate::engine::order::BLOCK_RANK_SHIFT;
use crate::engine::registers::{Registers, lanes_of};
use crate::engine::scheduler::WarpStop;
use crate::engine::warp::{Wait, Warp};

/// Warp instructions of a warp's turn.
const WARP_SLICE_INSTRUCTIONS: u32 = 512;

/// Result of a round over the warps of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// The budget is used up.
    Paused,
    /// All threads have exited.
    Done,
    /// Some thread made progress, or can now.
    Moved,
    /// Every thread waits, but not for this block.
    Stuck,
}

/// The result of running a block for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockProgress {
    /// The budget is used up.
    Paused,
    /// All threads have exited.
    Done,
}

impl Block {
    /// Resets the block to the start of the kernel.
    pub(crate) fn reset(&mut self, index: [u32; 3], env: &Env<'_>) {
        self.index = index;
        self.shared.resize(env.all_shared_bytes);
        let rank = if env.code.ranked { env.order.rank(index) } else { 0 };
        self.shared.begin_at(u64::from(rank) << BLOCK_RANK_SHIFT);
        self.barriers = Default::default();
        self.next_warp = 0;
        self.warps.resize(env.warps() as usize, Warp::default());
        let Some(function) = env.code.functions.get(env.function as usize) else { return };
        for (number, warp) in self.warps.iter_mut().enumerate() {
            warp.reset(number as u32, function, env.function, env.threads());
        }
    }

    /// Completes every barrier that has all its threads. Returns whether there was one.
    fn complete_barriers(&mut self, code: &Code) -> bool {
        let alive = self.alive();
        let mut any = false;
        for id in 0..BARRIERS_PER_BLOCK {
            let barrier = self.barriers[id];
            let expected = if barrier.expected == 0 { alive } else { barrier.expected };
            if barrier.arrived > 0 && barrier.arrived >= expected {
                self.barriers[id] = Barrier::default();
                self.release(id as u8, barrier, code);
                any = true;
            }
        }
        any
    }

    /// Releases the threads that wait at a barrier.
    fn release(&mut self, id: u8, barrier: Barrier, code: &Code) {
        self.epoch = self.epoch.wrapping_add(1);
        for warp in &mut self.warps {
            for index in 0..warp.splits.len() {
                let split = warp.splits[index];
                if split.wait == Wait::Barrier(id) {
                    let mut registers = Registers::new(warp.rows_of(split.frame, &code.functions), &code.constants);
                    if let Some(inst) = code.insts.get(split.pc as usize) {
                        deliver(&mut registers, inst, split.lanes, barrier);
                    }
                    warp.splits[index].wait = Wait::Ready;
                    warp.splits[index].pc += 1;
                }
            }
        }
    }
}

impl Machine<'_> {
    /// Runs the block for about `budget` warp instructions, and subtracts those that it ran.
    pub(crate) fn run_block(&mut self, budget: &mut u64) -> Result<BlockProgress, FaultKind> {
        loop {
            match self.round(budget)? {
                Round::Paused => return Ok(BlockProgress::Paused),
                Round::Done => return Ok(BlockProgress::Done),
                round => {
                    // The block alone is its cluster.
                    let released = complete_cluster_barrier(std::slice::from_mut(&mut self.block));
                    if round == Round::Stuck && !released {
                        return Err(self.deadlock());
                    }
                }
            }
        }
    }

    /// Gives each warp of the block a turn.
    pub(crate) fn round(&mut self, budget: &mut u64) -> Result<Round, FaultKind> {
        let mut progress = false;
        for _ in 0..self.block.warps.len() {
            if *budget == 0 {
                // Warps that repeatedly use up the budget must not delay others at a complete barrier.
                self.block.complete_barriers(self.env.code);
                return Ok(Round::Paused);
            }
            progress |= self.run_next_warp(budget)?;
        }
        let released = self.block.complete_barriers(self.env.code);
        Ok(match (self.block.alive(), progress || released) {
            (0, _) => Round::Done,
            (_, true) => Round::Moved,
            (_, false) => Round::Stuck,
        })
    }

    /// Gives the next warp its turn. Returns whether it ran anything.
    fn run_next_warp(&mut self, budget: &mut u64) -> Result<bool, FaultKind> {
        let index = self.block.next_warp;
        self.block.next_warp = (index + 1) % self.block.warps.len().max(1);
        let Some(warp_slot) = self.block.warps.get_mut(index) else { return Ok(false) };
        if !warp_slot.ready() {
            return Ok(false);
        }
        self.warp = std::mem::take(warp_slot);
        let limit = self.races.as_mut().map_or(WARP_SLICE_INSTRUCTIONS, |races| races.draw_slice());
        let (stopped, ran) = self.run_warp(limit.min(u32::try_from(*budget).unwrap_or(u32::MAX)));
        if let Some(warp_slot) = self.block.warps.get_mut(index) {
            *warp_slot = std::mem::take(&mut self.warp);
        }
        *budget = budget.saturating_sub(u64::from(ran).max(1));
        match (stopped, self.fault) {
            (WarpStop::Fault, Some((kind, _))) => Err(kind),
            _ => Ok(true),
        }
    }

    /// Names one of the waiting threads as the position of the fault.
    pub(crate) fn deadlock(&mut self) -> FaultKind {
        let waiting = self.block.warps.iter().find_map(|warp| warp.splits.first().map(|split| (warp.index, *split)));
        if let Some((warp, split)) = waiting {
            self.pc = split.pc;
            self.block.next_warp = warp as usize + 1;
            self.fault = Some((FaultKind::Deadlock, lanes_of(split.lanes).next().unwrap_or(0)));
        }
        FaultKind::Deadlock
    }

    /// Returns the index in the block of the thread that faulted.
    pub(crate) fn faulting_thread(&self) -> [u32; 3] {
        let warps = self.block.warps.len().max(1);
        let warp = (self.block.next_warp + warps - 1) % warps;
        let linear = warp as u32 * 32 + self.fault.map_or(0, |(_, lane)| lane as u32);
        let [x, y, _] = self.env.block;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Returns the line of the current instruction in the PTX text.
    pub(crate) fn line(&self) -> u32 {
        self.env.code.insts.get(self.pc as usize).map_or(0, |inst| inst.line)
    }

    /// Runs the cluster for about `budget` warp instructions, and subtracts those that it ran. After a fault, the faulting block
    /// is in its slot in the machine.
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
                        complete_cluster_barrier(&mut self.cluster);
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
            if !complete_cluster_barrier(&mut self.cluster) && !moved {
                return Err(self.cluster_deadlock());
            }
        }
    }

    /// Swaps a block of the cluster into the machine, or back.
    fn exchange(&mut self, rank: usize) {
        if let Some(block_slot) = self.cluster.get_mut(rank) {
            std::mem::swap(block_slot, &mut self.block);
        }
    }

    /// Names a thread of an unfinished block, when no block can run.
    fn cluster_deadlock(&mut self) -> FaultKind {
        if let Some(rank) = self.cluster.iter().position(|block| block.alive() > 0) {
            self.exchange(rank);
        }
        self.deadlock()
    }
}

/// Releases the threads of some blocks if all of them have arrived. Returns whether they had.
fn complete_cluster_barrier(blocks: &mut [Block]) -> bool {
    let warps = || blocks.iter().flat_map(|block| &block.warps);
    let have_all_arrived = warps().all(|warp| warp.alive & !warp.arrived == 0);
    if !have_all_arrived || warps().all(|warp| warp.alive & warp.arrived == 0) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::warp::Split;

    fn block(alive: u32, arrived: u32) -> Block {
        let split = Split { pc: 5, frame: 0, lanes: arrived, wait: Wait::Cluster, last_slice: 0 };
        Block { warps: vec![Warp { alive, arrived, splits: vec![split], ..Warp::default() }], ..Block::default() }
    }

    #[test]
    fn a_barrier_is_complete_when_all_that_live_have_arrived() {
        assert!(!complete_cluster_barrier(&mut [block(0xff, 0xff), block(0xff, 0x7f)]));
        let mut blocks = [block(0xff, 0xff), block(0x0f, 0xff), block(0, 0)];
        assert!(complete_cluster_barrier(&mut blocks) && !complete_cluster_barrier(&mut blocks));
        let split = blocks[0].warps[0].splits[0];
        assert_eq!((split.wait, split.pc), (Wait::Ready, 6));
    }
}
