//! The functions for pinned host memory.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::c_void;
use std::ptr;

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUdeviceptr, CUresult, host_alloc_flags};
use katydid_driver_rules::caller::check_no_flags;
use katydid_driver_rules::memory::pinned_flags;

use crate::context::stack;
use crate::ffi::arguments::out;
use crate::graph::model;
use crate::memory::host_backing::{self, HostBacking};
use crate::memory::pinned;
use crate::memory::registration::PAGE_BYTES;
use crate::process::session::shim;

/// Blocks of at least this many bytes are returned to the system when they are freed.
const MIN_RETURNED_BLOCK_BYTES: u64 = 2 << 20;

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn allocate(target: *mut *mut c_void, size: usize) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { allocate_with_flags(target, size, 0) }
}

/// Allocates pinned memory. Flags are kept only for queries: every block is portable and mapped, as unified addressing
/// requires.
///
/// # Safety
///
/// As [`allocate`].
pub(crate) unsafe fn allocate_with_flags(target: *mut *mut c_void, size: usize, flags: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let context = stack::active()?.owner();
    model::forbid()?;
    let wire_flags = pinned_flags(flags)?;
    if size == 0 {
        target.write(ptr::null_mut());
        return Ok(());
    }
    let shim = shim()?;
    let pinned = pinned::get().ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let pages = (size as u64).checked_next_multiple_of(PAGE_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let address = pinned.arena.allocate(pages, PAGE_BYTES, &HostBacking)?;
    shim.regions.insert(
        address,
        size as u64,
        RegionKind::Host { flags: wire_flags },
        context.device,
        context.slot.handle,
    );
    if flags & host_alloc_flags::DEVICEMAP != 0
        && let Some(region) = shim.regions.find(address)
    {
        pinned.follow(&region, context.wire());
    }
    target.write(ptr::with_exposed_provenance_mut(address as usize));
    Ok(())
}

/// Frees a block. It is used again when the GPU is done with it; a large one is returned to the system.
pub(crate) fn free(pointer: *mut c_void) -> Result<(), CUresult> {
    model::forbid()?;
    if pointer.is_null() {
        return Ok(());
    }
    let shim = shim()?;
    let address = pointer.addr() as u64;
    let is_pinned = |region: &Region| matches!(region.kind, RegionKind::Host { .. });
    let region = shim.regions.remove(address, is_pinned).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let pinned = pinned::get().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    pinned.forget(&region)?;
    pinned.arena.free(address, shim.session.enqueued()).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
    if region.size >= MIN_RETURNED_BLOCK_BYTES { host_backing::give_back(pinned) } else { Ok(()) }
}

/// Returns the region of pinned memory that holds an address.
fn region(pointer: *mut c_void) -> Result<Region, CUresult> {
    let region = shim()?.regions.find(pointer.addr() as u64);
    let is_pinned = |region: &Region| matches!(region.kind, RegionKind::Host { .. } | RegionKind::Registered { .. });
    region.filter(is_pinned).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// # Safety
///
/// As [`allocate`].
pub(crate) unsafe fn flags(target: *mut u32, pointer: *mut c_void) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let region = shim()?.regions.find(pointer.addr() as u64).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    target.write(match region.kind {
        RegionKind::Host { flags } | RegionKind::Registered { flags } => flags,
        RegionKind::Managed | RegionKind::ManagedPooled { .. } | RegionKind::Shared { .. } => {
            host_alloc_flags::DEVICEMAP
        }
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    });
    Ok(())
}

/// Returns the device address, which is the same on both sides.
///
/// # Safety
///
/// As [`allocate`].
pub(crate) unsafe fn device_pointer(
    target: *mut CUdeviceptr,
    pointer: *mut c_void,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    region(pointer)?;
    check_no_flags(flags.into())?;
    target.write(pointer.addr() as CUdeviceptr);
    Ok(())
}
