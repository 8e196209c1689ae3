//! The error log as programs ask for it; [`crate::ffi::guard`] notes what fails.
#![expect(unsafe_code, reason = "writes buffers of C callers")]

use std::ffi::{OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;

use katydid_cuda_sys::{CUlogsCallback, CUlogsCallbackHandle, CUresult};
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

/// No call of the function begins after this.
pub(crate) fn unregister(callback: CUlogsCallbackHandle) -> Result<(), CUresult> {
    log::unlisten(callback.0.addr())
}

/// # Safety
///
/// `iterator` is null or writable.
pub(crate) unsafe fn current(iterator: *mut u32, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let iterator = unsafe { out(iterator) }?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    iterator.write(log::current());
    Ok(())
}

/// Appends to a file of the program's.
///
/// # Safety
///
/// `iterator` is null or readable and writable, `path` null or a C string.
pub(crate) unsafe fn dump_to_file(iterator: *mut u32, path: *const c_char, flags: u32) -> Result<(), CUresult> {
    use std::io::Write;
    // SAFETY: by the contract.
    let path = unsafe { text(path) }?;
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: handed on.
    let lines = unsafe { dump(iterator, usize::MAX) };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(OsStr::from_bytes(path));
    let written = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    written.map_err(|_| CUresult::ERROR_INVALID_VALUE)
}

/// The lines end with a NUL; `size` is the buffer's, and then that of the text.
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
    if buffer.is_null() || size.is_null() || flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the contract; the text with its NUL is no longer than the room.
    unsafe {
        let room = size.read_unaligned();
        let lines = dump(iterator, room);
        if room > 0 {
            buffer.cast::<u8>().copy_from_nonoverlapping(lines.as_ptr(), lines.len());
            buffer.cast::<u8>().add(lines.len()).write(0);
        }
        size.write_unaligned(lines.len());
    }
    Ok(())
}

/// The lines from the iterator on, which moves behind them.
///
/// # Safety
///
/// `iterator` is null or readable and writable.
unsafe fn dump(iterator: *mut u32, room: usize) -> String {
    // SAFETY: not null where it is read and written.
    let from = (!iterator.is_null()).then(|| unsafe { iterator.read_unaligned() });
    let (lines, end) = log::dump(from, room);
    if !iterator.is_null() {
        // SAFETY: as above.
        unsafe { iterator.write_unaligned(end) };
    }
    lines
}
