//! Launches of kernels.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_LAUNCH_PARAMS, CUfunction, CUlaunchAttribute, CUlaunchConfig, CUstream};
use katydid_driver_rules::cluster::requested_cluster;
use katydid_driver_rules::launch::{attributes, check_distinct, cooperative, multi_device};

use crate::code::launch::{LaunchGeometry, events, is_cooperative, launch};
use crate::code::library::callable;
use crate::code::params::pack;
use crate::ffi::{In, Outcome, api};
use crate::graphs::capture;
use crate::process::device;
use crate::process::settings;
use crate::sync::streams::{created, resolve};
use crate::sync::synchronize;

/// Checks and submits a launch.
///
/// # Safety
///
/// `values` and `extra` must be what the driver API demands for the parameters of `function`.
unsafe fn start(
    function: CUfunction,
    mut shape: LaunchGeometry,
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
    if settings::launches_block() { synchronize::stream(&stream) } else { Ok(()) }
}

api! {
    /// Submits a launch. Wrong arguments fail here; faults of the kernel show later.
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
        let shape = LaunchGeometry { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared, cooperative: false, cluster: None };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, stream, (values, extra), &[]) }?;
    }

    /// Submits a launch with attributes. Hints have no effect; unsupported attributes are refused.
    fn cuLaunchKernelEx(
        config: In<CUlaunchConfig>,
        function: CUfunction,
        values: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let config = config.0;
        // SAFETY: the caller's array has as many entries as it says.
        let attributes: Vec<_> = unsafe { attributes(&config) }?.collect();
        let shape = LaunchGeometry {
            grid: [config.gridDimX, config.gridDimY, config.gridDimZ],
            block: [config.blockDimX, config.blockDimY, config.blockDimZ],
            shared: config.sharedMemBytes,
            cooperative: is_cooperative(&attributes),
            cluster: requested_cluster(&attributes),
        };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, config.hStream, (values, extra), &attributes) }?;
    }

    /// Launches a grid whose blocks may wait for each other. Fails with 720 if the device cannot hold all of them at once.
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
        let shape = LaunchGeometry { grid, block, shared, cooperative: true, cluster: None };
        // SAFETY: the caller's promise for its parameters.
        unsafe { start(function, shape, stream, (values, std::ptr::null_mut()), &[cooperative()]) }?;
    }

    /// Launches one cooperative grid per device, in created streams. Grids of several devices cannot wait for each other here.
    fn cuLaunchCooperativeKernelMultiDevice(list: *mut CUDA_LAUNCH_PARAMS, count: u32, flags: u32) {
        // SAFETY: the caller's array has `count` entries.
        let list = unsafe { multi_device(list, count, flags, device::all().len()) }?;
        let device_of = |entry: &CUDA_LAUNCH_PARAMS| -> Outcome<i32> { Ok(created(entry.hStream)?.context()?.device.ordinal) };
        check_distinct(list.iter().map(device_of).collect::<Outcome<Vec<_>>>()?)?;
        for entry in list {
            let (grid, block) = ([entry.gridDimX, entry.gridDimY, entry.gridDimZ], [entry.blockDimX, entry.blockDimY, entry.blockDimZ]);
            let shape = LaunchGeometry { grid, block, shared: entry.sharedMemBytes, cooperative: true, cluster: None };
            // SAFETY: the caller's promise for its parameters.
            unsafe {
                start(entry.function, shape, entry.hStream, (entry.kernelParams, std::ptr::null_mut()), &[cooperative()])
            }?;
        }
    }
}
