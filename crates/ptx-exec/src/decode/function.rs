//! Decodes one function: scopes of names, statements in order, helpers that the families share.

use super::call::Signature;
use super::draft::{Draft, Ref, Registers, Role};
use super::modifiers::Modifiers;
use super::program::Shared;
use super::registers::Carried;
use crate::api::LoadError;
use crate::code::LocalArea;
use crate::decode::arithmetic::contract::Part;
use crate::decode::arithmetic::{logic, wide};
use crate::decode::hints;
use crate::inst::{Exec, NEGATED, NONE};
use crate::load::globals;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Function, Guard, Instruction, Operand, Space, Statement, Variable};
use std::collections::HashMap;

/// What a name stands for inside a function.
#[derive(Debug, Clone)]
pub(crate) enum Binding {
    /// A register.
    Register(Ref),
    /// A variable in the frame's local memory.
    Local(u32),
    /// A parameter or call argument in the frame's local memory.
    Param(LocalArea),
    /// A kernel parameter, by its offset in the buffer.
    KernelParam(u32),
    /// A shared variable, by its offset.
    Shared(u32),
    /// A label, by its number.
    Label(u32),
    /// Both halves of a `.b128` register.
    Wide([Ref; 2]),
    /// The shape of an indirect call.
    Prototype(Signature),
    /// Labels of a `.branchtargets`.
    Targets(Vec<u32>),
}

/// `.reg .b32 %r<9>`: registers `%r0` to `%r8`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegisterRange<'a> {
    /// The part of the name before the number.
    pub(crate) prefix: &'a str,
    /// How many there are.
    pub(crate) count: u32,
    /// How wide they are.
    pub(crate) width: Width,
    /// Whether they have 8 bits.
    pub(crate) is_byte: bool,
    /// Scopes around the declaration.
    pub(crate) depth: usize,
}

