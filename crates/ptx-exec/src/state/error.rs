//! Why bytes are refused as the state of a grid.

use crate::engine::fault::Fault;

/// Changes with the format, and with whatever gives instructions other places or registers other slots.
pub(super) const STATE_VERSION: u32 = 1;

/// Why bytes were refused as the state of a grid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes do not begin like the state of a grid.
    #[error("not the state of a grid")]
    Foreign,
    /// The state has another version of the format.
    #[error("state of a grid in format {version}; this build reads {STATE_VERSION}")]
    Version {
        /// Format version that the state names.
        version: u32,
    },
    /// The hash at the end of the state does not match its bytes.
    #[error("state of a grid: damaged")]
    Damaged,
    /// The bytes end before the state does.
    #[error("state of a grid: truncated")]
    Truncated,
    /// Bytes are left behind the state.
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
    /// A kernel of that name, but of another program, or with its variables elsewhere.
    #[error(
        "state of a grid of kernel {kernel}: it belongs to another module, or its variables were at other addresses"
    )]
    OtherProgram {
        /// Name of the kernel.
        kernel: String,
    },
    /// The kernel cannot be launched like that.
    #[error(transparent)]
    Launch(#[from] Fault),
    /// Something that no running grid can be.
    #[error("state of a grid: impossible value in {what}")]
    Unsound {
        /// Field whose value no running grid can have.
        what: &'static str,
    },
}
