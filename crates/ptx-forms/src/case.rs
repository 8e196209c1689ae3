//! A case: a text with an entry `k`, its launch, and the comparison of its outputs.

use crate::exact::Bound;
use crate::kind::OperandKind;
use crate::rng::hash;

/// An argument of the case's kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Argument {
    /// The address of a buffer that holds these bytes.
    Input(Vec<u8>),
    /// The address of a zeroed buffer of that many bytes, whose final contents are part of the answer.
    Output(usize),
    /// The address of a buffer that holds these bytes, whose final contents are part of the answer.
    InOut(Vec<u8>),
    /// These bytes, by value.
    Scalar(Vec<u8>),
}

/// How outputs are compared with the recorded ones.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Check {
    /// Bit for bit.
    Exact,
    /// Both answers within a bound around the exact function of the inputs.
    Function(Bound),
    /// Within a bound around the recorded values, read as this type.
    Near(Bound, OperandKind),
}

/// Types of the operands of a form: columns of its buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operands {
    /// Operands of the input, each column at a multiple of 16 bytes.
    pub(crate) sources: Vec<OperandKind>,
    /// Operands of the output.
    pub(crate) results: Vec<OperandKind>,
}

/// A program for a device, and the comparison of its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// The form, or the name of the program; unique in its group.
    pub name: String,
    /// PTX text with an entry `k`.
    pub text: String,
    /// Blocks in the grid.
    pub grid: [u32; 3],
    /// Threads in a block.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic: u32,
    /// Blocks in a cluster; `None` for a launch without clusters.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be resident.
    pub cooperative: bool,
    /// The parameters in order.
    pub arguments: Vec<Argument>,
    /// The `CUresult` that the launch must return; 0 for success.
    pub fault: u32,
    /// Whether only the driver API can set up its arguments.
    pub needs_driver: bool,
    /// Whether the GPU's compiler may optimise it.
    pub optimize: bool,
    /// Forms that a program demonstrates, besides the one that names it.
    pub(crate) covers: Vec<String>,
    /// Operands of a form; `None` for programs.
    pub(crate) operands: Option<Operands>,
    /// How answers are compared.
    pub(crate) check: Check,
}

impl Case {
    /// Returns a hash that changes whenever the question does, so that a recorded answer belongs to one question.
    pub fn question(&self) -> u64 {
        let shape = format!(
            "{:?}{:?}{}{:?}{}{:?}",
            self.grid, self.block, self.dynamic, self.cluster, self.cooperative, self.arguments
        );
        hash(self.text.as_bytes()) ^ hash(shape.as_bytes()).rotate_left(17) ^ u64::from(!self.optimize)
    }

    /// Returns the inputs, in order.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &[u8]> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Input(bytes) | Argument::InOut(bytes) => Some(bytes.as_slice()),
            _ => None,
        })
    }
}
