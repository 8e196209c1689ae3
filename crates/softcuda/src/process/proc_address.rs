//! `cuGetProcAddress`: finds the symbol of a name at a version.

use std::ffi::c_void;

use katydid_cuda_sys::{CUresult, Lookup, proc_address, proc_address_result as result};
use katydid_driver_rules::device::proc_address_flags;

use crate::ffi::Outcome;
use crate::symbols;

/// Returns the address (null if there is none) and the status of the search. A version newer than this driver, or an unknown
/// flag, fails with `INVALID_VALUE`.
pub(crate) fn find(name: &[u8], version: i32, flags: u64) -> Outcome<(*const c_void, u32)> {
    let version = u32::try_from(version).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    let is_per_thread = proc_address_flags(version, flags)?;
    let name = std::str::from_utf8(name).unwrap_or_default();
    Ok(match proc_address(name, version, is_per_thread) {
        Lookup::Found(function) => (symbols::symbol(function), result::SUCCESS),
        Lookup::TooOld => (std::ptr::null(), result::VERSION_NOT_SUFFICIENT),
        Lookup::Unknown => (std::ptr::null(), result::SYMBOL_NOT_FOUND),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(name: &str, version: i32, flags: u64) -> Outcome<u32> {
        find(name.as_bytes(), version, flags).map(|(_, status)| status)
    }

    #[test]
    fn versions_and_flags_choose_the_symbol() {
        let plain = find(b"cuLaunchKernel", 13000, 0).unwrap().0;
        let own = find(b"cuLaunchKernel", 13000, 2).unwrap().0;
        assert!(!plain.is_null() && !own.is_null() && plain != own);
        assert_eq!(find(b"cuInit", 13000, 2).unwrap().0, find(b"cuInit", 2000, 0).unwrap().0);
    }

    #[test]
    fn failures_are_told_apart_as_the_real_driver_does() {
        assert_eq!(status("cuLaunchKernel", 3000, 0), Ok(result::VERSION_NOT_SUFFICIENT));
        assert_eq!(status("cuNothing", 13000, 0), Ok(result::SYMBOL_NOT_FOUND));
        assert_eq!(status("", 0, 0), Ok(result::SYMBOL_NOT_FOUND));
        assert_eq!(status("cuMemAlloc_v2", 13000, 0), Ok(result::SYMBOL_NOT_FOUND));
        assert_eq!(status("cuInit", 13010, 0), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(status("cuInit", 13000, 4), Err(CUresult::ERROR_INVALID_VALUE));
    }
}
