//! Start, errors, look-up. Most of these work before `cuInit`.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::{c_char, c_void};

use katydid_cuda_sys::{CUresult, CUuuid};
use katydid_driver_rules::device::DRIVER_VERSION;

use crate::ffi::{MaybeOut, Out, Text, api};
use crate::process::{facts, init, proc_address};

api! {
    /// Initialises the library: makes the devices.
    fn cuInit(flags: u32) {
        init::initialise(flags)?;
    }

    /// Works in every state.
    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(DRIVER_VERSION as i32);
    }

    /// An unknown code gives 1 and null.
    fn cuGetErrorString(error: CUresult, text: Out<*const c_char>) {
        text.set(error.text().map_or(std::ptr::null(), |text| text.as_ptr()));
        error.text().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    }

    /// An unknown code gives 1 and null.
    fn cuGetErrorName(error: CUresult, name: Out<*const c_char>) {
        name.set(error.name().map_or(std::ptr::null(), |name| name.as_ptr()));
        error.name().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    }

    /// The private tables; the first call gives them the facts of this library.
    fn cuGetExportTable(table: *mut *const c_void, id: *const CUuuid) {
        facts::install();
        // SAFETY: the caller's pointers, with the same contract; an id is 16 bytes.
        CUresult(unsafe { katydid_export_table::get(table, id.cast()) }).ok()?;
    }

    /// The first version reports what it does not find as an error, and leaves the pointer alone.
    fn cuGetProcAddress(symbol: Text<'_>, pointer: Out<*mut c_void>, version: i32, flags: u64) {
        let (address, _) = proc_address::find(symbol.bytes(), version, flags)?;
        if address.is_null() {
            return Err(CUresult::ERROR_NOT_FOUND);
        }
        pointer.set(address.cast_mut());
    }

    /// Not finding a symbol is a success with a status.
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

    /// There is no profiler to start.
    fn cuProfilerStart() {}

    /// There is no profiler to stop.
    fn cuProfilerStop() {}
}
