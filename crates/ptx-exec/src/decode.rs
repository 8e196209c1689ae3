//! From the syntax tree to code: names to registers and addresses, opcodes to functions, labels to program counters.
//!
//! Each function becomes a list of drafts over virtual registers first; `slots` then gives registers their places. The
//! families of instructions are a file each. An instruction or a modifier that no family knows is refused with its
//! name and line: what is decoded is executed exactly.

mod async_copy;
mod atomic;
mod call;
mod cluster;
mod collective;
mod compare;
mod contract;
mod control;
mod conversion_rules;
mod convert;
mod draft;
mod float;
mod function;
#[cfg(test)]
mod golden;
mod half;
mod hints;
mod integer;
mod liveness;
mod logic;
mod matrix;
mod mbarrier;
mod memory;
mod modifiers;
mod moves;
mod multimem;
mod operand;
mod program;
mod registers;
mod slots;
mod small;
mod tensor;
mod texture;
mod video;
mod wide;

pub(crate) use program::{Needs, TextOptions, decode};
