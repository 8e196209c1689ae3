//! Contraction: a product and the sum that uses it become one fused multiply-add, as ptxas does it by default (`-fmad=true`).
//!
//! Only instructions without a rounding modifier take part: `mul`, and `add` and `sub` of the same type and the same `.ftz`.
//! The rule was taken from ptxas 13.0 for sm_90 with random programs:
//!
//! | question | answer |
//! |---|---|
//! | which products | no `.sat`, no guard, not of two constants; every use of the value is such a sum, as one of its operands |
//! | what may stand between | `mov`, and `neg` of one value that flushes no more than the product |
//! | several uses | all are fused, or none |
//! | two products in one sum | first, sums in order take a product that nothing else uses; then one with the fewest uses; then the first operand |
//! | after that | the other product is an addend, which is a use that forbids its own contraction |

use crate::alu::lanes::{binary, unary};
use crate::alu::{bits, moves};
use crate::decode::arithmetic::float::fused_float;
use crate::decode::arithmetic::half::fused_half;
use crate::decode::contraction_role::{ContractionKind, ContractionRole};
use crate::decode::draft::{Draft, Ref, Registers, is_register};
use crate::decode::liveness::{Block, blocks, registers_of};
use crate::slot::{NO_SLOT, Slot};
use crate::types::{Ty, Width};
use std::collections::HashMap;

/// One operand of a sum that is a product.
#[derive(Debug, Clone, Copy)]
struct Operand {
    product: usize,
    /// Whether there is an odd number of negations in between.
    negated: bool,
}

/// One use of a product.
#[derive(Debug, Clone, Copy)]
struct Leaf {
    /// Index of the draft that uses the product.
    user: usize,
    /// Index of the operand in the sum; `None` if the user is not a sum.
    operand: Option<usize>,
    negated: bool,
}

/// A sum that absorbs a product.
#[derive(Debug, Clone, Copy)]
struct Fusion {
    sum: usize,
    /// Index of the product among the operands of the sum.
    operand: usize,
    product: usize,
    negated: bool,
}

/// The drafts of a function, and the readers and writers of each register.
struct DataFlow<'a> {
    drafts: &'a [Draft],
    blocks: Vec<Block>,
    /// Drafts that read a register, in order.
    readers: Vec<Vec<usize>>,
    /// Drafts that write it.
    writers: Vec<Vec<usize>>,
}

impl<'a> DataFlow<'a> {
    fn new(drafts: &'a [Draft], lists: &[Ref], labels: &[Option<u32>], count: usize) -> Self {
        let (mut readers, mut writers) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (index, draft) in drafts.iter().enumerate() {
            registers_of(draft, lists, |register, written| {
                let users: &mut Vec<usize> = if written { &mut writers[register] } else { &mut readers[register] };
                if users.last() != Some(&index) {
                    users.push(index);
                }
            });
        }
        Self { drafts, blocks: blocks(drafts, lists, labels), readers, writers }
    }

    /// Returns the block of a draft.
    fn block_of(&self, index: usize) -> usize {
        self.blocks.partition_point(|block| block.start <= index).saturating_sub(1)
    }

    /// Returns the drafts that read the value that `writer` puts into `register`; `None` if one of them may find another value.
    fn uses(&self, writer: usize, register: Ref) -> Option<Vec<usize>> {
        let (readers, writers) = (&self.readers[register as usize], &self.writers[register as usize]);
        if writers.as_slice() == [writer] {
            return Some(readers.clone());
        }
        // The register has other writers. The value is followed to the end of its block, and must not be used beyond.
        let end = self.blocks.get(self.block_of(writer)).map_or(0, |block| block.end);
        let next = writers.iter().copied().find(|other| (writer + 1..end).contains(other));
        if next.is_some_and(|next| self.drafts[next].inst.guard != NO_SLOT) {
            return None;
        }
        // The draft that writes it next may read it before.
        let last = next.map_or(end, |next| next + 1);
        let (inside, outside): (Vec<usize>, Vec<usize>) =
            readers.iter().partition(|reader| (writer + 1..last).contains(reader));
        (next.is_some() || outside.iter().all(|reader| self.reads_own_write(*reader, writers))).then_some(inside)
    }

