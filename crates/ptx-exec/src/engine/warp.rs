//! The state of a warp: registers, local memory, and the positions of lanes.
//!
//! Diverged lanes of a warp are in *splits*, sets of lanes at the same program counter of the same frame. The split at the lowest
//! program counter of the deepest frame runs. When it reaches another one, they merge again. This rejoins the two sides of an
//! `if`, and lanes that leave a loop at different times. Everything here is plain data, so that a warp can be suspended at any
//! instruction.

use crate::code::FunctionCode;
use crate::engine::registers::{FULL_LANE_MASK, Row};
use crate::memory::local_rows;

/// Why a split does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It can run.
    Ready,
    /// Until other lanes of the warp reach the same instruction (`*.sync`).
    Lanes,
    /// Until a barrier of the block is complete, where it has been counted.
    Barrier(u8),
    /// Until the barrier of the cluster is complete.
    Cluster,
}

/// Lanes at the same position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    /// The next instruction.
    pub(crate) pc: u32,
    /// Index into `Warp::frames`.
    pub(crate) frame: u32,
    /// Its lanes, at least one.
    pub(crate) lanes: u32,
    /// Whether they can run, or what they wait for.
    pub(crate) wait: Wait,
    /// The time slice in which they ran last: the split that has waited longest runs next.
    pub(crate) last_slice: u32,
}

impl Split {
    /// Returns whether lanes at this position can join it.
    fn joins(&self, frame: u32, pc: u32) -> bool {
        self.frame == frame && self.pc == pc && !matches!(self.wait, Wait::Barrier(_) | Wait::Cluster)
    }
}

/// A function activation, shared by the lanes that made the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallFrame {
    /// Index into `Code::functions`.
    pub(crate) function: u32,
    /// First row of its registers.
    pub(crate) base: u32,
    /// Byte offset of its local memory.
    pub(crate) local: u32,
    /// The caller's frame.
    pub(crate) parent: u32,
    /// Program counter at which the caller goes on.
    pub(crate) return_pc: u32,
    /// Nesting depth; 0 for the kernel.
    pub(crate) depth: u32,
    /// Lanes that have not returned yet.
    pub(crate) lanes: u32,
    /// The caller's `Code::call_sites` entry.
    pub(crate) call_site: u32,
}

/// The state of 32 threads that run together.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warp {
    /// Its number in the block.
    pub(crate) index: u32,
    /// Lanes that have not exited.
    pub(crate) alive: u32,
    /// All lanes of `alive`, except those of the running split.
    pub(crate) splits: Vec<Split>,
    /// Activations; the kernel's is the first.
    pub(crate) frames: Vec<CallFrame>,
    /// Registers of all frames.
    pub(crate) rows: Vec<Row>,
    /// Local memory of all frames.
    pub(crate) local: local_rows::Rows,
    /// Lanes that have arrived at the incomplete barrier of the cluster.
    pub(crate) arrived: u32,
    /// The last error of the device runtime for each lane; empty before the first one.
    pub(crate) errors: Vec<u32>,
    /// Number of time slices of its splits.
    pub(crate) slices: u32,
    /// Whether the last split went to sleep or had its share, so that another one is due first.
    pub(crate) slept: bool,
    /// Instructions since splits last took turns, and whether one of them may wait for another. A grid that moves to another
    /// process loses them, which only delays the next turn.
    pub(crate) since_turn: u32,
    /// See `since_turn`.
    pub(crate) spinning: bool,
    /// Number of operations between its lanes so far; meaningless beyond a launch.
    pub(crate) epoch: u32,
}

impl Warp {
    /// Resets the warp to the start of the kernel.
    ///
    /// The kernel is function `number`; a block has `threads` threads.
    pub(crate) fn reset(&mut self, index: u32, function: &FunctionCode, number: u32, threads: u32) {
        let lanes = threads.saturating_sub(index * 32).min(32);
        self.index = index;
        self.alive = if lanes == 32 { FULL_LANE_MASK } else { (1 << lanes) - 1 };
        self.arrived = 0;
        self.errors.clear();
        self.slices = 0;
        (self.slept, self.since_turn, self.spinning) = (false, 0, false);
        self.frames.clear();
        self.rows.clear();
        self.local.clear();
        self.splits.clear();
        self.push_frame(function, number, 0, 0, 0, self.alive);
        self.splits.push(Split { pc: function.entry, frame: 0, lanes: self.alive, wait: Wait::Ready, last_slice: 0 });
    }

    /// Adds an activation of `function` and returns its index.
    pub(crate) fn push_frame(
        &mut self,
        function: &FunctionCode,
        number: u32,
        parent: u32,
        return_pc: u32,
        call_site: u32,
        lanes: u32,
    ) -> u32 {
        let base = self.rows.len() as u32;
        let local = self.local.len() as u32 * 8;
        let depth = self.frames.get(parent as usize).map_or(0, |frame| frame.depth + 1);
        self.rows.resize(self.rows.len() + function.rows as usize, Row::ZERO);
        self.local.resize(self.local.len() + local_rows::rows_for(function.local_bytes), [0; 32]);
        self.frames.push(CallFrame { function: number, base, local, parent, return_pc, depth, lanes, call_site });
        self.frames.len() as u32 - 1
    }

    /// Returns the row after those of the last frame.
    pub(crate) fn next_base(&self, functions: &[FunctionCode]) -> u32 {
        let rows = |frame: &CallFrame| functions.get(frame.function as usize).map_or(0, |function| function.rows);
        self.frames.last().map_or(0, |frame| frame.base.saturating_add(rows(frame)))
    }

