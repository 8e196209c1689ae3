//! Launches of CUDA 2: block, shared memory and parameters are set on the function, one call each.
#![expect(unsafe_code, reason = "reads parameters of C callers")]

use std::ffi::c_void;
use std::sync::{Arc, PoisonError};

use katydid_cuda_sys::{CUfunction, CUresult, CUstream, CUtexref};
use katydid_driver_rules::launch::BLOCK_LIMITS;
use katydid_driver_rules::state::launch::{self as old, OldLaunch};

use crate::code::records::Function;
use crate::context::device;
use crate::ffi::handle::object;
use crate::launch::submit;

/// Changes the launch state of a function.
fn change<R>(function: CUfunction, with: impl FnOnce(&Function, &mut OldLaunch) -> R) -> Result<R, CUresult> {
    let function: Arc<Function> = object(function)?;
    let mut state = function.old.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(with(&function, &mut state))
}

/// Sets the threads of a block in each direction (`cuFuncSetBlockShape`).
pub(crate) fn set_block(function: CUfunction, x: i32, y: i32, z: i32) -> Result<(), CUresult> {
    let devices = device::all()?;
    change(function, |function, state| {
        let device = &devices[function.context.device as usize];
        state.set_block([x, y, z], BLOCK_LIMITS.map(|limit| device.value(limit)))
    })?
}

/// Sets the bytes of dynamic shared memory (`cuFuncSetSharedSize`).
pub(crate) fn set_shared(function: CUfunction, bytes: u32) -> Result<(), CUresult> {
    change(function, |_, state| state.shared = bytes)
}

/// Sets the bytes of all parameters together (`cuParamSetSize`).
pub(crate) fn set_size(function: CUfunction, bytes: u32) -> Result<(), CUresult> {
    change(function, |_, state| state.set_size(bytes))?
}

/// Sets 4 bytes of the parameters at an offset (`cuParamSeti`).
pub(crate) fn set_integer(function: CUfunction, offset: i32, value: u32) -> Result<(), CUresult> {
    change(function, |_, state| state.set(offset, &value.to_le_bytes()))?
}

/// Sets 4 bytes of the parameters at an offset (`cuParamSetf`).
pub(crate) fn set_float(function: CUfunction, offset: i32, value: f32) -> Result<(), CUresult> {
    change(function, |_, state| state.set(offset, &value.to_le_bytes()))?
}

/// Sets bytes of the parameters at an offset (`cuParamSetv`).
///
/// # Safety
///
/// `pointer` is null or readable for `count` bytes.
pub(crate) unsafe fn set_bytes(
    function: CUfunction,
    offset: i32,
    pointer: *mut c_void,
    count: u32,
) -> Result<(), CUresult> {
    if pointer.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: readable for `count` bytes, by the contract.
    let bytes = unsafe { std::slice::from_raw_parts(pointer.cast_const().cast(), count as usize) };
    change(function, |_, state| state.set(offset, bytes))?
}

/// Only checks its handles: texture references have been taken by name since CUDA 3.2.
pub(crate) fn set_texture(function: CUfunction, _unit: i32, reference: CUtexref) -> Result<(), CUresult> {
    object(function)?;
    object(reference).map(drop)
}

/// Launches one block in the default stream (`cuLaunch`).
pub(crate) fn one(function: CUfunction) -> Result<(), CUresult> {
    grid_async(function, 1, 1, CUstream::NULL)
}

/// Launches a grid in the default stream (`cuLaunchGrid`).
pub(crate) fn grid(function: CUfunction, width: i32, height: i32) -> Result<(), CUresult> {
    grid_async(function, width, height, CUstream::NULL)
}

/// Launches a grid in a stream (`cuLaunchGridAsync`).
pub(crate) fn grid_async(function: CUfunction, width: i32, height: i32, stream: CUstream) -> Result<(), CUresult> {
    let [width, height] = old::grid(width, height)?;
    let state = change(function, |_, state| state.clone())?;
    let ([x, y, z], none) = (state.block, std::ptr::null_mut());
    state.with_params(|extra| {
        // SAFETY: the list is complete and its buffer has the size that it names; a function without parameters reads
        // neither.
        unsafe { submit::kernel(function, width, height, 1, x, y, z, state.shared, stream, none, extra) }
    })
}
