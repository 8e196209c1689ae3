//! `atom` and `red`. Every atomic operation here is sequentially consistent, so the order words need no code.

use super::draft::Draft;
use super::function::FunctionDecoder;
use super::modifiers::Modifiers;
use crate::api::LoadError;
use crate::atom;
use crate::types::{Ty, Width};
use katydid_ptx::ast::Instruction;

/// Names of operations.
const OPERATIONS: &[&str] = &["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];

impl<'a> FunctionDecoder<'_, 'a> {
    /// `atom.global.cas.b32 d, [a], b, c` or `red.global.add.u32 [a], b`.
    pub(crate) fn atomic(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let (operands, barrier) = self.counting_barrier(i, m)?;
        let space = self.space(m);
        m.memory_order();
        let name = m.one_of(OPERATIONS).ok_or_else(|| self.unsupported(i))?;
        let ty = m.ty().ok_or_else(|| self.unsupported(i))?;
        let named = m.take_if(|word| crate::types::Ty::parse(word).is_some());
        let exec = atom::lookup(name, &type_name(ty)).filter(|_| named.is_none()).ok_or_else(|| self.unsupported(i))?;
        let reduces = i.opcode == "red";
        let operands = operands.get(usize::from(!reduces)..).unwrap_or_default();
        let [address, values @ ..] = operands else { return Err(self.invalid("atomic without an address")) };
        if values.len() != 1 + usize::from(name == "cas") {
            return Err(self.invalid("atomic with the wrong number of operands"));
        }
        let address = self.plain_address(address, space)?;
        let values = values.iter().map(|value| self.source(value, ty)).collect::<Result<Vec<_>, _>>()?;
        let narrow = if address.width == Width::Word { atom::NARROW_POINTER } else { 0 };
        let mut draft =
            Draft::new(exec).a(address.base).imm(address.offset).number(address.space.encode() | narrow).apart();
        for (index, value) in values.into_iter().enumerate() {
            draft = if index == 0 { draft.b(value) } else { draft.c(value) };
        }
        if !reduces {
            let destination = i.operands.first().ok_or_else(|| self.invalid("atomic without a destination"))?;
            if *destination != katydid_ptx::ast::Operand::Discard {
                let d = self.destination(destination, ty)?;
                draft = draft.d(d);
            }
        }
        self.push(draft);
        self.count_bytes(barrier, u64::from(ty.bytes()))
    }
}

/// The name of a type, as `atom::lookup` knows it.
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
