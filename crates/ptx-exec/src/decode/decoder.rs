//! The state of decoding a function: names and their scopes, registers, drafts so far, and helpers for all families of
//! instructions.

use super::contraction_role::ContractionRole;
use super::draft::{Draft, OperandRole, Ref, Registers};
use super::program_context::ProgramContext;
use crate::api::LoadError;
use crate::code::LocalArea;
use crate::engine::machine::Exec;
use crate::load::layout::{Layout, layout_of};
use crate::slot::NO_SLOT;
use crate::types::{Ty, Width};
use katydid_ptx::ast::{Function, Instruction, Operand};
use std::collections::HashMap;

/// Meaning of a name inside a function.
#[derive(Debug, Clone)]
pub(crate) enum Binding {
    /// A register that is declared alone.
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
    /// A vector register, and its number of components.
    Vector(usize),
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
    /// Number of registers.
    pub(crate) count: u32,
    /// Width of the registers.
    pub(crate) width: Width,
    /// The type that they are declared with.
    pub(crate) ty: Ty,
    /// Scopes around the declaration.
    pub(crate) depth: usize,
}

/// Numbers of parameters and results of an indirect callee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Number of parameters.
    pub(crate) params: usize,
    /// Number of results.
    pub(crate) results: usize,
}

impl Signature {
    /// Returns the signature of a `.callprototype`. Its parameters must have a layout.
    pub(crate) fn of(prototype: &Function<'_>) -> Result<Self, LoadError> {
        for variable in prototype.params.iter().chain(&prototype.returns) {
            layout_of(variable)?;
        }
        Ok(Self { params: prototype.params.len(), results: prototype.returns.len() })
    }
}

/// A register and the area that holds it in calls.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CarriedRegister {
    /// The virtual register.
    pub(crate) register: Ref,
    /// Width of the register.
    pub(crate) width: Width,
    /// Its area of local memory.
    pub(crate) area: LocalArea,
}

/// The state of decoding a function.
pub(crate) struct FunctionDecoder<'p, 'a> {
    /// State that all functions of the program share.
    pub(crate) shared: &'p mut ProgramContext<'a>,
    /// Index of its text.
    pub(crate) module: usize,
    /// Whether it is a kernel.
    pub(crate) entry: bool,
    /// Whether the text may have instructions of one architecture only.
    pub(crate) is_specific: bool,
    /// Version of PTX of the text, the part before the dot.
    pub(crate) version: u32,
    /// Whether shuffles and votes must name their lanes.
    pub(crate) needs_members: bool,
    /// Innermost scope last.
    pub(crate) scopes: Vec<HashMap<&'a str, Binding>>,
    /// Declared register ranges, innermost last.
    pub(crate) ranges: Vec<RegisterRange<'a>>,
    /// Declared ranges of `.b128` registers: prefix, length and depth, innermost last.
    pub(crate) wide_ranges: Vec<(&'a str, u32, usize)>,
    /// The virtual registers so far.
    pub(crate) registers: Registers,
    /// Code so far.
    pub(crate) drafts: Vec<Draft>,
    /// References of vector operands, label numbers of jump tables.
    pub(crate) lists: Vec<Ref>,
    /// Position of each label, once decoded.
    pub(crate) labels: Vec<Option<u32>>,
    /// Bytes of the frame's local memory.
    pub(crate) local_bytes: u32,
    /// Bytes of static shared memory (kernels).
    pub(crate) shared_bytes: u32,
    /// Offsets of the text's shared variables in use.
    pub(crate) shared_places: HashMap<usize, u32>,
    /// Parameters in local memory.
    pub(crate) params: Vec<LocalArea>,
    /// Return values in local memory.
    pub(crate) returns: Vec<LocalArea>,
    /// Return values in registers.
    pub(crate) results: Vec<CarriedRegister>,
    /// The carry flag, once it is used.
    pub(crate) carry: Option<Ref>,
    /// Line of the current instruction.
    pub(crate) line: u32,
    /// Guard of the current instruction.
    pub(crate) guard: Ref,
}

/// Largest accepted frame of local memory, in bytes.
const MAX_LOCAL_FRAME_BYTES: u32 = 512 * 1024;

impl<'p, 'a> FunctionDecoder<'p, 'a> {
    /// Returns a decoder for a function of text `module`, with static shared memory starting at `shared_start`.
    pub(crate) fn new(shared: &'p mut ProgramContext<'a>, module: usize, entry: bool, shared_start: u32) -> Self {
        Self {
            shared,
            module,
            entry,
            is_specific: false,
            version: 0,
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
            guard: NO_SLOT,
        }
    }

