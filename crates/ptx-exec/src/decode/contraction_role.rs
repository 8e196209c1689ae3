//! The role of a float instruction in a contraction.

use crate::decode::modifiers::Modifiers;
use crate::types::Ty;
use katydid_ptx::ast::Instruction;

/// The role of an instruction in a contraction.
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
    /// A value with its sign changed.
    Negation(ContractionKind),
    /// An unchanged value.
    Copy,
}

/// The common properties of product and sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContractionKind {
    /// The type of operands and result.
    pub(crate) ty: Ty,
    /// Whether subnormal numbers are zero.
    pub(crate) flushes: bool,
}

/// Returns the role of a float instruction, by its modifiers.
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
        // ptxas negates two `bf16` with a special instruction.
        "neg" if ty != Ty::Bf16x2 => Some(ContractionRole::Negation(kind)),
        _ => None,
    }
}
