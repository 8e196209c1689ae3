//! Why contents cannot be kept, or put back.

use katydid_opencl_sys::Code;
use katydid_session_core::ChunkError;

/// Why contents cannot be kept, or put back.
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
    /// The driver lends us no queue.
    #[error("the driver answers {code} when asked for a queue to copy with")]
    Queue {
        /// Code that the driver answered.
        code: Code,
    },
    /// Levels of an image.
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
    /// The image lacks something, or has something else.
    #[error("the image has no {kind} {object} of {bytes} bytes, which the session has")]
    Absent {
        /// Kind of its region.
        kind: &'static str,
        /// Wire id of the object, or address of shared virtual memory.
        object: u64,
        /// The length of the region in bytes.
        bytes: u64,
    },
    /// On the way to the image, or from it.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
}