    /// Removes lanes from a frame, and drops empty frames at the end.
    pub(crate) fn leave_frame(&mut self, frame: u32, lanes: u32) {
        if let Some(frame) = self.frames.get_mut(frame as usize) {
            frame.lanes &= !lanes;
        }
        while let Some(last) = self.frames.last().filter(|last| last.lanes == 0 && self.frames.len() > 1) {
            self.rows.truncate(last.base as usize);
            self.local.truncate(last.local as usize / 8);
            self.frames.pop();
        }
    }

    /// Returns the rows of a frame.
    pub(crate) fn rows_of(&mut self, frame: u32, functions: &[FunctionCode]) -> &mut [Row] {
        let Some(frame) = self.frames.get(frame as usize) else { return &mut [] };
        let rows = functions.get(frame.function as usize).map_or(0, |function| function.rows);
        let (start, end) = (frame.base as usize, (frame.base + rows) as usize);
        self.rows.get_mut(start..end).unwrap_or_default()
    }

    /// Returns whether a split could run now.
    pub(crate) fn ready(&self) -> bool {
        self.splits.iter().any(|split| split.wait == Wait::Ready)
    }

    /// Takes out the split to run: by turns, the one that has waited longest; else the deepest and then lowest one.
    pub(crate) fn pick(&mut self, take_turns: bool) -> Option<Split> {
        let depth = |split: &Split| self.frames.get(split.frame as usize).map_or(0, |frame| frame.depth);
        let ready = self.splits.iter().enumerate().filter(|(_, split)| split.wait == Wait::Ready);
        let (index, _) = if take_turns {
            ready.min_by_key(|(_, split)| (split.last_slice, split.pc))?
        } else {
            ready.min_by_key(|(_, split)| (u32::MAX - depth(split), split.pc, split.frame))?
        };
        let mut split = self.splits.swap_remove(index);
        self.slices = self.slices.wrapping_add(1);
        split.last_slice = self.slices;
        Some(split)
    }

    /// Takes out all lanes that can continue at `pc` of `frame`.
    pub(crate) fn join(&mut self, frame: u32, pc: u32) -> u32 {
        let mut lanes = 0;
        self.splits.retain(|split| {
            let joins = split.joins(frame, pc);
            lanes |= if joins { split.lanes } else { 0 };
            !joins
        });
        lanes
    }

    /// Returns the next program counter above `pc` at which lanes of `frame` can join.
    pub(crate) fn next_join(&self, frame: u32, pc: u32) -> u32 {
        let ahead = self.splits.iter().filter(|split| split.frame == frame && split.pc > pc);
        ahead.filter(|split| split.joins(frame, split.pc)).map(|split| split.pc).min().unwrap_or(u32::MAX)
    }

    /// Wakes lanes that wait for other lanes, after lanes have exited or arrived.
    pub(crate) fn recheck(&mut self) {
        for split in &mut self.splits {
            if split.wait == Wait::Lanes {
                split.wait = Wait::Ready;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pc: u32, frame: u32, lanes: u32) -> Split {
        Split { pc, frame, lanes, wait: Wait::Ready, last_slice: 0 }
    }

    fn warp() -> Warp {
        let mut warp = Warp { alive: FULL_LANE_MASK, ..Warp::default() };
        let function = FunctionCode { rows: 2, local_bytes: 16, ..FunctionCode::default() };
        warp.push_frame(&function, 0, 0, 0, 0, FULL_LANE_MASK);
        warp.push_frame(&function, 0, 0, 9, 0, 0xff);
        warp
    }

    #[test]
    fn the_deepest_then_lowest_split_runs_first() {
        let mut warp = warp();
        warp.splits = vec![split(5, 0, 1), split(3, 0, 2), split(7, 1, 4)];
        let order: Vec<u32> = std::iter::from_fn(|| warp.pick(false)).map(|split| split.pc).collect();
        assert_eq!(order, [7, 3, 5]);
    }

    #[test]
    fn the_thread_that_waited_longest_runs_next() {
        let mut warp = warp();
        warp.splits = vec![split(3, 0, 2), split(5, 0, 1)];
        let first = warp.pick(false).unwrap();
        warp.splits.push(first);
        assert_eq!((first.pc, warp.pick(true).unwrap().pc), (3, 5));
    }

    #[test]
    fn lanes_join_at_the_same_place_of_the_same_frame_unless_a_barrier_holds_them() {
        let mut warp = warp();
        let held = Split { wait: Wait::Barrier(0), ..split(5, 0, 8) };
        warp.splits = vec![split(5, 0, 1), Split { wait: Wait::Lanes, ..split(5, 0, 2) }, split(5, 1, 4), held];
        assert_eq!((warp.next_join(0, 4), warp.next_join(0, 5)), (5, u32::MAX));
        assert_eq!((warp.join(0, 5), warp.splits.len()), (3, 2));
    }

    #[test]
    fn frames_vanish_when_their_last_lane_returns() {
        let mut warp = warp();
        warp.leave_frame(1, 0x0f);
        assert_eq!((warp.frames.len(), warp.rows.len(), warp.local.len()), (2, 4, 4));
        warp.leave_frame(1, 0xf0);
        assert_eq!((warp.frames.len(), warp.rows.len(), warp.local.len()), (1, 2, 2));
    }
}
