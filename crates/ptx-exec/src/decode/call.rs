//! `call`: arguments and results are areas of local memory, copied between the frames.
//!
//! By the PTX calling convention, a `.param` variable of the caller and the parameter of the callee have the same layout. So a
//! call copies rows and ignores types. A `CallSite` stores the areas of each call, because `ret` needs them again to return the
//! results.

use super::draft::Draft;
use super::modifiers::Modifiers;
use crate::api::LoadError;
use crate::code::CallSite;
use crate::control::{builtin, flow, stack};
use crate::decode::decoder::{Binding, FunctionDecoder};
use crate::load::link::Symbol;
use crate::types::Ty;
use katydid_ptx::ast::{Instruction, Operand};

impl<'a> FunctionDecoder<'_, 'a> {
    /// `call (results), callee, (arguments), prototype;` in any of its shorter forms.
    pub(crate) fn call(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        m.take("uni");
        let (results, rest) = match i.operands.as_slice() {
            [Operand::List(results), rest @ ..] => (results.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let [Operand::Name(callee), rest @ ..] = rest else { return Err(self.invalid("call of nothing")) };
        let (arguments, prototype) = match rest {
            [Operand::List(arguments), rest @ ..] => (arguments.as_slice(), rest.first()),
            rest => (&[][..], rest.first()),
        };
        let args = arguments.iter().map(|argument| self.argument(argument)).collect::<Result<Vec<_>, _>>()?;
        let results = results.iter().map(|result| self.result(result)).collect::<Result<Vec<_>, _>>()?;
        let site = CallSite { args, results: results.iter().map(|(area, _)| *area).collect() };
        if self.register(callee).is_some() {
            self.indirect(callee, prototype, site)?;
        } else {
            self.direct(callee, site)?;
        }
        results.into_iter().filter_map(|(_, carried)| carried).for_each(|carried| self.fill(carried));
        Ok(())
    }

    /// `alloca.u64 d, size, 16`, `stacksave.u64 d`, `stackrestore.u64 a`
    pub(crate) fn stack(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        let ty = m.ty().filter(|ty| matches!(ty, Ty::U(32 | 64))).ok_or_else(|| self.unsupported(i))?;
        let wide = u32::from(ty.bits() == 64);
        let draft = match (i.opcode, i.operands.as_slice()) {
            ("stacksave", [d]) => Draft::new(stack::save).d(self.destination(d, ty)?),
            ("stackrestore", [a]) => Draft::new(stack::restore).a(self.source(a, ty)?),
            ("alloca", [d, size, rest @ ..]) => {
                let align = match rest {
                    [] => 8,
                    [Operand::Int(align)] if align.is_power_of_two() && *align <= 1 << 16 => *align,
                    _ => return Err(self.invalid("alloca with an alignment that is not a power of two")),
                };
                let size = self.source(size, ty)?;
                Draft::new(stack::allocate).a(size).d(self.destination(d, ty)?).imm(align)
            }
            _ => return Err(self.invalid(format!("{} with {} operands", i.full_name(), i.operands.len()))),
        };
        self.push(draft.number(wide).distinct_slots());
        Ok(())
    }

    /// Stores a call site and returns its number.
    fn site(&mut self, site: CallSite) -> u64 {
        self.shared.call_sites.push(site);
        self.shared.call_sites.len() as u64 - 1
    }

    /// Decodes a call of a named function, which a text defines or the driver provides.
    fn direct(&mut self, callee: &'a str, site: CallSite) -> Result<(), LoadError> {
        match self.shared.linked.find(self.module, callee) {
            Some(Symbol::Function(index)) => {
                let function = self.shared.linked.functions[index].function;
                if function.params.len() != site.args.len() || function.returns.len() != site.results.len() {
                    return Err(self.invalid(format!("call of {callee} with the wrong number of arguments")));
                }
                let site = self.site(site);
                self.push(Draft::new(flow::call).number(index as u32).imm(site));
                Ok(())
            }
            Some(Symbol::Builtin) => {
                let exec = builtin::find(callee).ok_or_else(|| self.unsupported_name(callee, self.line))?;
                let site = self.site(site);
                self.push(Draft::new(exec).imm(site));
                Ok(())
            }
            Some(Symbol::Variable(_)) => Err(self.invalid(format!("call of variable {callee}"))),
            None if is_device_runtime(callee) => Err(self.unsupported_name(callee, self.line)),
            None => Err(LoadError::UnresolvedSymbol { line: self.line, name: callee.to_owned() }),
        }
    }

    /// Decodes a call through a register. Checks the prototype here; the call checks the target.
    fn indirect(&mut self, callee: &'a str, prototype: Option<&Operand<'a>>, site: CallSite) -> Result<(), LoadError> {
        if let Some(Operand::Name(name)) = prototype {
            let Some(Binding::Prototype(signature)) = self.binding(name).cloned() else {
                return Err(self.invalid(format!("{name} is not a call prototype")));
            };
            if signature.params != site.args.len() || signature.results != site.results.len() {
                return Err(self.invalid(format!("call does not match {name}")));
            }
        }
        let target = self.source(&Operand::Name(callee), Ty::U(64))?;
        let site = self.site(site);
        self.push(Draft::new(flow::call_indirect).a(target).imm(site));
        Ok(())
    }
}

/// Returns whether a GPU's driver provides this function, while the interpreter does not.
fn is_device_runtime(name: &str) -> bool {
    name == "cudaGraphSetConditional"
        || name.starts_with("__cudaCDP2")
        || name.starts_with("cudaCG")
        || name.starts_with("cnp")
}
