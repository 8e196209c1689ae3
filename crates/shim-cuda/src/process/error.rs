//! `cuGetErrorName` and `cuGetErrorString`: texts of this library, never of the worker's.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::{CStr, c_char};
use std::ptr;

use katydid_cuda_sys::CUresult;

use crate::ffi::arguments::out;

/// Returns the name of a code; null and `ERROR_INVALID_VALUE` for an unknown one.
///
/// # Safety
///
/// `text` is null or writable.
pub(crate) unsafe fn name(error: CUresult, text: *mut *const c_char) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { answer(error.name(), text) }
}

/// Returns the meaning of a code; null and `ERROR_INVALID_VALUE` for an unknown one.
///
/// # Safety
///
/// `text` is null or writable.
pub(crate) unsafe fn string(error: CUresult, text: *mut *const c_char) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { answer(error.text(), text) }
}

/// # Safety
///
/// `text` is null or writable.
unsafe fn answer(entry: Option<&'static CStr>, text: *mut *const c_char) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    unsafe { out(text) }?.write(entry.map_or(ptr::null(), CStr::as_ptr));
    entry.map(drop).ok_or(CUresult::ERROR_INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_codes_have_texts_and_unknown_ones_are_null() {
        let mut text = ptr::null();
        // SAFETY: a local.
        unsafe {
            assert_eq!(name(CUresult::ERROR_ILLEGAL_ADDRESS, &mut text), Ok(()));
            assert_eq!(CStr::from_ptr(text), c"CUDA_ERROR_ILLEGAL_ADDRESS");
            assert_eq!(string(CUresult(12345), &mut text), Err(CUresult::ERROR_INVALID_VALUE));
        }
        assert!(text.is_null());
    }
}
