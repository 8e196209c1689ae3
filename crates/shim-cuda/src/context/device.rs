//! Devices: properties that came with the connection, answered without a message to the worker.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::c_char;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use katydid_arena::AddressMap;
use katydid_client::memory::Arena;
use katydid_client::slab::Slab;
use katydid_cuda_sys::device_attribute as attribute_id;
use katydid_cuda_sys::{CUdevice, CUdevprop, CUresult, CUuuid};
use katydid_driver_rules::device as rules;
use katydid_wire::facts::{DeviceFacts, DriverAnswer, Facts, PeerFacts};

use crate::context::capability;
use crate::context::record::Context;
use crate::ffi::arguments::{out, text};
use crate::process::session::shim;

/// The CUDA version that this library implements.
pub(crate) const DRIVER_VERSION: i32 = rules::DRIVER_VERSION.cast_signed();
/// This fraction of a device's memory may lie in gaps that only some blocks fit in.
const FRAGMENTED_MEMORY_DIVISOR: u64 = 128;

/// One device that the program sees.
pub(crate) struct Device {
    /// Ordinal of the device in the worker, from 0.
    pub(crate) position: usize,
    pub(crate) facts: DeviceFacts,
    /// The primary context: its handle exists from the start, active or not.
    pub(crate) primary: Arc<Context>,
    /// The arena for its memory.
    pub(crate) memory: Arena,
    /// Whether the worker knows that much of it is idle.
    pub(crate) is_idle: AtomicBool,
}

impl Device {
    /// Makes the record of a device that is `ordinal` for the program and `position` for the worker.
    pub(crate) fn new(
        ordinal: usize,
        position: usize,
        facts: &Facts,
        map: &AddressMap,
        contexts: &Slab<Context>,
        shares_memory: bool,
    ) -> Option<Self> {
        let worker = u32::try_from(position).ok()?;
        let range = map.device(worker)?;
        let primary = contexts.insert(|slot| Context::primary(slot, ordinal as u32, worker))?;
        let mut facts = facts.devices.get(position)?.clone();
        capability::restrict(&mut facts, shares_memory);
        let memory = Arena::of_runs(range, facts.total_memory / FRAGMENTED_MEMORY_DIVISOR);
        Some(Self { position, facts, primary, memory, is_idle: AtomicBool::new(false) })
    }

    /// Returns an attribute that every driver knows; 0 if this one does not.
    pub(crate) fn value(&self, id: u32) -> i32 {
        self.facts.attribute(id as i32).map_or(0, |answer| answer.value)
    }
}

/// The devices that the program sees, by its ordinals.
static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();

/// Sets the devices that the program sees, unless they are set.
pub(crate) fn fill(devices: Vec<Device>) {
    let _ = DEVICES.set(devices);
}

/// Returns the devices that the program sees, by its ordinals.
///
/// # Errors
///
/// `ERROR_NOT_INITIALIZED` before `cuInit`.
#[inline]
pub(crate) fn all() -> Result<&'static [Device], CUresult> {
    DEVICES.get().map(Vec::as_slice).ok_or(CUresult::ERROR_NOT_INITIALIZED)
}

/// Returns the device of an ordinal.
///
/// # Errors
///
/// `ERROR_INVALID_DEVICE`.
pub(crate) fn device(ordinal: CUdevice) -> Result<&'static Device, CUresult> {
    let index = usize::try_from(ordinal).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
    all()?.get(index).ok_or(CUresult::ERROR_INVALID_DEVICE)
}

/// Returns the worker's ordinal of a device.
///
/// # Errors
///
/// As [`device`].
pub(crate) fn position(ordinal: CUdevice) -> Result<i32, CUresult> {
    device(ordinal).map(|device| device.position as i32)
}

/// Refuses an ordinal without a device.
///
/// # Errors
///
/// As [`device`].
pub(crate) fn get_known(ordinal: CUdevice) -> Result<(), CUresult> {
    device(ordinal).map(drop)
}

fn value_of(answer: DriverAnswer<i32>) -> Result<i32, CUresult> {
    CUresult(answer.code).ok().map(|()| answer.value)
}

/// Returns the version that this library implements: the same before and after the connection, because runtimes hash it.
///
/// # Safety
///
/// `version` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn driver_version(version: *mut i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    unsafe { out(version) }?.write(DRIVER_VERSION);
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn get(target: *mut CUdevice, ordinal: i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    device(ordinal)?;
    target.write(ordinal);
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn count(target: *mut i32) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    unsafe { out(target) }?.write(all()?.len() as i32);
    Ok(())
}

/// # Safety
///
/// `target` is null or holds `length` bytes.
pub(crate) unsafe fn name(target: *mut c_char, length: i32, ordinal: CUdevice) -> Result<(), CUresult> {
    let device = device(ordinal)?;
    // SAFETY: null or `length` bytes, by the contract.
    unsafe { write_text(target, length, &device.facts.name, true) }
}

