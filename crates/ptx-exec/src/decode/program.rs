//! Decodes all functions of a linked program into one piece of code.

use super::cluster::looks_beyond;
use super::draft::{Draft, OperandRole, Ref, is_register};
use crate::api::LoadError;
use crate::code::FunctionCode;
use crate::decode::arithmetic::contract::contract;
use crate::decode::decoder::FunctionDecoder;
use crate::decode::program_context::{Constants, ProgramContext};
use crate::decode::{liveness, slots};
use crate::engine::machine::Code;
use crate::load::globals::Globals;
use crate::load::layout::layout_of;
use crate::load::link::{LinkedProgram, Symbol};
use crate::slot::{NEGATED_BIT, NO_SLOT};
use katydid_ptx::ast::{Instruction, Linkage, Operand, Space, Statement};
use std::collections::HashMap;

/// Compilation options of one text of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextOptions {
    /// Whether products and sums are contracted.
    pub(crate) contracts: bool,
    /// Whether its target ends in `a`, so that it may have instructions of one architecture only.
    pub(crate) is_specific: bool,
    /// Version of PTX, the part before the dot.
    pub(crate) version: u32,
    /// Shuffles and votes name the lanes that take part.
    pub(crate) needs_members: bool,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { contracts: true, is_specific: false, version: 0, needs_members: false }
    }
}

/// Needs of a function besides its code.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FunctionNeeds {
    /// Bytes of static shared memory.
    pub(crate) shared_bytes: u32,
    /// 32-bit registers per thread.
    pub(crate) registers: u32,
    /// Alignment of dynamic shared memory.
    pub(crate) dynamic_align: u32,
}

/// A decoded program.
pub(crate) struct DecodedProgram {
    /// The code, with functions in the order of `LinkedProgram::functions`.
    pub(crate) code: Code,
    /// Needs of each function.
    pub(crate) needs: Vec<FunctionNeeds>,
}

/// Decodes every function, with the options of its text.
pub(crate) fn decode<'a>(
    linked: &'a LinkedProgram<'a, 'a>,
    globals: &'a Globals,
    options: &[TextOptions],
) -> Result<DecodedProgram, LoadError> {
    let (common_shared, common_bytes) = common_shared(linked)?;
    let mut shared = ProgramContext {
        linked,
        globals,
        constants: Constants::default(),
        call_sites: Vec::new(),
        matrices: Vec::new(),
        videos: Vec::new(),
        common_shared,
        dynamic_align: 16,
        ranked: linked
            .functions
            .iter()
            .any(|linked_function| looks_beyond(linked_function.function.body.as_deref().unwrap_or_default())),
        reserved: false,
    };
    let mut code = Code::default();
    let mut needs = Vec::new();
    for linked_function in &linked.functions {
        let function = linked_function.function;
        // A kernel without calls that names no such variable cannot reach the shared variables of functions.
        let body = function.body.as_deref().unwrap_or_default();
        let reaches = has_call(body) || names_common(body, linked_function.module, &shared);
        let start = if !function.entry || reaches { common_bytes } else { 0 };
        let text = options.get(linked_function.module).copied().unwrap_or_default();
        let mut decoder = FunctionDecoder::new(&mut shared, linked_function.module, function.entry, start);
        (decoder.is_specific, decoder.needs_members) = (text.is_specific, text.needs_members);
        decoder.version = text.version;
        decoder.function(function)?;
        if text.contracts {
            decoder.contract();
        }
        needs.push(finish(&mut code, decoder));
    }
    code.constants = shared.constants.rows;
    code.call_sites = shared.call_sites;
    (code.ranked, code.reserved) = (shared.ranked, shared.reserved);
    code.matrices = shared.matrices;
    code.videos = shared.videos;
    for need in &mut needs {
        need.dynamic_align = shared.dynamic_align;
    }
    Ok(DecodedProgram { code, needs })
}

impl FunctionDecoder<'_, '_> {
    /// Fuses products with the sums that use them.
    fn contract(&mut self) {
        let Self { drafts, lists, labels, registers, shared, .. } = self;
        contract(drafts, lists, labels, registers, |value, width| shared.constants.slot(value, width));
    }
}

