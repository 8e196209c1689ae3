//! Reasons to refuse bytes as the state of a grid.

use crate::engine::fault::Fault;

/// Version of the format. It changes whenever the format, the places of instructions or the slots of registers change.
pub(super) const STATE_VERSION: u32 = 1;

/// Reason why bytes were refused as the state of a grid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes do not begin like the state of a grid.
    #[error("not the state of a grid")]
    Foreign,
    /// The state has a different version of the format.
    #[error("state of a grid in format {version}; this build reads {STATE_VERSION}")]
    Version {
        /// Format version that the state names.
        version: u32,
    },
    /// The hash in the header does not match the bytes that follow it.
    #[error("state of a grid: damaged")]
    Damaged,
    /// The bytes end before the state does.
    #[error("state of a grid: truncated")]
    Truncated,
    /// Bytes are left after the end of the state.
    #[error("state of a grid: {bytes} bytes too many")]
    Trailing {
        /// Number of bytes that are left.
        bytes: usize,
    },
    /// The kernel is unknown.
    #[error("state of a grid of kernel {kernel}, which is not loaded")]
    UnknownKernel {
        /// Name of the kernel.
        kernel: String,
    },
    /// The kernel belongs to another program of the same name, or its variables are elsewhere.
    #[error(
        "state of a grid of kernel {kernel}: it belongs to another module, or its variables were at other addresses"
    )]
    OtherProgram {
        /// Name of the kernel.
        kernel: String,
    },
    /// The kernel cannot be launched with the parameters in the state.
    #[error(transparent)]
    Launch(#[from] Fault),
    /// A field has a value that is impossible in a running grid.
    #[error("state of a grid: impossible value in {what}")]
    Unsound {
        /// Field with the impossible value.
        what: &'static str,
    },
}
