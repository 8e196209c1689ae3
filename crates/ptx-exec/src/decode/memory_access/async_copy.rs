//! `cp.async` and its relatives, except those on tensors (`tensor`).

use crate::api::LoadError;
use crate::control::{flow, mbarrier};
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::{Draft, OperandRole, Ref};
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::engine::races::Watched;
use crate::memory::async_copy as code;
use crate::memory::async_copy::{bulk, how};
use crate::memory::atom::NARROW_POINTER;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Returns the effect of an instruction that ends a group of copies, or waits for some.
fn group_of_copies(i: &Instruction<'_>, word: &str) -> Watched {
    match (word, i.operands.as_slice()) {
        ("commit_group", _) => Watched::Commit,
        ("wait_group", [Operand::Int(pending)]) => Watched::Wait(Some(u32::try_from(*pending).unwrap_or(u32::MAX))),
        _ => Watched::Wait(None),
    }
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes all instructions with opcode `cp`.
    pub(crate) fn copy_asynchronously(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let reduces = m.take("reduce");
        if !m.take("async") {
            return Err(self.unsupported(i));
        }
        let is_bulk = m.take("bulk");
        if is_bulk && m.has("tensor") {
            return self.copy_tensor(i, m, reduces);
        }
        if let Some(word) = m.one_of(&["commit_group", "wait_group", "wait_all"]) {
            // Every copy is already made when it is issued.
            m.take("read");
            let draft = Draft::new(flow::nothing);
            self.push(if is_bulk { draft } else { draft.watched(group_of_copies(i, word)) });
            return Ok(());
        }
        match (reduces, is_bulk) {
            (false, false) if m.take("mbarrier") => self.arrive_after_copies(i, m),
            (false, false) => self.copy_some(i, m),
            (_, true) => self.copy_bulk(i, m, reduces),
            (true, false) => Err(self.unsupported(i)),
        }
    }

    /// Decodes `cp.async.mbarrier.arrive.shared.b64 [a]`. Without `.noinc`, the barrier does not expect the arrival, so it
    /// changes nothing.
    fn arrive_after_copies(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let alone = m.take("arrive");
        let counted = m.take("noinc");
        let space = self.space(m);
        let shared = space.is_none_or(|space| matches!(space, "shared" | "shared::cta"));
        if !alone || !shared || m.ty() != Some(Ty::B(64)) {
            return Err(self.unsupported(i));
        }
        let [address] = self.operands(i)?;
        let one = self.constant(1, Width::Word);
        // Even without a space, 32 bits are an address of shared memory: NVIDIA's own headers use this.
        let space = space.or_else(|| self.is_narrow(address).then_some("shared"));
        let address = self.plain_address(address, space)?;
        let narrow = if address.width == Width::Word { NARROW_POINTER } else { 0 };
        let exec = if counted { mbarrier::arrive } else { mbarrier::touch };
        let draft = Draft::new(exec).a(address.base).b(one).imm(u64::from(address.offset as u32));
        let draft = draft.number(address.space.encode() | narrow).distinct_slots();
        self.push(draft.watched(Watched::Wait(None)));
        Ok(())
    }

    /// Decodes `cp.async.ca.shared.global [to], [from], 16, bytes` or `..., ignore`; a cache policy may follow.
    fn copy_some(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let level = m.one_of(&["ca", "cg"]);
        let to_space = m.one_of(&["shared", "shared::cta"]);
        if level.is_none() || to_space.is_none() || !m.take("global") {
            return Err(self.unsupported(i));
        }
        let policy = self.cache_policy(m);
        let operands = i.operands.len().saturating_sub(usize::from(policy));
        let [to, from, Operand::Int(size), rest @ ..] = i.operands.get(..operands).unwrap_or_default() else {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        };
        let sizes: &[u64] = if level == Some("cg") { &[16] } else { &[4, 8, 16] };
        if !sizes.contains(size) {
            return Err(self.invalid(format!("{size} is not a size of {}", i.full_name())));
        }
        let (to, from) = (self.plain_address(to, to_space)?, self.plain_address(from, Some("global"))?);
        let narrow = if to.width == Width::Word { NARROW_POINTER } else { 0 };
        let mut flags = (*size as u32) << how::SIZE_SHIFT | narrow;
        let mut draft = Draft::new(code::copy).a(to.base).b(from.base);
        match rest {
            [] => {}
            [operand] => {
                let (source_bytes, ignores) = self.source_bytes_operand(operand)?;
                flags |= if ignores { how::IGNORE } else { 0 };
                draft = draft.c(source_bytes);
            }
            _ => return Err(self.invalid("more operands than a copy takes")),
        }
        let offsets = u64::from(to.offset as u32) | u64::from(from.offset as u32) << 32;
        let watched = Watched::Copy { bytes: *size as u32, narrow: narrow != 0 };
        self.push(draft.imm(offsets).number(flags).watched(watched));
        Ok(())
    }

    /// Decodes the fourth operand: the number of source bytes, or a predicate for none.
    fn source_bytes_operand(&mut self, operand: &Operand<'a>) -> Result<(Ref, bool), LoadError> {
        let is_predicate = match operand {
            Operand::Not(_) => true,
            Operand::Name(name) => self.register(name).is_some_and(|(_, width)| width == Width::Pred),
            _ => false,
        };
        if is_predicate {
            return Ok((self.plain_predicate(operand)?, true));
        }
        Ok((self.source(operand, Ty::U(32))?, false))
    }

    /// Takes hints. Returns whether one of them has an operand, a policy without effect here.
    pub(crate) fn cache_policy(&self, m: &mut Modifiers<'a>) -> bool {
        let policy = m.take("L2::cache_hint");
        m.memory_order();
        policy
    }

    /// Decodes `cp.async.bulk` between global and shared memory, with or without a reduction, and its prefetch.
    fn copy_bulk(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>, reduces: bool) -> Result<(), LoadError> {
        let policy = self.cache_policy(m);
        if m.take("prefetch") {
            return if m.take("L2") && m.take("global") { self.hint(i, policy) } else { Err(self.unsupported(i)) };
        }
        let flags = self.bulk_flags(i, m)?;
        let exec = if reduces { self.bulk_reduction(i, m)? } else { code::copy_bulk };
        let count = i.operands.len().saturating_sub(usize::from(policy));
        let expected = 3 + [bulk::TO_SHARED, bulk::MULTICAST].iter().filter(|flag| flags & **flag != 0).count();
        let operands = i.operands.get(..count).filter(|operands| operands.len() == expected);
        let operands =
            operands.ok_or_else(|| self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())))?;
        let space = |flag: u64| if flags & flag != 0 { "shared" } else { "global" };
        let mut references = vec![
            self.whole_address(&operands[0], Some(space(bulk::TO_SHARED)))?,
            self.whole_address(&operands[1], Some(space(bulk::FROM_SHARED)))?,
            self.source(&operands[2], Ty::U(32))?,
        ];
        if let Some(barrier) = operands.get(3) {
            references.push(self.whole_address(barrier, Some("shared"))?);
        }
        if let Some(blocks) = operands.get(4) {
            references.push(self.source(blocks, Ty::U(16))?);
        }
        let draft = self.with_list(Draft::new(exec).imm(flags), &references, OperandRole::Use);
        self.push(draft);
        Ok(())
    }

    /// Decodes source and destination of a bulk copy. The destination's space comes first.
    fn bulk_flags(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<u64, LoadError> {
        let spaces = (self.space(m), self.space(m));
        let multicast = m.take("multicast::cluster");
        let counted = m.take("mbarrier::complete_tx::bytes");
        let grouped = m.take("bulk_group");
        let flags = match spaces {
            (Some("shared::cluster" | "shared::cta"), Some("global")) if counted => bulk::TO_SHARED,
            (Some("shared::cluster"), Some("shared::cta")) if counted => bulk::TO_SHARED | bulk::FROM_SHARED,
            (Some("global"), Some("shared::cta")) if grouped && !multicast => bulk::FROM_SHARED,
            _ => return Err(self.unsupported(i)),
        };
        Ok(if multicast { flags | bulk::MULTICAST } else { flags })
    }

    /// Returns the operation of a bulk reduction.
    fn bulk_reduction(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<Exec, LoadError> {
        let name = m.one_of(&["and", "or", "xor", "add", "inc", "dec", "min", "max"]);
        let ty = m.take_if(|word| Ty::parse(word).is_some());
        let exec = name.zip(ty).and_then(|(name, ty)| code::reduction(name, ty));
        exec.ok_or_else(|| self.unsupported(i))
    }

    /// Decodes `cp.async.bulk.prefetch.L2.global [a], size`.
    fn hint(&mut self, i: &Instruction<'a>, policy: bool) -> Result<(), LoadError> {
        if i.operands.len() != 2 + usize::from(policy) {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        }
        self.push(Draft::new(flow::nothing));
        Ok(())
    }
}