    /// Returns whether a draft reads values that were written in its own block, before it.
    fn reads_own_write(&self, reader: usize, writers: &[usize]) -> bool {
        let start = self.blocks.get(self.block_of(reader)).map_or(0, |block| block.start);
        let between = writers.iter().filter(|writer| (start..reader).contains(*writer));
        between.into_iter().any(|writer| self.drafts[*writer].inst.guard == NO_SLOT)
    }

    /// Adds the uses of the result of `writer`, through copies and negations. Returns false if some are unknown.
    fn leaves(&self, writer: usize, kind: ContractionKind, negated: bool, depth: u32, found: &mut Vec<Leaf>) -> bool {
        let register = self.drafts[writer].inst.d;
        let Some(uses) = self.uses(writer, register) else { return false };
        uses.into_iter().all(|user| {
            let draft = &self.drafts[user];
            let turned = match draft.role {
                Some(ContractionRole::Copy) => Some(negated),
                Some(ContractionRole::Negation(own)) if own.ty == kind.ty && (kind.flushes || !own.flushes) => {
                    Some(!negated)
                }
                _ => None,
            };
            if let Some(negated) = turned {
                return depth > 0 && draft.inst.guard == NO_SLOT && self.leaves(user, kind, negated, depth - 1, found);
            }
            found.push(Leaf { user, operand: operand_of(draft, register, kind), negated });
            true
        })
    }

    /// Returns whether these registers keep their values from draft `from` to draft `to`.
    fn keeps(&self, from: usize, to: usize, registers: [Ref; 2]) -> bool {
        let written = |register: Ref| {
            let writers = self.writers.get(register as usize).filter(|_| is_register(register));
            writers.is_some_and(|writers| writers.iter().any(|writer| (from..to).contains(writer)))
        };
        from < to && self.block_of(from) == self.block_of(to) && !registers.into_iter().any(written)
    }
}

/// Returns the index of a register among the operands of a sum, if the draft is a sum of that kind and not of the register with
/// itself.
fn operand_of(draft: &Draft, register: Ref, of: ContractionKind) -> Option<usize> {
    match (draft.role, draft.inst.a == register, draft.inst.b == register) {
        (Some(ContractionRole::Sum { kind, .. }), true, false) if kind == of => Some(0),
        (Some(ContractionRole::Sum { kind, .. }), false, true) if kind == of => Some(1),
        _ => None,
    }
}

/// Longest chain of copies and negations between a product and its sum.
const MAX_CHAIN_INSTRUCTIONS: u32 = 16;

/// The state of products and sums while sums choose.
struct Choice<'a> {
    flow: &'a DataFlow<'a>,
    /// Uses of each product that may be contracted.
    leaves: HashMap<usize, Vec<Leaf>>,
    /// Products among the operands of a sum.
    operands: HashMap<usize, [Option<Operand>; 2]>,
    fusions: HashMap<usize, Fusion>,
}

impl<'a> Choice<'a> {
    fn new(flow: &'a DataFlow<'a>) -> Self {
        let (mut leaves, mut operands) = (HashMap::new(), HashMap::<usize, [Option<Operand>; 2]>::new());
        for (product, draft) in flow.drafts.iter().enumerate() {
            let Some(ContractionRole::Product(kind)) = draft.role else { continue };
            let constant = !is_register(draft.inst.a) && !is_register(draft.inst.b);
            let mut contractions = Vec::new();
            if constant
                || draft.inst.guard != NO_SLOT
                || !flow.leaves(product, kind, false, MAX_CHAIN_INSTRUCTIONS, &mut contractions)
            {
                continue;
            }
            for leaf in &contractions {
                if let Some(operand) = leaf.operand {
                    let both = operands.entry(leaf.user).or_default();
                    both[operand] = Some(Operand { product, negated: leaf.negated });
                }
            }
            leaves.insert(product, contractions);
        }
        // A sum of a product with itself, through copies, is not contracted.
        operands.retain(|_, both| !matches!(both, [Some(a), Some(b)] if a.product == b.product));
        Self { flow, leaves, operands, fusions: HashMap::new() }
    }

