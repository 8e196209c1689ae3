//! Device memory, allocated from arenas that the worker backs.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use katydid_client::ffi::write_optional;
use katydid_client::regions::RegionKind;
use katydid_cuda_sys::{CUdeviceptr, CUresult, device_attribute};
use katydid_driver_rules::memory::{check_pitched, pitched};
use katydid_wire::message::kdDeviceInfo;

use crate::context::{device, stack};
use crate::ffi::arguments::out;
use crate::graph::model;
use crate::memory::{block, ipc, managed, pool};
use crate::process::session::shim;
use crate::sync::stream;

/// Rows of a pitched block start at multiples of at least this many bytes.
const MIN_PITCH_BYTES: u64 = 256;

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn allocate(target: *mut CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    model::forbid()?;
    target.write(block::allocate(size as u64)?);
    Ok(())
}

/// # Safety
///
/// As [`allocate`].
pub(crate) unsafe fn allocate_pitch(
    target: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let (target, pitch) = unsafe { (out(target)?, out(pitch)?) };
    check_pitched(width as u64, height as u64, element)?;
    model::forbid()?;
    let device = &device::all()?[stack::active()?.device as usize];
    let step = u64::from(device.value(device_attribute::TEXTURE_ALIGNMENT).unsigned_abs()).max(MIN_PITCH_BYTES);
    let (row, size) = pitched(width as u64, height as u64, step)?;
    target.write(block::allocate(size)?);
    pitch.write(row as usize);
    Ok(())
}

/// Frees a block. It is invalid at once, and its memory is used again when the GPU has done all work sent before.
pub(crate) fn free(address: CUdeviceptr) -> Result<(), CUresult> {
    model::forbid()?;
    if address == 0 || model::of_process().free(address)? {
        return Ok(());
    }
    free_block(address)
}

/// As [`free`], for a block that no longer belongs to a graph.
pub(crate) fn free_block(address: CUdeviceptr) -> Result<(), CUresult> {
    let shim = shim()?;
    match shim.regions.find(address).map(|region| region.kind) {
        Some(RegionKind::Pooled { .. } | RegionKind::HostPooled { .. } | RegionKind::ManagedPooled { .. }) => {
            return pool::free(address, stream::default_wire());
        }
        Some(RegionKind::Managed) => return managed::free(address),
        Some(RegionKind::Mapped) if ipc::is_pooled(address) => return ipc::close(address),
        _ => {}
    }
    block::free(address)
}

/// Returns the free memory of the device, including that of its arena.
///
/// # Safety
///
/// As [`allocate`]; null is allowed here.
pub(crate) unsafe fn info(free: *mut usize, total: *mut usize) -> Result<(), CUresult> {
    let context = stack::active()?;
    let device = &device::all()?[context.device as usize];
    let reply = shim()?.session.call(context.wire(), &kdDeviceInfo { device: device.position as i32 })?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_optional(free, (reply.free + device.memory.unused_bytes()) as usize);
        write_optional(total, reply.total as usize);
    }
    Ok(())
}

/// # Safety
///
/// As [`allocate`]; null is allowed here.
pub(crate) unsafe fn address_range(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> Result<(), CUresult> {
    stack::active()?;
    let region = shim()?.regions.find(address).ok_or(CUresult::ERROR_NOT_FOUND)?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_optional(base, region.start);
        write_optional(size, region.size as usize);
    }
    Ok(())
}
