//! Errors of saving and restoring contents.

use katydid_opencl_sys::Code;
use katydid_session_core::ChunkError;

/// Why contents cannot be saved or restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ContentsError {
    /// The driver refuses a copy.
    #[error("the driver answers {code} when asked to copy the {kind} {object}")]
    Copy {
        /// Kind of its region.
        kind: &'static str,
        /// Wire id of the object, or address of shared virtual memory.
        object: u64,
        /// Code that the driver answered.
        code: Code,
    },
    /// The driver refuses a queue for copies.
    #[error("the driver answers {code} when asked for a queue to copy with")]
    Queue {
        /// Code that the driver answered.
        code: Code,
    },
    /// An image has mipmap levels.
    #[error("image {object} of the program has levels, and nothing copies these: it cannot be saved")]
    Levels {
        /// The id of the image.
        object: u64,
    },
    /// The system has no room for a copy.
    #[error("there is no memory for a copy of {bytes} bytes")]
    NoMemory {
        /// Bytes of host memory that the copy takes.
        bytes: u64,
    },
    /// The image lacks a region, or has another one in its place.
    #[error("the image has no {kind} {object} of {bytes} bytes, which the session has")]
    Absent {
        /// Kind of its region.
        kind: &'static str,
        /// Wire id of the object, or address of shared virtual memory.
        object: u64,
        /// The length of the region in bytes.
        bytes: u64,
    },
    /// A chunk could not be written to the image or read from it.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}
