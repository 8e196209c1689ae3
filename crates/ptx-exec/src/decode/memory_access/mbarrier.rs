//! `mbarrier.*`: one address, at most one more operand, flags.

use crate::alu::lanes::binary;
use crate::alu::moves;
use crate::api::LoadError;
use crate::control::mbarrier as code;
use crate::control::mbarrier::how;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::Draft;
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::memory::atom::NARROW_POINTER;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes any instruction of this family. Orders and scopes have no effect: every access to such a word is atomic.
    pub(crate) fn mbarrier(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        const NAMES: &[&str] = &[
            "init",
            "inval",
            "expect_tx",
            "complete_tx",
            "arrive",
            "arrive_drop",
            "test_wait",
            "try_wait",
            "pending_count",
        ];
        let Some(position) = i.modifiers.first().filter(|first| NAMES.contains(first)) else {
            return Err(self.unsupported(i));
        };
        m.take(position);
        if *position == "pending_count" {
            return self.pending_count(i, m);
        }
        let parity = m.take("parity");
        let expect = m.take("expect_tx");
        m.take("noComplete");
        m.memory_order();
        let space = self.space(m);
        if m.ty() != Some(Ty::B(64)) || space.is_some_and(|space| !space.starts_with("shared")) {
            return Err(self.unsupported(i));
        }
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        match *position {
            "init" => self.word_operation(i, space, code::init, 1),
            "inval" => self.word_operation(i, space, code::invalidate, 0),
            "expect_tx" => self.word_operation(i, space, code::expect, 1),
            "complete_tx" => self.word_operation(i, space, code::complete, 1),
            "arrive" => self.arrive(i, space, flag(expect, how::EXPECT)),
            "arrive_drop" => self.arrive(i, space, how::DROP | flag(expect, how::EXPECT)),
            wait => self.wait(i, space, flag(parity, how::PARITY) | flag(wait == "try_wait", how::PATIENT)),
        }
    }

    /// Returns an instruction with the address of a barrier, and flags.
    pub(crate) fn on_barrier(
        &mut self,
        exec: Exec,
        address: &Operand<'a>,
        space: Option<&str>,
        flags: u64,
    ) -> Result<Draft, LoadError> {
        let address = self.plain_address(address, space)?;
        let narrow = if address.width == Width::Word { NARROW_POINTER } else { 0 };
        let imm = u64::from(address.offset as u32) | flags << 32;
        Ok(Draft::new(exec).a(address.base).imm(imm).number(address.space.encode() | narrow).distinct_slots())
    }

    /// Decodes `init [a], count`, `inval [a]` and their relatives.
    fn word_operation(
        &mut self,
        i: &Instruction<'a>,
        space: Option<&str>,
        exec: Exec,
        operands: usize,
    ) -> Result<(), LoadError> {
        let [address, rest @ ..] = i.operands.as_slice() else {
            return Err(self.invalid("barrier without an address"));
        };
        if rest.len() != operands {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        }
        let mut draft = self.on_barrier(exec, address, space, 0)?;
        if let [operand] = rest {
            draft = draft.b(self.source(operand, Ty::U(32))?);
        }
        self.push(draft);
        Ok(())
    }

    /// Decodes `arrive state, [a]`, `arrive state, [a], count`; barriers of other blocks have no state.
    fn arrive(&mut self, i: &Instruction<'a>, space: Option<&str>, flags: u64) -> Result<(), LoadError> {
        let (state, address, count) = match i.operands.as_slice() {
            [state, address] => (Some(state), address, None),
            [state, address @ Operand::Address { .. }, count] => (Some(state), address, Some(count)),
            [address] => (None, address, None),
            _ => return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len()))),
        };
        // Two operands may be a state and an address, or an address and a count.
        let (state, address, count) = match (state, address) {
            (Some(first @ Operand::Address { .. }), second) => (None, first, Some(second)),
            found => (found.0, found.1, count),
        };
        let mut draft = self.on_barrier(code::arrive, address, space, flags)?;
        if let Some(count) = count {
            draft = draft.b(self.source(count, Ty::U(32))?);
        } else if flags & how::EXPECT != 0 {
            return Err(self.invalid("arrival without a count of bytes"));
        }
        if let Some(state) = state.filter(|state| **state != Operand::Discard) {
            draft = draft.d(self.destination(state, Ty::B(64))?);
        }
        self.push(draft);
        Ok(())
    }

    /// Decodes `test_wait p, [a], state`, `try_wait.parity p, [a], parity, hint`; the hint is the longest wait.
    fn wait(&mut self, i: &Instruction<'a>, space: Option<&str>, flags: u64) -> Result<(), LoadError> {
        let [result, address, phase, hint @ ..] = i.operands.as_slice() else {
            return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len())));
        };
        match hint {
            [] => {}
            [hint] if flags & how::PATIENT != 0 => drop(self.source(hint, Ty::U(32))?),
            _ => return Err(self.invalid("more operands than a wait takes")),
        }
        let phase = self.source(phase, if flags & how::PARITY != 0 { Ty::U(32) } else { Ty::B(64) })?;
        let draft = self.on_barrier(code::test, address, space, flags)?.b(phase);
        let d = self.destination(result, Ty::Pred)?;
        self.push(draft.d(d));
        Ok(())
    }

    /// Decodes `pending_count.b64 d, state`.
    fn pending_count(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        if m.ty() != Some(Ty::B(64)) {
            return Err(self.unsupported(i));
        }
        let [count, state] = self.operands(i)?;
        let state = self.source(state, Ty::B(64))?;
        let d = self.destination(count, Ty::U(32))?;
        self.push(Draft::new(code::pending_count).d(d).a(state).distinct_slots());
        Ok(())
    }

    /// Returns an address as one 64-bit register: base plus offset.
    pub(crate) fn whole_address(&mut self, operand: &Operand<'a>, space: Option<&str>) -> Result<u32, LoadError> {
        let address = self.plain_address(operand, space)?;
        let zero = self.constant(0, Width::Word);
        let mut base = address.base;
        if address.width == Width::Word {
            if address.offset != 0 {
                let (sum, offset) =
                    (self.temporary(Width::Word), self.constant(address.offset & 0xffff_ffff, Width::Word));
                self.emit(binary::<crate::alu::integer::Add<u32>>(), sum, &[base, offset]);
                base = sum;
            }
            let wide = self.temporary(Width::Double);
            self.emit(binary::<moves::Pack64>(), wide, &[base, zero]);
            return Ok(wide);
        }
        if address.offset != 0 {
            let (sum, offset) = (self.temporary(Width::Double), self.constant(address.offset, Width::Double));
            self.emit(binary::<crate::alu::integer::Add<u64>>(), sum, &[base, offset]);
            base = sum;
        }
        Ok(base)
    }
}
