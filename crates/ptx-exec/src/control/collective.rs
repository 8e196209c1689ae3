//! Operations between the lanes of a warp: `shfl vote match redux elect activemask bar.warp.sync`.
//!
//! | instruction | result of each lane |
//! |---|---|
//! | `shfl` | the value of a lane computed from its own number, and whether that was in range; 0 if that lane takes no part |
//! | `vote` | all, any or equal predicates of its partners; `ballot`: those predicates as bits |
//! | `match` | which partners have its value; `all`: all lanes if so, else none |
//! | `redux` | sum, extreme or bits of its partners' values |
//! | `elect` | the lowest partner |
//!
//! The partners of a lane are the lanes of its member mask that take part, so several groups of one warp (tiles) may run
//! one instruction together, each with its own mask.
//!
//! Each instruction names the lanes that must take part, and waits for them. Lanes that reach the same instruction join. Lanes
//! that reach another instruction of the same kind are joined when no lane of the warp can run any more (`meet_across`).

use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::{Raw, Registers, Row, WARP_LANES, lanes_of};
use crate::engine::warp::{Split, Wait};
use crate::slot::{CONSTANT_BIT, NO_SLOT, Slot};

/// Returns the slot of the member mask, the low half of `imm`; `NO_SLOT` for the forms without `.sync`.
fn members_slot(inst: &Inst) -> Slot {
    inst.imm as u32
}

/// Returns the member masks; without `.sync`, the active lanes.
fn members(machine: &Machine<'_>, inst: &Inst) -> [u32; WARP_LANES] {
    match members_slot(inst) {
        NO_SLOT => [machine.mask; WARP_LANES],
        slot => *machine.registers.row::<u32>(slot),
    }
}

/// Activates the lanes whose partners have all come, and parks the others. Returns whether any lane can run.
fn assemble(machine: &mut Machine<'_>, inst: &Inst) -> bool {
    let members = members(machine, inst);
    let alive = machine.warp.alive;
    let active = machine.mask;
    let complete = lanes_of(active).filter(|lane| members[*lane] & alive & !active == 0);
    let complete = complete.fold(0_u32, |mask, lane| mask | 1 << lane);
    if complete != 0 {
        machine.warp.epoch = machine.warp.epoch.wrapping_add(1);
    }
    if complete == active {
        return true;
    }
    let waiting = active & !complete;
    if complete == 0 {
        machine.park_masked_lanes();
        machine.wait = Wait::Lanes;
        return false;
    }
    let (pc, frame, last_slice) = (machine.pc, machine.frame, machine.warp.slices);
    machine.warp.splits.push(Split { pc, frame, lanes: waiting, wait: Wait::Lanes, last_slice });
    machine.lanes &= !waiting;
    machine.mask = complete;
    machine.find_join();
    true
}

/// `bar.warp.sync`
pub(crate) fn warp_barrier(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if assemble(machine, inst) { Flow::Next } else { Flow::Wait }
}

/// Returns the lane that a `shfl` reads, and whether it is in range.
fn source(mode: u8, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, (c >> 8) & 31);
    let last = (lane & segment) | (clamp & !segment);
    match mode {
        SHUFFLE_UP => (lane.wrapping_sub(b), lane.cast_signed() - b.cast_signed() >= last.cast_signed()),
        SHUFFLE_DOWN => (lane + b, lane + b <= last),
        SHUFFLE_BUTTERFLY => (lane ^ b, lane ^ b <= last),
        _ => {
            let from = (lane & segment) | (b & !segment);
            (from, from <= last)
        }
    }
}

/// `shfl.up`
pub(crate) const SHUFFLE_UP: u8 = 0;
/// `shfl.down`
pub(crate) const SHUFFLE_DOWN: u8 = 1;
/// `shfl.bfly`
pub(crate) const SHUFFLE_BUTTERFLY: u8 = 2;
/// `shfl.idx`
pub(crate) const SHUFFLE_INDEX: u8 = 3;

/// `shfl.MODE.b32 d|x, a, b, c, members`
pub(crate) fn shuffle<const MODE: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (registers, mask) = (&machine.registers, machine.mask);
    let (a, b, c) = (registers.row::<u32>(inst.a), registers.row::<u32>(inst.b), registers.row::<u32>(inst.c));
    // In PTX, reading from a lane that does not take part is undefined; a GPU returns 0.
    let values: [u32; WARP_LANES] = std::array::from_fn(|lane| if (mask >> lane) & 1 != 0 { a[lane] } else { 0 });
    let mut out = [0_u32; WARP_LANES];
    let mut in_range = 0;
    for lane in 0..WARP_LANES {
        let (from, valid) = source(MODE, lane as u32, b[lane], c[lane]);
        out[lane] = if valid { values[(from & 31) as usize] } else { a[lane] };
        in_range |= u32::from(valid) << lane;
    }
    if inst.d != NO_SLOT {
        machine.registers.set(inst.d, mask, &out);
    }
    if inst.x != NO_SLOT {
        machine.registers.set_bits(inst.x, mask, in_range);
    }
    Flow::Next
}

