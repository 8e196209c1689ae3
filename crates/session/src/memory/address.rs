//! Addresses as pointers.

/// Returns an address of an arena, which was mapped outside of Rust's knowledge, as a pointer.
pub(crate) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
