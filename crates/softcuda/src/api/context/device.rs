//! Devices and their primary contexts.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_char;

use katydid_cuda_sys::{CUcontext, CUdevprop, CUresult, CUuuid, device_attribute as id};
use katydid_driver_rules::device::{check_flush, no_atomics, properties as properties_of, total_in_32_bits};

use crate::context::{primary, stack};
use crate::ffi::{Buffer, MaybeOut, Out, Outcome, Text, api};
use crate::process::device::{self, Device};
use crate::process::state;

/// Returns the device of an ordinal, once the library is ready.
fn ready(ordinal: i32) -> Outcome<&'static Device> {
    state::ready()?;
    device::get(ordinal)
}

/// Writes text with its NUL, cut to `capacity` bytes.
fn put(text: &str, to: &Buffer<c_char>, capacity: i32) -> Outcome {
    let capacity =
        usize::try_from(capacity).ok().filter(|capacity| *capacity > 0).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let bytes = text.bytes().take(capacity - 1).chain([0]);
    to.fill(capacity, bytes.map(|byte| byte as c_char))
}

api! {
    /// Reports no atomics on host memory: this device has no bus.
    fn cuDeviceGetHostAtomicCapabilities(capabilities: *mut u32, operations: *const u32, count: u32, device: i32) {
        state::ready()?;
        device::get(device)?;
        // SAFETY: the caller's arrays.
        unsafe { no_atomics(capabilities, operations, count) }?;
    }

    /// Reports no atomics. A device is not its own peer.
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

    /// Checks scope and target. Remote writes are in order anyway.
    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        stack::usable()?;
        check_flush(target, scope)?;
    }

    /// Returns the ordinal itself: it is the device's handle.
    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        device.set(ready(ordinal)?.ordinal);
    }

    /// Counts the devices that `CUDA_VISIBLE_DEVICES` shows.
    fn cuDeviceGetCount(count: Out<i32>) {
        state::ready()?;
        count.set(device::all().len() as i32);
    }

    /// Returns the name, cut to the capacity of the buffer, always with a NUL.
    fn cuDeviceGetName(name: Buffer<c_char>, capacity: i32, device: i32) {
        put(ready(device)?.name(), &name, capacity)?;
    }

    /// Returns the id of the device, the same in every process. The position distinguishes software devices.
    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: i32) {
        uuid.set(CUuuid { bytes: ready(device)?.uuid() });
    }

    /// Returns the same id as the first form: a device has no partitions.
    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: i32) {
        uuid.set(CUuuid { bytes: ready(device)?.uuid() });
    }

    /// Returns the memory of the device in 32 bits; a larger size becomes the largest value.
    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        bytes.set(total_in_32_bits(ready(device)?.memory.capacity()));
    }

    /// The device's share of the machine's memory, in bytes.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.set(ready(device)?.memory.capacity() as usize);
    }

    /// Returns an attribute. Unknown ones fail with 1, as do those of newer drivers.
    fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) {
        value.set(ready(device)?.attribute(attribute)?);
    }

    /// Returns the compute capability of the attributes, in the form of old programs.
    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let device = ready(device)?;
        major.set(device.attribute(id::COMPUTE_CAPABILITY_MAJOR)?);
        minor.set(device.attribute(id::COMPUTE_CAPABILITY_MINOR)?);
    }

    /// Returns the values of attributes, in the form of old programs.
    fn cuDeviceGetProperties(properties: Out<CUdevprop>, device: i32) {
        let device = ready(device)?;
        properties.set(properties_of(|attribute| device.attribute(attribute).unwrap_or(0)));
    }

    /// Returns the bus id, cut to the capacity of the buffer, always with a NUL.
    fn cuDeviceGetPCIBusId(text: Buffer<c_char>, capacity: i32, device: i32) {
        put(&ready(device)?.pci_bus_id(), &text, capacity)?;
    }

    /// Returns the device of a bus id; fails with 1 if there is none.
    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text<'_>) {
        state::ready()?;
        let text = text.name().map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        device.set(device::by_pci_bus_id(text)?.ordinal);
    }

    /// Retains the primary context, without making it current.
    fn cuDevicePrimaryCtxRetain(context: Out<CUcontext>, device: i32) {
        let device = ready(device)?;
        context.set(super::current::as_handle(primary::of(device).retain(device)?));
    }

    /// Releases the primary context. One release too many fails with 201.
    fn cuDevicePrimaryCtxRelease(device: i32) {
        primary::of(ready(device)?).release()?;
    }

    /// Releases the primary context. One release too many fails with 201.
    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        primary::of(ready(device)?).release()?;
    }

    /// Ends the primary context, however often it was retained.
    fn cuDevicePrimaryCtxReset(device: i32) {
        primary::of(ready(device)?).reset();
    }

    /// Ends the primary context, however often it was retained.
    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        primary::of(ready(device)?).reset();
    }

    /// Returns flags and activity; both outputs are optional.
    fn cuDevicePrimaryCtxGetState(device: i32, flags: MaybeOut<u32>, active: MaybeOut<i32>) {
        let (set, activity) = primary::of(ready(device)?).flags_and_activity();
        flags.set(set);
        active.set(i32::from(activity));
    }

    /// Sets the flags of the next context. As before CUDA 11, an active one keeps its own.
    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        primary::of(ready(device)?).set_first_flags(flags)?;
    }

    /// Sets the flags of the active context, or of the next one.
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        primary::of(ready(device)?).set_flags(flags)?;
    }
}
