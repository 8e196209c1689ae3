//! Queries about addresses.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUpointer_attribute, CUresult};
use katydid_driver_rules::pointer as rules;

use crate::ffi::api;
use crate::memory::pointer;
use crate::process::state;

api! {
    /// Returns an attribute. An unknown address fails, and nothing is written.
    fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: u64) {
        state::ready()?;
        // SAFETY: the caller passes a variable of the attribute's width.
        unsafe { rules::attribute(data, attribute, address, pointer::find(address)) }?;
    }

    /// Returns several attributes. An unknown address has defined values too.
    fn cuPointerGetAttributes(
        count: u32,
        attributes: *mut CUpointer_attribute,
        data: *mut *mut c_void,
        address: u64,
    ) {
        state::ready()?;
        // SAFETY: the caller's arrays have as many entries as it says, and each variable the width of its attribute.
        unsafe { rules::attributes(count, attributes, data, address, pointer::find(address)) }?;
    }

    /// Checks the arguments. Copies are always as ordered as the attribute demands.
    fn cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64) {
        state::ready()?;
        pointer::find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        rules::check_set(value, attribute)?;
    }
}
