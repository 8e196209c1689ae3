//! Settings of core dumps: of the current context, or of all.
#![expect(unsafe_code, reason = "reads and writes buffers of C callers")]

use std::ffi::c_void;

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::coredump;

use crate::context::stack;

/// # Safety
///
/// `size` is null or readable; `value` is null or has as many bytes as it says, as for all functions below.
pub(crate) unsafe fn get(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { coredump::write(stack::active()?.slot.handle, attribute, value, size) }
}

/// # Safety
///
/// As [`get`].
pub(crate) unsafe fn get_global(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { coredump::write(0, attribute, value, size) }
}

/// # Safety
///
/// As [`get`].
pub(crate) unsafe fn set(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { coredump::read(stack::active()?.slot.handle, attribute, value, size) }
}

/// # Safety
///
/// As [`get`].
pub(crate) unsafe fn set_global(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { coredump::read(0, attribute, value, size) }
}
