//! Vector registers, `.reg .v4 .f32 v`: an instruction that names them becomes one on their components.
//!
//! `v` is `{v.x, v.y, v.z, v.w}`, and each component is a register.

use crate::api::LoadError;
use crate::decode::decoder::{Binding, FunctionDecoder};
use crate::load::vector_names::{component, declared_names};
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Instruction, Operand, Variable};

/// Most bits of a vector register.
const MAX_VECTOR_BITS: u32 = 128;

impl<'a> FunctionDecoder<'_, 'a> {
    /// Declares `.reg .v4 .f32 v, w<3>;`.
    pub(crate) fn declare_vectors(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        let ty = Ty::parse(variable.ty).filter(|ty| ty.bits().saturating_mul(variable.vector) <= MAX_VECTOR_BITS);
        let width = ty.and_then(Ty::width).filter(|width| *width != Width::Pred);
        let (Some(ty), Some(width)) = (ty, width) else {
            let name = format!("register type .v{} .{}", variable.vector, variable.ty);
            return Err(self.unsupported_name(&name, variable.line));
        };
        let linked = self.shared.linked;
        for name in declared_names(variable) {
            let Some(vector) = linked.vector_names.find(&name) else { continue };
            for component in vector.components.iter().take(variable.vector as usize) {
                let register = self.registers.declared(width, ty);
                self.bind(component, Binding::Register(register));
            }
            self.bind(&vector.name, Binding::Vector(variable.vector as usize));
        }
        Ok(())
    }

    /// Returns the instruction with components in place of vector registers; `None` if it names none.
    pub(crate) fn without_vectors(&self, i: &Instruction<'a>) -> Option<Instruction<'a>> {
        if self.shared.linked.vector_names.is_empty() {
            return None;
        }
        let operands: Vec<_> = i.operands.iter().map(|operand| self.in_components(operand)).collect();
        (operands != i.operands).then(|| Instruction { operands, ..i.clone() })
    }

    /// Returns the components of the vector register called `name`.
    fn components(&self, name: &str) -> Option<Vec<Operand<'a>>> {
        let Some(Binding::Vector(count)) = self.binding(name) else { return None };
        let linked = self.shared.linked;
        let vector = linked.vector_names.find(name)?;
        Some(vector.components.iter().take(*count).map(|component| Operand::Name(component)).collect())
    }

    /// Returns an operand with components in place of vector registers.
    fn in_components(&self, operand: &Operand<'a>) -> Operand<'a> {
        let all = |list: &[Operand<'a>]| list.iter().map(|operand| self.in_components(operand)).collect();
        let replaced = match operand {
            Operand::Name(name) => self.components(name).map(Operand::Vector),
            Operand::Member(name, member) => {
                let parts = self.components(name);
                parts.zip(component(member)).and_then(|(parts, index)| parts.get(index).cloned())
            }
            Operand::Negated(inner) => Some(Operand::Negated(Box::new(self.in_components(inner)))),
            Operand::Pair(both) => {
                Some(Operand::Pair(Box::new((self.in_components(&both.0), self.in_components(&both.1)))))
            }
            Operand::Vector(list) => Some(Operand::Vector(all(list))),
            Operand::List(list) => Some(Operand::List(all(list))),
            Operand::Bracket(list) => Some(Operand::Bracket(all(list))),
            _ => None,
        };
        replaced.unwrap_or_else(|| operand.clone())
    }
}
