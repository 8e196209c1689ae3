//! Decodes the syntax tree to code: names to registers and addresses, opcodes to functions, labels to program counters.
//!
//! Each function first becomes a list of drafts over virtual registers. `slots` then allocates registers. Each family of
//! instructions has its own file. An instruction or a modifier that no family knows is refused with its name and line, so
//! everything that is decoded is executed exactly.

mod arithmetic;
mod call;
mod cluster;
mod collective;
mod contraction_role;
mod control;
mod decoder;
mod draft;
mod function;
#[cfg(test)]
mod golden;
mod hints;
mod legal;
mod liveness;
mod memory_access;
mod modifiers;
mod operand;
mod program;
mod program_context;
mod registers;
mod slots;

pub(crate) use program::{FunctionNeeds, TextOptions, decode};