/// Questions of `vote` about the predicates of its members.
pub(crate) mod question {
    /// Whether all are true.
    pub(crate) const ALL: u8 = 0;
    /// Whether any is true.
    pub(crate) const ANY: u8 = 1;
    /// Whether all are equal.
    pub(crate) const UNIFORM: u8 = 2;
}

/// Returns the lanes of `mask` that take part together with `lane`.
fn partners(members: &[u32; WARP_LANES], lane: usize, mask: u32) -> u32 {
    members[lane] & mask
}

/// `vote.sync.QUESTION.pred d, a, members`
pub(crate) fn vote<const QUESTION: u8>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (members, mask, votes) = (members(machine, inst), machine.mask, machine.registers.bits(inst.a));
    let answer = |lane: usize| {
        let group = partners(&members, lane, mask);
        let yes = votes & group;
        match QUESTION {
            question::ALL => yes == group,
            question::ANY => yes != 0,
            _ => yes == group || yes == 0,
        }
    };
    let bits = lanes_of(mask).filter(|lane| answer(*lane)).fold(0_u32, |bits, lane| bits | 1 << lane);
    machine.registers.set_bits(inst.d, mask, bits);
    Flow::Next
}

/// `vote.sync.ballot.b32 d, a, members`
pub(crate) fn ballot(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (members, mask, votes) = (members(machine, inst), machine.mask, machine.registers.bits(inst.a));
    let out: [u32; WARP_LANES] = std::array::from_fn(|lane| votes & partners(&members, lane, mask));
    machine.registers.set(inst.d, mask, &out);
    Flow::Next
}

/// `activemask`
pub(crate) fn active_mask(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let mask = machine.mask;
    machine.registers.set(inst.d, mask, &[mask; WARP_LANES]);
    Flow::Next
}

/// `elect.sync d|x, members`: the lowest member leads.
pub(crate) fn elect(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (members, mask) = (members(machine, inst), machine.mask);
    let leaders: [u32; WARP_LANES] = std::array::from_fn(|lane| partners(&members, lane, mask).trailing_zeros());
    let bits = lanes_of(mask).filter(|lane| leaders[*lane] == *lane as u32).fold(0_u32, |bits, lane| bits | 1 << lane);
    if inst.d != NO_SLOT {
        machine.registers.set(inst.d, mask, &leaders);
    }
    if inst.x != NO_SLOT {
        machine.registers.set_bits(inst.x, mask, bits);
    }
    Flow::Next
}

/// `match.any.sync d, a, members`: the members with the same value.
pub(crate) fn match_any<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (members, mask, values) = (members(machine, inst), machine.mask, *machine.registers.row::<T>(inst.a));
    let out: [u32; WARP_LANES] = std::array::from_fn(|lane| {
        let same = lanes_of(partners(&members, lane, mask)).filter(|other| values[*other] == values[lane]);
        same.fold(0, |bits, other| bits | 1 << other)
    });
    machine.registers.set(inst.d, mask, &out);
    Flow::Next
}

/// `match.all.sync d|x, a, members`: the members if all have the same value, else nothing.
pub(crate) fn match_all<T: Raw>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (members, mask, values) = (members(machine, inst), machine.mask, *machine.registers.row::<T>(inst.a));
    let out: [u32; WARP_LANES] = std::array::from_fn(|lane| {
        let group = partners(&members, lane, mask);
        let same = lanes_of(group).all(|other| values[other] == values[lane]);
        if same { group } else { 0 }
    });
    let bits = lanes_of(mask).filter(|lane| out[*lane] != 0).fold(0_u32, |bits, lane| bits | 1 << lane);
    if inst.d != NO_SLOT {
        machine.registers.set(inst.d, mask, &out);
    }
    if inst.x != NO_SLOT {
        machine.registers.set_bits(inst.x, mask, bits);
    }
    Flow::Next
}

/// Joins two values for `redux`.
pub(crate) trait Reduction {
    /// Returns the joined value.
    fn join(a: u32, b: u32) -> u32;
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = |$a:ident, $b:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) struct $name;

        impl Reduction for $name {
            fn join($a: u32, $b: u32) -> u32 {
                $body
            }
        }
    )*};
}

