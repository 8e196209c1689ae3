//! Page-locked host memory.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

use katydid_cuda_sys::CUresult;

use crate::border::{Out, address, api};
use crate::{current, host_memory, process};

api! {
    fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, size: usize) {
        let start = host_memory::allocate(&*current::usable()?, size as u64, 0)?;
        pointer.set(with_exposed_provenance_mut(start as usize));
    }

    fn cuMemHostAlloc(pointer: Out<*mut c_void>, size: usize, flags: u32) {
        let start = host_memory::allocate(&*current::usable()?, size as u64, flags)?;
        pointer.set(with_exposed_provenance_mut(start as usize));
    }

    fn cuMemFreeHost(pointer: *mut c_void) {
        process::ready()?;
        host_memory::free(address(pointer))?;
    }

    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: u32) {
        host_memory::register(&*current::usable()?, address(pointer), size as u64, flags)?;
    }

    fn cuMemHostUnregister(pointer: *mut c_void) {
        process::ready()?;
        host_memory::unregister(address(pointer))?;
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, pointer: *mut c_void, flags: u32) {
        current::usable()?;
        host_memory::flags(address(pointer))?;
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        device.set(address(pointer));
    }

    fn cuMemHostGetFlags(flags: Out<u32>, pointer: *mut c_void) {
        process::ready()?;
        flags.set(host_memory::flags(address(pointer))?);
    }
}
