//! Warns if host and device change the same memory at once, and updates may be lost that natively are not.
//!
//! For managed memory, device attributes tell that. If a program does not query them, or its memory has no attribute, one
//! line on standard error tells it.

use std::sync::atomic::{AtomicBool, Ordering};

use katydid_client::output::report;
use katydid_cuda_sys::device_attribute;
use katydid_fatbin::ModuleImage;

use crate::context::device;
use crate::memory::counts::{MANAGED_BLOCKS, MANAGED_VARIABLES, REGISTERED_BLOCKS};

/// Whether some code of the program has atomic operations of system scope.
static SYSTEM_ATOMICS: AtomicBool = AtomicBool::new(false);
/// Largest image that is searched for them, in bytes: compiled programs are smaller, and larger images come from libraries.
const MAX_SEARCHED_IMAGE_BYTES: usize = 2 << 20;

/// Notes whether code changes memory together with the host.
pub(crate) fn note_code(image: &ModuleImage<'_>, architectures: &[u32]) {
    let length: usize = image.parts().iter().map(|part| part.len()).sum();
    if SYSTEM_ATOMICS.load(Ordering::Relaxed) || length > MAX_SEARCHED_IMAGE_BYTES {
        return;
    }
    if architectures.iter().any(|sm| image.has_system_atomics(*sm).unwrap_or(false)) {
        SYSTEM_ATOMICS.store(true, Ordering::Relaxed);
        warn();
    }
}

/// Warns once if the program has such code and such memory.
pub(crate) fn warn() {
    static WARNED: AtomicBool = AtomicBool::new(false);
    if !SYSTEM_ATOMICS.load(Ordering::Relaxed) {
        return;
    }
    let memory = match () {
        // Both sides have their own pages, on every link.
        () if REGISTERED_BLOCKS.is_any() => "registered memory (cudaHostRegister)",
        () if MANAGED_VARIABLES.is_any() => "managed variables or memory of the host's in a block of cuMemCreate",
        () if MANAGED_BLOCKS.is_any() && !is_concurrent() => {
            "managed memory on devices whose concurrentManagedAccess and hostNativeAtomicSupported are 0"
        }
        () => return,
    };
    if !WARNED.swap(true, Ordering::Relaxed) {
        report(format!(
            "the program has {memory}, and atomic operations of system scope: of host and device at once these are not atomic \
             here, and updates may be lost"
        ));
    }
}

/// Returns whether host and device may use managed memory at once, also in atomic operations.
fn is_concurrent() -> bool {
    let concurrent = device_attribute::CONCURRENT_MANAGED_ACCESS;
    device::all().is_ok_and(|devices| devices.iter().all(|device| device.value(concurrent) != 0))
}
