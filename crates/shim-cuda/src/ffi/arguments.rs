//! Arguments of C callers: outputs, texts, handles; and the refusal of what is not built.
#![expect(unsafe_code, reason = "turns pointers of C callers into checked references")]

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use katydid_client::output::say;
use katydid_cuda_sys::{CUresult, Function};

/// Where a function writes a result. Stores are unaligned: C callers may pass outputs that Rust would call misaligned.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result where the caller wants it.
    pub(crate) fn write(self, value: T) {
        // SAFETY: `out` refused null, and its caller promised that anything else is writable for the whole call.
        unsafe { self.0.write_unaligned(value) }
    }
}

/// An output that must be given.
///
/// # Safety
///
/// `pointer` is null, or valid for writing one `T` until the call returns.
pub(crate) unsafe fn out<T>(pointer: *mut T) -> Result<Out<T>, CUresult> {
    if pointer.is_null() { Err(CUresult::ERROR_INVALID_VALUE) } else { Ok(Out(pointer)) }
}

/// An output that may be left out.
///
/// # Safety
///
/// As [`out`].
pub(crate) unsafe fn write_if_given<T>(pointer: *mut T, value: T) {
    if !pointer.is_null() {
        // SAFETY: not null, so writable by this function's contract.
        unsafe { pointer.write_unaligned(value) }
    }
}

/// The text of a C string argument, as bytes without the terminator.
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

/// A number that the program knows as a handle: nothing is read through it.
pub(crate) fn handle(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

/// Says once which function was refused and why.
#[cold]
pub(crate) fn refuse(function: Function, why: &str) -> CUresult {
    static SAID: [AtomicBool; 1024] = [const { AtomicBool::new(false) }; 1024];
    let first = SAID.get(usize::from(function.number())).is_none_or(|said| !said.swap(true, Ordering::Relaxed));
    if first {
        say(format_args!("{} {why}", function.name()));
    }
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
            write_if_given(std::ptr::null_mut(), 9u32);
        }
        assert_eq!(value, 7);
    }
}