    /// Returns whether every use of a product is a sum that has not absorbed another one.
    fn is_free(&self, product: usize) -> bool {
        let fuses_other = |leaf: &Leaf| self.fusions.get(&leaf.user).is_some_and(|fusion| fusion.product != product);
        let leaves = self.leaves.get(&product);
        leaves.is_some_and(|leaves| {
            leaves
                .iter()
                .all(|leaf| leaf.operand.is_some() && self.operands.contains_key(&leaf.user) && !fuses_other(leaf))
        })
    }

    fn uses(&self, product: usize) -> usize {
        self.leaves.get(&product).map_or(0, Vec::len)
    }

    /// Lets each sum choose. The first round offers only products without other uses.
    fn round(&mut self, alone: bool) {
        for sum in 0..self.flow.drafts.len() {
            let Some(both) = self.operands.get(&sum).filter(|_| !self.fusions.contains_key(&sum)) else { continue };
            let candidates = both.iter().enumerate().filter_map(|(index, operand)| Some((index, (*operand)?)));
            let candidates = candidates.filter(|(_, operand)| self.is_free(operand.product));
            let candidates = candidates.map(|(index, operand)| (self.uses(operand.product), index, operand));
            let best =
                candidates.filter(|(uses, ..)| *uses == 1 || !alone).min_by_key(|(uses, index, _)| (*uses, *index));
            if let Some((_, operand, Operand { product, negated })) = best {
                self.fusions.insert(sum, Fusion { sum, operand, product, negated });
            }
        }
    }
}

/// Contracts all candidates; `labels` follow their drafts.
pub(crate) fn contract(
    drafts: &mut Vec<Draft>,
    lists: &[Ref],
    labels: &mut [Option<u32>],
    registers: &mut Registers,
    mut constant: impl FnMut(u64, Width) -> Slot,
) {
    let has =
        |predicate: fn(&ContractionRole) -> bool| drafts.iter().any(|draft| draft.role.as_ref().is_some_and(predicate));
    if !has(|part| matches!(part, ContractionRole::Product(_)))
        || !has(|part| matches!(part, ContractionRole::Sum { .. }))
    {
        return;
    }
    let flow = DataFlow::new(drafts, lists, labels, registers.widths.len());
    let mut choice = Choice::new(&flow);
    choice.round(true);
    choice.round(false);
    let mut fusions: Vec<Fusion> = choice.fusions.into_values().collect();
    fusions.sort_unstable_by_key(|fusion| fusion.sum);
    let mut rewrite = Rewrite { flow: &flow, registers, before: HashMap::new(), factors: HashMap::new() };
    let mut fused = HashMap::new();
    for fusion in &fusions {
        if let Some(draft) = rewrite.fuse(fusion, &mut constant) {
            fused.insert(fusion.sum, (fusion.product, draft));
        }
    }
    let before = rewrite.before;
    // A product whose readers are all fused sums is not needed any more.
    let is_gone = |index: usize| {
        let takes = |user: &usize| fused.get(user).is_some_and(|(product, _)| *product == index);
        let draft = &drafts[index];
        matches!(draft.role, Some(ContractionRole::Product(_)))
            && flow.uses(index, draft.inst.d).is_some_and(|users| !users.is_empty() && users.iter().all(takes))
    };
    let mut code = Vec::with_capacity(drafts.len());
    let mut positions = Vec::with_capacity(drafts.len() + 1);
    for (index, draft) in drafts.iter().enumerate() {
        positions.push(code.len() as u32);
        code.extend(before.get(&index).into_iter().flatten().cloned());
        match fused.get(&index) {
            Some((_, fused)) => code.push(fused.clone()),
            None if is_gone(index) => {}
            None => code.push(draft.clone()),
        }
    }
    positions.push(code.len() as u32);
    *drafts = code;
    for label in labels.iter_mut().flatten() {
        *label = positions.get(*label as usize).copied().unwrap_or(*label);
    }
}

