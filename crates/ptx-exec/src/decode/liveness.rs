//! Liveness: the interval in which each virtual register is in use.
//!
//! Compilers write nearly every value into its own register: a kernel may name ten thousand and need a hundred at a time. With a
//! row of 128 bytes for each, this decides whether a warp fits the cache.
//!
//! Positions are twice the index of an instruction: sources are read at `2 i`, destinations written at `2 i + 1`. A register gets
//! one interval from its first to its last position. Values that cross branches are followed over the flow graph. A guarded write
//! keeps the old value of the other lanes, so it does not begin an interval.

use super::draft::{Draft, OperandRole, Ref, is_register};
use crate::slot::{NEGATED_BIT, NO_SLOT};

/// An interval from the first to the last position, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The first position.
    pub(crate) start: u32,
    /// The last position.
    pub(crate) end: u32,
}

impl Interval {
    const EMPTY: Self = Self { start: u32::MAX, end: 0 };

    /// Extends the interval to a position.
    fn include(&mut self, position: u32) {
        self.start = self.start.min(position);
        self.end = self.end.max(position);
    }

    /// Returns whether the register is never used.
    pub(crate) fn is_empty(self) -> bool {
        self.start > self.end
    }
}

/// A basic block: code without branches in the middle.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// Index of the first draft.
    pub(crate) start: usize,
    /// One past the last.
    pub(crate) end: usize,
    successors: Vec<usize>,
}

/// A bit for each register that crosses blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Set(Vec<u64>);

impl Set {
    fn new(size: usize) -> Self {
        Self(vec![0; size.div_ceil(64)])
    }

    fn insert(&mut self, index: usize) {
        self.0[index / 64] |= 1 << (index % 64);
    }

    fn members(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(word, bits)| {
            let mut remaining = *bits;
            std::iter::from_fn(move || {
                let bit = remaining.trailing_zeros() as usize;
                remaining &= remaining.wrapping_sub(1);
                (bit < 64).then_some(word * 64 + bit)
            })
        })
    }
}

/// Calls `visit` with each register of a draft, sources first, and whether it is written.
pub(crate) fn registers_of(draft: &Draft, lists: &[Ref], mut visit: impl FnMut(usize, bool)) {
    let list = lists.get(draft.list.start as usize..draft.list.end as usize).unwrap_or_default();
    if draft.inst.guard != NO_SLOT {
        visit((draft.inst.guard & !NEGATED_BIT) as usize, false);
    }
    for visited_role in [OperandRole::Use, OperandRole::Def] {
        let fields = draft.fields();
        let operands = fields.iter().filter(|(_, role)| *role == visited_role).map(|(reference, _)| *reference);
        let role = |index: usize| if index < draft.list_results as usize { OperandRole::Def } else { draft.list_role };
        let vector = list.iter().enumerate().filter(|(index, _)| role(*index) == visited_role).map(|(_, one)| *one);
        for reference in operands.chain(vector).filter(|reference| is_register(*reference)) {
            visit(reference as usize, visited_role == OperandRole::Def);
        }
    }
}

/// Returns the interval of each of `count` registers.
pub(crate) fn intervals(drafts: &[Draft], lists: &[Ref], labels: &[Option<u32>], count: usize) -> Vec<Interval> {
    let mut intervals = vec![Interval::EMPTY; count];
    for (index, draft) in drafts.iter().enumerate() {
        let position = index as u32 * 2;
        let is_guarded = draft.inst.guard != NO_SLOT;
        registers_of(draft, lists, |register, written| {
            // If an instruction writes before it has read all its sources, they live to its end.
            let late = written || draft.distinct_slots;
            intervals[register].include(position + u32::from(late));
            if written && is_guarded {
                intervals[register].include(position);
            }
        });
    }
    let blocks = blocks(drafts, lists, labels);
    if blocks.len() > 1 {
        extend_over_blocks(&blocks, drafts, lists, &mut intervals);
    }
    intervals
}

