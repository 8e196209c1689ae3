//! The error log and the settings of core dumps.
//!
//! Failed calls are noted by [`crate::ffi::entry`].

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{OsStr, c_char, c_void};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use katydid_cuda_sys::{CUlogsCallback, CUlogsCallbackHandle, CUresult};
use katydid_driver_rules::state::{coredump, log};

use crate::context::stack;
use crate::ffi::{Out, Outcome, Text, api};
use crate::process::state;

/// # Safety
///
/// `size` must be null or readable, `value` null or as long as it says.
unsafe fn get(context: usize, attribute: u32, value: *mut c_void, size: *mut usize) -> Outcome {
    if value.is_null() || size.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the contract; what is answered is no longer than the room.
    unsafe {
        let found = coredump::get(context, attribute, size.read_unaligned())?;
        value.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len());
    }
    Ok(())
}

/// # Safety
///
/// The contract of [`get`] holds.
unsafe fn set(context: usize, attribute: u32, value: *mut c_void, size: *mut usize) -> Outcome {
    if value.is_null() || size.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: the contract.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast_const().cast(), size.read_unaligned().min(2048)) };
    coredump::set(context, attribute, bytes)
}

/// The lines from the iterator on, which moves behind them.
///
/// # Safety
///
/// `iterator` must be null, or readable and writable.
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

api! {
    /// Of the current context.
    fn cuCoredumpGetAttribute(attribute: u32, value: *mut c_void, size: *mut usize) {
        // SAFETY: the caller's buffer.
        unsafe { get(stack::usable()?.handle, attribute, value, size) }?;
    }

    /// Of all contexts that have no setting of their own.
    fn cuCoredumpGetAttributeGlobal(attribute: u32, value: *mut c_void, size: *mut usize) {
        state::ready()?;
        // SAFETY: the caller's buffer.
        unsafe { get(0, attribute, value, size) }?;
    }

    /// Of the current context.
    fn cuCoredumpSetAttribute(attribute: u32, value: *mut c_void, size: *mut usize) {
        // SAFETY: the caller's buffer.
        unsafe { set(stack::usable()?.handle, attribute, value, size) }?;
    }

    /// Of all contexts that have no setting of their own.
    fn cuCoredumpSetAttributeGlobal(attribute: u32, value: *mut c_void, size: *mut usize) {
        state::ready()?;
        // SAFETY: the caller's buffer.
        unsafe { set(0, attribute, value, size) }?;
    }

    /// A line for each call that fails from now on.
    fn cuLogsRegisterCallback(function: CUlogsCallback, data: *mut c_void, callback: Out<CUlogsCallbackHandle>) {
        let number = log::listen(function, data)?;
        callback.set(CUlogsCallbackHandle(std::ptr::without_provenance_mut(number)));
    }

    /// A handle that is none gives 1.
    fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle) {
        log::unlisten(callback.address() as usize)?;
    }

    /// The end of the log.
    fn cuLogsCurrent(iterator: Out<u32>, flags: u32) {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        iterator.set(log::current());
    }

    /// Appends the lines from the iterator on.
    fn cuLogsDumpToFile(iterator: *mut u32, path: Text<'_>, flags: u32) {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's iterator.
        let lines = unsafe { dump(iterator, usize::MAX) };
        let file = std::fs::OpenOptions::new().create(true).append(true).open(OsStr::from_bytes(path.bytes()));
        let written = file.and_then(|mut file| file.write_all(lines.as_bytes()));
        written.map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    }

    /// The last lines that fit, with a NUL; the size becomes that of the text.
    fn cuLogsDumpToMemory(iterator: *mut u32, buffer: *mut c_char, size: *mut usize, flags: u32) {
        if buffer.is_null() || size.is_null() || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's iterator, buffer and its size; the text with its NUL is no longer than the room.
        unsafe {
            let room = size.read_unaligned();
            let lines = dump(iterator, room);
            if room > 0 {
                buffer.cast::<u8>().copy_from_nonoverlapping(lines.as_ptr(), lines.len());
                buffer.cast::<u8>().add(lines.len()).write(0);
            }
            size.write_unaligned(lines.len());
        }
    }
}
