//! Why bytes are not a valid module image. A driver answers all of these with `CUDA_ERROR_INVALID_IMAGE` (200), except
//! [`ModuleImageError::NoPtx`] (209, `CUDA_ERROR_NO_BINARY_FOR_GPU`).

use thiserror::Error;

/// Why an image was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ModuleImageError {
    /// The pointer is null.
    #[error("the image is a null pointer")]
    Null,
    /// A structure extends past the available bytes.
    #[error("the image is cut off: {what} needs {needed} bytes, {available} are there")]
    CutOff {
        /// Name of the structure.
        what: &'static str,
        /// Length of the structure in bytes.
        needed: u64,
        /// Bytes of the image that are left.
        available: u64,
    },
    /// A structure is larger than this reader accepts.
    #[error("{what} of {length} bytes is beyond the limit of {limit}")]
    TooLarge {
        /// Name of the structure.
        what: &'static str,
        /// Length of the structure in bytes.
        length: u64,
        /// Largest length accepted, in bytes.
        limit: u64,
    },
    /// A field has an impossible value.
    #[error("{field} of the image is {value:#x}, which no known toolkit writes")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
    /// A container of a toolkit before CUDA 4, which no present driver reads.
    #[error("the image has the form of toolkits before CUDA 4; build the program with a newer one")]
    Ancient,
    /// A file begins like a wrapper, which consists of pointers and has no meaning in a file.
    #[error("the file holds a fatbin wrapper, which has a meaning in a program's memory only")]
    WrapperInFile,
    /// A compressed entry does not decompress to the announced bytes.
    #[error("{method} data of an entry is damaged: {reason}")]
    Compressed {
        /// Compression method: `LZ4` or `zstd`.
        method: &'static str,
        /// The decoder's error message.
        reason: String,
    },
    /// The image has nothing that can be compiled for this device.
    #[error(
        "the image has no PTX that a device of compute capability {major}.{minor} can run{hint}; \
         build it with -gencode arch=compute_XX,code=compute_XX (nvcc) or --gpu-architecture=compute_XX (NVRTC)"
    )]
    NoPtx {
        /// Major number of the device's compute capability.
        major: u32,
        /// Minor number of the device's compute capability.
        minor: u32,
        /// What the image has instead, in parentheses, or empty.
        hint: String,
    },
}

/// Checks that `needed` bytes are available.
pub(crate) fn check_there(what: &'static str, needed: u64, available: u64) -> Result<(), ModuleImageError> {
    if needed <= available { Ok(()) } else { Err(ModuleImageError::CutOff { what, needed, available }) }
}

/// Checks that a length is at most a limit.
pub(crate) fn check_limit(what: &'static str, length: u64, limit: u64) -> Result<(), ModuleImageError> {
    if length <= limit { Ok(()) } else { Err(ModuleImageError::TooLarge { what, length, limit }) }
}
