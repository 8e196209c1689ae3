//! Launches.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUfunction, CUlaunchAttribute, CUlaunchConfig, CUresult, CUstream};

use crate::border::{In, Outcome, api};
use crate::function::callable;
use crate::graphs::capture;
use crate::launch::{Shape, events, launch};
use crate::params::pack;
use crate::stream::resolve;

/// More attributes than there are make no sense.
const MOST_ATTRIBUTES: u32 = 64;

/// Checks and submits a launch.
///
/// # Safety
///
/// `values` and `extra` must be what the driver API demands for the parameters of `function`.
unsafe fn start(
    function: CUfunction,
    shape: Shape,
    stream: CUstream,
    (values, extra): (*mut *mut c_void, *mut *mut c_void),
    attributes: &[CUlaunchAttribute],
) -> Outcome {
    let stream = resolve(stream)?;
    let launching = katydid_graph::Launch {
        function: function.0.addr(),
        kernel: 0,
        context: 0,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        array: values,
        extra,
        attributes: attributes.iter().map(|attribute| (attribute.id, attribute.value)).collect(),
    };
    // SAFETY: the contract of this function.
    if unsafe { capture::launch(&stream, &launching) }? {
        return Ok(());
    }
    let (kernel, settings) = callable(function, &stream.context()?)?;
    shape.check(&kernel, &settings)?;
    let events = events(attributes)?;
    // SAFETY: the contract of this function.
    let params = unsafe { pack(&kernel, values, extra) }?;
    launch(&stream, kernel, shape, params)?;
    events.iter().try_for_each(|event| event.record(&stream))
}

api! {
    /// Refuses at the call what can be known there; faults of the kernel come later.
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: CUstream,
        values: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, stream, (values, extra), &[]) }?;
    }

    /// Attributes that are hints are taken as such, others are refused by name.
    fn cuLaunchKernelEx(
        config: In<CUlaunchConfig>,
        function: CUfunction,
        values: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = config.0;
        if config.numAttrs > MOST_ATTRIBUTES || (config.numAttrs > 0 && config.attrs.is_null()) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        let count = config.numAttrs as usize;
        // SAFETY: the caller's array has as many entries as it says.
        let attributes: Vec<_> = (0..count).map(|at| unsafe { config.attrs.add(at).read_unaligned() }).collect();
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
        };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, config.hStream, (values, extra), &attributes) }?;
    }
}
