//! An instruction whose operands are still virtual registers.

use crate::decode::contraction_role::ContractionRole;
use crate::engine::machine::{Exec, Inst};
use crate::engine::races::{Access, Watched};
use crate::slot::{CONSTANT_BIT, NO_SLOT};
use crate::types::{Ty, Width};
use std::ops::Range;

/// A virtual register, a constant slot (with `CONSTANT_BIT`), or `NO_SLOT`.
pub(crate) type Ref = u32;

/// Returns whether a reference is a virtual register.
pub(crate) fn is_register(reference: Ref) -> bool {
    reference & CONSTANT_BIT == 0
}

/// Contents of an operand field of an `Inst`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OperandRole {
    /// A number, not a reference.
    Plain,
    /// A register that is read.
    Use,
    /// A register that is written.
    Def,
}

/// The operand fields of `Inst`, in the order of `Draft::roles`.
pub(crate) const OPERAND_FIELDS: usize = 6;

/// A draft of an instruction.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    /// The instruction, with references where the roles require them.
    pub(crate) inst: Inst,
    /// Roles of `d a b c x` and the low half of `imm`.
    pub(crate) roles: [OperandRole; OPERAND_FIELDS],
    /// Entries of the function's list that this instruction reads or writes.
    pub(crate) list: Range<u32>,
    /// Whether the list is written.
    pub(crate) list_role: OperandRole,
    /// Number of entries at the start of the list that are written, whatever `list_role` is.
    pub(crate) list_results: u32,
    /// Whether `x` holds the start of the list.
    pub(crate) list_in_x: bool,
    /// Label in `x`.
    pub(crate) target: Option<u32>,
    /// Labels in `list`.
    pub(crate) table: bool,
    /// Whether control never reaches the next instruction.
    pub(crate) ends: bool,
    /// Whether destinations must not share a slot with sources, since a write may come before a read.
    pub(crate) distinct_slots: bool,
    /// Its access to memory that threads share.
    pub(crate) access: Option<Watched>,
    /// Its role in a contraction.
    pub(crate) role: Option<ContractionRole>,
}

impl Draft {
    /// Returns an instruction without operands.
    pub(crate) fn new(exec: Exec) -> Self {
        let inst =
            Inst { exec, guard: NO_SLOT, d: NO_SLOT, a: NO_SLOT, b: NO_SLOT, c: NO_SLOT, x: NO_SLOT, imm: 0, line: 0 };
        Self {
            inst,
            roles: [OperandRole::Plain; OPERAND_FIELDS],
            list: 0..0,
            list_role: OperandRole::Plain,
            list_results: 0,
            list_in_x: false,
            target: None,
            table: false,
            ends: false,
            distinct_slots: false,
            access: None,
            role: None,
        }
    }

    /// Sets the destination.
    pub(crate) fn d(mut self, register: Ref) -> Self {
        self.inst.d = register;
        self.roles[0] = OperandRole::Def;
        self
    }

    /// Sets the first source.
    pub(crate) fn a(mut self, source: Ref) -> Self {
        self.inst.a = source;
        self.roles[1] = OperandRole::Use;
        self
    }

    /// Sets the second source.
    pub(crate) fn b(mut self, source: Ref) -> Self {
        self.inst.b = source;
        self.roles[2] = OperandRole::Use;
        self
    }

    /// Sets the third source.
    pub(crate) fn c(mut self, source: Ref) -> Self {
        self.inst.c = source;
        self.roles[3] = OperandRole::Use;
        self
    }

    /// Sets `x` to a register in that role.
    pub(crate) fn x(mut self, register: Ref, role: OperandRole) -> Self {
        self.inst.x = register;
        self.roles[4] = role;
        self
    }

    /// Sets the low half of `imm` to a source.
    pub(crate) fn member(mut self, source: Ref) -> Self {
        self.inst.imm = u64::from(source);
        self.roles[5] = OperandRole::Use;
        self
    }

    /// Sets `imm` to a number.
    pub(crate) fn imm(mut self, value: u64) -> Self {
        self.inst.imm = value;
        self
    }

    /// Sets `x` to a number.
    pub(crate) fn number(mut self, value: u32) -> Self {
        self.inst.x = value;
        self
    }

    /// Keeps destinations separate from sources.
    pub(crate) fn distinct_slots(mut self) -> Self {
        self.distinct_slots = true;
        self
    }

    /// Sets its access to memory.
    pub(crate) fn touches(self, access: Access) -> Self {
        self.watched(Watched::Memory(access))
    }

    /// Sets its effect on the race search.
    pub(crate) fn watched(mut self, watched: Watched) -> Self {
        self.access = Some(watched);
        self
    }

    /// Marks that control ends here.
    pub(crate) fn ends(mut self) -> Self {
        self.ends = true;
        self
    }

    /// Sets the label that it jumps to.
    pub(crate) fn to(mut self, label: u32) -> Self {
        self.target = Some(label);
        self
    }

    /// Returns the references of the operand fields with their roles.
    pub(crate) fn fields(&self) -> [(Ref, OperandRole); OPERAND_FIELDS] {
        let Inst { d, a, b, c, x, imm, .. } = self.inst;
        let [rd, ra, rb, rc, rx, ri] = self.roles;
        [(d, rd), (a, ra), (b, rb), (c, rc), (x, rx), (imm as u32, ri)]
    }

    /// Replaces the references of the operand fields.
    pub(crate) fn map(&mut self, slot_of: impl Fn(Ref) -> u32) {
        let slots: [Ref; OPERAND_FIELDS] = self.fields().map(|(reference, role)| match role {
            OperandRole::Plain => reference,
            _ => slot_of(reference),
        });
        let inst = &mut self.inst;
        [inst.d, inst.a, inst.b, inst.c, inst.x] = [slots[0], slots[1], slots[2], slots[3], slots[4]];
        if self.roles[5] != OperandRole::Plain {
            inst.imm = u64::from(slots[5]);
        }
    }
}

/// The virtual registers of a function.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    /// Width of each register.
    pub(crate) widths: Vec<Width>,
    /// Type of each that the text declares.
    types: Vec<Option<Ty>>,
}

impl Registers {
    /// Returns a new register.
    pub(crate) fn fresh(&mut self, width: Width) -> Ref {
        self.widths.push(width);
        self.types.push(None);
        self.widths.len() as Ref - 1
    }

    /// A new one that the text declares with a type.
    pub(crate) fn declared(&mut self, width: Width, ty: Ty) -> Ref {
        let register = self.fresh(width);
        if let Some(known) = self.types.last_mut() {
            *known = Some(ty);
        }
        register
    }

    /// The type that the text declares it with; `None` for a temporary.
    pub(crate) fn ty(&self, register: Ref) -> Option<Ty> {
        self.types.get(register as usize).copied().flatten()
    }

    /// Whether it was declared with 8 bits.
    pub(crate) fn is_byte(&self, register: Ref) -> bool {
        self.ty(register).is_some_and(|ty| ty.bits() == 8)
    }
}
