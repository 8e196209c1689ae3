//! `atom` and `red`. Every atomic operation is sequentially consistent here, so the order modifiers need no code.

use crate::alu::lanes::unary;
use crate::alu::moves;
use crate::api::LoadError;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::draft::Draft;
use crate::decode::modifiers::Modifiers;
use crate::engine::machine::Exec;
use crate::engine::races::{Access, AccessKind};
use crate::memory::atom;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand};

/// Names of operations.
const ATOMIC_OPERATION_NAMES: &[&str] = &["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes `atom.global.cas.b32 d, [a], b, c` or `red.global.add.u32 [a], b`.
    pub(crate) fn atomic(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let (operands, barrier) = self.counting_barrier(i, m)?;
        let space = self.space(m);
        m.memory_order();
        let name = m.one_of(ATOMIC_OPERATION_NAMES).ok_or_else(|| self.unsupported(i))?;
        let count = m.one_of(&["v2", "v4", "v8"]).map(|word| usize::from(word.as_bytes()[1] - b'0'));
        let ty = m.ty().ok_or_else(|| self.unsupported(i))?;
        if count.is_some_and(|count| !is_vector(name, ty, count)) || (count.is_none() && is_small_extreme(name, ty)) {
            return Err(self.unsupported(i));
        }
        let named = m.take_if(|word| crate::types::Ty::parse(word).is_some());
        let exec = atom::lookup(name, &type_name(ty)).filter(|_| named.is_none()).ok_or_else(|| self.unsupported(i))?;
        let reduces = i.opcode == "red";
        if let Some(count) = count {
            return self.atomic_vector(i, exec, ty, (operands, count, space));
        }
        let operands = operands.get(usize::from(!reduces)..).unwrap_or_default();
        let [address, values @ ..] = operands else { return Err(self.invalid("atomic without an address")) };
        if values.len() != 1 + usize::from(name == "cas") {
            return Err(self.invalid("atomic with the wrong number of operands"));
        }
        let address = self.plain_address(address, space)?;
        let values = values.iter().map(|value| self.source(value, ty)).collect::<Result<Vec<_>, _>>()?;
        let narrow = if address.width == Width::Word { atom::NARROW_POINTER } else { 0 };
        let mut draft = Draft::new(exec)
            .a(address.base)
            .imm(address.offset)
            .number(address.space.encode() | narrow)
            .distinct_slots();
        draft = draft.touches(Access::new(AccessKind::Atomic, true, address.space, address.width, ty.bytes()));
        for (index, value) in values.into_iter().enumerate() {
            draft = if index == 0 { draft.b(value) } else { draft.c(value) };
        }
        if !reduces {
            let destination = i.operands.first().ok_or_else(|| self.invalid("atomic without a destination"))?;
            if *destination != Operand::Discard {
                let d = self.destination(destination, ty)?;
                draft = draft.d(d);
            }
        }
        self.push(draft);
        self.count_bytes(barrier, u64::from(ty.bytes()))
    }

    /// Decodes `red.global.add.v4.f32 [a], {w, x, y, z}`. Each element is atomic, the vector is not.
    fn atomic_vector(
        &mut self,
        i: &Instruction<'a>,
        exec: Exec,
        ty: Ty,
        (operands, count, space): (&[Operand<'a>], usize, Option<&'a str>),
    ) -> Result<(), LoadError> {
        let (results, operands) = match (i.opcode, operands) {
            ("atom", [Operand::Vector(results), rest @ ..]) if results.len() == count => (results.as_slice(), rest),
            ("red", rest) => (&[][..], rest),
            _ => return Err(self.invalid("atomic with a result of the wrong length")),
        };
        let [address, Operand::Vector(values)] = operands else {
            return Err(self.invalid("atomic with the wrong number of operands"));
        };
        if values.len() != count || space.is_some_and(|space| space != "global") {
            return Err(self.unsupported(i));
        }
        let address = self.plain_address(address, space)?;
        let values = values.iter().map(|value| self.source(value, ty)).collect::<Result<Vec<_>, _>>()?;
        // Temporaries are necessary: a result may overwrite a value that is used later.
        let mut old = Vec::with_capacity(count);
        for (index, value) in values.into_iter().enumerate() {
            let offset = address.offset.wrapping_add(index as u64 * u64::from(ty.bytes()));
            let mut draft =
                Draft::new(exec).a(address.base).imm(offset).number(address.space.encode()).b(value).distinct_slots();
            draft = draft.touches(Access::new(AccessKind::Atomic, true, address.space, address.width, ty.bytes()));
            if let Some(result) = results.get(index) {
                let between = self.temporary(Width::Word);
                old.push((result, between));
                draft = draft.d(between);
            }
            self.push(draft);
        }
        for (result, between) in old {
            let d = self.destination(result, ty)?;
            self.emit(unary::<moves::Copy32>(), d, &[between]);
        }
        Ok(())
    }
}

/// Returns whether an operation has vectors: 16 bytes at most, sums of `f32`, and sums and extremes of 16-bit floats.
fn is_vector(name: &str, ty: Ty, count: usize) -> bool {
    let floats = match ty {
        Ty::F32 => name == "add",
        Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2 => matches!(name, "add" | "min" | "max"),
        _ => false,
    };
    floats && count * ty.bytes() as usize <= 16
}

/// Returns whether it is a minimum or maximum of 16-bit floats, which only vectors have.
fn is_small_extreme(name: &str, ty: Ty) -> bool {
    matches!(name, "min" | "max") && matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2)
}

/// Returns the name of a type for `atom::lookup`.
fn type_name(ty: Ty) -> String {
    match ty {
        Ty::U(bits) => format!("u{bits}"),
        Ty::S(bits) => format!("s{bits}"),
        Ty::B(bits) => format!("b{bits}"),
        other => format!("{other:?}").to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_read_back_as_their_types() {
        for name in ["u32", "s64", "b16", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64"] {
            assert_eq!(type_name(Ty::parse(name).unwrap()), name);
        }
    }
}
