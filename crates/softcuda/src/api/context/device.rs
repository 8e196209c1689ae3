//! Devices and their primary contexts.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_char;

use katydid_cuda_sys::{CUcontext, CUdevprop, CUresult, CUuuid, device_attribute as id};
use katydid_driver_rules::device::{check_flush, no_atomics, properties as properties_of, total_in_32_bits};

use crate::context::{primary, stack};
use crate::ffi::{Buffer, MaybeOut, Out, Outcome, Text, api};
use crate::process::device::{self, Device};
use crate::process::state;

/// The device with this ordinal, once the library is ready.
fn ready(ordinal: i32) -> Outcome<&'static Device> {
    state::ready()?;
    device::get(ordinal)
}

/// Writes text with its NUL, cut to `room` bytes.
fn put(text: &str, to: &Buffer<c_char>, capacity: i32) -> Outcome {
    let capacity =
        usize::try_from(capacity).ok().filter(|capacity| *capacity > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let bytes = text.bytes().take(capacity - 1).chain([0]);
    to.fill(capacity, bytes.map(|byte| byte as c_char))
}

api! {
    /// None on the host's memory over a bus that is not there.
    fn cuDeviceGetHostAtomicCapabilities(capabilities: *mut u32, operations: *const u32, count: u32, device: i32) {
        state::ready()?;
        device::get(device)?;
        // SAFETY: the caller's arrays.
        unsafe { no_atomics(capabilities, operations, count) }?;
    }

    /// None; a device is no peer of itself.
    fn cuDeviceGetP2PAtomicCapabilities(
        capabilities: *mut u32,
        operations: *const u32,
        count: u32,
        source: i32,
        target: i32,
    ) {
        state::ready()?;
        if device::get(source)?.ordinal == device::get(target)?.ordinal {
            return Err(CUresult::ERROR_INVALID_DEVICE);
        }
        // SAFETY: the caller's arrays.
        unsafe { no_atomics(capabilities, operations, count) }?;
    }

    /// Remote writes are in order; scopes and targets are checked.
    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        stack::usable()?;
        check_flush(target, scope)?;
    }

    /// Ordinals are handles of devices: a valid one is its own.
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        device.set(ready(ordinal)?.ordinal);
    }

    /// Counts the devices that `CUDA_VISIBLE_DEVICES` shows.
    fn cuDeviceGetCount(count: Out<i32>) {
        state::ready()?;
        count.set(device::all().len() as i32);
    }

    /// Cut to the caller's room, always with a NUL.
    fn cuDeviceGetName(name: Buffer<c_char>, capacity: i32, device: i32) {
        put(ready(device)?.name(), &name, capacity)?;
    }

    /// One id in every process: the position distinguishes software devices.
    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: i32) {
        uuid.set(CUuuid { bytes: ready(device)?.uuid() });
    }

    /// There are no partitions of a device, so both forms agree.
    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: i32) {
        uuid.set(CUuuid { bytes: ready(device)?.uuid() });
    }

    /// In 32 bits: what is more than they hold is all they hold.
    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        bytes.set(total_in_32_bits(ready(device)?.memory.capacity()));
    }

    /// The device's share of the machine's memory, in bytes.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.set(ready(device)?.memory.capacity() as usize);
    }

    /// Unknown attributes give 1, as do those of newer drivers.
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.set(ready(device)?.attribute(attribute)?);
    }

    /// What the attributes say, in the form of old programs.
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let device = ready(device)?;
        major.set(device.attribute(id::COMPUTE_CAPABILITY_MAJOR)?);
        minor.set(device.attribute(id::COMPUTE_CAPABILITY_MINOR)?);
    }

    /// What the attributes say, in the form of old programs.
    fn cuDeviceGetProperties(properties: Out<CUdevprop>, device: i32) {
        let device = ready(device)?;
        properties.set(properties_of(|attribute| device.attribute(attribute).unwrap_or(0)));
    }

    /// Cut to the caller's room, always with a NUL.
    fn cuDeviceGetPCIBusId(text: Buffer<c_char>, capacity: i32, device: i32) {
        put(&ready(device)?.pci_bus_id(), &text, capacity)?;
    }

    /// A bus id of no device gives 1.
    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text<'_>) {
        state::ready()?;
        let text = text.name().map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        device.set(device::by_pci_bus_id(text)?.ordinal);
    }

    /// Counts; does not make the context current.
    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: i32) {
        let device = ready(device)?;
        context.set(super::current::as_handle(primary::of(device).retain(device)?));
    }

    /// One release too many gives 201.
    fn cuDevicePrimaryCtxRelease(device: i32) {
        primary::of(ready(device)?).release()?;
    }

    /// One release too many gives 201.
    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        primary::of(ready(device)?).release()?;
    }

    /// Ends the context however often it was retained.
    fn cuDevicePrimaryCtxReset(device: i32) {
        primary::of(ready(device)?).reset();
    }

    /// Ends the context however often it was retained.
    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        primary::of(ready(device)?).reset();
    }

    /// Both answers are optional.
    fn cuDevicePrimaryCtxGetState(device: i32, flags: MaybeOut<u32>, active: MaybeOut<i32>) {
        let (set, activity) = primary::of(ready(device)?).flags_and_activity();
        flags.set(set);
        active.set(i32::from(activity));
    }

    /// For the next context: as before CUDA 11, the one that is keeps its own.
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        primary::of(ready(device)?).set_first_flags(flags)?;
    }

    /// For the context that is, or the next one.
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        primary::of(ready(device)?).set_flags(flags)?;
    }
}
