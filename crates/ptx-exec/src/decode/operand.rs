//! Converts operands to references: registers, constants, special registers, addresses of variables.
//!
//! A constant becomes a row of constants, once for each value and width in the program. A special register becomes a separate
//! instruction that fills a temporary. So does an address that is known only at launch (dynamic shared memory, local memory of a
//! function).

use super::draft::{Draft, Ref};
use crate::api::LoadError;
use crate::control::{flow, special};
use crate::decode::decoder::{Binding, FunctionDecoder, RegisterRange};
use crate::load::globals::function_address;
use crate::load::layout::layout_of;
use crate::load::link::Symbol;
use crate::slot::NO_SLOT;
use crate::types::{Ty, Width};
use crate::window;
use katydid_ptx::ast::{Linkage, Operand, Space};

impl<'a> FunctionDecoder<'_, 'a> {
    /// Returns the register called `name`, declared alone or in a range.
    pub(crate) fn register(&mut self, name: &'a str) -> Option<(Ref, Width)> {
        if let Some(Binding::Register(register)) = self.binding(name) {
            let register = *register;
            return Some((register, self.width_of(register)));
        }
        let RegisterRange { depth, width, ty, .. } = self.range_of(name)?;
        let register = self.registers.declared(width, ty);
        if let Some(scope) = self.scopes.get_mut(depth - 1) {
            scope.insert(name, Binding::Register(register));
        }
        Some((register, width))
    }

    /// Returns the innermost range that contains `name`.
    fn range_of(&self, name: &str) -> Option<RegisterRange<'a>> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        // A prefix may itself end in digits (`%rd1` of range `%rd` or of range `%r`, never both in one scope).
        (0..digits).find_map(|split| {
            let (prefix, number) = name.split_at_checked(name.len() - digits + split)?;
            let number: u32 = number.parse().ok()?;
            let range = self.ranges.iter().rev().find(|range| range.prefix == prefix && number < range.count)?;
            Some(*range)
        })
    }

    /// Returns the width of a virtual register.
    pub(crate) fn width_of(&self, register: Ref) -> Width {
        self.registers.widths.get(register as usize).copied().unwrap_or(Width::Word)
    }

    /// Returns a destination register of type `ty`; a temporary for `_`.
    pub(crate) fn destination(&mut self, operand: &Operand<'a>, ty: Ty) -> Result<Ref, LoadError> {
        let width = ty.width().ok_or_else(|| self.invalid("128-bit operand"))?;
        match operand {
            Operand::Discard => Ok(self.temporary(width)),
            Operand::Name(name) => match self.register(name) {
                Some((register, found)) if found == width => Ok(register),
                Some(_) => Err(self.invalid(format!("{name} has the wrong width"))),
                None => Err(self.invalid(format!("{name} is not a register"))),
            },
            _ => Err(self.invalid("the destination is not a register")),
        }
    }

    /// Returns a destination of any width, with that width.
    pub(crate) fn any_destination(&mut self, operand: &Operand<'a>, default: Width) -> Result<(Ref, Width), LoadError> {
        match operand {
            Operand::Discard => Ok((self.temporary(default), default)),
            Operand::Name(name) => self.register(name).ok_or_else(|| self.invalid(format!("{name} is not a register"))),
            _ => Err(self.invalid("the destination is not a register")),
        }
    }

    /// Returns a source of type `ty`.
    pub(crate) fn source(&mut self, operand: &Operand<'a>, ty: Ty) -> Result<Ref, LoadError> {
        let width = ty.width().ok_or_else(|| self.invalid("128-bit operand"))?;
        let (reference, source_width) = self.any_source(operand, ty)?;
        if source_width == width {
            return Ok(reference);
        }
        Err(self.invalid(format!("{operand:?} has the wrong width for .{ty:?}")))
    }

    /// Returns a source of type `ty` that may be in a wider register.
    pub(crate) fn any_source(&mut self, operand: &Operand<'a>, ty: Ty) -> Result<(Ref, Width), LoadError> {
        let width = ty.width().ok_or_else(|| self.invalid("128-bit operand"))?;
        let constant = match operand {
            Operand::Name(name) => return self.named_source(name, 0, ty),
            Operand::Offset(name, offset) => return self.named_source(name, *offset, ty),
            Operand::Member(name, member) => return self.special(name, member),
            Operand::Int(value) => integer_constant(*value, ty),
            Operand::F32(bits) if ty == Ty::F64 => f64::from(f32::from_bits(*bits)).to_bits(),
            Operand::F32(bits) => u64::from(*bits),
            Operand::F64(bits) if ty == Ty::F32 => u64::from((f64::from_bits(*bits) as f32).to_bits()),
            Operand::F64(bits) => *bits,
            _ => return Err(self.invalid("operand is neither register nor constant")),
        };
        Ok((self.constant(constant, width), width))
    }

    /// Returns a constant as a reference.
    pub(crate) fn constant(&mut self, value: u64, width: Width) -> Ref {
        self.shared.constants.slot(value, width)
    }

    /// Returns a register, a special register, or the address of a variable.
    fn named_source(&mut self, name: &'a str, offset: i64, ty: Ty) -> Result<(Ref, Width), LoadError> {
        if let Some(register) = self.register(name) {
            return if offset == 0 {
                Ok(register)
            } else {
                Err(self.invalid("register with an offset outside brackets"))
            };
        }
        if name.starts_with('%') {
            return self.special(name, "");
        }
        let width = if ty.bits() == 64 { Width::Double } else { Width::Word };
        Ok((self.address(name, offset, width)?, width))
    }

    /// Reads a special register into a temporary: it is a source like any other, but has no slot.
    pub(crate) fn special(&mut self, name: &str, member: &str) -> Result<(Ref, Width), LoadError> {
        let Some((number, width)) = special::lookup(name, member) else {
            if !special::exists(name) {
                return Err(self.invalid(format!("{name} is not declared")));
            }
            let dot = if member.is_empty() { "" } else { "." };
            return Err(self.unsupported_name(&format!("special register {name}{dot}{member}"), self.line));
        };
        self.shared.reserved |= name.starts_with("%reserved_smem") || name == "%aggr_smem_size";
        let code = special::code(width);
        let register = self.temporary(width);
        self.push_unguarded(Draft::new(code).d(register).imm(number));
        Ok((register, width))
    }

    /// Adds a draft that ignores the guard, since it only prepares an operand.
    pub(crate) fn push_unguarded(&mut self, draft: Draft) {
        let guard = std::mem::replace(&mut self.guard, NO_SLOT);
        self.push(draft);
        self.guard = guard;
    }

    /// Returns the address of a variable or function in its own address space.
    pub(crate) fn address(&mut self, name: &'a str, offset: i64, width: Width) -> Result<Ref, LoadError> {
        let plus = |base: u64| base.wrapping_add(offset.cast_unsigned());
        let cut = |value: u64| if width == Width::Word { value & 0xffff_ffff } else { value };
        match self.binding(name).cloned() {
            Some(Binding::Local(base)) => self.local_address(plus(u64::from(base)), width),
            Some(Binding::Param(area)) => {
                self.local_address(plus(window::LOCAL_ADDRESS + u64::from(area.offset)), width)
            }
            Some(Binding::KernelParam(base)) => {
                Ok(self.constant(cut(plus(window::PARAM_ADDRESS + u64::from(base))), width))
            }
            Some(Binding::Shared(base)) => Ok(self.shared_offset(plus(u64::from(base)), width)),
            Some(_) => Err(self.invalid(format!("{name} has no address"))),
            None => self.symbol_address(name, offset, width),
        }
    }

    /// Returns an address in local memory. A kernel's frame is the first, so the address is a constant; else it is `imm` bytes
    /// into the frame.
    fn local_address(&mut self, address: u64, width: Width) -> Result<Ref, LoadError> {
        if self.entry {
            let address = if width == Width::Word { address & 0xffff_ffff } else { address };
            return Ok(self.constant(address, width));
        }
        if width == Width::Word {
            return Err(self.invalid("32-bit address of a local variable in a function"));
        }
        let register = self.temporary(Width::Double);
        self.push_unguarded(Draft::new(flow::local_address).d(register).imm(address));
        Ok(register)
    }

    /// Returns the address of a module-level declaration. Only addresses of shared memory fit 32 bits.
    fn symbol_address(&mut self, name: &'a str, offset: i64, width: Width) -> Result<Ref, LoadError> {
        let address = match self.shared.linked.find(self.module, name) {
            Some(Symbol::Function(index)) => function_address(index),
            Some(Symbol::Variable(index)) => match self.shared.globals.addresses.get(index).copied().flatten() {
                Some((address, _)) => address,
                None => return self.shared_address(index, offset, width),
            },
            Some(Symbol::Builtin) | None => {
                return Err(LoadError::UnresolvedSymbol { line: self.line, name: name.to_owned() });
            }
        };
        let address = address.wrapping_add(offset.cast_unsigned());
        if width == Width::Word {
            return Err(self.invalid(format!("32-bit address of {name}")));
        }
        Ok(self.constant(address, width))
    }

    /// Returns the address of a shared variable of the text.
    fn shared_address(&mut self, index: usize, offset: i64, width: Width) -> Result<Ref, LoadError> {
        let variable = self.shared.linked.variables[index].variable;
        if variable.space != Space::Shared {
            return Err(self.invalid(format!("{} has no address", variable.name)));
        }
        let layout = layout_of(variable)?;
        let dynamic = variable.linkage == Linkage::Extern || (layout.size == 0 && !variable.dimensions.is_empty());
        if dynamic {
            self.shared.dynamic_align = self.shared.dynamic_align.max(layout.align as u32);
            let register = self.temporary(width);
            let code = match width {
                Width::Double => special::dynamic_shared_double,
                _ => special::dynamic_shared_word,
            };
            self.push_unguarded(Draft::new(code).d(register).imm(offset.cast_unsigned()));
            return Ok(register);
        }
        let known_offset = self.shared.common_shared.get(&index).or_else(|| self.shared_places.get(&index)).copied();
        let base = match known_offset {
            Some(base) => base,
            None => self.reserve_shared(layout)?,
        };
        self.shared_places.insert(index, base);
        Ok(self.shared_offset(u64::from(base).wrapping_add(offset.cast_unsigned()), width))
    }

    /// Returns both operands of a pair `d|p`, or the operand alone.
    pub(crate) fn pair<'o>(&self, operand: &'o Operand<'a>) -> (&'o Operand<'a>, Option<&'o Operand<'a>>) {
        match operand {
            Operand::Pair(both) => (&both.0, Some(&both.1)),
            other => (other, None),
        }
    }

    /// Returns a predicate source with its negation.
    pub(crate) fn predicate(&mut self, operand: &Operand<'a>) -> Result<(Ref, bool), LoadError> {
        match operand {
            Operand::Not(name) => Ok((self.source(&Operand::Name(name), Ty::Pred)?, true)),
            Operand::Int(value) => Ok((self.constant(if *value == 0 { 0 } else { u64::MAX }, Width::Pred), false)),
            other => Ok((self.source(other, Ty::Pred)?, false)),
        }
    }

    /// Returns a predicate source. A negated one is inverted first.
    pub(crate) fn plain_predicate(&mut self, operand: &Operand<'a>) -> Result<Ref, LoadError> {
        let (register, negated) = self.predicate(operand)?;
        if !negated {
            return Ok(register);
        }
        let inverse = self.temporary(Width::Pred);
        self.push_unguarded(Draft::new(crate::alu::moves::not_predicate).d(inverse).a(register).b(register));
        Ok(inverse)
    }
}

/// Returns an integer literal as the bits of a type.
fn integer_constant(value: u64, ty: Ty) -> u64 {
    match ty {
        Ty::F32 => u64::from((value.cast_signed() as f32).to_bits()),
        Ty::F64 => (value.cast_signed() as f64).to_bits(),
        Ty::Pred => {
            if value == 0 {
                0
            } else {
                u64::MAX
            }
        }
        _ if ty.bits() < 64 => value & ((1 << ty.bits()) - 1),
        _ => value,
    }
}
