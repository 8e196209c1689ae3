//! Device memory: handed out here, on arenas that the worker backs.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ops::Range;

use katydid_client::memory::{Backing, retry_until_timeout};
use katydid_client::regions::Place;
use katydid_cuda_sys::{CUdeviceptr, CUresult, device_attribute};
use katydid_wire::message::{kdDeviceGrow, kdDeviceInfo, kdDeviceShrink, kdReclaim};

use crate::context::{contexts, stack};
use crate::ffi::guard::{out, write_if_given};
use crate::graph;
use crate::memory::{idle, ipc, managed, pool};
use crate::process::session::shim;
use crate::sync::stream;

/// Blocks start at multiples of this many bytes, as the driver's do: textures need it.
const ALIGN: u64 = 512;
/// Rows of a pitched block start at multiples of at least this many bytes.
const LEAST_PITCH: u64 = 256;

/// A device as the arena sees it.
pub(crate) struct DeviceBacking {
    pub(crate) ordinal: u32,
}

impl DeviceBacking {
    fn position(&self) -> Result<i32, CUresult> {
        Ok(shim()?.devices[self.ordinal as usize].position as i32)
    }
}

impl Backing for DeviceBacking {
    type Code = CUresult;

    fn grow(&self, range: &Range<u64>) -> Result<(), CUresult> {
        let (device, size) = (self.position()?, range.end - range.start);
        let message = kdDeviceGrow { device, address: range.start, size };
        shim()?.session.call(stack::wire()?, &message).map(drop)
    }

    fn shrink(&self, range: &Range<u64>) -> Result<(), CUresult> {
        shrink(self.position()?, range)
    }

    fn request_reclaim(&self, bytes: u64) -> bool {
        let request_reclaim =
            || shim()?.session.ask(stack::wire()?, &kdReclaim { device: self.position()?, size: bytes });
        request_reclaim().is_ok()
    }

    fn settle(&self) -> Result<u64, CUresult> {
        contexts::settle_device(self.ordinal)
    }
}

/// Gives a range back. That means the same in any context, and without one.
pub(crate) fn shrink(device: i32, range: &Range<u64>) -> Result<(), CUresult> {
    let message = kdDeviceShrink { device, address: range.start, size: range.end - range.start };
    shim()?.session.call(stack::wire().unwrap_or(0), &message).map(drop)
}

/// More than anybody could give back: no other program is asked.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// Has the driver make something of so many bytes on a device; where it finds no memory, once more when what lies idle has gone
/// back, here and then elsewhere.
pub(crate) fn in_need<T>(ordinal: u32, bytes: u64, attempt: impl Fn() -> Result<T, CUresult>) -> Result<T, CUresult> {
    let is_refused = |outcome: &Result<T, CUresult>| matches!(outcome, Err(CUresult::ERROR_OUT_OF_MEMORY));
    let mut outcome = retry_until_timeout(&attempt);
    if is_refused(&outcome) && idle::give_back(ordinal)? > 0 {
        outcome = retry_until_timeout(&attempt);
    }
    if is_refused(&outcome) && (DeviceBacking { ordinal }).request_reclaim(bytes) {
        outcome = retry_until_timeout(&attempt);
    }
    outcome
}

/// A block of the current device, in the map of addresses.
pub(crate) fn block(size: u64) -> Result<u64, CUresult> {
    let context = stack::active()?.owner();
    if size == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let shim = shim()?;
    let backing = DeviceBacking { ordinal: context.device };
    let address = shim.devices[context.device as usize].memory.allocate(size, ALIGN, &backing)?;
    shim.regions.insert(address, size, Place::Device, context.device, context.slot.handle);
    Ok(address)
}

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn allocate(target: *mut CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    graph::forbid()?;
    target.write(block(size as u64)?);
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
    if !matches!(element, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    graph::forbid()?;
    let device = &shim()?.devices[stack::active()?.device as usize];
    let step = u64::from(device.value(device_attribute::TEXTURE_ALIGNMENT).unsigned_abs()).max(LEAST_PITCH);
    let row = (width as u64).checked_next_multiple_of(step).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let size = row.checked_mul(height as u64).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    target.write(block(size)?);
    pitch.write(row as usize);
    Ok(())
}

/// The block is out of use at once, and given out again when the GPU is done with what was sent before.
pub(crate) fn free(address: CUdeviceptr) -> Result<(), CUresult> {
    graph::forbid()?;
    if address == 0 || graph::of_process().free(address)? {
        return Ok(());
    }
    free_block(address)
}

/// As [`free`], for a block that is no graph's any more.
pub(crate) fn free_block(address: CUdeviceptr) -> Result<(), CUresult> {
    let shim = shim()?;
    match shim.regions.find(address).map(|region| region.place) {
        Some(Place::Pooled { .. } | Place::HostPooled { .. } | Place::ManagedPooled { .. }) => {
            return pool::free(address, stream::default_wire());
        }
        Some(Place::Managed) => return managed::free(address),
        Some(Place::Mapped) if ipc::is_pooled(address) => return ipc::close(address),
        _ => {}
    }
    let is_block = |region: &katydid_client::regions::Region| region.place == Place::Device;
    let region = shim.regions.remove(address, is_block).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    ipc::freed(address)?;
    shim.devices[region.device as usize].free(address, shim.session.enqueued())
}

/// What is free on the device, and in our arena.
///
/// # Safety
///
/// As [`allocate`]; null is allowed here.
pub(crate) unsafe fn info(free: *mut usize, total: *mut usize) -> Result<(), CUresult> {
    let context = stack::active()?;
    let device = &shim()?.devices[context.device as usize];
    let reply = shim()?.session.call(context.wire(), &kdDeviceInfo { device: device.position as i32 })?;
    // SAFETY: null or writable, by the contract.
    unsafe {
        write_if_given(free, (reply.free + device.memory.unused_bytes()) as usize);
        write_if_given(total, reply.total as usize);
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
        write_if_given(base, region.start);
        write_if_given(size, region.size as usize);
    }
    Ok(())
}
