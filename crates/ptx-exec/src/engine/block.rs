//! A block of threads: its warps take turns between barriers.
//!
//! A warp runs until all its lanes wait or its slice is used up; slices let warps spin for each other without barriers.
//! Barriers count threads, not warps, so the lanes of a diverged warp may arrive one after the other. They are completed
//! here, between two turns, because only here are all warps at hand. When a whole round finds no warp that can run and no
//! barrier to complete, the block can never end, and that is a fault rather than a hang.

use crate::code::{Code, Env};
use crate::engine::cluster::{self, RANK_SHIFT};
use crate::engine::fault::FaultKind;

use crate::engine::machine::{Machine, Stopped};
use crate::engine::registers::{Registers, lanes_of};
use crate::engine::warp::{Wait, Warp};
use crate::memory::shared::Shared;

/// Barriers of a block.
pub(crate) const BARRIERS: usize = 16;

/// Warp instructions before another warp of the block is looked at.
const SLICE: u32 = 512;

/// One barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub(crate) arrived: u32,
    /// Threads it waits for; 0 for all of the block that have not exited.
    pub(crate) expected: u32,
    /// How many of them had a true predicate (`bar.red`).
    pub(crate) votes: u32,
}

/// A block: plain data, so that it can be put aside between any two instructions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    /// Its index in the grid.
    pub(crate) index: [u32; 3],
    /// Its warps.
    pub(crate) warps: Vec<Warp>,
    /// Its shared memory.
    pub(crate) shared: Shared,
    /// Its barriers.
    pub(crate) barriers: [Barrier; BARRIERS],
    /// The warp whose turn it is.
    pub(crate) turn: usize,
    /// Counts its barriers; of no meaning beyond a launch.
    pub(crate) epoch: u32,
}

/// What a round over the warps of a block came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// The budget is used up.
    Paused,
    /// All threads have exited.
    Done,
    /// Some thread went on, or can now.
    Moved,
    /// Every thread waits, and not for this block.
    Stuck,
}

/// Where running a block got to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockProgress {
    /// The budget is used up.
    Paused,
    /// All threads have exited.
    Done,
}

impl Block {
    /// Puts the block at the start of the kernel.
    pub(crate) fn reset(&mut self, index: [u32; 3], env: &Env<'_>) {
        self.index = index;
        self.shared.resize(env.all_shared_bytes);
        let rank = if env.code.ranked { env.order.rank(index) } else { 0 };
        self.shared.begin_at(u64::from(rank) << RANK_SHIFT);
        self.barriers = Default::default();
        self.turn = 0;
        self.warps.resize(env.warps() as usize, Warp::default());
        for (number, warp) in self.warps.iter_mut().enumerate() {
            warp.reset(number as u32, env);
        }
    }

    /// Bytes of memory that it holds, about.
    pub(crate) fn memory(&self) -> usize {
        let warps = self.warps.iter().map(|warp| warp.rows.capacity() * 128 + warp.local.capacity() * 256);
        self.shared.bytes() as usize + warps.sum::<usize>()
    }

    /// Threads that have not exited.
    pub(crate) fn alive(&self) -> u32 {
        self.warps.iter().map(|warp| warp.alive.count_ones()).sum()
    }

    /// Completes every barrier that has all its threads; returns whether there was one.
    fn complete_barriers(&mut self, code: &Code) -> bool {
        let alive = self.alive();
        let mut any = false;
        for id in 0..BARRIERS {
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

    /// Lets the threads that wait at a barrier go on.
    fn release(&mut self, id: u8, barrier: Barrier, code: &Code) {
        self.epoch = self.epoch.wrapping_add(1);
        for warp in &mut self.warps {
            for index in 0..warp.splits.len() {
                let split = warp.splits[index];
                if split.wait == Wait::Barrier(id) {
                    let mut registers = Registers::new(warp.rows_of(split.frame, code), &code.constants);
                    if let Some(inst) = code.insts.get(split.pc as usize) {
                        crate::engine::barrier::deliver(&mut registers, inst, split.lanes, barrier);
                    }
                    warp.splits[index].wait = Wait::Ready;
                    warp.splits[index].pc += 1;
                }
            }
        }
    }
}

impl Machine<'_> {
    /// Runs the block for about `budget` warp instructions, and takes off what it ran.
    pub(crate) fn run_block(&mut self, budget: &mut u64) -> Result<BlockProgress, FaultKind> {
        loop {
            match self.round(budget)? {
                Round::Paused => return Ok(BlockProgress::Paused),
                Round::Done => return Ok(BlockProgress::Done),
                round => {
                    // The block is a cluster of its own.
                    let released = cluster::complete_barrier(std::slice::from_mut(&mut self.block));
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
                // Warps that use up the budget again and again must not keep others at a barrier that is complete.
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

    /// Gives the next warp its turn; returns whether it ran anything.
    fn run_next_warp(&mut self, budget: &mut u64) -> Result<bool, FaultKind> {
        let index = self.block.turn;
        self.block.turn = (index + 1) % self.block.warps.len().max(1);
        let Some(place) = self.block.warps.get_mut(index) else { return Ok(false) };
        if !place.ready() {
            return Ok(false);
        }
        self.warp = std::mem::take(place);
        let turn = self.races.as_mut().map_or(SLICE, |races| races.turn());
        let (stopped, ran) = self.run_warp(turn.min(u32::try_from(*budget).unwrap_or(u32::MAX)));
        if let Some(place) = self.block.warps.get_mut(index) {
            *place = std::mem::take(&mut self.warp);
        }
        *budget = budget.saturating_sub(u64::from(ran).max(1));
        match (stopped, self.fault) {
            (Stopped::Fault, Some((kind, _))) => Err(kind),
            _ => Ok(true),
        }
    }

    /// Every thread waits: names one of them as the place of the fault.
    pub(crate) fn deadlock(&mut self) -> FaultKind {
        let waiting = self.block.warps.iter().find_map(|warp| warp.splits.first().map(|split| (warp.index, *split)));
        if let Some((warp, split)) = waiting {
            self.pc = split.pc;
            self.block.turn = warp as usize + 1;
            self.fault = Some((FaultKind::Deadlock, lanes_of(split.lanes).next().unwrap_or(0)));
        }
        FaultKind::Deadlock
    }

    /// Index in the block of the thread that faulted.
    pub(crate) fn faulting_thread(&self) -> [u32; 3] {
        let warps = self.block.warps.len().max(1);
        let warp = (self.block.turn + warps - 1) % warps;
        let linear = warp as u32 * 32 + self.fault.map_or(0, |(_, lane)| lane as u32);
        let [x, y, _] = self.env.block;
        [linear % x, linear / x % y, linear / x / y]
    }

    /// Line of the PTX text of the current instruction.
    pub(crate) fn line(&self) -> u32 {
        self.env.code.insts.get(self.pc as usize).map_or(0, |inst| inst.line)
    }
}
