//! Instructions between blocks of a cluster: `mapa`, `getctarank`, `barrier.cluster`, and stores that a barrier counts.

use super::draft::{Draft, Ref};
use super::modifiers::Modifiers;
use crate::api::LoadError;
use crate::control::cluster as code;
use crate::decode::decoder::FunctionDecoder;
use crate::engine::machine::Exec;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand, Statement};

impl<'a> FunctionDecoder<'_, 'a> {
    /// `mapa d, a, rank` and `getctarank d, a`, of generic addresses or of those in `.shared::cluster`.
    pub(crate) fn cluster_address(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let shared = m.take("shared::cluster");
        let ty = m.ty().filter(|ty| [Ty::U(32), Ty::U(64)].contains(ty)).ok_or_else(|| self.unsupported(i))?;
        let wide = ty == Ty::U(64);
        if !shared && !wide {
            return Err(self.unsupported(i));
        }
        if i.opcode == "getctarank" {
            let exec: Exec = if wide { code::rank_of::<u64> } else { code::rank_of::<u32> };
            let [destination, address] = self.operands(i)?;
            let address = self.source(address, ty)?;
            let d = self.destination(destination, Ty::U(32))?;
            self.push(Draft::new(exec).d(d).a(address).distinct_slots());
            return Ok(());
        }
        let exec: Exec = match (shared, wide) {
            (true, true) => code::map_address::<u64>,
            (true, false) => code::map_address::<u32>,
            _ => code::map_generic,
        };
        let [destination, address, rank] = self.operands(i)?;
        let (address, rank) = (self.source(address, ty)?, self.source(rank, Ty::U(32))?);
        let d = self.destination(destination, ty)?;
        self.push(Draft::new(exec).d(d).a(address).b(rank).distinct_slots());
        Ok(())
    }

    /// `barrier.cluster.arrive.release.aligned`, `barrier.cluster.wait`
    pub(crate) fn cluster_barrier(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let what = m.one_of(&["arrive", "wait"]);
        m.one_of(&["release", "relaxed", "acquire"]);
        m.take("aligned");
        let exec: Exec = match what {
            Some("arrive") => code::arrive,
            Some(_) => code::wait,
            None => return Err(self.unsupported(i)),
        };
        if !i.operands.is_empty() {
            return Err(self.invalid("a barrier of the cluster has no operands"));
        }
        self.push(Draft::new(exec));
        Ok(())
    }

    /// Returns the address `offset` bytes into the block's shared memory: a constant, unless addresses contain the block's rank.
    pub(crate) fn shared_offset(&mut self, offset: u64, width: Width) -> Ref {
        if !self.shared.ranked {
            return self.constant(if width == Width::Word { offset & 0xffff_ffff } else { offset }, width);
        }
        let register = self.temporary(width);
        let exec: Exec = if width == Width::Word { code::shared_address::<u32> } else { code::shared_address::<u64> };
        self.push_unguarded(Draft::new(exec).d(register).imm(offset));
        register
    }

    /// Splits the barrier off the operands of `st.async` and `red.async`. The barrier counts the stored bytes.
    pub(crate) fn counting_barrier<'i>(
        &self,
        i: &'i Instruction<'a>,
        m: &mut Modifiers<'a>,
    ) -> Result<(&'i [Operand<'a>], Option<&'i Operand<'a>>), LoadError> {
        if !m.take("async") {
            return Ok((&i.operands, None));
        }
        let counted = m.take("mbarrier::complete_tx::bytes");
        let Some((barrier, operands)) = i.operands.split_last().filter(|_| counted) else {
            return Err(self.unsupported(i));
        };
        Ok((operands, Some(barrier)))
    }

    /// Counts `bytes` arrived bytes at a barrier, if there is one.
    pub(crate) fn count_bytes(&mut self, barrier: Option<&Operand<'a>>, bytes: u64) -> Result<(), LoadError> {
        let Some(barrier) = barrier else { return Ok(()) };
        let bytes = self.constant(bytes, Width::Word);
        let draft = self.on_barrier(crate::control::mbarrier::complete, barrier, Some("shared"), 0)?.b(bytes);
        self.push(draft);
        Ok(())
    }
}

/// Returns whether a body may name shared memory of other blocks.
pub(crate) fn looks_beyond(body: &[Statement<'_>]) -> bool {
    body.iter().any(|statement| match statement {
        Statement::Instruction(instruction) => {
            matches!(instruction.opcode, "mapa" | "getctarank") || instruction.modifiers.contains(&"shared::cluster")
        }
        Statement::Block(inner) => looks_beyond(inner),
        _ => false,
    })
}
