//! Converts addresses to pointers.

use katydid_opencl_sys::void;

/// Converts an address of this process to a pointer.
pub(crate) fn pointer(address: u64) -> *mut void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