/// Writes a C string. One that does not fit is cut if `cut`, and refused otherwise.
///
/// # Safety
///
/// `target` is null or holds `length` bytes.
unsafe fn write_text(target: *mut c_char, length: i32, text: &str, cut: bool) -> Result<(), CUresult> {
    let capacity = usize::try_from(length).unwrap_or(0);
    if target.is_null() || capacity == 0 || (!cut && capacity <= text.len()) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let bytes = &text.as_bytes()[..text.len().min(capacity - 1)];
    // SAFETY: `bytes` and the terminator are at most `capacity` bytes, which the target holds.
    unsafe {
        target.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        target.add(bytes.len()).write(0);
    }
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn attribute(target: *mut i32, id: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let answer = device(ordinal)?.facts.attribute(i32::try_from(id).unwrap_or(0));
    target.write(value_of(answer.ok_or(CUresult::ERROR_INVALID_VALUE)?)?);
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn properties(target: *mut CUdevprop, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let device = device(ordinal)?;
    target.write(rules::properties(|attribute| device.value(attribute)));
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn compute_capability(major: *mut i32, minor: *mut i32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let (major, minor) = unsafe { (out(major)?, out(minor)?) };
    let device = device(ordinal)?;
    major.write(device.value(attribute_id::COMPUTE_CAPABILITY_MAJOR));
    minor.write(device.value(attribute_id::COMPUTE_CAPABILITY_MINOR));
    Ok(())
}

/// Returns the first device with this PCI address, in the form of [`pci_bus_id`] or with fewer digits.
///
/// # Safety
///
/// `target` is null or writable, `id` null or a C string.
pub(crate) unsafe fn by_pci_bus_id(target: *mut CUdevice, id: *const c_char) -> Result<(), CUresult> {
    // SAFETY: by the contract.
    let (target, id) = unsafe { (out(target)?, text(id)?) };
    let address = std::str::from_utf8(id).ok().and_then(pci_address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let ordinal = all()?.iter().position(|device| pci_address(&device.facts.pci_bus_id) == Some(address));
    target.write(ordinal.ok_or(CUresult::ERROR_INVALID_DEVICE)? as CUdevice);
    Ok(())
}

/// Parses domain, bus, device and function of `[domain:]bus:device[.function]`, all hexadecimal.
fn pci_address(text: &str) -> Option<[u32; 4]> {
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let (bus_slot, function) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<_> = bus_slot.split(':').collect();
    match parts[..] {
        [domain, bus, device] => Some([number(domain)?, number(bus)?, number(device)?, number(function)?]),
        [bus, device] => Some([0, number(bus)?, number(device)?, number(function)?]),
        _ => None,
    }
}

/// # Safety
///
/// `target` is null or holds `length` bytes.
pub(crate) unsafe fn pci_bus_id(target: *mut c_char, length: i32, ordinal: CUdevice) -> Result<(), CUresult> {
    let device = device(ordinal)?;
    // SAFETY: null or `length` bytes, by the contract.
    unsafe { write_text(target, length, &device.facts.pci_bus_id, false) }
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn can_access_peer(target: *mut i32, from: CUdevice, to: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(value_of(peer(from, to)?.can_access)?);
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn p2p_attribute(target: *mut i32, id: u32, from: CUdevice, to: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    if from == to {
        device(from)?;
        return Err(CUresult::ERROR_INVALID_DEVICE);
    }
    let attributes = &peer(from, to)?.attributes;
    let answer = (id as usize).checked_sub(1).and_then(|index| attributes.get(index));
    target.write(value_of(*answer.ok_or(CUresult::ERROR_INVALID_VALUE)?)?);
    Ok(())
}

fn peer(from: CUdevice, to: CUdevice) -> Result<&'static PeerFacts, CUresult> {
    let (from, to) = (device(from)?, device(to)?);
    shim()?.facts.peer(from.position, to.position).ok_or(CUresult::ERROR_INVALID_DEVICE)
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn total_memory(target: *mut usize, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(device(ordinal)?.facts.total_memory as usize);
    Ok(())
}

/// Returns a device's memory in the 32 bits of CUDA 2: larger sizes saturate.
///
/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn total_memory_first(target: *mut u32, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(rules::total_in_32_bits(device(ordinal)?.facts.total_memory));
    Ok(())
}

/// # Safety
///
/// As [`driver_version`].
pub(crate) unsafe fn uuid(target: *mut CUuuid, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUuuid { bytes: device(ordinal)?.facts.uuid });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_read_in_all_their_forms() {
        assert_eq!(pci_address("0000:19:00.0"), Some([0, 0x19, 0, 0]));
        assert_eq!(pci_address("19:0"), Some([0, 0x19, 0, 0]));
        assert_eq!(pci_address("1:2:3.4"), Some([1, 2, 3, 4]));
        assert_eq!(pci_address("zzz"), None);
    }

    #[test]
    fn names_are_cut_and_ids_are_not() {
        let mut name = [7 as c_char; 8];
        // SAFETY: the buffer holds the length given.
        unsafe {
            assert_eq!(write_text(name.as_mut_ptr(), 4, "NVIDIA", true), Ok(()));
            assert_eq!(name[..5], [b'N', b'V', b'I', 0, 7].map(|byte| byte as c_char));
            assert_eq!(write_text(name.as_mut_ptr(), 6, "123456", false), Err(CUresult::ERROR_INVALID_VALUE));
            assert_eq!(write_text(name.as_mut_ptr(), 7, "123456", false), Ok(()));
            assert_eq!(write_text(std::ptr::null_mut(), 7, "", true), Err(CUresult::ERROR_INVALID_VALUE));
        }
    }
}