/// Appends a decoded function to the code, with slots for registers and program counters for labels.
fn finish(code: &mut Code, decoder: FunctionDecoder<'_, '_>) -> FunctionNeeds {
    let FunctionDecoder { drafts, lists, labels, registers, local_bytes, shared_bytes, params, returns, .. } = decoder;
    let intervals = liveness::intervals(&drafts, &lists, &labels, registers.widths.len());
    let slots = slots::allocate(&registers.widths, &intervals);
    let (entry, list_base) = (code.insts.len() as u32, code.lists.len() as u32);
    let slot_of = |reference: Ref| {
        if is_register(reference) { slots.slots.get(reference as usize).copied().unwrap_or(0) } else { reference }
    };
    let label = |label: u32| labels.get(label as usize).copied().flatten().map_or(entry, |position| entry + position);
    let mut entries = lists.clone();
    for mut draft in drafts {
        for index in draft.list.clone() {
            if let Some(slot) = entries.get_mut(index as usize) {
                *slot = match draft.list_role {
                    OperandRole::Plain => label(lists[index as usize]),
                    _ => slot_of(lists[index as usize]),
                };
            }
        }
        assign_slots(&mut draft, &slot_of, list_base);
        if let Some(target) = draft.target {
            draft.inst.x = label(target);
        }
        if let Some(access) = draft.access {
            code.accesses.push((code.insts.len() as u32, access));
        }
        code.insts.push(draft.inst);
    }
    code.lists.extend(entries);
    let local_bytes = local_bytes.next_multiple_of(16);
    let end = code.insts.len() as u32;
    code.functions.push(FunctionCode { entry, end, rows: slots.rows, local_bytes, params, returns });
    FunctionNeeds { shared_bytes, registers: slots.pressure, dynamic_align: 16 }
}

/// Replaces registers by slots, and the list's position by that among the lists of all functions.
fn assign_slots(draft: &mut Draft, slot_of: &impl Fn(Ref) -> u32, list_base: u32) {
    draft.map(slot_of);
    if draft.list_in_x {
        draft.inst.x += list_base;
    }
    if draft.inst.guard != NO_SLOT {
        let negated = draft.inst.guard & NEGATED_BIT;
        draft.inst.guard = slot_of(draft.inst.guard & !NEGATED_BIT) | negated;
    }
}

/// Assigns offsets to shared variables that a `.func` names: the code of a function is the same for every caller.
fn common_shared(linked: &LinkedProgram<'_, '_>) -> Result<(HashMap<usize, u32>, u32), LoadError> {
    let mut offsets = HashMap::new();
    let mut bytes = 0_u32;
    for linked_function in linked.functions.iter().filter(|linked_function| !linked_function.function.entry) {
        let mut names = Vec::new();
        names_in(linked_function.function.body.as_deref().unwrap_or_default(), &mut names);
        for name in names {
            let Some(Symbol::Variable(index)) = linked.find(linked_function.module, name) else { continue };
            let variable = linked.variables[index].variable;
            let fixed = variable.space == Space::Shared && variable.linkage != Linkage::Extern;
            if fixed && !offsets.contains_key(&index) {
                let (offset, end) = layout_of(variable)?.after(bytes, variable.line)?;
                offsets.insert(index, offset);
                bytes = end;
            }
        }
    }
    Ok((offsets, bytes))
}

/// Returns whether a body contains a call.
fn has_call(body: &[Statement<'_>]) -> bool {
    body.iter().any(|statement| match statement {
        Statement::Instruction(Instruction { opcode, .. }) => *opcode == "call",
        Statement::Block(inner) => has_call(inner),
        _ => false,
    })
}

/// Returns whether a body names a shared variable that functions use too: a function that was inlined here still exists.
fn names_common(body: &[Statement<'_>], module: usize, shared: &ProgramContext<'_>) -> bool {
    let mut names = Vec::new();
    names_in(body, &mut names);
    names.iter().any(|name| match shared.linked.find(module, name) {
        Some(Symbol::Variable(index)) => shared.common_shared.contains_key(&index),
        _ => false,
    })
}

/// Collects every name in the operands of a body.
fn names_in<'a>(body: &[Statement<'a>], names: &mut Vec<&'a str>) {
    for statement in body {
        match statement {
            Statement::Instruction(instruction) => {
                instruction.operands.iter().for_each(|operand| operand_names(operand, names))
            }
            Statement::Block(inner) => names_in(inner, names),
            _ => {}
        }
    }
}

/// Collects the names in one operand.
fn operand_names<'a>(operand: &Operand<'a>, names: &mut Vec<&'a str>) {
    match operand {
        Operand::Name(name) | Operand::Offset(name, _) | Operand::Address { base: Some(name), .. } => names.push(name),
        Operand::Vector(list) | Operand::List(list) | Operand::Bracket(list) => {
            list.iter().for_each(|operand| operand_names(operand, names));
        }
        _ => {}
    }
}
