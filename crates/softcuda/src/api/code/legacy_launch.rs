//! Launches in the style of CUDA 2: separate calls set block, shared memory and parameters on the function.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;
use std::sync::PoisonError;

use katydid_cuda_sys::{CUfunction, CUresult, CUstream, CUtexref};
use katydid_driver_rules::launch::BLOCK_LIMITS;
use katydid_driver_rules::state::launch::{self as old, OldLaunch};

use super::launch::cuLaunchKernel;
use crate::code::function;
use crate::ffi::{Outcome, api};
use crate::process::device;
use crate::texture::reference;

/// Changes the launch settings of a function.
fn change<R>(function: CUfunction, with: impl FnOnce(&mut OldLaunch) -> R) -> Outcome<R> {
    let function = function::resolve(function)?;
    Ok(with(&mut function.old.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// Launches a grid with the settings of the function.
fn launch(function: CUfunction, width: i32, height: i32, stream: CUstream) -> Outcome {
    let [width, height] = old::grid(width, height)?;
    let state = change(function, |state| state.clone())?;
    let ([x, y, z], none) = (state.block, std::ptr::null_mut());
    state.with_params(|extra| {
        // SAFETY: the list is whole, and its buffer has the size that it names.
        unsafe { cuLaunchKernel(function, width, height, 1, x, y, z, state.shared, stream, none, extra) }.ok()
    })
}

api! {
    /// Sets the block size. Refuses blocks that the device could not run.
    fn cuFuncSetBlockShape(function: CUfunction, x: i32, y: i32, z: i32) {
        let device = device::get(0)?;
        let limits = BLOCK_LIMITS.map(|limit| device.attribute(limit).unwrap_or(0));
        change(function, |state| state.set_block([x, y, z], limits))??;
    }

    /// Sets the dynamic shared memory, in bytes.
    fn cuFuncSetSharedSize(function: CUfunction, bytes: u32) {
        change(function, |state| state.shared = bytes)?;
    }

    /// Sets the size of all parameters, in bytes.
    fn cuParamSetSize(function: CUfunction, bytes: u32) {
        change(function, |state| state.set_size(bytes))??;
    }

    /// Puts 4 bytes at a byte offset of the parameters.
    fn cuParamSeti(function: CUfunction, offset: i32, value: u32) {
        change(function, |state| state.set(offset, &value.to_le_bytes()))??;
    }

    /// Puts 4 bytes at a byte offset of the parameters.
    fn cuParamSetf(function: CUfunction, offset: i32, value: f32) {
        change(function, |state| state.set(offset, &value.to_le_bytes()))??;
    }

    /// Puts `count` bytes at a byte offset of the parameters.
    fn cuParamSetv(function: CUfunction, offset: i32, pointer: *mut c_void, count: u32) {
        if pointer.is_null() {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's buffer has `count` bytes.
        let bytes = unsafe { std::slice::from_raw_parts(pointer.cast_const().cast::<u8>(), count as usize) };
        change(function, |state| state.set(offset, bytes))??;
    }

    /// Checks its arguments. Since CUDA 3.2, code finds its references by name.
    fn cuParamSetTexRef(function: CUfunction, _unit: i32, handle: CUtexref) {
        function::resolve(function)?;
        reference::resolve(handle.address(), false)?;
    }

    /// Launches a grid of one block.
    fn cuLaunch(function: CUfunction) {
        launch(function, 1, 1, CUstream::NULL)?;
    }

    /// Launches a grid in the default stream.
    fn cuLaunchGrid(function: CUfunction, width: i32, height: i32) {
        launch(function, width, height, CUstream::NULL)?;
    }

    /// Launches the prepared parameters in a stream.
    fn cuLaunchGridAsync(function: CUfunction, width: i32, height: i32, stream: CUstream) {
        launch(function, width, height, stream)?;
    }
}
