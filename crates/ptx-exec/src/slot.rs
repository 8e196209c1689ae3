//! Locations of the operands of an instruction.
//!
//! Operands are slots. A slot below `CONSTANT_BIT` is a word offset into the frame of the function that runs. A slot with that
//! bit set is a word offset into the program's constants. So every instruction works on rows of 32 lanes, for registers,
//! immediates and addresses alike.

/// A word offset, in the frame or (with `CONSTANT_BIT`) among the constants.
pub(crate) type Slot = u32;

/// Bit that marks a slot among the constants.
pub(crate) const CONSTANT_BIT: Slot = 1 << 31;

/// Slot of an absent operand: `_`, or a destination that no instruction reads.
pub(crate) const NO_SLOT: Slot = u32::MAX;

/// Bit that marks a negated guard predicate.
pub(crate) const NEGATED_BIT: u32 = 1 << 30;
