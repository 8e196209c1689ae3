//! Attributes of pointers, from the address map.
#![expect(unsafe_code, reason = "reads and writes arrays of C callers")]

use std::ffi::c_void;

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUdeviceptr, CUresult};
use katydid_driver_rules::pointer::{self as rules, KnownMemory};

use crate::process::session::shim;

/// Returns the known facts about the memory at an address.
fn find(address: CUdeviceptr) -> Result<Option<KnownMemory>, CUresult> {
    Ok(shim()?.regions.find(address).map(|region| to_known(&region)))
}

fn to_known(region: &Region) -> KnownMemory {
    KnownMemory {
        start: region.start,
        size: region.size,
        id: region.id,
        context: region.context as u64,
        device: region.device,
        pool: region.pool().unwrap_or(0) as u64,
        is_for_host: region.is_host(),
        is_managed: region.is_managed() && region.kind != RegionKind::HostMapped,
        is_device: region.kind == RegionKind::Device,
    }
}

/// Answers one attribute. Unknown memory is an error, and nothing is written.
///
/// # Safety
///
/// `target` is null or has room for the attribute's value.
pub(crate) unsafe fn attribute(target: *mut c_void, attribute: u32, address: CUdeviceptr) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { rules::attribute(target, attribute, address, find(address)?) }
}

/// Checks an attribute. Only the order of copies can be set, and that is always strict here; the memory must be known.
pub(crate) fn set_attribute(value: *const c_void, attribute: u32, address: CUdeviceptr) -> Result<(), CUresult> {
    find(address)?.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    rules::check_set(value, attribute)
}

/// Answers several attributes; unknown memory has values of its own.
///
/// # Safety
///
/// Both arrays are null or have `count` entries; each target is null or has room for its attribute's value.
pub(crate) unsafe fn attributes(
    count: u32,
    attributes: *mut u32,
    targets: *mut *mut c_void,
    address: CUdeviceptr,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { rules::attributes(count, attributes, targets, address, find(address)?) }
}
