//! A decoded instruction: what to run, and where its operands are.
//!
//! Operands are slots. A slot below `CONSTANT` is a word offset into the frame of the function that runs; one with that
//! bit set is a word offset into the program's constants. So every instruction works on rows of 32 lanes, whether an
//! operand was a register, an immediate or an address.

use crate::engine::machine::Machine;
use std::fmt;

/// A word offset, in the frame or (with `CONSTANT`) among the constants.
pub(crate) type Slot = u32;

/// Marks a slot of the constants.
pub(crate) const CONSTANT: Slot = 1 << 31;

/// An operand that is absent: `_`, or a destination that no instruction reads.
pub(crate) const NONE: Slot = u32::MAX;

/// Marks a negated guard predicate.
pub(crate) const NEGATED: u32 = 1 << 30;

/// What running an instruction came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on with the next instruction.
    Next,
    /// The program counter or the set of running lanes was changed.
    Jump,
    /// The running lanes wait: the scheduler picks others.
    Wait,
    /// `Machine::fault` says what happened.
    Fault,
}

/// Runs one instruction for the lanes in `Machine::mask`.
///
/// Unsafe to call because some were compiled for CPU features beyond the baseline: only the decoder makes these
/// pointers, and it picks what the CPU has.
pub(crate) type Exec = unsafe fn(&mut Machine<'_>, &Inst) -> Flow;

/// One instruction.
#[derive(Clone, Copy)]
pub(crate) struct Inst {
    /// The code.
    pub(crate) exec: Exec,
    /// Word slot of the guard predicate, perhaps with `NEGATED`; or `NONE`.
    pub(crate) guard: Slot,
    /// Destination.
    pub(crate) d: Slot,
    /// First source.
    pub(crate) a: Slot,
    /// Second source.
    pub(crate) b: Slot,
    /// Third source.
    pub(crate) c: Slot,
    /// Second destination, index into `Code::lists`, branch target: as `exec` reads it.
    pub(crate) x: u32,
    /// Address offset, modifiers: as `exec` reads it.
    pub(crate) imm: u64,
    /// Line in the PTX text.
    pub(crate) line: u32,
}

impl fmt::Debug for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guard, d, a, b, c, x, imm, line, .. } = self;
        write!(f, "line {line}: guard {guard:#x} d {d:#x} a {a:#x} b {b:#x} c {c:#x} x {x:#x} imm {imm:#x}")
    }
}
