//! Arguments of C callers: outputs, texts, handles; and the refusal of unsupported functions.
#![expect(unsafe_code, reason = "turns pointers of C callers into checked references")]

use std::ffi::c_void;

use katydid_client::ffi::Refusals;
use katydid_cuda_sys::{CUresult, Function};

/// An output of a function. Stores are unaligned: C callers may pass outputs that are misaligned for Rust.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result at the caller's address.
    pub(crate) fn write(self, value: T) {
        // SAFETY: `out` refused null, and its caller promised that anything else is writable for the whole call.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// Checks a mandatory output.
///
/// # Safety
///
/// `pointer` is null, or valid for writing one `T` until the call returns.
pub(crate) unsafe fn out<T>(pointer: *mut T) -> Result<Out<T>, CUresult> {
    if pointer.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(Out(pointer)) }
}

/// Returns the text of a C string argument, as bytes without the terminator.
///
/// # Safety
///
/// `pointer` is null, or a C string that lives as long as the call.
pub(crate) unsafe fn text<'a>(pointer: *const std::ffi::c_char) -> Result<&'a [u8], CUresult> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: a C string by this function's contract.
    Ok(unsafe { std::ffi::CStr::from_ptr(pointer) }.to_bytes())
}

/// Returns a number as the program's handle: nothing is read through it.
pub(crate) fn handle(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

/// Reports once that a function was refused and why.
#[cold]
pub(crate) fn refuse(function: Function, why: &str) -> CUresult {
    static REFUSALS: Refusals<1024> = Refusals::new();
    REFUSALS.report(usize::from(function.number()), function.name(), why);
    CUresult::ERROR_NOT_SUPPORTED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_checked_and_written() {
        let mut value = 0u32;
        // SAFETY: null, and a local.
        unsafe {
            assert_eq!(out::<u32>(std::ptr::null_mut()).err(), Some(CUresult::ERROR_INVALID_VALUE));
            out(&mut value).unwrap().write(7);
        }
        assert_eq!(value, 7);
    }
}
