//! The server's platforms and devices, which get their handles when a program first queries them.
#![expect(unsafe_code, reason = "reads and writes through the pointers of C callers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use katydid_client::ffi::write_optional;
use katydid_opencl_sys::{Code, cl_device_id, cl_platform_id, void};
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::kdclPlatforms;

use crate::objects::device::{Device, of_type};
use crate::objects::handle::{HeldObject, Object, object};
use crate::objects::info::QueryBuffer;
use crate::objects::platform::Platform;
use crate::process::session;
use crate::process::start::start;

/// Whether the server's platforms have handles.
static PLATFORMS_LISTED: AtomicBool = AtomicBool::new(false);

/// Returns all platforms, in the server's order. The first call begins the session.
fn platforms_of_server() -> Result<Vec<Arc<Platform>>, Code> {
    static LISTING: Mutex<()> = Mutex::new(());
    if !PLATFORMS_LISTED.load(Ordering::Acquire) {
        let _alone = LISTING.lock().unwrap_or_else(PoisonError::into_inner);
        if start()? {
            list().map_err(|_| Code::PLATFORM_NOT_FOUND_KHR)?;
            PLATFORMS_LISTED.store(true, Ordering::Release);
        }
    }
    Ok(Platform::table().live())
}

/// Makes the server's platforms and devices, which have the first numbers of their kinds.
fn list() -> Result<(), Code> {
    let facts = session::call(&kdclPlatforms {})?.facts;
    let mut left = &facts[..];
    let mut number = || u32::take(&mut left).ok_or_else(|| session::broken("kdclPlatforms"));
    let platforms = number()?;
    let mut types = Vec::new();
    for _ in 0..platforms {
        let devices = number()?;
        let mut list = Vec::new();
        for _ in 0..devices {
            list.push(u64::from(number()?) | u64::from(number()?) << 32);
        }
        types.push(list);
    }
    for list in types {
        let platform = HeldObject::new(Platform::make()?);
        for kind in list {
            Device::make(platform.clone(), None, kind)?;
        }
    }
    Ok(())
}

/// Returns the platform of a handle; null means the first one.
pub(crate) fn platform_or_first(platform: cl_platform_id) -> Result<Arc<Platform>, Code> {
    if platform == cl_platform_id::NULL {
        return platforms_of_server()?.into_iter().next().ok_or(Code::INVALID_PLATFORM);
    }
    object(platform)
}

/// # Safety
///
/// `platforms` is null or has room for `num_entries`; `num_platforms` is null or writable.
pub(crate) unsafe fn icd_get_platform_ids(
    num_entries: u32,
    platforms: *mut cl_platform_id,
    num_platforms: *mut u32,
) -> Result<(), Code> {
    if (platforms.is_null() && num_platforms.is_null()) || (num_entries == 0 && !platforms.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    let live = platforms_of_server()?;
    if live.is_empty() {
        return Err(Code::PLATFORM_NOT_FOUND_KHR);
    }
    if !platforms.is_null() {
        for (at, platform) in live.iter().enumerate().take(num_entries as usize) {
            // SAFETY: below `num_entries`, for which there is room by the contract.
            unsafe { platforms.add(at).write(platform.handle()) };
        }
    }
    // SAFETY: by the contract.
    unsafe { write_optional(num_platforms, live.len() as u32) };
    Ok(())
}

/// Returns the platforms, for programs that link this library without a loader.
///
/// # Safety
///
/// As [`icd_get_platform_ids`].
pub(crate) unsafe fn get_platform_ids(
    num_entries: u32,
    platforms: *mut cl_platform_id,
    num_platforms: *mut u32,
) -> Result<(), Code> {
    // SAFETY: guaranteed by the caller.
    unsafe { icd_get_platform_ids(num_entries, platforms, num_platforms) }
}

/// # Safety
///
/// As a query's pointers are ([`QueryBuffer::answer`]).
pub(crate) unsafe fn get_platform_info(
    platform: cl_platform_id,
    param_name: u32,
    size: usize,
    value: *mut void,
    needed: *mut usize,
) -> Result<(), Code> {
    let bytes = platform_or_first(platform)?.value(param_name)?;
    // SAFETY: guaranteed by the caller.
    unsafe { QueryBuffer { size, value, needed }.answer(&bytes) }
}

/// # Safety
///
/// `devices` is null or has room for `num_entries`; `num_devices` is null or writable.
pub(crate) unsafe fn get_device_ids(
    platform: cl_platform_id,
    device_type: u64,
    num_entries: u32,
    devices: *mut cl_device_id,
    num_devices: *mut u32,
) -> Result<(), Code> {
    let platform = platform_or_first(platform)?;
    let matching = of_type(&platform, device_type)?;
    if (devices.is_null() && num_devices.is_null()) || (num_entries == 0 && !devices.is_null()) {
        return Err(Code::INVALID_VALUE);
    }
    if !devices.is_null() {
        for (at, device) in matching.iter().enumerate().take(num_entries as usize) {
            // SAFETY: below `num_entries`, for which there is room by the contract.
            unsafe { devices.add(at).write(device.handle()) };
        }
    }
    // SAFETY: by the contract.
    unsafe { write_optional(num_devices, matching.len() as u32) };
    Ok(())
}
