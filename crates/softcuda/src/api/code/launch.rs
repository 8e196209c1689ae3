//! Launches of kernels.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{
    CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUresult, CUstream, launch_attribute,
};

use crate::code::clusters;
use crate::code::launch::{Shape, events, is_cooperative, launch};
use crate::code::library::callable;
use crate::code::params::pack;
use crate::ffi::{In, Outcome, api};
use crate::graphs::capture;
use crate::process::device;
use crate::process::settings;
use crate::sync::streams::{created, resolve};
use crate::sync::synchronise;

/// The flags of a launch on several devices: not to wait for the streams' earlier work, or for each other's.
const MOST_FLAGS: u32 = 3;

/// More attributes than there are make no sense.
const MOST_ATTRIBUTES: u32 = 64;

/// The attribute that makes a launch cooperative.
fn together() -> CUlaunchAttribute {
    let mut attribute = CUlaunchAttribute { id: launch_attribute::COOPERATIVE, ..CUlaunchAttribute::default() };
    attribute.value[0] = 1;
    attribute
}

/// The attributes of a configuration.
///
/// # Safety
///
/// `config` must have as many attributes as it says.
pub(crate) unsafe fn attributes_of(config: &CUlaunchConfig) -> Outcome<Vec<CUlaunchAttribute>> {
    if config.numAttrs > MOST_ATTRIBUTES || (config.numAttrs > 0 && config.attrs.is_null()) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let count = config.numAttrs as usize;
    // SAFETY: below the number of attributes, which are there by the contract.
    Ok((0..count).map(|at| unsafe { config.attrs.add(at).read_unaligned() }).collect())
}

/// Checks and submits a launch.
///
/// # Safety
///
/// `values` and `extra` must be what the driver API demands for the parameters of `function`.
unsafe fn start(
    function: CUfunction,
    mut shape: Shape,
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
    let context = stream.context()?;
    let (kernel, settings) = callable(function, &context)?;
    shape.check(&kernel, &settings, context.device)?;
    let events = events(attributes)?;
    // SAFETY: the contract of this function.
    let params = unsafe { pack(&kernel, values, extra) }?;
    launch(&stream, kernel, shape, params)?;
    events.iter().try_for_each(|event| event.record(&stream))?;
    if settings::launches_block() { synchronise::stream(&stream) } else { Ok(()) }
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
        let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, cooperative: false, cluster: None };
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
        // SAFETY: the caller's array has as many entries as it says.
        let attributes = unsafe { attributes_of(&config) }?;
        let shape = Shape {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
            cooperative: is_cooperative(&attributes),
            cluster: clusters::asked(&attributes),
        };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, config.hStream, (values, extra), &attributes) }?;
    }

    /// A grid whose blocks may wait for each other: 720 if they cannot all be on the device at once.
    fn cuLaunchCooperativeKernel(
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
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        let shape = Shape { grid, block, shared, cooperative: true, cluster: None };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, stream, (values, std::ptr::null_mut()), &[together()]) }?;
    }

    /// One cooperative grid for each device, in streams that were created: grids of several devices cannot wait for each
    /// other here.
    fn cuLaunchCooperativeKernelMultiDevice(list: *mut CUDA_LAUNCH_PARAMS, count: u32, flags: u32) {
        if list.is_null() || count == 0 || count as usize > device::all().len() || flags > MOST_FLAGS {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        // SAFETY: the caller's array has `count` entries.
        let list: Vec<_> = (0..count as usize).map(|at| unsafe { list.add(at).read_unaligned() }).collect();
        let mut devices = Vec::new();
        for one in &list {
            devices.push(created(one.hStream)?.context()?.device.ordinal);
        }
        devices.sort_unstable();
        if devices.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        for one in list {
            let (grid, block) = ([one.gridDimX, one.gridDimY, one.gridDimZ], [one.blockDimX, one.blockDimY, one.blockDimZ]);
            let shape = Shape { grid, block, shared: one.sharedMemBytes, cooperative: true, cluster: None };
            // SAFETY: the caller's promise for its parameters.
            unsafe {
                start(one.function, shape, one.hStream, (one.kernelParams, std::ptr::null_mut()), &[together()])
            }?;
        }
    }
}
