//! Devices: the server's, and parts of them.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::Arc;

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::constant::{
    DEVICE_EXECUTION_CAPABILITIES, DEVICE_EXTENSIONS, DEVICE_EXTENSIONS_WITH_VERSION, DEVICE_PARENT_DEVICE,
    DEVICE_PLATFORM, DEVICE_REFERENCE_COUNT, DEVICE_SVM_ATOMICS, DEVICE_SVM_CAPABILITIES,
    DEVICE_SVM_COARSE_GRAIN_BUFFER, DEVICE_SVM_FINE_GRAIN_BUFFER, DEVICE_TYPE_CPU, DEVICE_TYPE_DEFAULT,
    EXEC_NATIVE_KERNEL,
};
use katydid_opencl_sys::{Code, cl_device_id, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::{kdclSubDevices, kdclTimers};
use katydid_wire::opencl::{list, query};

use crate::ffi::arguments::terminated;
use crate::host::arena;
use crate::objects::handle::{self, Base, HeldObject, Object, kind_of_object, make, object};
use crate::objects::info::{CachedValues, QueryBuffer, ask, handles};
use crate::objects::platform::{Platform, forwarded, forwarded_versions};
use crate::process::session;

/// Types that a program may request: default, CPU, GPU, accelerator, custom.
const DEVICE_TYPES: u64 = 0x1f;
/// The types that `CL_DEVICE_TYPE_ALL` selects: all but custom devices.
const ORDINARY_DEVICE_TYPES: u64 = 0xf;
/// The value of `CL_DEVICE_TYPE_ALL`.
const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;

/// A device of the server, or a part of one.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) base: Base,
    pub(crate) platform: HeldObject<Platform>,
    /// The device that it is a part of.
    parent: Option<HeldObject<Device>>,
    /// Its types, a bit field of `CL_DEVICE_TYPE_…`.
    kind: u64,
    cached: CachedValues,
}

kind_of_object! { Device cl_device_id DEVICE INVALID_DEVICE MAX_DEVICE_HANDLES }

impl Device {
    pub(crate) fn make(
        platform: HeldObject<Platform>,
        parent: Option<HeldObject<Self>>,
        kind: u64,
    ) -> Result<Arc<Self>, Code> {
        make(|base| Ok(Self { base, platform, parent, kind, cached: CachedValues::default() }))
    }

    /// Returns whether it can use memory shared with the program: for fine-grained shared virtual memory, if its driver has that.
    pub(crate) fn has_fine_svm(&self) -> bool {
        self.is_processor() && arena::is_there()
    }

    /// Returns a number that the driver reports of it; it is queried once.
    pub(crate) fn number(&self, parameter: u32) -> Result<u64, Code> {
        let value = self.cached.ask(query::DEVICE, self.base.id, parameter)?;
        u64::take(&mut &value[..]).ok_or(Code::INVALID_DEVICE)
    }

    /// Returns whether it is a processor, whose memory is the host's.
    pub(crate) fn is_processor(&self) -> bool {
        self.kind & DEVICE_TYPE_CPU != 0
    }

    /// Returns the kinds of shared virtual memory that are possible here. If the program's memory is separate, only maps and
    /// unmaps keep both sides in step. Memory of both sides comes only from the shim's allocator.
    fn svm_grains(&self) -> u64 {
        let fine = DEVICE_SVM_FINE_GRAIN_BUFFER | DEVICE_SVM_ATOMICS;
        DEVICE_SVM_COARSE_GRAIN_BUFFER | if self.has_fine_svm() { fine } else { 0 }
    }

    /// Returns whether it is a whole device of the server; these are not reference-counted.
    fn is_whole(&self) -> bool {
        self.parent.is_none()
    }
}

