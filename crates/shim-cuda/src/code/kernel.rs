//! Kernels of libraries: the same in every context, and launchable without a lookup.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::c_char;

use katydid_cuda_sys::{CUdevice, CUfunction, CUkernel, CUlibrary, CUresult};
use katydid_driver_rules::device::check_cache_config;
use katydid_wire::message::{kdFunctionSetAttribute, kdFunctionSetCacheConfig};

use crate::code::lookup;
use crate::context::device::device;
use crate::context::request::enqueue;
use crate::context::stack;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::object;

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn function(target: *mut CUfunction, kernel: CUkernel) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let kernel = object(kernel)?;
    target.write(lookup::function_in(&kernel, &stack::active()?.owner())?.handle());
    Ok(())
}

/// # Safety
///
/// As [`function`].
pub(crate) unsafe fn library(target: *mut CUlibrary, kernel: CUkernel) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUlibrary(handle(object(kernel)?.library)));
    Ok(())
}

/// # Safety
///
/// As [`function`].
pub(crate) unsafe fn attribute(target: *mut i32, id: u32, kernel: CUkernel, ordinal: CUdevice) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let kernel = object(kernel)?;
    device(ordinal)?;
    target.write(kernel.code_on(ordinal.unsigned_abs())?.attribute(id)?);
    Ok(())
}

/// Sets an attribute. The value is checked here, so that the call itself refuses an impossible one.
pub(crate) fn set_attribute(id: u32, value: i32, kernel: CUkernel, ordinal: CUdevice) -> Result<(), CUresult> {
    let kernel = object(kernel)?;
    let position = device(ordinal)?.position as i32;
    kernel.tuned_on(ordinal.unsigned_abs())?.set_attribute(id, value, ordinal.unsigned_abs())?;
    kernel.keep_on(ordinal.unsigned_abs(), id, value);
    enqueue(&kdFunctionSetAttribute { function: 0, kernel: kernel.wire(), device: position, attribute: id, value })
}

/// Sets the preference between cache and shared memory, 0 to 3.
pub(crate) fn set_cache_config(kernel: CUkernel, config: u32, ordinal: CUdevice) -> Result<(), CUresult> {
    let kernel = object(kernel)?;
    let position = device(ordinal)?.position as i32;
    check_cache_config(config)?;
    enqueue(&kdFunctionSetCacheConfig { function: 0, kernel: kernel.wire(), device: position, config })
}

/// Returns the kernel's name, which lives as long as the library.
///
/// # Safety
///
/// As [`function`].
pub(crate) unsafe fn name(target: *mut *const c_char, kernel: CUkernel) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(object(kernel)?.name().as_ptr());
    Ok(())
}

/// Needs a current context, as the driver does.
///
/// # Safety
///
/// As [`function`]; `size` may be null.
pub(crate) unsafe fn param_info(
    kernel: CUkernel,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result<(), CUresult> {
    stack::active()?;
    // SAFETY: handed on.
    unsafe { object(kernel)?.code()?.write_param(index, offset, size) }
}
