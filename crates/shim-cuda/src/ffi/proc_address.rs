//! `cuGetProcAddress`: finds the exported symbol for a name at a version.
//!
//! Names come without suffix; version and flags choose among the ABIs. The two forms answer a miss differently, as measured
//! on driver 580: the newer one succeeds with a null pointer and says why in its status.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::{c_char, c_void};
use std::ptr;

use katydid_client::ffi::write_optional;
use katydid_cuda_sys::proc_address_result::{SUCCESS, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT};
use katydid_cuda_sys::{CUresult, Lookup, proc_address};
use katydid_driver_rules::device::proc_address_flags;

use crate::ffi::arguments::{out, text};

/// The form of CUDA 11.3: a miss is an error and writes nothing.
///
/// # Safety
///
/// `symbol` is null or a C string, `pfn` null or writable.
pub(crate) unsafe fn v1(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
) -> Result<(), CUresult> {
    // SAFETY: null or a C string, by the contract.
    match unsafe { look_up(symbol, version, flags) }? {
        Lookup::Found(function) => {
            // SAFETY: null or writable, by the contract.
            unsafe { out(pfn) }?.write(crate::ffi::symbols::symbol(function).cast_mut());
            Ok(())
        }
        Lookup::TooOld | Lookup::Unknown => Err(CUresult::ERROR_NOT_FOUND),
    }
}

/// The form of CUDA 12.0.
///
/// # Safety
///
/// `symbol` is null or a C string; `pfn` and `status` are null or writable.
pub(crate) unsafe fn v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: i32,
    flags: u64,
    status: *mut u32,
) -> Result<(), CUresult> {
    // SAFETY: null or a C string, by the contract.
    let (address, answer) = match unsafe { look_up(symbol, version, flags) }? {
        Lookup::Found(function) => (crate::ffi::symbols::symbol(function).cast_mut(), SUCCESS),
        Lookup::TooOld => (ptr::null_mut(), VERSION_NOT_SUFFICIENT),
        Lookup::Unknown => (ptr::null_mut(), SYMBOL_NOT_FOUND),
    };
    // SAFETY: null or writable, by the contract.
    unsafe {
        out(pfn)?.write(address);
        write_optional(status, answer);
    }
    Ok(())
}

/// # Safety
///
/// `symbol` is null or a C string.
unsafe fn look_up(symbol: *const c_char, version: i32, flags: u64) -> Result<Lookup, CUresult> {
    // SAFETY: handed on.
    let name = unsafe { text(symbol) }?;
    let version = version.try_into().unwrap_or(0);
    let is_per_thread = proc_address_flags(version, flags)?;
    Ok(proc_address(std::str::from_utf8(name).unwrap_or_default(), version, is_per_thread))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask_v2(name: &std::ffi::CStr, version: i32, flags: u64) -> (Result<(), CUresult>, usize, u32) {
        let (mut pfn, mut status) = (ptr::dangling_mut(), 77);
        // SAFETY: a C string and two locals.
        let result = unsafe { v2(name.as_ptr(), &mut pfn, version, flags, &mut status) };
        (result, pfn.addr(), status)
    }

    fn address(function: katydid_cuda_sys::Function) -> usize {
        crate::ffi::symbols::symbol(function).addr()
    }

    #[test]
    fn the_newer_form_succeeds_with_null_and_a_reason() {
        use katydid_cuda_sys::Function;
        assert_eq!(ask_v2(c"cuMemAlloc", 12000, 0), (Ok(()), address(Function::cuMemAlloc_v2), SUCCESS));
        assert_eq!(ask_v2(c"cuLaunchKernel", 12000, 2), (Ok(()), address(Function::cuLaunchKernel_ptsz), SUCCESS));
        assert_eq!(ask_v2(c"cuNoSuchThing", 12000, 0), (Ok(()), 0, SYMBOL_NOT_FOUND));
        assert_eq!(ask_v2(c"", 0, 0), (Ok(()), 0, SYMBOL_NOT_FOUND));
        assert_eq!(ask_v2(c"cuLibraryLoadData", 11000, 0), (Ok(()), 0, VERSION_NOT_SUFFICIENT));
    }

    #[test]
    fn versions_beyond_the_driver_and_unknown_flags_write_nothing() {
        for (version, flags) in [(99000, 0), (12000, 4)] {
            let (result, pfn, status) = ask_v2(c"cuMemAlloc", version, flags);
            assert_eq!((result, pfn, status), (Err(CUresult::ERROR_INVALID_VALUE), 1, 77));
        }
    }

    #[test]
    fn the_older_form_fails_on_a_miss() {
        let mut pfn = ptr::dangling_mut();
        // SAFETY: a C string and a local.
        let result = unsafe { v1(c"cuNoSuchThing".as_ptr(), &mut pfn, 12000, 0) };
        assert_eq!((result, pfn.addr()), (Err(CUresult::ERROR_NOT_FOUND), 1));
    }
}