/// Returns the whole devices of a platform that have a type.
pub(crate) fn of_type(platform: &Platform, device_type: u64) -> Result<Vec<Arc<Device>>, Code> {
    let is_of_platform = |device: &Arc<Device>| device.is_whole() && device.platform.base.id == platform.base.id;
    let mut devices: Vec<Arc<Device>> = Device::table().live().into_iter().filter(is_of_platform).collect();
    let first = devices.first().map(|device| device.base.id);
    devices.retain(|device| match device_type {
        DEVICE_TYPE_ALL => device.kind & ORDINARY_DEVICE_TYPES != 0,
        _ => {
            device.kind & device_type != 0 || (device_type & DEVICE_TYPE_DEFAULT != 0 && Some(device.base.id) == first)
        }
    });
    let is_a_type = device_type == DEVICE_TYPE_ALL || (device_type != 0 && device_type & !DEVICE_TYPES == 0);
    if devices.is_empty() || !is_a_type {
        // Each driver reports errors of types in its own way.
        ask(query::DEVICE_TYPE, platform.base.id, 0, 0, &device_type.to_le_bytes())?;
    }
    if devices.is_empty() { Err(Code::DEVICE_NOT_FOUND) } else { Ok(devices) }
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_device_info(
    device: cl_device_id,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let device = object::<Device>(device)?;
    let ask = |parameter| device.cached.ask(query::DEVICE, device.base.id, parameter);
    let bytes = match param_name {
        DEVICE_PLATFORM => handle::bytes(&*device.platform),
        DEVICE_PARENT_DEVICE => handles([device.parent.as_ref().map_or(0, |parent| parent.base.handle)]),
        DEVICE_REFERENCE_COUNT => (if device.is_whole() { 1 } else { device.base.count() }).to_le_bytes().to_vec(),
        DEVICE_EXTENSIONS => forwarded(&ask(param_name)?),
        DEVICE_EXTENSIONS_WITH_VERSION => forwarded_versions(&ask(param_name)?),
        DEVICE_EXECUTION_CAPABILITIES => without(&ask(param_name)?, EXEC_NATIVE_KERNEL),
        DEVICE_SVM_CAPABILITIES => without(&ask(param_name)?, !device.svm_grains()),
        _ => ask(param_name)?,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// Clears some bits of a bit field.
fn without(value: &[u8], bits: u64) -> Vec<u8> {
    let field = u64::take(&mut &value[..]).unwrap_or(0);
    (field & !bits).to_le_bytes().to_vec()
}

/// # Safety
///
/// `properties` is a list that ends with 0; `out_devices` is null or has room for `num_devices`; the count is null or
/// writable.
pub(crate) unsafe fn create_sub_devices(
    in_device: cl_device_id,
    properties: *const isize,
    num_devices: u32,
    out_devices: *mut cl_device_id,
    num_devices_ret: *mut u32,
) -> Result<(), Code> {
    let parent = object::<Device>(in_device)?;
    // SAFETY: guaranteed by the caller.
    let properties = unsafe { terminated(properties) }.ok_or(Code::INVALID_VALUE)?;
    let properties: Vec<i64> = properties.iter().map(|value| *value as i64).collect();
    let mut arguments = Vec::new();
    list::put(&mut arguments, &properties);
    let send = |ids: &[u32]| {
        let mut arguments = arguments.clone();
        list::put(&mut arguments, ids);
        session::call(&kdclSubDevices { parent: parent.base.id, arguments: &arguments })
    };
    let count = send(&[])?.types.len() / 8;
    // SAFETY: by the contract.
    unsafe { write_optional(num_devices_ret, count as u32) };
    if out_devices.is_null() {
        return Ok(());
    }
    if (num_devices as usize) < count {
        return Err(Code::INVALID_VALUE);
    }
    let sub_devices = (0..count)
        .map(|_| Device::make(parent.platform.clone(), Some(HeldObject::new(Arc::clone(&parent))), parent.kind))
        .collect::<Result<Vec<_>, _>>()?;
    if let Err(code) = send(&handle::ids(&sub_devices)) {
        sub_devices.iter().try_for_each(|device| handle::release::<Device>(device.handle()))?;
        return Err(code);
    }
    for (at, device) in sub_devices.iter().enumerate() {
        // SAFETY: there is room, by the contract and the check.
        unsafe { out_devices.add(at).write(device.handle()) };
    }
    Ok(())
}

/// Retains a device. Whole devices are not reference-counted.
pub(crate) fn retain_device(device: cl_device_id) -> Result<(), Code> {
    if object::<Device>(device)?.is_whole() { Ok(()) } else { handle::retain::<Device>(device) }
}

pub(crate) fn release_device(device: cl_device_id) -> Result<(), Code> {
    if object::<Device>(device)?.is_whole() { Ok(()) } else { handle::release::<Device>(device) }
}

/// # Safety
///
/// Both pointers are null or writable.
pub(crate) unsafe fn get_device_and_host_timer(
    device: cl_device_id,
    device_timestamp: *mut u64,
    host_timestamp: *mut u64,
) -> Result<(), Code> {
    let device = object::<Device>(device)?;
    let clocks = u32::from(!device_timestamp.is_null()) | u32::from(!host_timestamp.is_null()) << 1;
    let reply = session::call(&kdclTimers { device: device.base.id, host: 0, wanted: clocks })?;
    // SAFETY: by the contract.
    unsafe {
        write_optional(device_timestamp, reply.deviceTime);
        write_optional(host_timestamp, reply.hostTime);
    }
    Ok(())
}

/// # Safety
///
/// The pointer is null or writable.
pub(crate) unsafe fn get_host_timer(device: cl_device_id, host_timestamp: *mut u64) -> Result<(), Code> {
    let device = object::<Device>(device)?;
    let clocks = u32::from(!host_timestamp.is_null()) << 1;
    let reply = session::call(&kdclTimers { device: device.base.id, host: 1, wanted: clocks })?;
    // SAFETY: by the contract.
    unsafe { write_optional(host_timestamp, reply.hostTime) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_that_do_not_go_through_are_cleared() {
        assert_eq!(without(&3u64.to_le_bytes(), EXEC_NATIVE_KERNEL), 1u64.to_le_bytes());
        assert_eq!(without(&0xfu64.to_le_bytes(), !DEVICE_SVM_COARSE_GRAIN_BUFFER), 1u64.to_le_bytes());
    }
}
