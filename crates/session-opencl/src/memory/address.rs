//! Addresses as pointers.

use katydid_opencl_sys::void;

/// An address of this process.
pub(crate) fn pointer(address: u64) -> *mut void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
