//! The error log and the core dump settings.
//!
//! [`crate::ffi::entry`] logs failed calls.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{c_char, c_void};

use katydid_cuda_sys::{CUlogsCallback, CUlogsCallbackHandle};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::state::{coredump, log};

use crate::context::stack;
use crate::ffi::{Out, Text, api};
use crate::process::state;

api! {
    /// Returns a setting of the current context.
    fn cuCoredumpGetAttribute(attribute: u32, value: *mut c_void, size: *mut usize) {
        // SAFETY: the caller's buffer.
        unsafe { coredump::write(stack::usable()?.handle, attribute, value, size) }?;
    }

    /// Returns a setting for all contexts without one of their own.
    fn cuCoredumpGetAttributeGlobal(attribute: u32, value: *mut c_void, size: *mut usize) {
        state::ready()?;
        // SAFETY: the caller's buffer.
        unsafe { coredump::write(0, attribute, value, size) }?;
    }

    /// Sets a setting of the current context.
    fn cuCoredumpSetAttribute(attribute: u32, value: *mut c_void, size: *mut usize) {
        // SAFETY: the caller's buffer.
        unsafe { coredump::read(stack::usable()?.handle, attribute, value, size) }?;
    }

    /// Sets a setting for all contexts without one of their own.
    fn cuCoredumpSetAttributeGlobal(attribute: u32, value: *mut c_void, size: *mut usize) {
        state::ready()?;
        // SAFETY: the caller's buffer.
        unsafe { coredump::read(0, attribute, value, size) }?;
    }

    /// Registers a function that gets a line for each call that fails from now on.
    fn cuLogsRegisterCallback(function: CUlogsCallback, data: *mut c_void, callback: Out<CUlogsCallbackHandle>) {
        let number = log::listen(function, data)?;
        callback.set(CUlogsCallbackHandle(std::ptr::without_provenance_mut(number)));
    }

    /// Removes such a function. An unknown handle fails with 1.
    fn cuLogsUnregisterCallback(callback: CUlogsCallbackHandle) {
        log::unlisten(callback.address() as usize)?;
    }

    /// Returns an iterator at the end of the log.
    fn cuLogsCurrent(iterator: Out<u32>, flags: u32) {
        check_no_flags(flags.into())?;
        iterator.set(log::current());
    }

    /// Appends the lines after the iterator to a file.
    fn cuLogsDumpToFile(iterator: *mut u32, path: Text<'_>, flags: u32) {
        // SAFETY: the caller's iterator.
        unsafe { log::dump_to_file(iterator, path.bytes(), flags) }?;
    }

    /// Writes the last lines that fit, with a NUL, and sets the size to that of the text.
    fn cuLogsDumpToMemory(iterator: *mut u32, buffer: *mut c_char, size: *mut usize, flags: u32) {
        // SAFETY: the caller's iterator, buffer and its size.
        unsafe { log::dump_to_memory(iterator, buffer.cast(), size, flags) }?;
    }
}