/// Splits the code at labels and after every branch.
pub(crate) fn blocks(drafts: &[Draft], lists: &[Ref], labels: &[Option<u32>]) -> Vec<Block> {
    let position =
        |label: u32| labels.get(label as usize).copied().flatten().map_or(drafts.len(), |position| position as usize);
    let mut starts = vec![false; drafts.len() + 1];
    starts[0] = true;
    for label in 0..labels.len() as u32 {
        starts[position(label)] = true;
    }
    for (index, draft) in drafts.iter().enumerate() {
        if draft.ends || draft.target.is_some() || draft.table {
            starts[index + 1] = true;
        }
    }
    let begins: Vec<usize> = (0..drafts.len()).filter(|index| starts[*index]).collect();
    let block_of = |index: usize| begins.partition_point(|begin| *begin <= index).saturating_sub(1);
    let mut blocks = Vec::with_capacity(begins.len());
    for (number, start) in begins.iter().enumerate() {
        let end = begins.get(number + 1).copied().unwrap_or(drafts.len());
        let last = &drafts[end - 1];
        let mut successors: Vec<usize> = last.target.iter().map(|label| position(*label)).collect();
        if last.table {
            let table = lists.get(last.list.start as usize..last.list.end as usize).unwrap_or_default();
            successors.extend(table.iter().map(|label| position(*label)));
        }
        if !last.ends {
            successors.push(end);
        }
        successors.retain(|index| *index < drafts.len());
        let successors = successors.into_iter().map(block_of).collect();
        blocks.push(Block { start: *start, end, successors });
    }
    blocks
}

/// Returns the registers that a block reads before it writes them, and those that it writes for all lanes.
fn reads_and_writes(block: &Block, drafts: &[Draft], lists: &[Ref]) -> (Vec<usize>, Vec<usize>) {
    let mut written = std::collections::HashSet::new();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    for draft in &drafts[block.start..block.end] {
        let is_guarded = draft.inst.guard != NO_SLOT;
        registers_of(draft, lists, |register, is_write| {
            if (!is_write || is_guarded) && !written.contains(&register) {
                reads.push(register);
            }
            if is_write && !is_guarded && written.insert(register) {
                writes.push(register);
            }
        });
    }
    (reads, writes)
}

/// Solves the flow equations for registers that cross blocks, and extends their intervals.
fn extend_over_blocks(blocks: &[Block], drafts: &[Draft], lists: &[Ref], intervals: &mut [Interval]) {
    let summaries: Vec<_> = blocks.iter().map(|block| reads_and_writes(block, drafts, lists)).collect();
    let mut crossing: Vec<usize> = summaries.iter().flat_map(|(reads, _)| reads.iter().copied()).collect();
    crossing.sort_unstable();
    crossing.dedup();
    let number = |register: usize| crossing.binary_search(&register).ok();
    let as_set = |registers: &[usize]| {
        let mut set = Set::new(crossing.len());
        registers.iter().filter_map(|register| number(*register)).for_each(|index| set.insert(index));
        set
    };
    let reads: Vec<Set> = summaries.iter().map(|(reads, _)| as_set(reads)).collect();
    let writes: Vec<Set> = summaries.iter().map(|(_, writes)| as_set(writes)).collect();
    let mut live_in = reads.clone();
    let mut live_out = vec![Set::new(crossing.len()); blocks.len()];
    let mut changed = true;
    while changed {
        changed = false;
        for (index, block) in blocks.iter().enumerate().rev() {
            for successor in &block.successors {
                for (word, incoming) in live_in[*successor].0.clone().into_iter().enumerate() {
                    live_out[index].0[word] |= incoming;
                }
            }
            for word in 0..live_in[index].0.len() {
                let through = reads[index].0[word] | (live_out[index].0[word] & !writes[index].0[word]);
                changed |= through != live_in[index].0[word];
                live_in[index].0[word] = through;
            }
        }
    }
    for (index, block) in blocks.iter().enumerate() {
        for register in live_in[index].members() {
            intervals[crossing[register]].include(block.start as u32 * 2);
        }
        for register in live_out[index].members() {
            intervals[crossing[register]].include(block.end as u32 * 2 - 1);
        }
    }
}
