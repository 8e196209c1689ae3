//! Checks of registered memory for the table of pinned memory.
#![expect(unsafe_code, reason = "asks the system about memory of the program")]

use std::ops::Range;

use katydid_client::regions::Region;
use katydid_cuda_sys::{CUresult, Function};

use crate::ffi::arguments::refuse;
use crate::process::session::Shim;

/// Bytes of a page of memory.
pub(crate) const PAGE_BYTES: u64 = katydid_wire::PAGE_BYTES as u64;

/// Returns whether a registered block overlaps these pages.
pub(crate) fn touches(shim: &Shim, pages: &Range<u64>) -> bool {
    let inside = |region: &Region| region.start < pages.end && pages.start < region.start + region.size;
    !shim.regions.matching(|region| region.is_registered() && inside(region)).is_empty()
}

/// Returns the program's error if the worker has other memory at the address, and reports a refusal if that is the reason.
pub(crate) fn address_error(code: CUresult) -> CUresult {
    if code == CUresult::ERROR_NOT_SUPPORTED {
        return refuse(Function::cuMemHostRegister_v2, "has met an address that is in use in the worker");
    }
    code
}

/// Checks that the program maps these whole pages: they are read when a launch names them.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
pub(crate) fn check(pages: &Range<u64>) -> Result<(), CUresult> {
    // `mincore` writes a byte for each page, so a step has few pages.
    const REGISTRATION_STEP_BYTES: u64 = 1 << 30;
    let mut residency = vec![0_u8; (REGISTRATION_STEP_BYTES.min(pages.end - pages.start) / PAGE_BYTES) as usize];
    for start in (pages.start..pages.end).step_by(REGISTRATION_STEP_BYTES as usize) {
        let (length, first) =
            (REGISTRATION_STEP_BYTES.min(pages.end - start), std::ptr::without_provenance_mut(start as usize));
        // SAFETY: the vector has a byte for each page of a step; the kernel does not access the pages.
        if unsafe { libc::mincore(first, length as usize, residency.as_mut_ptr()) } != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mapped_pages_pass() {
        let block = vec![0_u8; 3 * PAGE_BYTES as usize];
        let start = (block.as_ptr().addr() as u64).next_multiple_of(PAGE_BYTES);
        assert_eq!(check(&(start..start + PAGE_BYTES)), Ok(()));
        assert_eq!(check(&(PAGE_BYTES..2 * PAGE_BYTES)), Err(CUresult::ERROR_INVALID_VALUE));
    }
}
