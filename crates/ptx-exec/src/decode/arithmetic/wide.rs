//! `.b128`: a register is two of 64 bits, and an instruction on it is one on both.
//!
//! `mov.b128` packs, unpacks and copies; `ld` and `st` are those of `.v2.b64`. Atomics on it are refused if the processor has no
//! instruction for them.

use crate::alu::lanes::unary;
use crate::alu::moves;
use crate::api::LoadError;
use crate::decode::decoder::{Binding, FunctionDecoder};
use crate::decode::draft::Ref;
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::memory::atom::NARROW_POINTER;
use crate::memory::atom_wide;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand, Variable};

/// Most registers of one declaration of `.b128`.
const MAX_WIDE_REGISTERS: u32 = 4096;

/// Returns whether an instruction works on `.b128`.
pub(crate) fn is_wide(i: &Instruction<'_>) -> bool {
    i.modifiers.last() == Some(&"b128") && matches!(i.opcode, "mov" | "ld" | "st" | "atom")
}

impl<'a> FunctionDecoder<'_, 'a> {
    /// Declares `.reg .b128 a;`. For a range, only prefix and length are stored: each name is bound at its first use.
    pub(crate) fn declare_wide(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        match variable.count {
            Some(count) if count > MAX_WIDE_REGISTERS => {
                Err(self.unsupported_name("thousands of .b128 registers", variable.line))
            }
            Some(count) => {
                self.wide_ranges.push((variable.name, count, self.scopes.len()));
                Ok(())
            }
            None => {
                let halves = [self.temporary(Width::Double), self.temporary(Width::Double)];
                self.bind(variable.name, Binding::Wide(halves));
                Ok(())
            }
        }
    }

    /// Whether a name is that of a `.b128` register.
    pub(crate) fn is_wide_register(&self, name: &str) -> bool {
        matches!(self.binding(name), Some(Binding::Wide(_))) || self.wide_range(name).is_some()
    }

    /// Scopes around the range of `.b128` registers that a name is one of.
    fn wide_range(&self, name: &str) -> Option<usize> {
        let declared = self.wide_ranges.iter().rev().find(|(prefix, count, _)| {
            let number = name.strip_prefix(prefix).and_then(|number| number.parse::<u32>().ok());
            number.is_some_and(|number| number < *count)
        });
        declared.map(|(_, _, depth)| *depth)
    }

    /// Both halves of a `.b128` register.
    fn wide_register(&mut self, operand: &Operand<'a>) -> Result<[Ref; 2], LoadError> {
        let Operand::Name(name) = operand else { return Err(self.invalid("the operand is not a .b128 register")) };
        if let Some(Binding::Wide(halves)) = self.binding(name) {
            return Ok(*halves);
        }
        let depth = self.wide_range(name);
        let depth = depth.ok_or_else(|| self.invalid(format!("{name} is not a .b128 register")))?;
        let halves = [self.temporary(Width::Double), self.temporary(Width::Double)];
        if let Some(scope) = self.scopes.get_mut(depth - 1) {
            scope.insert(name, Binding::Wide(halves));
        }
        Ok(halves)
    }

    /// Returns the two operands for a `.b128` one: a vector of two, or the halves of a register.
    fn wide_halves(&mut self, operand: &Operand<'a>, written: bool) -> Result<[Ref; 2], LoadError> {
        match operand {
            Operand::Vector(parts) => match (parts.as_slice(), written) {
                ([low, high], true) => Ok([self.destination(low, Ty::B(64))?, self.destination(high, Ty::B(64))?]),
                ([low, high], false) => Ok([self.source(low, Ty::B(64))?, self.source(high, Ty::B(64))?]),
                _ => Err(self.invalid(".b128 has two halves")),
            },
            other => self.wide_register(other),
        }
    }

    /// `mov.b128 d, {a, b}`, `mov.b128 {a, b}, d`, `ld.b128 d, [a]`, `st.b128 [a], d`
    pub(crate) fn wide(&mut self, i: &Instruction<'a>) -> Result<(), LoadError> {
        if i.opcode == "atom" {
            return self.wide_atomic(i);
        }
        let [first, second] = self.operands(i)?;
        if i.opcode == "mov" {
            let from = self.wide_halves(second, false)?;
            let to = self.wide_halves(first, true)?;
            // Temporaries are necessary: a half may be written before it is read.
            let between = [self.temporary(Width::Double), self.temporary(Width::Double)];
            for (d, a) in between.into_iter().zip(from).chain(to.into_iter().zip(between)) {
                self.emit(unary::<moves::Copy64>(), d, &[a]);
            }
            return Ok(());
        }
        let (value, at) = if i.opcode == "ld" { (first, 0) } else { (second, 1) };
        let names = ["\u{1}low", "\u{1}high"];
        let halves = self.wide_register(value)?;
        // The halves get names that no text can contain, for the instruction on a vector of them.
        self.scopes.push(names.iter().zip(halves).map(|(name, half)| (*name, Binding::Register(half))).collect());
        let mut pair = i.clone();
        pair.operands[at] = Operand::Vector(names.iter().map(|name| Operand::Name(name)).collect());
        pair.modifiers.pop();
        pair.modifiers.extend(["v2", "b64"]);
        let mut modifiers = Modifiers::new(&pair.modifiers);
        let done = self.memory(&pair, &mut modifiers);
        self.scopes.pop();
        done?;
        if modifiers.all_consumed() { Ok(()) } else { Err(self.unsupported(&pair)) }
    }

    /// Decodes `atom.exch.b128 d, [a], b` and `atom.cas.b128 d, [a], b, c`. The race search ignores them.
    fn wide_atomic(&mut self, i: &Instruction<'a>) -> Result<(), LoadError> {
        let mut m = Modifiers::new(&i.modifiers);
        let space = self.space(&mut m);
        m.memory_order();
        let name = m.one_of(&["exch", "cas"]).filter(|_| atom_wide::is_there());
        if m.ty() != Some(Ty::B(128)) || !m.all_consumed() {
            return Err(self.unsupported(i));
        }
        let (exec, count): (Exec, _) = match name {
            Some("exch") => (atom_wide::exchange, 1),
            Some(_) => (atom_wide::swap, 2),
            None => return Err(self.unsupported(i)),
        };
        let [result, address, values @ ..] = i.operands.as_slice() else {
            return Err(self.invalid("atomic without an address"));
        };
        if values.len() != count {
            return Err(self.invalid("atomic with the wrong number of operands"));
        }
        let address = self.plain_address(address, space)?;
        let mut sources = vec![address.base];
        for value in values {
            sources.extend(self.wide_register(value)?);
        }
        let results = match result {
            Operand::Discard => [self.temporary(Width::Double), self.temporary(Width::Double)],
            result => self.wide_register(result)?,
        };
        let narrow = if address.width == Width::Word { NARROW_POINTER } else { 0 };
        let space = u64::from(address.space.encode() | narrow);
        let draft = self.listed(exec, &sources, &results).imm(address.offset << atom_wide::OFFSET_SHIFT | space);
        self.push(draft);
        Ok(())
    }
}
