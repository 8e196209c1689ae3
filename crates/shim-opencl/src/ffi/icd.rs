//! The part that ICD loaders read: every handle begins with the address of the function table.

use katydid_opencl_sys::void;

/// Addresses of functions, in the order of the vendor's `cl_icd_dispatch`.
#[repr(transparent)]
pub(crate) struct DispatchTable<const N: usize>(pub(crate) [*const void; N]);

// SAFETY: addresses of functions, never written.
#[expect(unsafe_code, reason = "the table is read by every thread")]
unsafe impl<const N: usize> Sync for DispatchTable<N> {}

/// Returns the word that every handle begins with.
pub(crate) fn head() -> usize {
    (&raw const crate::ffi::entry::TABLE).expose_provenance()
}
