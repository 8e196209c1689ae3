//! Why the contents of a session cannot be saved, or restored.

use katydid_cuda_sys::CUresult;
use katydid_image::ImageError;

use crate::journal::{JournalError, RebuildError};

/// The error of a snapshot or restore, which names its cause. A failed snapshot leaves the session unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// A driver call failed.
    #[error("cannot {what}: the driver answers {}", name(*code))]
    Driver {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// The `CUresult` that the driver answered.
        code: CUresult,
    },
    /// A context was ruined, by the program that went on, before all its contents were copied.
    #[error("a context has the sticky error {} ({}), so no call can {what} any more: only its end clears it", code.0, name(*code))]
    Ruined {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// The error that the context is in.
        code: CUresult,
    },
    /// The image could not be written or read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A live object cannot be saved.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An object could not be made again.
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// Code that allocates memory in kernels, on a driver that does not give access to that memory.
    #[error(
        "{code} can allocate memory in kernels (malloc, new), which NVIDIA's driver gives no means to copy: \
         end what uses it before a checkpoint"
    )]
    DeviceHeap {
        /// The module or library.
        code: String,
    },
    /// A variable whose address the driver does not return.
    #[error("{code}: the driver does not tell where variable {variable} lies")]
    Hidden {
        /// The module or library.
        code: String,
        /// The name of the variable.
        variable: String,
    },
    /// An image that cannot be searched for variables.
    #[error("{code}: its variables cannot be found: {reason}")]
    Code {
        /// The module or library.
        code: String,
        /// Reason why its image cannot be used.
        reason: String,
    },
    /// An array of a kind that cannot be copied as a whole.
    #[error("array {array} cannot be kept: {reason}")]
    Array {
        /// The program's number of the array.
        array: u32,
        /// Why the memory cannot be copied.
        reason: &'static str,
    },
    /// A block of host memory.
    #[error("block {block} of `cuMemCreate` cannot be kept: its memory is the host's")]
    HostBlock {
        /// The program's number of the block.
        block: u32,
    },
    /// A block that only backs sparse arrays.
    #[error(
        "block {block} of `cuMemCreate` cannot be kept: it is a pool of tiles, which has no addresses: give it back, \
         and the arrays that are mapped to it, before a checkpoint"
    )]
    TilePool {
        /// The program's number of the block.
        block: u32,
    },
    /// The snapshot was cancelled.
    #[error("cancelled by the supervisor")]
    Cancelled,
    /// The image and the rebuilt session do not match.
    #[error("the image has {kind} {name} ({bytes} bytes at {address:#x}), the rebuilt session has none like it")]
    Absent {
        /// Kind of the region.
        kind: String,
        /// The name of the region.
        name: String,
        /// The length of the region in bytes.
        bytes: u64,
        /// The address where the region begins.
        address: u64,
    },
    /// Memory of the rebuilt session that is not in the image.
    #[error("the rebuilt session has {kind} {name}, of which the image has no contents")]
    Unknown {
        /// Kind of the region.
        kind: String,
        /// The name of the region.
        name: String,
    },
    /// A variable has another address.
    #[error(
        "{code}: variable {variable} lies at {current_address:#x} and lay at {saved_address:#x}, so pointers to it would be wrong: \
         restore with the driver and GPU that the image was made with"
    )]
    Moved {
        /// The module or library.
        code: String,
        /// The name of the variable.
        variable: String,
        /// Address of the variable in the image.
        saved_address: u64,
        /// Address of the variable in this worker; 0: the code has no such variable.
        current_address: u64,
    },
    /// A variable has another address, and something holds the old one.
    #[error(
        "{code}: variable {variable} lies at {current_address:#x} and lay at {saved_address:#x}, and {holder} holds {word:#x}, which pointed \
         there: restore with the driver and GPU that the image was made with"
    )]
    Pointed {
        /// The module or library.
        code: String,
        /// The name of the variable.
        variable: String,
        /// Address of the variable in the image.
        saved_address: u64,
        /// Address of the variable in this worker.
        current_address: u64,
        /// What holds the pointer.
        holder: String,
        /// The word that may be a pointer to the variable.
        word: u64,
    },
    /// Code has moved, and with it functions whose addresses memory may hold.
    #[error(
        "{code}: variable {variable} lies at {current_address:#x} and lay at {saved_address:#x}, and memory may hold addresses of functions \
         of {code}, which lie elsewhere too: restore with the driver and GPU that the image was made with"
    )]
    MovedFunctions {
        /// The module or library.
        code: String,
        /// A variable of it.
        variable: String,
        /// Address of the variable in the image.
        saved_address: u64,
        /// Address of the variable in this worker.
        current_address: u64,
    },
    /// Functions have other addresses, and memory may hold the old ones.
    #[error(
        "{code} calls functions by pointers, and memory may hold such: those of {saved_code}, which are others in {current_code}: \
         restore with the driver and GPU that the image was made with"
    )]
    Pointers {
        /// The module or library.
        code: String,
        /// The code that ran when the image was made.
        saved_code: String,
        /// The code that would run now.
        current_code: String,
    },
    /// A part of the image is malformed.
    #[error("the image's record of {what} is damaged: {reason}")]
    Damaged {
        /// Kind of the record that is damaged.
        what: &'static str,
        /// Reason, as text for the user.
        reason: String,
    },
}

fn name(code: CUresult) -> String {
    code.name().map_or_else(|| format!("code {}", code.0), |name| name.to_string_lossy().into_owned())
}

/// Returns whether an error stays with its context: faults of kernels and of their memory, asserts, timeouts, and hardware
/// errors.
fn is_lasting(code: CUresult) -> bool {
    const ECC_UNCORRECTABLE: u32 = 214;
    const NVLINK_UNCORRECTABLE: u32 = 220;
    const ILLEGAL_ADDRESS: u32 = 700;
    const LAUNCH_TIMEOUT: u32 = 702;
    const ASSERT: u32 = 710;
    const HARDWARE_STACK_ERROR: u32 = 714;
    const LAUNCH_FAILED: u32 = 719;
    let others = [ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT];
    others.contains(&code.0) || (HARDWARE_STACK_ERROR..=LAUNCH_FAILED).contains(&code.0)
}

/// Makes the error for a refused driver call.
pub(super) fn refused(what: &'static str) -> impl Fn(CUresult) -> SnapshotError {
    move |code| {
        if is_lasting(code) { SnapshotError::Ruined { what, code } } else { SnapshotError::Driver { what, code } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_error_differs_from_a_refusal() {
        let error = refused("copy contents of memory");
        let text = error(CUresult::ERROR_ASSERT).to_string();
        assert!(
            text.contains("has the sticky error 710 (CUDA_ERROR_ASSERT)") && text.contains("only its end"),
            "{text}"
        );
        assert!(matches!(error(CUresult(715)), SnapshotError::Ruined { .. }));
        for code in [CUresult::ERROR_OUT_OF_MEMORY, CUresult(709), CUresult(720)] {
            assert!(matches!(error(code), SnapshotError::Driver { .. }), "{}", code.0);
        }
    }
}
