//! Runs one warp after another on one thread: the loop around the instructions, and the change between splits.
//!
//! While all lanes are together, the loop only runs the next instruction. Once they have diverged, two more checks are necessary.
//! After each instruction, the loop checks whether it has reached another split (one comparison with `join_at`). After each jump,
//! it finds the split that is now the lowest.
//!
//! Running the lowest split first would starve a lane that holds a lock for which the others spin. So a split that has run for a
//! while gives the others a turn. The turn comes soon if it uses atomics, volatile accesses or fences, the marks of waiting, and
//! late if it only computes.

use crate::engine::fault::FaultKind;
use crate::engine::machine::{Flow, Inst, Machine};
use crate::engine::warp::{Split, Wait};
use crate::slot::{NEGATED_BIT, NO_SLOT};

/// Warp instructions between two checks for other splits of a warp.
const SPLIT_SLICE_INSTRUCTIONS: u32 = 512;

/// Warp instructions that a split may run while others wait, unless it seems to wait for them.
const MAX_BUSY_SPLIT_INSTRUCTIONS: u32 = 32 * SPLIT_SLICE_INSTRUCTIONS;

/// Why `run_warp` returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WarpStop {
    /// Its instructions are used up, or it yielded.
    Yielded,
    /// All its lanes wait or have exited.
    Blocked,
    /// A thread faulted; `Machine::fault` has the fault.
    Fault,
}

/// Why a split stopped running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// Another split may be due, or as many instructions as asked for were run.
    Changed,
    /// It waits for `Machine::wait`.
    Wait,
    /// It faulted; `Machine::fault` has the fault.
    Fault,
}

impl Machine<'_> {
    /// Runs `self.warp` for about `fuel` instructions. Returns why it stopped, and how many it ran.
    pub(crate) fn run_warp(&mut self, fuel: u32) -> (WarpStop, u32) {
        let mut used = 0;
        let mut take_turn = std::mem::take(&mut self.warp.slept);
        self.spinning = std::mem::take(&mut self.warp.spinning);
        while let Some(split) = self.warp.pick(take_turn) {
            self.enter(split);
            let was_spinning = std::mem::take(&mut self.spinning);
            let (event, ran) = match self.races.is_some() {
                true => self.run_split::<true>(take_turn, fuel - used.min(fuel)),
                false => self.run_split::<false>(take_turn, SPLIT_SLICE_INSTRUCTIONS),
            };
            self.waited |= self.spinning;
            self.spinning |= was_spinning;
            used += ran;
            self.warp.since_turn = self.warp.since_turn.saturating_add(ran);
            match event {
                StopReason::Fault => return (WarpStop::Fault, used),
                StopReason::Wait => {
                    self.leave(self.wait);
                    (take_turn, self.warp.since_turn) = (false, 0);
                    if self.wait == Wait::Ready {
                        self.warp.slept = true;
                        return (WarpStop::Yielded, used);
                    }
                    continue;
                }
                StopReason::Changed => {}
            }
            take_turn = self.needs_rotation();
            self.leave(Wait::Ready);
            if used >= fuel {
                (self.warp.slept, self.warp.spinning) = (take_turn, self.spinning);
                return (WarpStop::Yielded, used);
            }
        }
        if self.meet_across() { (WarpStop::Yielded, used) } else { (WarpStop::Blocked, used) }
    }

    /// Returns whether higher splits should run for a while. This is soon if the running one may be waiting for them, else late,
    /// because lanes that run ahead may miss the point where they would have joined the others.
    fn needs_rotation(&mut self) -> bool {
        let limit = if self.spinning { SPLIT_SLICE_INSTRUCTIONS } else { MAX_BUSY_SPLIT_INSTRUCTIONS };
        let needs_rotation = self.warp.since_turn >= limit && !self.warp.splits.is_empty();
        if needs_rotation {
            (self.warp.since_turn, self.spinning) = (0, false);
        }
        needs_rotation
    }

    /// Makes `split` the running one, together with all lanes at the same position.
    fn enter(&mut self, split: Split) {
        self.pc = split.pc;
        self.frame = split.frame;
        self.lanes = split.lanes | self.warp.join(split.frame, split.pc);
        self.map_frame();
        self.find_join();
    }

    /// Parks the running split, if it has lanes left.
    fn leave(&mut self, wait: Wait) {
        if self.lanes != 0 {
            let (pc, frame, lanes, last_slice) = (self.pc, self.frame, self.lanes, self.warp.slices);
            self.warp.splits.push(Split { pc, frame, lanes, wait, last_slice });
        }
        self.lanes = 0;
    }

    /// Runs the entered split for up to `max_instructions` instructions. In its turn, it goes on even if another one is lower.
    fn run_split<const WATCHED: bool>(&mut self, in_turn: bool, max_instructions: u32) -> (StopReason, u32) {
        let code = self.env.code;
        let (mut ran, mut pc) = (0, self.pc);
        while ran < max_instructions {
            let Some(inst) = code.insts.get(pc as usize) else {
                self.fail(FaultKind::InvalidPc(u64::from(pc)), 0);
                return (StopReason::Fault, ran);
            };
            ran += 1;
            let flow = if WATCHED { self.watched_step(inst) } else { self.step(inst) };
            // By far the most frequent case, in which the program counter is unchanged.
            if flow == Flow::Next {
                pc += 1;
                self.pc = pc;
                if pc == self.join_at {
                    self.lanes |= self.warp.join(self.frame, pc);
                    self.find_join();
                }
                continue;
            }
            match flow {
                Flow::Next => {}
                Flow::Jump if self.lanes == 0 => return (StopReason::Changed, ran),
                Flow::Jump if self.warp.splits.is_empty() => self.join_at = u32::MAX,
                Flow::Jump if in_turn => {
                    self.lanes |= self.warp.join(self.frame, self.pc);
                    self.find_join();
                }
                Flow::Jump => return (StopReason::Changed, ran),
                Flow::Wait => return (StopReason::Wait, ran),
                Flow::Fault => return (StopReason::Fault, ran),
            }
            pc = self.pc;
        }
        (StopReason::Changed, ran)
    }

    /// Executes an instruction as [`Self::step`] does, during a race search.
    #[inline(never)]
    fn watched_step(&mut self, inst: &Inst) -> Flow {
        let mut mask = self.lanes;
        if inst.guard != NO_SLOT {
            let bits = self.registers.bits(inst.guard & !NEGATED_BIT);
            mask &= if inst.guard & NEGATED_BIT != 0 { !bits } else { bits };
        }
        if mask != 0 {
            self.watch(inst, mask);
        }
        let was_spinning = std::mem::take(&mut self.spinning);
        let flow = self.step(inst);
        if self.spinning {
            self.watch_published();
        }
        self.spinning |= was_spinning;
        flow
    }

    /// Runs one instruction for the lanes with a true guard.
    #[inline(always)]
    #[expect(unsafe_code, reason = "instructions are compiled for what the CPU has")]
    fn step(&mut self, inst: &Inst) -> Flow {
        self.mask = self.lanes;
        if inst.guard != NO_SLOT {
            let bits = self.registers.bits(inst.guard & !NEGATED_BIT);
            self.mask &= if inst.guard & NEGATED_BIT != 0 { !bits } else { bits };
            if self.mask == 0 {
                return Flow::Next;
            }
        }
        // SAFETY: the decoder chose `exec` by the level that `alu` detected on this CPU.
        unsafe { (inst.exec)(self, inst) }
    }
}
