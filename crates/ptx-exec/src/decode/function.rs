//! Decodes one function: statements in order, and each instruction by its family.

use super::draft::{Draft, Ref};
use super::modifiers::Modifiers;
use crate::api::LoadError;
use crate::code::LocalArea;
use crate::decode::arithmetic::{logic, wide};
use crate::decode::decoder::{Binding, CarriedRegister, FunctionDecoder, RegisterRange, Signature};
use crate::decode::{hints, legal};
use crate::load::layout::layout_of;
use crate::slot::{NEGATED_BIT, NO_SLOT};
use crate::types::Ty;
use katydid_ptx::ast::{Function, Guard, Instruction, Operand, Space, Statement, Variable};
use std::collections::HashMap;

impl<'a> FunctionDecoder<'_, 'a> {
    /// Decodes signature and body.
    pub(crate) fn function(&mut self, function: &Function<'a>) -> Result<(), LoadError> {
        if self.entry {
            self.kernel_params(&function.params)?;
        } else {
            let mut arguments = Vec::new();
            self.params = self.bind_params(&function.params, &mut arguments)?;
            let mut results = Vec::new();
            self.returns = self.bind_params(&function.returns, &mut results)?;
            self.results = results;
            (self.line, self.guard) = (function.line, NO_SLOT);
            arguments.into_iter().for_each(|argument| self.fill(argument));
        }
        self.statements(function.body.as_deref().unwrap_or_default())?;
        // The end of the body is a return.
        let line = self.drafts.last().map_or(function.line, |draft| draft.inst.line);
        (self.line, self.guard) = (line, NO_SLOT);
        self.spill_results();
        self.push(Draft::new(crate::control::flow::ret).ends());
        Ok(())
    }

    /// Binds the parameters of a kernel to offsets in its buffer.
    fn kernel_params(&mut self, params: &[Variable<'a>]) -> Result<(), LoadError> {
        let mut end = 0;
        for param in params {
            let (offset, stop) = layout_of(param)?.after(end, param.line)?;
            self.bind(param.name, Binding::KernelParam(offset));
            end = stop;
        }
        Ok(())
    }

    /// Reserves parameters in the frame, in order; those in registers go to `carried` too.
    fn bind_params(
        &mut self,
        params: &[Variable<'a>],
        carried: &mut Vec<CarriedRegister>,
    ) -> Result<Vec<LocalArea>, LoadError> {
        let mut areas = Vec::with_capacity(params.len());
        for param in params {
            areas.push(if param.space == Space::Reg {
                let carried_register = self.register_parameter(param)?;
                carried.push(carried_register);
                carried_register.area
            } else {
                self.param_area(param)?
            });
        }
        Ok(areas)
    }

    /// Reserves a parameter or call argument, and binds its name.
    fn param_area(&mut self, param: &Variable<'a>) -> Result<LocalArea, LoadError> {
        if param.space != Space::Param {
            return Err(self.unsupported_name("parameters in registers", param.line));
        }
        let layout = layout_of(param)?;
        let offset = self.reserve_local(layout.size, layout.align, param.line)?;
        let area = LocalArea { offset, size: layout.size as u32 };
        self.bind(param.name, Binding::Param(area));
        Ok(area)
    }

    /// Decodes one scope of statements. Declares labels first, since branches may go forward.
    fn statements(&mut self, statements: &[Statement<'a>]) -> Result<(), LoadError> {
        self.declare_labels(statements);
        for statement in statements {
            match statement {
                Statement::Label(name, _) => self.define_label(name),
                Statement::Declare(variable) => self.declare(variable)?,
                Statement::Instruction(instruction) => self.instruction(instruction)?,
                Statement::Block(inner) => {
                    self.scopes.push(HashMap::new());
                    self.statements(inner)?;
                    self.scopes.pop();
                    let depth = self.scopes.len();
                    self.ranges.retain(|range| range.depth <= depth);
                    self.wide_ranges.retain(|(_, _, at)| *at <= depth);
                }
                Statement::Prototype(prototype) => {
                    let signature = Signature::of(prototype)?;
                    self.bind(prototype.name, Binding::Prototype(signature));
                }
                Statement::Targets { .. } => {}
            }
        }
        Ok(())
    }

    /// Declares labels: their uses may precede them, and they belong to the enclosing braces.
    fn declare_labels(&mut self, statements: &[Statement<'a>]) {
        for statement in statements {
            if let Statement::Label(name, _) = statement {
                self.labels.push(None);
                self.bind(name, Binding::Label(self.labels.len() as u32 - 1));
            }
        }
        for statement in statements {
            if let Statement::Targets { name, targets, .. } = statement {
                let labels = targets.iter().filter_map(|target| match self.binding(target) {
                    Some(Binding::Label(label)) => Some(*label),
                    _ => None,
                });
                let labels = labels.collect();
                self.bind(name, Binding::Targets(labels));
            }
        }
    }

    /// Sets the position of a label to the next instruction.
    fn define_label(&mut self, name: &str) {
        let position = self.drafts.len() as u32;
        if let Some(Binding::Label(label)) = self.binding(name).cloned()
            && let Some(label) = self.labels.get_mut(label as usize)
        {
            *label = Some(position);
        }
    }

    /// Decodes a declaration inside the body.
    fn declare(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        match variable.space {
            Space::Reg => self.declare_registers(variable),
            Space::Local => {
                let layout = layout_of(variable)?;
                let offset = self.reserve_local(layout.size, layout.align, variable.line)?;
                self.bind(variable.name, Binding::Local(offset));
                Ok(())
            }
            Space::Param => self.param_area(variable).map(|_| ()),
            Space::Shared if self.entry => self.declare_shared(variable),
            // These have memory with the variables of the text.
            Space::Global | Space::Const | Space::Shared => Ok(()),
        }
    }

    /// Decodes a shared variable of a kernel, which no other kernel uses.
    fn declare_shared(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        let layout = layout_of(variable)?;
        let offset = self.reserve_shared(layout)?;
        self.bind(variable.name, Binding::Shared(offset));
        Ok(())
    }

    /// `.reg .b32 a, %r<9>;`
    fn declare_registers(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        if variable.vector > 1 {
            return self.declare_vectors(variable);
        }
        if variable.ty == "b128" {
            return self.declare_wide(variable);
        }
        let known = Ty::parse(variable.ty).and_then(|ty| Some((ty, ty.width()?)));
        let (ty, width) =
            known.ok_or_else(|| self.unsupported_name(&format!("register type .{}", variable.ty), variable.line))?;
        match variable.count {
            // Ranges are bound lazily, by name and number: a text declares thousands and uses few at once.
            Some(count) => {
                let depth = self.scopes.len();
                self.ranges.push(RegisterRange { prefix: variable.name, count, width, ty, depth });
            }
            None => {
                let register = self.registers.declared(width, ty);
                self.bind(variable.name, Binding::Register(register));
            }
        }
        Ok(())
    }

    /// Decodes one instruction with its guard.
    fn instruction(&mut self, instruction: &Instruction<'a>) -> Result<(), LoadError> {
        self.line = instruction.line;
        self.guard = NO_SLOT;
        self.guard = match &instruction.guard {
            Some(guard) => self.guard_register(guard)?,
            None => NO_SLOT,
        };
        let plain = self.without_vectors(instruction);
        let instruction = plain.as_ref().unwrap_or(instruction);
        let once = legal::without_repeats(instruction);
        let instruction = once.as_ref().unwrap_or(instruction);
        self.check_form(instruction)?;
        self.instruction_unguarded(instruction)
    }

    /// Decodes one instruction under the current guard: dispatches it, and checks that every modifier was understood.
    fn instruction_unguarded(&mut self, instruction: &Instruction<'a>) -> Result<(), LoadError> {
        if hints::has_policy(instruction) {
            let plain = self.without_policy(instruction)?;
            return self.instruction_unguarded(&plain);
        }
        if wide::is_wide(instruction) {
            return self.wide(instruction);
        }
        let mut modifiers = Modifiers::new(&instruction.modifiers);
        self.family(instruction, &mut modifiers)?;
        if modifiers.all_consumed() { Ok(()) } else { Err(self.unsupported(instruction)) }
    }

    /// Returns the predicate of a guard, with its negation.
    fn guard_register(&mut self, guard: &Guard<'a>) -> Result<Ref, LoadError> {
        let register = self.source(&Operand::Name(guard.register), Ty::Pred)?;
        Ok(if guard.negated { register | NEGATED_BIT } else { register })
    }

    /// Dispatches the instruction to the family of its opcode.
    fn family(&mut self, i: &Instruction<'a>, m: &mut Modifiers<'a>) -> Result<(), LoadError> {
        match i.opcode {
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "neg" | "abs" | "mul24"
            | "mad24" | "sad" | "addc" | "subc" | "madc" => self.arithmetic(i, m),
            "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" | "copysign" => self.float_function(i, m),
            "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "popc" | "clz" | "brev"
            | "bfind" | "bfe" | "bfi" | "prmt" | "bmsk" | "szext" | "dp4a" | "dp2a" | "fns" => self.logic(i, m),
            "vabsdiff2" | "vabsdiff4" if logic::is_plain_distance(i) => self.logic(i, m),
            "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vset" | "vshl" | "vshr" | "vmad" | "vadd2" | "vsub2"
            | "vabsdiff2" | "vmin2" | "vmax2" | "vavrg2" | "vset2" | "vadd4" | "vsub4" | "vabsdiff4" | "vmin4"
            | "vmax4" | "vavrg4" | "vset4" => self.video(i, m),
            "setp" | "set" | "testp" | "selp" | "slct" => self.comparison(i, m),
            "mov" | "cvta" | "isspacep" => self.movement(i, m),
            "cvt" => self.convert(i, m),
            "ld" | "ldu" | "st" | "prefetch" | "prefetchu" | "discard" | "applypriority" => self.memory(i, m),
            "atom" | "red" => self.atomic(i, m),
            "cp" => self.copy_asynchronously(i, m),
            "mbarrier" => self.mbarrier(i, m),
            "multimem" => self.multimem(i, m),
            "tensormap" => self.replace_in_tensor_map(i, m),
            "mapa" | "getctarank" => self.cluster_address(i, m),
            "tex" | "tld4" | "txq" | "istypep" | "suld" | "sust" | "sured" | "suq" => self.texture(i, m),
            "createpolicy" => self.create_policy(i, m),
            "setmaxnreg" => self.set_registers(i, m),
            "alloca" | "stacksave" | "stackrestore" => self.stack(i, m),
            "call" => self.call(i, m),
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "membar" | "fence" | "griddepcontrol"
            | "pmevent" => self.control(i, m),
            "bar" | "barrier" => self.barrier(i, m),
            "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix" => self.matrix(i, m),
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => self.collective(i, m),
            _ => Err(self.unsupported(i)),
        }
    }
}
