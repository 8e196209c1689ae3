//! Page-locked host memory.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::ptr::with_exposed_provenance_mut;

use katydid_driver_rules::caller::check_no_flags;

use crate::context::stack;
use crate::ffi::{Out, address, api};
use crate::graphs;
use crate::memory::host;
use crate::process::state;

api! {
    /// Allocates pinned memory. Device and host address are the same.
    fn cuMemAllocHost_v2(pointer: Out<*mut c_void>, size: usize) {
        graphs::forbid()?;
        let start = host::allocate(&*stack::usable()?, size as u64, 0)?;
        pointer.set(with_exposed_provenance_mut(start as usize));
    }

    /// Allocates pinned memory. Device and host address are the same, whatever the flags.
    fn cuMemHostAlloc(pointer: Out<*mut c_void>, size: usize, flags: u32) {
        graphs::forbid()?;
        let start = host::allocate(&*stack::usable()?, size as u64, flags)?;
        pointer.set(with_exposed_provenance_mut(start as usize));
    }

    /// Waits for the context's work, then frees.
    fn cuMemFreeHost(pointer: *mut c_void) {
        graphs::forbid()?;
        state::ready()?;
        host::free(address(pointer))?;
    }

    /// As the second version.
    fn cuMemHostRegister(pointer: *mut c_void, size: usize, flags: u32) {
        graphs::forbid()?;
        host::register(&*stack::usable()?, address(pointer), size as u64, flags)?;
    }

    /// Registers any memory that the process maps. A second time fails with 712.
    fn cuMemHostRegister_v2(pointer: *mut c_void, size: usize, flags: u32) {
        graphs::forbid()?;
        host::register(&*stack::usable()?, address(pointer), size as u64, flags)?;
    }

    /// Waits for the context's work, then unregisters. Memory that is not registered fails with 713.
    fn cuMemHostUnregister(pointer: *mut c_void) {
        graphs::forbid()?;
        state::ready()?;
        host::unregister(address(pointer))?;
    }

    /// Returns the pointer itself, which may also lie inside page-locked memory.
    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, pointer: *mut c_void, flags: u32) {
        stack::usable()?;
        host::check_mapped(address(pointer))?;
        check_no_flags(flags.into())?;
        device.set(address(pointer));
    }

    /// Returns the flags of the allocation or registration that holds the pointer.
    fn cuMemHostGetFlags(flags: Out<u32>, pointer: *mut c_void) {
        state::ready()?;
        flags.set(host::flags(address(pointer))?);
    }
}