/// Where decoding a function stands.
pub(crate) struct FunctionDecoder<'p, 'a> {
    /// What all functions of the program share.
    pub(crate) shared: &'p mut Shared<'a>,
    /// The text it is from.
    pub(crate) module: usize,
    /// Whether it is a kernel.
    pub(crate) entry: bool,
    /// Whether instructions of one architecture may stand in the text.
    pub(crate) is_specific: bool,
    /// Whether shuffles and votes must name their lanes.
    pub(crate) needs_members: bool,
    /// Innermost scope last.
    pub(crate) scopes: Vec<HashMap<&'a str, Binding>>,
    /// Declared register ranges, innermost last.
    pub(crate) ranges: Vec<RegisterRange<'a>>,
    /// Declared ranges of `.b128` registers: prefix, length and depth, innermost last.
    pub(crate) wide_ranges: Vec<(&'a str, u32, usize)>,
    /// Virtual registers.
    pub(crate) registers: Registers,
    /// Code so far.
    pub(crate) drafts: Vec<Draft>,
    /// References of vector operands, label numbers of jump tables.
    pub(crate) lists: Vec<Ref>,
    /// Position of each label, once it has been met.
    pub(crate) labels: Vec<Option<u32>>,
    /// Bytes of the frame's local memory.
    pub(crate) local_bytes: u32,
    /// Bytes of static shared memory (kernels).
    pub(crate) shared_bytes: u32,
    /// Offsets of shared variables of the text that were met.
    pub(crate) shared_places: HashMap<usize, u32>,
    /// Parameters in local memory.
    pub(crate) params: Vec<LocalArea>,
    /// Return values in local memory.
    pub(crate) returns: Vec<LocalArea>,
    /// Return values in registers.
    pub(crate) results: Vec<Carried>,
    /// The carry flag, once it is used.
    pub(crate) carry: Option<Ref>,
    /// Line of the current instruction.
    pub(crate) line: u32,
    /// Guard of the current instruction.
    pub(crate) guard: Ref,
}

/// Largest frame of local memory that is accepted, in bytes.
const MAX_FRAME: u32 = 512 * 1024;

impl<'p, 'a> FunctionDecoder<'p, 'a> {
    /// A decoder for a function of text `module`, with static shared memory starting at `shared_start`.
    pub(crate) fn new(shared: &'p mut Shared<'a>, module: usize, entry: bool, shared_start: u32) -> Self {
        Self {
            shared,
            module,
            entry,
            is_specific: false,
            needs_members: false,
            scopes: vec![HashMap::new()],
            ranges: Vec::new(),
            wide_ranges: Vec::new(),
            registers: Registers::default(),
            drafts: Vec::new(),
            lists: Vec::new(),
            labels: Vec::new(),
            local_bytes: 0,
            shared_bytes: shared_start,
            shared_places: HashMap::new(),
            params: Vec::new(),
            returns: Vec::new(),
            results: Vec::new(),
            carry: None,
            line: 0,
            guard: NONE,
        }
    }

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
            (self.line, self.guard) = (function.line, NONE);
            arguments.into_iter().for_each(|argument| self.fill(argument));
        }
        self.statements(function.body.as_deref().unwrap_or_default())?;
        // Falling off the end is a return.
        let line = self.drafts.last().map_or(function.line, |draft| draft.inst.line);
        (self.line, self.guard) = (line, NONE);
        self.spill_results();
        self.push(Draft::new(crate::engine::control::ret).ends());
        Ok(())
    }

    /// Binds the parameters of a kernel to offsets in its buffer.
    fn kernel_params(&mut self, params: &[Variable<'a>]) -> Result<(), LoadError> {
        let mut end = 0;
        for param in params {
            let (offset, stop) = globals::layout(param)?.after(end, param.line)?;
            self.bind(param.name, Binding::KernelParam(offset));
            end = stop;
        }
        Ok(())
    }

    /// Makes room for parameters in the frame, in order; those in registers are `carried` too.
    fn bind_params(
        &mut self,
        params: &[Variable<'a>],
        carried: &mut Vec<Carried>,
    ) -> Result<Vec<LocalArea>, LoadError> {
        let mut areas = Vec::with_capacity(params.len());
        for param in params {
            areas.push(if param.space == Space::Reg {
                let one = self.register_parameter(param)?;
                carried.push(one);
                one.area
            } else {
                self.param_area(param)?
            });
        }
        Ok(areas)
    }

    /// Makes room for a parameter or call argument and binds its name.
    fn param_area(&mut self, param: &Variable<'a>) -> Result<LocalArea, LoadError> {
        if param.space != Space::Param {
            return Err(self.unsupported_name("parameters in registers", param.line));
        }
        let layout = globals::layout(param)?;
        let offset = self.local_room(layout.size, layout.align, param.line)?;
        let area = LocalArea { offset, size: layout.size as u32 };
        self.bind(param.name, Binding::Param(area));
        Ok(area)
    }

    /// Reserves local memory; everything starts at a multiple of 8 so that whole rows can be copied.
    pub(crate) fn local_room(&mut self, size: u64, align: u64, line: u32) -> Result<u32, LoadError> {
        let offset = u64::from(self.local_bytes).next_multiple_of(align.max(8));
        let end = offset.saturating_add(size).next_multiple_of(8);
        if end > u64::from(MAX_FRAME) {
            return Err(LoadError::InvalidPtx {
                line,
                message: format!("more than {MAX_FRAME} bytes of local memory"),
            });
        }
        self.local_bytes = end as u32;
        Ok(offset as u32)
    }

    /// Gives `name` a meaning in the innermost scope.
    pub(crate) fn bind(&mut self, name: &'a str, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, binding);
        }
    }

    /// What `name` means here, if it was declared in this function.
    pub(crate) fn binding(&self, name: &str) -> Option<&Binding> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// One scope of statements. Labels are declared first, since branches may go forward.
    fn statements(&mut self, statements: &[Statement<'a>]) -> Result<(), LoadError> {
        self.declare_labels(statements);
        for statement in statements {
            match statement {
                Statement::Label(name, _) => self.place_label(name),
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

    /// Labels may be used before they stand, and belong to the braces they stand in.
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

    /// Records where a label stands: at the next instruction.
    fn place_label(&mut self, name: &str) {
        let here = self.drafts.len() as u32;
        if let Some(Binding::Label(label)) = self.binding(name).cloned()
            && let Some(place) = self.labels.get_mut(label as usize)
        {
            *place = Some(here);
        }
    }

    /// A declaration inside the body.
    fn declare(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        match variable.space {
            Space::Reg => self.declare_registers(variable),
            Space::Local => {
                let layout = globals::layout(variable)?;
                let offset = self.local_room(layout.size, layout.align, variable.line)?;
                self.bind(variable.name, Binding::Local(offset));
                Ok(())
            }
            Space::Param => self.param_area(variable).map(|_| ()),
            Space::Shared if self.entry => self.declare_shared(variable),
            // Placed with the variables of the text.
            Space::Global | Space::Const | Space::Shared => Ok(()),
        }
    }

    /// A shared variable of a kernel, which no other kernel uses.
    fn declare_shared(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        let layout = globals::layout(variable)?;
        let offset = self.shared_room(layout)?;
        self.bind(variable.name, Binding::Shared(offset));
        Ok(())
    }

    /// Reserves static shared memory.
    pub(crate) fn shared_room(&mut self, layout: globals::Layout) -> Result<u32, LoadError> {
        let (offset, end) = layout.after(self.shared_bytes, self.line)?;
        self.shared_bytes = end;
        Ok(offset)
    }

    /// `.reg .b32 a, %r<9>;`
    fn declare_registers(&mut self, variable: &Variable<'a>) -> Result<(), LoadError> {
        if variable.ty == "b128" {
            return self.declare_wide(variable);
        }
        let ty = Ty::parse(variable.ty);
        let is_byte = ty.is_some_and(|ty| ty.bits() == 8);
        let width = ty.and_then(Ty::width);
        let width =
            width.ok_or_else(|| self.unsupported_name(&format!("register type .{}", variable.ty), variable.line))?;
        match variable.count {
            // Ranges are bound lazily, by name and number: thousands are declared, few are used at once.
            Some(count) => {
                let depth = self.scopes.len();
                self.ranges.push(RegisterRange { prefix: variable.name, count, width, is_byte, depth });
            }
            None => {
                let register = self.registers.declared(width, is_byte);
                self.bind(variable.name, Binding::Register(register));
            }
        }
        Ok(())
    }

    /// Adds a draft with the current line and guard.
    pub(crate) fn push(&mut self, mut draft: Draft) {
        draft.inst.line = self.line;
        draft.inst.guard = self.guard;
        self.drafts.push(draft);
    }

    /// Says what the instruction that was added last can be in a contraction.
    pub(crate) fn set_part(&mut self, part: Option<Part>) {
        if let Some(draft) = self.drafts.last_mut() {
            draft.part = part;
        }
    }

    /// Adds an instruction `d = exec(sources)`.
    pub(crate) fn emit(&mut self, exec: Exec, d: Ref, sources: &[Ref]) {
        let mut draft = Draft::new(exec).d(d);
        for (index, source) in sources.iter().enumerate() {
            draft = match index {
                0 => draft.a(*source),
                1 => draft.b(*source),
                _ => draft.c(*source),
            };
        }
        self.push(draft);
    }

    /// A register that the text does not name.
    pub(crate) fn temporary(&mut self, width: Width) -> Ref {
        self.registers.fresh(width)
    }

    /// Adds references to the function's list and returns where they are.
    pub(crate) fn list(&mut self, references: &[Ref]) -> std::ops::Range<u32> {
        let start = self.lists.len() as u32;
        self.lists.extend_from_slice(references);
        start..self.lists.len() as u32
    }

    /// A draft over a vector of registers.
    pub(crate) fn with_list(&mut self, mut draft: Draft, references: &[Ref], role: Role) -> Draft {
        draft.list = self.list(references);
        draft.list_role = role;
        draft.list_in_x = true;
        draft.inst.x = draft.list.start;
        draft.inst.c = references.len() as u32;
        draft
    }

    /// One instruction with its guard.
    fn instruction(&mut self, instruction: &Instruction<'a>) -> Result<(), LoadError> {
        self.line = instruction.line;
        self.guard = NONE;
        self.guard = match &instruction.guard {
            Some(guard) => self.guard_register(guard)?,
            None => NONE,
        };
        self.instruction_unguarded(instruction)
    }

    /// One instruction under the guard that is known: family, and the check that every modifier was understood.
    pub(crate) fn instruction_unguarded(&mut self, instruction: &Instruction<'a>) -> Result<(), LoadError> {
        if hints::has_policy(instruction) {
            let plain = self.without_policy(instruction)?;
            return self.instruction_unguarded(&plain);
        }
        if wide::is_wide(instruction) {
            return self.wide(instruction);
        }
        let mut modifiers = Modifiers::new(&instruction.modifiers);
        self.family(instruction, &mut modifiers)?;
        if modifiers.all_taken() { Ok(()) } else { Err(self.unsupported(instruction)) }
    }

    /// The predicate of a guard, with its negation.
    fn guard_register(&mut self, guard: &Guard<'a>) -> Result<Ref, LoadError> {
        let register = self.source(&Operand::Name(guard.register), Ty::Pred)?;
        Ok(if guard.negated { register | NEGATED } else { register })
    }

    /// Hands the instruction to the family of its opcode.
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

    /// The operands, of which there must be `N`.
    pub(crate) fn operands<'i, const N: usize>(
        &self,
        instruction: &'i Instruction<'a>,
    ) -> Result<[&'i Operand<'a>; N], LoadError> {
        let operands: Vec<&Operand<'a>> = instruction.operands.iter().collect();
        let found = operands.len();
        operands
            .try_into()
            .map_err(|_| self.invalid(format!("{} takes {N} operands, not {found}", instruction.full_name())))
    }

    /// The refusal of an instruction.
    pub(crate) fn unsupported(&self, instruction: &Instruction<'_>) -> LoadError {
        LoadError::Unsupported { line: instruction.line, name: instruction.full_name() }
    }

    /// The refusal of something else.
    pub(crate) fn unsupported_name(&self, name: &str, line: u32) -> LoadError {
        LoadError::Unsupported { line, name: name.to_owned() }
    }

    /// An error of the text at the current instruction.
    pub(crate) fn invalid(&self, message: impl Into<String>) -> LoadError {
        LoadError::InvalidPtx { line: self.line, message: message.into() }
    }
}
