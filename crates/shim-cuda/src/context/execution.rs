//! Queries of a context about its device, answered for a GPU without partitions.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use katydid_cuda_sys::{
    CUasyncCallback, CUasyncCallbackHandle, CUdevice, CUexecAffinityParam, CUresult, device_attribute,
};
use katydid_driver_rules::device::{ATOMIC_OPERATION_COUNT, check_flush, exec_affinity, no_atomics};
use katydid_wire::message::kdPeerAtomics;

use crate::context::{device, stack};
use crate::ffi::arguments::out;
use crate::process::session::shim;

/// Registrations for notifications: numbers, ascending, and devices.
static GREEN_NOTIFICATIONS: Mutex<Vec<(usize, CUdevice)>> = Mutex::new(Vec::new());

/// Checks that the program has such a device.
fn check(device: CUdevice) -> Result<(), CUresult> {
    let is_device =
        usize::try_from(device).is_ok_and(|ordinal| device::all().is_ok_and(|devices| ordinal < devices.len()));
    if is_device { Ok(()) } else { Err(CUresult::ERROR_INVALID_DEVICE) }
}

/// Answers that partitions of multiprocessors are not supported: they need NVIDIA's MPS, which no program has here.
///
/// # Safety
///
/// `supported` is null or writable.
pub(crate) unsafe fn affinity_support(supported: *mut i32, _kind: u32, device: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let supported = unsafe { out(supported) }?;
    check(device)?;
    supported.write(0);
    Ok(())
}

/// Returns all multiprocessors of the device.
///
/// # Safety
///
/// `affinity` is null or writable.
pub(crate) unsafe fn affinity(affinity: *mut CUexecAffinityParam, kind: u32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let affinity = unsafe { out(affinity) }?;
    let context = stack::active()?;
    let device = &device::all()?[context.device as usize];
    let multiprocessors = device.value(device_attribute::MULTIPROCESSOR_COUNT).unsigned_abs();
    affinity.write(exec_affinity(kind, multiprocessors)?);
    Ok(())
}

/// Answers that there are no atomics on host memory over the bus, as an H200 does.
///
/// # Safety
///
/// Both arrays are null or have `count` entries.
pub(crate) unsafe fn host_atomics(
    capabilities: *mut u32,
    operations: *const u32,
    count: u32,
    device: CUdevice,
) -> Result<(), CUresult> {
    check(device)?;
    // SAFETY: handed on.
    unsafe { no_atomics(capabilities, operations, count) }
}

/// Returns the atomics between two devices; a device is no peer of itself.
///
/// # Safety
///
/// As [`host_atomics`].
pub(crate) unsafe fn peer_atomics(
    capabilities: *mut u32,
    operations: *const u32,
    count: u32,
    source: CUdevice,
    target: CUdevice,
) -> Result<(), CUresult> {
    check(source)?;
    check(target)?;
    if source == target {
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    if capabilities.is_null() || operations.is_null() || count == 0 || count > ATOMIC_OPERATION_COUNT {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: below `count`, by the contract.
    let operation_bytes: Vec<u8> =
        (0..count as usize).flat_map(|at| unsafe { operations.add(at).read_unaligned() }.to_le_bytes()).collect();
    let devices = device::all()?;
    let position = |device: CUdevice| devices[device as usize].position as i32;
    let message = kdPeerAtomics { source: position(source), target: position(target), operations: &operation_bytes };
    let answers = shim()?.session.call(0, &message)?.capabilities;
    for (at, word) in answers.as_chunks::<4>().0.iter().take(count as usize).enumerate() {
        // SAFETY: below `count`, by the contract.
        unsafe { capabilities.add(at).write_unaligned(u32::from_le_bytes(*word)) };
    }
    Ok(())
}

/// Only checks scope and target: writes of other devices on the bus are in order here.
pub(crate) fn flush_remote_writes(target: u32, scope: u32) -> Result<(), CUresult> {
    stack::active()?;
    check_flush(target, scope)
}

/// Registers for notifications of memory that is about to be taken away. That never happens here, so none is ever sent.
///
/// # Safety
///
/// `callback` is null or writable.
pub(crate) unsafe fn register_notification(
    device: CUdevice,
    function: CUasyncCallback,
    _data: *mut c_void,
    callback: *mut CUasyncCallbackHandle,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let callback = unsafe { out(callback) }?;
    check(device)?;
    if function.is_none() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut registered = GREEN_NOTIFICATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let number = registered.last().map_or(1, |(last, _)| last + 1);
    registered.push((number, device));
    callback.write(CUasyncCallbackHandle(std::ptr::without_provenance_mut(number)));
    Ok(())
}

/// Ends a registration of [`register_notification`].
pub(crate) fn unregister_notification(device: CUdevice, callback: CUasyncCallbackHandle) -> Result<(), CUresult> {
    check(device)?;
    let mut registered = GREEN_NOTIFICATIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let position = registered.iter().position(|one| *one == (callback.0.addr(), device));
    registered.remove(position.ok_or(CUresult::ERROR_INVALID_VALUE)?);
    Ok(())
}
