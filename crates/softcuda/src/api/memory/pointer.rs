//! Questions about addresses.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUpointer_attribute, CUresult, pointer_attribute as id};

use crate::ffi::{Outcome, api};
use crate::memory::pointer::{self, Value};
use crate::memory::space;
use crate::process::state;

/// More attributes than there are make no sense.
const MAX_ATTRIBUTES: u32 = 64;

/// Writes exactly the bytes of a value.
///
/// # Safety
///
/// `data` must be writable for the width of the attribute that `value` is of; the caller of the driver upholds it.
unsafe fn put(data: *mut c_void, value: Value) -> Outcome {
    if data.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    match value {
        // SAFETY: writable for 4 bytes, by the contract.
        Value::Four(value) => unsafe { data.cast::<u32>().write_unaligned(value) },
        // SAFETY: writable for 8 bytes, by the contract.
        Value::Eight(value) => unsafe { data.cast::<u64>().write_unaligned(value) },
    }
    Ok(())
}

api! {
    /// An unknown address is an error, and nothing is written.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: u64) {
        state::ready()?;
        let region = space::find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        // SAFETY: the caller passes a variable of the attribute's width.
        unsafe { put(data, pointer::known(&region, address, attribute)?) }?;
    }

    /// An unknown address has values of its own.
    fn cuPointerGetAttributes(
        count: u32,
        attributes: *mut CUpointer_attribute,
        data: *mut *mut c_void,
        address: u64,
    ) {
        state::ready()?;
        if count == 0 || count > MAX_ATTRIBUTES || attributes.is_null() || data.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let region = space::find(address);
        for at in 0..count as usize {
            // SAFETY: both arrays have `count` entries.
            let (attribute, to) = unsafe { (attributes.add(at).read_unaligned(), data.add(at).read_unaligned()) };
            if let Some(value) = pointer::plural(region.as_ref(), address, attribute)? {
                // SAFETY: the caller passes a variable of the attribute's width.
                unsafe { put(to, value) }?;
            }
        }
    }

    /// Copies are as ordered as this asks for in any case.
    fn cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64) {
        state::ready()?;
        space::find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        if value.is_null() || attribute != id::SYNC_MEMOPS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
    }
}
