//! The role that a float instruction can have in a contraction.

use crate::decode::modifiers::Modifiers;
use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// The role that an instruction can have in a contraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContractionRole {
    /// It computes a product.
    Product(ContractionKind),
    /// A sum, or a difference.
    Sum {
        /// Type and flushing.
        kind: ContractionKind,
        /// Whether the second operand is subtracted.
        subtracts: bool,
        /// Whether the result is clamped to 0..1.
        saturates: bool,
    },
    /// The other value with its sign changed.
    Negation(ContractionKind),
    /// The other value as it is.
    Copy,
}

/// What product and sum have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContractionKind {
    /// The type of operands and result.
    pub(crate) ty: Ty,
    /// Whether subnormal numbers are zero.
    pub(crate) flushes: bool,
}

/// The role of a float instruction, by its words.
pub(crate) fn role_of(i: &Instruction<'_>, ty: Ty) -> Option<ContractionRole> {
    let has = |word: &str| i.modifiers.contains(&word);
    if Modifiers::new(&i.modifiers).one_of(&["rn", "rz", "rm", "rp"]).is_some() {
        return None;
    }
    let (kind, saturates) = (ContractionKind { ty, flushes: has("ftz") }, has("sat"));
    match i.opcode {
        "mul" if !saturates => Some(ContractionRole::Product(kind)),
        "add" => Some(ContractionRole::Sum { kind, subtracts: false, saturates }),
        "sub" => Some(ContractionRole::Sum { kind, subtracts: true, saturates }),
        // ptxas computes the negation of two `bf16` by an instruction of its own.
        "neg" if ty != Ty::Bf16x2 => Some(ContractionRole::Negation(kind)),
        _ => None,
    }
}
