//! Functions of modules, as programs ask about them.
#![expect(unsafe_code, reason = "writes pointers of C callers")]

use std::ffi::c_char;

use katydid_cuda_sys::{CUfunction, CUmodule, CUresult};
use katydid_driver_rules::device::{FUNCTION_LOADING_STATE_LOADED, check_cache_config};
use katydid_wire::message::{kdFunctionSetAttribute, kdFunctionSetCacheConfig};

use crate::code::lookup;
use crate::context::request::enqueue;
use crate::ffi::arguments::{handle, out};
use crate::ffi::handle::object;

/// # Safety
///
/// `target` is null or writable; so are the outputs of every function below.
pub(crate) unsafe fn attribute(target: *mut i32, id: u32, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(object(function)?.code.attribute(id)?);
    Ok(())
}

/// Sets an attribute. The value is checked here, so that the call itself refuses an impossible one.
pub(crate) fn set_attribute(function: CUfunction, id: u32, value: i32) -> Result<(), CUresult> {
    let function = object(function)?;
    function.code.set_attribute(id, value, function.context.device)?;
    enqueue(&kdFunctionSetAttribute { function: function.wire(), kernel: 0, device: 0, attribute: id, value })
}

/// Sets the preference between cache and shared memory, 0 to 3.
pub(crate) fn set_cache_config(function: CUfunction, config: u32) -> Result<(), CUresult> {
    let function = object(function)?;
    check_cache_config(config)?;
    enqueue(&kdFunctionSetCacheConfig { function: function.wire(), kernel: 0, device: 0, config })
}

/// Accepted without effect, as drivers for sm_50 and later do.
pub(crate) fn set_shared_mem_config(function: CUfunction, _config: u32) -> Result<(), CUresult> {
    object(function).map(drop)
}

/// # Safety
///
/// As [`attribute`].
pub(crate) unsafe fn module(target: *mut CUmodule, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(CUmodule(handle(lookup::module_of(&*object(function)?)?)));
    Ok(())
}

/// Returns the function's name, which lives as long as the function.
///
/// # Safety
///
/// As [`attribute`].
pub(crate) unsafe fn name(target: *mut *const c_char, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(object(function)?.name().as_ptr());
    Ok(())
}

/// # Safety
///
/// As [`attribute`]; `size` may be null.
pub(crate) unsafe fn param_info(
    function: CUfunction,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { object(function)?.code.write_param(index, offset, size) }
}

/// Answers that the code is loaded: it is by the time its properties are here.
///
/// # Safety
///
/// As [`attribute`].
pub(crate) unsafe fn is_loaded(state: *mut u32, function: CUfunction) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let state = unsafe { out(state) }?;
    object(function)?;
    state.write(FUNCTION_LOADING_STATE_LOADED);
    Ok(())
}

/// Only checks the handle: code is loaded by the time its properties are here.
pub(crate) fn load(function: CUfunction) -> Result<(), CUresult> {
    object(function).map(drop)
}