reductions! {
    /// `redux.sync.add`
    Sum = |a, b| a.wrapping_add(b);
    /// `redux.sync.min.u32`
    Min = |a, b| a.min(b);
    /// `redux.sync.max.u32`
    Max = |a, b| a.max(b);
    /// `redux.sync.min.s32`
    MinSigned = |a, b| a.cast_signed().min(b.cast_signed()).cast_unsigned();
    /// `redux.sync.max.s32`
    MaxSigned = |a, b| a.cast_signed().max(b.cast_signed()).cast_unsigned();
    /// `redux.sync.and`
    And = |a, b| a & b;
    /// `redux.sync.or`
    Or = |a, b| a | b;
    /// `redux.sync.xor`
    Xor = |a, b| a ^ b;
}

/// `redux.sync.OP d, a, members`
pub(crate) fn reduce<O: Reduction>(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    if !assemble(machine, inst) {
        return Flow::Wait;
    }
    let (members, mask, values) = (members(machine, inst), machine.mask, *machine.registers.row::<u32>(inst.a));
    let mut out = [0; WARP_LANES];
    let mut last_match: Option<(u32, u32)> = None;
    for lane in lanes_of(mask) {
        let group = partners(&members, lane, mask);
        let value = match last_match {
            Some((of, value)) if of == group => value,
            _ => lanes_of(group).map(|other| values[other]).reduce(O::join).unwrap_or(0),
        };
        last_match = Some((group, value));
        out[lane] = value;
    }
    machine.registers.set(inst.d, mask, &out);
    Flow::Next
}

/// Rows of the frame in which lanes of different positions meet: two for `a`, which may have 64 bits, then one each for `b`, `c`,
/// the members, `d` and `x`.
const MEETING_ROWS: usize = 7;

impl Machine<'_> {
    /// Called when no lane of the warp can run. Finds lanes at different positions that wait for each other with the same
    /// operation, and runs it for all of them. Returns whether it found any.
    pub(crate) fn meet_across(&mut self) -> bool {
        let waiting: Vec<usize> =
            (0..self.warp.splits.len()).filter(|at| self.warp.splits[*at].wait == Wait::Lanes).collect();
        for first in &waiting {
            let Some(model) = self.inst_of(*first) else { continue };
            let party: Vec<usize> = waiting.iter().copied().filter(|at| self.same_operation(*at, &model)).collect();
            if party.len() > 1 && self.meet(&model, &party) {
                return true;
            }
        }
        false
    }

    /// Returns the current instruction of a split.
    fn inst_of(&self, split: usize) -> Option<Inst> {
        let pc = self.warp.splits.get(split)?.pc;
        self.env.code.insts.get(pc as usize).copied()
    }

    /// Returns whether a split waits at the same operation as `model`, with the same kinds of destinations.
    fn same_operation(&self, split: usize, model: &Inst) -> bool {
        self.inst_of(split).is_some_and(|inst| {
            std::ptr::fn_addr_eq(inst.exec, model.exec)
                && (inst.d == NO_SLOT) == (model.d == NO_SLOT)
                && (inst.x == NO_SLOT) == (model.x == NO_SLOT)
        })
    }

    /// Runs one operation for the lanes of several splits, in a temporary frame.
    fn meet(&mut self, model: &Inst, party: &[usize]) -> bool {
        let mut rows = [Row::ZERO; MEETING_ROWS];
        let mut all_lanes = 0;
        for at in party {
            let (split, Some(inst)) = (self.warp.splits[*at], self.inst_of(*at)) else { return false };
            all_lanes |= split.lanes;
            self.carry_in(&mut rows, split, &inst);
        }
        if !self.run_meeting(&mut rows, model, all_lanes) {
            return false;
        }
        for at in party {
            if let (split, Some(inst)) = (self.warp.splits[*at], self.inst_of(*at)) {
                self.carry_out(&rows, split, &inst);
            }
            self.warp.splits[*at].wait = Wait::Ready;
            self.warp.splits[*at].pc += 1;
        }
        true
    }

    /// Copies the operands of a split's lanes into the rows of the meeting.
    fn carry_in(&mut self, rows: &mut [Row; MEETING_ROWS], split: Split, inst: &Inst) {
        let code = self.env.code;
        let registers = Registers::new(self.warp.rows_of(split.frame, &code.functions), &code.constants);
        let wide = operates_on_wide(inst.exec);
        if reads_predicate(inst.exec) {
            // A vote has a predicate as `a`: one word for all lanes.
            rows[0].0[0] |= registers.bits(inst.a) & split.lanes;
        } else if inst.a != NO_SLOT && !wide {
            carry_row(&mut rows[0], registers.row::<u32>(inst.a), split.lanes);
        }
        for (row, slot) in rows[2..].iter_mut().zip([inst.b, inst.c, members_slot(inst)]) {
            if slot != NO_SLOT {
                carry_row(row, registers.row::<u32>(slot), split.lanes);
            }
        }
        if wide {
            let values = *registers.row::<u64>(inst.a);
            let mut meeting = Registers::new(rows, &code.constants);
            meeting.set(0, split.lanes, &values);
        }
    }

    /// Runs the operation if all necessary lanes have come.
    fn run_meeting(&mut self, rows: &mut [Row; MEETING_ROWS], model: &Inst, all_lanes: u32) -> bool {
        let row_slot = |slot: Slot, row: u32| if slot == NO_SLOT { NO_SLOT } else { row * WARP_LANES as u32 };
        let mut inst = *model;
        (inst.a, inst.b, inst.c) = (row_slot(model.a, 0), row_slot(model.b, 2), row_slot(model.c, 3));
        (inst.d, inst.x) = (row_slot(model.d, 5), row_slot(model.x, 6));
        inst.imm = u64::from(row_slot(members_slot(model), 4));
        let members = rows[4].0;
        let alive = self.warp.alive;
        if lanes_of(all_lanes).any(|lane| members[lane] & alive & !all_lanes != 0) {
            return false;
        }
        self.registers = Registers::new(rows, &self.env.code.constants);
        (self.lanes, self.mask) = (all_lanes, all_lanes);
        #[expect(unsafe_code, reason = "instructions are compiled for what the CPU has")]
        // SAFETY: the decoder chose `exec` for this CPU; every slot of `inst` lies in `rows`.
        let flow = unsafe { (inst.exec)(self, &inst) };
        self.registers = Registers::none();
        self.lanes = 0;
        flow == Flow::Next
    }

    /// Copies the results back into the frames of the lanes.
    fn carry_out(&mut self, rows: &[Row; MEETING_ROWS], split: Split, inst: &Inst) {
        let code = self.env.code;
        let mut registers = Registers::new(self.warp.rows_of(split.frame, &code.functions), &code.constants);
        if inst.d != NO_SLOT && inst.d & CONSTANT_BIT == 0 {
            if reads_predicate(inst.exec) && !is_ballot(inst.exec) {
                registers.set_bits(inst.d, split.lanes, rows[5].0[0]);
            } else {
                registers.set(inst.d, split.lanes, &rows[5].0);
            }
        }
        if inst.x != NO_SLOT {
            registers.set_bits(inst.x, split.lanes, rows[6].0[0]);
        }
    }
}

