//! Settings of core dumps: of the current context, or of all.
#![expect(unsafe_code, reason = "reads and writes buffers of C callers")]

use std::ffi::c_void;

use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::coredump;

use crate::context::stack;

/// # Safety
///
/// `size` is null or readable and writable; `value` is null or has as many bytes as it says, as for all functions below.
unsafe fn get_of(context: usize, attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    if value.is_null() || size.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the contract; what is answered is no longer than the room.
    unsafe {
        let found = coredump::get(context, attribute, size.read_unaligned())?;
        value.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len());
        Ok(())
    }
}

/// # Safety
///
/// As [`get_of`].
unsafe fn set_of(context: usize, attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    if value.is_null() || size.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: by the contract.
    let bytes = unsafe { std::slice::from_raw_parts(value.cast_const().cast(), size.read_unaligned().min(2048)) };
    coredump::set(context, attribute, bytes)
}

/// # Safety
///
/// As [`get_of`].
pub(crate) unsafe fn get(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { get_of(stack::active()?.slot.handle, attribute, value, size) }
}

/// # Safety
///
/// As [`get_of`].
pub(crate) unsafe fn get_global(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { get_of(0, attribute, value, size) }
}

/// # Safety
///
/// As [`get_of`].
pub(crate) unsafe fn set(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { set_of(stack::active()?.slot.handle, attribute, value, size) }
}

/// # Safety
///
/// As [`get_of`].
pub(crate) unsafe fn set_global(attribute: u32, value: *mut c_void, size: *mut usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { set_of(0, attribute, value, size) }
}
