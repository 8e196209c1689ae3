//! The functions of the error log; [`crate::ffi::exported_call`] notes failed calls.
#![expect(unsafe_code, reason = "writes buffers of C callers")]

use std::ffi::{c_char, c_void};

use katydid_cuda_sys::{CUlogsCallback, CUlogsCallbackHandle, CUresult};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::state::log;

use crate::ffi::arguments::{handle, out, text};

/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn register(
    function: CUlogsCallback,
    data: *mut c_void,
    target: *mut CUlogsCallbackHandle,
) -> Result<(), CUresult> {
    let number = log::listen(function, data)?;
    if !target.is_null() {
        // SAFETY: not null, so writable by the contract.
        unsafe { target.write_unaligned(CUlogsCallbackHandle(handle(number))) };
    }
    Ok(())
}

/// Unregisters a function: no call of it begins after this.
pub(crate) fn unregister(callback: CUlogsCallbackHandle) -> Result<(), CUresult> {
    log::unlisten(callback.0.addr())
}

/// # Safety
///
/// `iterator` is null or writable.
pub(crate) unsafe fn current(iterator: *mut u32, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let iterator = unsafe { out(iterator) }?;
    check_no_flags(flags.into())?;
    iterator.write(log::current());
    Ok(())
}

/// Appends the log to a file of the program.
///
/// # Safety
///
/// `iterator` is null or readable and writable, `path` null or a C string.
pub(crate) unsafe fn dump_to_file(iterator: *mut u32, path: *const c_char, flags: u32) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    unsafe { log::dump_to_file(iterator, text(path)?, flags) }
}

/// Copies the log's lines, which end with a NUL. `size` is first the buffer's, and then that of the text.
///
/// # Safety
///
/// `iterator` is null or readable and writable, `size` the same, `buffer` null or writable for `size` bytes.
pub(crate) unsafe fn dump_to_memory(
    iterator: *mut u32,
    buffer: *mut c_char,
    size: *mut usize,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { log::dump_to_memory(iterator, buffer.cast(), size, flags) }
}