/// Makes the fused instructions.
struct Rewrite<'a> {
    flow: &'a DataFlow<'a>,
    registers: &'a mut Registers,
    /// Drafts to insert before another one.
    before: HashMap<usize, Vec<Draft>>,
    /// Copies of a product's factors, for sums that cannot read the originals any more.
    factors: HashMap<usize, [Ref; 2]>,
}

impl Rewrite<'_> {
    /// Returns the sum as a fused multiply-add; `None` if there is no such code.
    fn fuse(&mut self, fusion: &Fusion, constant: &mut impl FnMut(u64, Width) -> Slot) -> Option<Draft> {
        let (sum, product) = (&self.flow.drafts[fusion.sum], &self.flow.drafts[fusion.product]);
        let Some(ContractionRole::Sum { kind, subtracts, saturates }) = sum.role else { return None };
        let first = fusion.operand == 0;
        let addend = if first { sum.inst.b } else { sum.inst.a };
        // The signs of the product and of the addend.
        let signs = [fusion.negated ^ (subtracts && !first), subtracts && first];
        let factors = [product.inst.a, product.inst.b];
        let mut operands = if self.flow.keeps(fusion.product, fusion.sum, factors) {
            [factors[0], factors[1], addend]
        } else {
            let [a, b] = self.copied(fusion.product, factors, kind.ty);
            [a, b, addend]
        };
        let draft = match fused_float(kind, saturates, signs) {
            Some(exec) => Draft::new(exec),
            None => {
                for (operand, negative) in [(0, signs[0]), (2, signs[1])] {
                    if negative {
                        operands[operand] = self.flipped(fusion.sum, operands[operand], kind.ty, constant);
                    }
                }
                fused_half(kind, saturates)?
            }
        };
        let mut draft = draft.d(sum.inst.d).a(operands[0]).b(operands[1]).c(operands[2]);
        (draft.inst.guard, draft.inst.line) = (sum.inst.guard, sum.inst.line);
        Some(draft)
    }

    /// Returns copies of the factors, made at the position of the product.
    fn copied(&mut self, product: usize, factors: [Ref; 2], ty: Ty) -> [Ref; 2] {
        if let Some(kept_factor) = self.factors.get(&product) {
            return *kept_factor;
        }
        let copies = factors.map(|factor| if is_register(factor) { self.copy(product, factor, ty) } else { factor });
        self.factors.insert(product, copies);
        copies
    }

    /// Makes a copy of a register before draft `at`.
    fn copy(&mut self, at: usize, from: Ref, ty: Ty) -> Ref {
        let width = ty.width().unwrap_or(Width::Word);
        let exec = if width == Width::Double { unary::<moves::Copy64>() } else { unary::<moves::Copy32>() };
        let to = self.registers.fresh(width);
        self.insert(at, Draft::new(exec).d(to).a(from));
        to
    }

    /// Makes a negated copy of a 16-bit float, or of a pair of them.
    fn flipped(&mut self, at: usize, from: Ref, ty: Ty, constant: &mut impl FnMut(u64, Width) -> Slot) -> Ref {
        let sign = if matches!(ty, Ty::F16x2 | Ty::Bf16x2) { 0x8000_8000 } else { 0x8000 };
        let to = self.registers.fresh(Width::Word);
        let draft = Draft::new(binary::<bits::Xor<u32>>()).d(to).a(from).b(constant(sign, Width::Word));
        self.insert(at, draft);
        to
    }

    fn insert(&mut self, at: usize, mut draft: Draft) {
        draft.inst.line = self.flow.drafts[at].inst.line;
        self.before.entry(at).or_default().push(draft);
    }
}
