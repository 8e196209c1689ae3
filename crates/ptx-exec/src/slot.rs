//! Where the operands of an instruction are.
//!
//! Operands are slots. A slot below `CONSTANT_BIT` is a word offset into the frame of the function that runs; one with that
//! bit set is a word offset into the program's constants. So every instruction works on rows of 32 lanes, whether an
//! operand was a register, an immediate or an address.

/// A word offset, in the frame or (with `CONSTANT_BIT`) among the constants.
pub(crate) type Slot = u32;

/// Marks a slot of the constants.
pub(crate) const CONSTANT_BIT: Slot = 1 << 31;

/// An operand that is absent: `_`, or a destination that no instruction reads.
pub(crate) const NO_SLOT: Slot = u32::MAX;

/// Marks a negated guard predicate.
pub(crate) const NEGATED_BIT: u32 = 1 << 30;
