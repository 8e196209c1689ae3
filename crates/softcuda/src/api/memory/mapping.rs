//! Virtual memory management: reserved addresses, physical blocks, mappings.
//!
//! None of these belongs to a context. Addresses and sizes must be multiples of 2 MiB, else calls fail with 1. Processes share
//! blocks as file descriptors.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, IntoRawFd};

use katydid_cuda_sys::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUresult, allocation_type};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::memory::{GRANULARITY_BYTES, HANDLE_TYPE_FILE_DESCRIPTOR, is_host};
use katydid_driver_rules::pool::grants as read_grants;

use crate::ffi::{In, Out, address, api};
use crate::memory::physical;
use crate::memory::virtual_memory;
use crate::process::state;

api! {
    /// Reserves addresses: the requested ones if they are free, else others.
    fn cuMemAddressReserve(start: Out<u64>, size: usize, align: usize, wanted: u64, flags: u64) {
        state::ready()?;
        check_no_flags(flags)?;
        start.set(virtual_memory::reserve(size as u64, align as u64, wanted)?);
    }

    /// Frees a whole reservation that has no mappings.
    fn cuMemAddressFree(start: u64, size: usize) {
        state::ready()?;
        virtual_memory::unreserve(start, size as u64)?;
    }

    /// Creates a block and charges the device at once. Out of memory shows here.
    fn cuMemCreate(handle: Out<u64>, size: usize, properties: In<CUmemAllocationProp>, flags: u64) {
        state::ready()?;
        check_no_flags(flags)?;
        handle.set(physical::create(size as u64, &properties.0)?.handle as u64);
    }

    /// Releases a handle. The memory is freed when its last mapping is gone too.
    fn cuMemRelease(handle: u64) {
        state::ready()?;
        physical::release(handle)?;
    }

    /// Maps a block, without access until that is granted.
    fn cuMemMap(start: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        state::ready()?;
        check_no_flags(flags)?;
        virtual_memory::map(start, size as u64, offset as u64, handle)?;
    }

    /// Unmaps whole mappings, one or several side by side.
    fn cuMemUnmap(start: u64, size: usize) {
        state::ready()?;
        virtual_memory::unmap(start, size as u64)?;
    }

    /// Sets access to whole mappings. Each grant names a device, or the host for its own memory.
    fn cuMemSetAccess(start: u64, size: usize, grants: *const CUmemAccessDesc, count: usize) {
        state::ready()?;
        // SAFETY: the caller's array has `count` entries.
        let grants = unsafe { read_grants(grants, count) }?;
        virtual_memory::set_access(start, size as u64, &grants)?;
    }

    /// Returns the access of one device, or of the host, to an address.
    fn cuMemGetAccess(flags: Out<u64>, location: In<CUmemLocation>, start: u64) {
        state::ready()?;
        let (location, device) = physical::located(location.0)?;
        let granted = match is_host(location) {
            true => virtual_memory::host_access(start)?,
            false => virtual_memory::access(start, device.ordinal)?,
        };
        flags.set(u64::from(granted));
    }

    /// Returns 2 MiB, both the minimum and the recommended granularity.
    fn cuMemGetAllocationGranularity(granularity: Out<usize>, properties: In<CUmemAllocationProp>, option: u32) {
        state::ready()?;
        if option > 1 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        physical::located(properties.0.location)?;
        granularity.set(GRANULARITY_BYTES as usize);
    }

    /// Returns the properties of a block: pinned, on a device or the host.
    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<CUmemAllocationProp>, handle: u64) {
        state::ready()?;
        let block = physical::get(handle)?;
        let location = block.location;
        let requestedHandleTypes = if block.is_shareable() { HANDLE_TYPE_FILE_DESCRIPTOR } else { 0 };
        // As on an H200, queries do not return the usage flags.
        let base = CUmemAllocationProp { type_: allocation_type::PINNED, ..CUmemAllocationProp::default() };
        properties.set(CUmemAllocationProp { requestedHandleTypes, location, ..base });
    }

    /// Returns the handle of the block at an address. The caller must release it once more.
    fn cuMemRetainAllocationHandle(handle: Out<u64>, pointer: *mut c_void) {
        state::ready()?;
        handle.set(physical::retain(&virtual_memory::block_at(address(pointer))?));
    }
    /// Exports a block as a file descriptor that the caller owns.
    fn cuMemExportToShareableHandle(target: *mut c_void, handle: u64, kind: u32, flags: u64) {
        state::ready()?;
        let block = physical::get(handle)?;
        if target.is_null() || kind != HANDLE_TYPE_FILE_DESCRIPTOR || flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let number = block.share()?.into_raw_fd();
        // SAFETY: not null, so the caller's place for a descriptor.
        unsafe { target.cast::<i32>().write_unaligned(number) };
    }

    /// Imports a block under a new handle. The descriptor stays the caller's.
    fn cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: *mut c_void, kind: u32) {
        state::ready()?;
        let number = i32::try_from(descriptor.addr()).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        if kind != HANDLE_TYPE_FILE_DESCRIPTOR || number < 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: only copied, and one that is not open makes that fail.
        let file = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
        handle.set(physical::import(file.map_err(|_| CUresult::ERROR_INVALID_VALUE)?)?.handle as u64);
    }
}