    /// Reserves local memory at a multiple of 8, so that whole rows can be copied.
    pub(crate) fn reserve_local(&mut self, size: u64, align: u64, line: u32) -> Result<u32, LoadError> {
        let offset = u64::from(self.local_bytes).next_multiple_of(align.max(8));
        let end = offset.saturating_add(size).next_multiple_of(8);
        if end > u64::from(MAX_LOCAL_FRAME_BYTES) {
            return Err(LoadError::InvalidPtx {
                line,
                message: format!("more than {MAX_LOCAL_FRAME_BYTES} bytes of local memory"),
            });
        }
        self.local_bytes = end as u32;
        Ok(offset as u32)
    }

    /// Reserves static shared memory.
    pub(crate) fn reserve_shared(&mut self, layout: Layout) -> Result<u32, LoadError> {
        let (offset, end) = layout.after(self.shared_bytes, self.line)?;
        self.shared_bytes = end;
        Ok(offset)
    }

    /// Binds `name` in the innermost scope.
    pub(crate) fn bind(&mut self, name: &'a str, binding: Binding) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, binding);
        }
    }

    /// Returns the binding of `name`, if this function declares it.
    pub(crate) fn binding(&self, name: &str) -> Option<&Binding> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Adds a draft with the current line and guard.
    pub(crate) fn push(&mut self, mut draft: Draft) {
        draft.inst.line = self.line;
        draft.inst.guard = self.guard;
        self.drafts.push(draft);
    }

    /// Sets the role of the last added instruction in a contraction.
    pub(crate) fn set_role(&mut self, role: Option<ContractionRole>) {
        if let Some(draft) = self.drafts.last_mut() {
            draft.role = role;
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

    /// Returns a new register that the text does not name.
    pub(crate) fn temporary(&mut self, width: Width) -> Ref {
        self.registers.fresh(width)
    }

    /// Adds references to the function's list, and returns their range.
    pub(crate) fn list(&mut self, references: &[Ref]) -> std::ops::Range<u32> {
        let start = self.lists.len() as u32;
        self.lists.extend_from_slice(references);
        start..self.lists.len() as u32
    }

    /// Returns a draft over a vector of registers.
    pub(crate) fn with_list(&mut self, mut draft: Draft, references: &[Ref], role: OperandRole) -> Draft {
        draft.list = self.list(references);
        draft.list_role = role;
        draft.list_in_x = true;
        draft.inst.x = draft.list.start;
        draft.inst.c = references.len() as u32;
        draft
    }

    /// Returns the operands, which must be `N`.
    pub(crate) fn operands<'i, const N: usize>(
        &self,
        instruction: &'i Instruction<'a>,
    ) -> Result<[&'i Operand<'a>; N], LoadError> {
        let operands: Vec<&Operand<'a>> = instruction.operands.iter().collect();
        let count = operands.len();
        operands
            .try_into()
            .map_err(|_| self.invalid(format!("{} takes {N} operands, not {count}", instruction.full_name())))
    }

    /// Returns the refusal of an instruction.
    pub(crate) fn unsupported(&self, instruction: &Instruction<'_>) -> LoadError {
        LoadError::Unsupported { line: instruction.line, name: instruction.full_name() }
    }

    /// Returns the refusal of something else.
    pub(crate) fn unsupported_name(&self, name: &str, line: u32) -> LoadError {
        LoadError::Unsupported { line, name: name.to_owned() }
    }

    /// Returns an error of the text at the current instruction.
    pub(crate) fn invalid(&self, message: impl Into<String>) -> LoadError {
        LoadError::InvalidPtx { line: self.line, message: message.into() }
    }
}
