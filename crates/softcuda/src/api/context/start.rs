//! Initialization, errors and symbol look-up. Most of these functions work before `cuInit`.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{c_char, c_void};

use katydid_cuda_sys::{CUresult, CUuuid};
use katydid_driver_rules::device::DRIVER_VERSION;

use crate::ffi::{MaybeOut, Out, Text, api};
use crate::process::{facts, init, proc_address};

api! {
    /// Initializes the library: creates the devices.
    fn cuInit(flags: u32) {
        init::initialize(flags)?;
    }

    /// Returns the driver version, in every state.
    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(DRIVER_VERSION as i32);
    }

    /// Returns the text of a code. An unknown code fails with 1 and sets null.
    fn cuGetErrorString(error: CUresult, text: Out<*const c_char>) {
        text.set(error.text().map_or(std::ptr::null(), |text| text.as_ptr()));
        error.text().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    }

    /// Returns the name of a code. An unknown code fails with 1 and sets null.
    fn cuGetErrorName(error: CUresult, name: Out<*const c_char>) {
        name.set(error.name().map_or(std::ptr::null(), |name| name.as_ptr()));
        error.name().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    }

    /// Returns a private table. The first call gives the tables the facts of this library.
    fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) {
        facts::install();
        // SAFETY: the caller's pointers, with the same contract; an id is 16 bytes.
        CUresult(unsafe { katydid_export_table::get(table, id.cast()) }).ok()?;
    }

    /// Looks up a symbol. For an unknown one, this first version fails and leaves the pointer unchanged.
    fn cuGetProcAddress(symbol: Text<'_>, pointer: Out<*mut c_void>, version: i32, flags: u64) {
        let (address, _) = proc_address::find(symbol.bytes(), version, flags)?;
        if address.is_null() {
            return Err(CUresult::ERROR_NOT_FOUND);
        }
        pointer.set(address.cast_mut());
    }

    /// Looks up a symbol. For an unknown one, it succeeds and reports a status.
    fn cuGetProcAddress_v2(
        symbol: Text<'_>,
        pointer: Out<*mut c_void>,
        version: i32,
        flags: u64,
        status: MaybeOut<u32>,
    ) {
        let (address, lookup) = proc_address::find(symbol.bytes(), version, flags)?;
        pointer.set(address.cast_mut());
        status.set(lookup);
    }

    /// Does nothing: there is no profiler.
    fn cuProfilerStart() {}

    /// Does nothing: there is no profiler.
    fn cuProfilerStop() {}
}
