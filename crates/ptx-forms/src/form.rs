//! A form of an instruction, as the catalogue describes it.

use crate::exact::Bound;
use crate::kind::OperandKind;
use crate::values::Domain;

/// Runs of a form: four blocks of four warps.
pub(crate) const RUNS_PER_FORM: usize = 512;

/// A source operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OperandSource {
    /// Type of the operand.
    pub(crate) kind: OperandKind,
    /// Values that it takes.
    pub(crate) domain: Domain,
}

/// One exact form.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Form {
    /// Name in PTX.
    pub(crate) name: String,
    /// Types of its results.
    pub(crate) results: Vec<OperandKind>,
    /// Source operands, in their order.
    pub(crate) sources: Vec<OperandSource>,
    /// Its statements in PTX.
    pub(crate) body: String,
    /// Permitted error of an approximation; `None` for exact forms.
    pub(crate) bound: Option<Bound>,
}