/// Copies the values of some lanes.
fn carry_row(row: &mut Row, values: &[u32; WARP_LANES], lanes: u32) {
    for lane in lanes_of(lanes) {
        row.0[lane] = values[lane];
    }
}

/// Returns whether `exec` is in the list.
fn is_one_of(exec: Exec, those: &[Exec]) -> bool {
    those.iter().any(|one| std::ptr::fn_addr_eq(exec, *one))
}

/// Returns whether the operand has 64 bits.
fn operates_on_wide(exec: Exec) -> bool {
    is_one_of(exec, &[match_any::<u64>, match_all::<u64>])
}

/// Returns whether the result of a vote is a word.
fn is_ballot(exec: Exec) -> bool {
    is_one_of(exec, &[ballot])
}

/// Returns whether the operand is a predicate.
fn reads_predicate(exec: Exec) -> bool {
    is_one_of(exec, &[ballot, vote::<{ question::ALL }>, vote::<{ question::ANY }>, vote::<{ question::UNIFORM }>])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffles_read_what_ptx_says() {
        // Full width: clamp 31 (0 for up), segment mask 0.
        assert_eq!((source(SHUFFLE_DOWN, 5, 3, 31), source(SHUFFLE_DOWN, 30, 3, 31)), ((8, true), (33, false)));
        assert_eq!((source(SHUFFLE_UP, 5, 3, 0), source(SHUFFLE_UP, 2, 3, 0).1), ((2, true), false));
        assert_eq!((source(SHUFFLE_BUTTERFLY, 5, 1, 31), source(SHUFFLE_INDEX, 5, 35, 31)), ((4, true), (3, true)));
        // Width 8: segment mask 0x18.
        assert_eq!((source(SHUFFLE_INDEX, 13, 2, 0x181f), source(SHUFFLE_DOWN, 14, 3, 0x181f).1), ((10, true), false));
        assert_eq!((source(SHUFFLE_UP, 8, 1, 0x1800).1, source(SHUFFLE_UP, 9, 1, 0x1800)), (false, (8, true)));
    }
}
