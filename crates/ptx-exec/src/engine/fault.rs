//! Faults of device code: one fault stops its kernel, and the process goes on.

use std::fmt;

/// The first fault of a launch, as precise as possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}, line {line} of its PTX, block {block:?}, thread {thread:?}: {kind}")]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Name of the launched kernel.
    pub kernel: String,
    /// Line of the PTX text, from 1; 0 when the fault has no line.
    pub line: u32,
    /// Index of the block in the grid.
    pub block: [u32; 3],
    /// Index of the thread in the block (the first lane that faulted).
    pub thread: [u32; 3],
}

/// Kinds of faults, each with its `CUresult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultKind {
    /// `CUDA_ERROR_ILLEGAL_ADDRESS` (700): an access outside every allocation.
    IllegalAddress(u64),
    /// `CUDA_ERROR_MISALIGNED_ADDRESS` (716): the address is not a multiple of the access size.
    MisalignedAddress(u64),
    /// `CUDA_ERROR_ILLEGAL_INSTRUCTION` (715): the target of an indirect call is not a function.
    InvalidPc(u64),
    /// `CUDA_ERROR_ILLEGAL_INSTRUCTION` (715): a tensor copy without a valid map of its rank.
    BadTensorMap(u64),
    /// `CUDA_ERROR_ASSERT` (710): `__assertfail` was called.
    Assert,
    /// `trap` was executed (`CUDA_ERROR_LAUNCH_FAILED`, 719).
    Trap,
    /// Calls are nested deeper than a thread's stack (`CUDA_ERROR_ILLEGAL_ADDRESS`, 700).
    StackOverflow,
    /// No warp of the block can run: its barriers wait for each other (`CUDA_ERROR_LAUNCH_TIMEOUT`, 702).
    Deadlock,
    /// The launch itself is impossible: block, shared memory or parameter sizes (`CUDA_ERROR_INVALID_VALUE`, 1).
    BadLaunch,
    /// The cancel flag was set.
    Cancelled,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IllegalAddress(address) => write!(f, "illegal address {address:#x}"),
            Self::MisalignedAddress(address) => write!(f, "misaligned address {address:#x}"),
            Self::InvalidPc(address) => write!(f, "call of {address:#x}, which is not a function"),
            Self::BadTensorMap(address) => write!(f, "no tensor map for this copy at {address:#x}"),
            Self::Assert => f.write_str("assertion failed"),
            Self::Trap => f.write_str("trap"),
            Self::StackOverflow => f.write_str("stack overflow"),
            Self::Deadlock => f.write_str("deadlock: every thread of the block waits"),
            Self::BadLaunch => f.write_str("launch dimensions, shared memory or parameters do not fit the kernel"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}
