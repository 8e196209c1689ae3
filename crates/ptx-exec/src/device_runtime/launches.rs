//! Launches: device code gets a buffer, writes parameters into it, and launches it into a stream.

use super::error;
use super::streams::{TAIL_LAUNCH_STREAM, is_launchable};
use crate::api::Kernel;
use crate::control::call_args::{field, parameter, set_result};
use crate::control::flow::FUNCTION_STEP;
use crate::device_runtime::jobs::{Child, DeferredWork};
use crate::device_runtime::per_lane::for_each;
use crate::engine::fault::FaultKind;
use crate::engine::grid::MAX_BLOCK_SHARED_BYTES;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::host::{DeviceHeap, Question};
use crate::types::Space;
use crate::window;

/// Alignment of parameter buffers.
const PARAM_ALIGN_BYTES: u64 = 64;

/// Largest parameter buffer of a kernel, in bytes.
const MAX_PARAMETER_BYTES: u64 = 32764;

/// Most blocks along each axis.
const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];

/// Largest block along each axis.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];

/// `CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT`, and its value if the host has none.
const PENDING_LIMIT: (u32, u64) = (4, 2048);

/// Returns a function by the name after `__cudaCDP2`.
pub(super) fn find(name: &str) -> Option<Exec> {
    match name {
        "GetParameterBuffer" => Some(get_plain_buffer),
        "GetParameterBufferV2" => Some(get_buffer),
        "LaunchDevice" => Some(launch_plain),
        "LaunchDeviceV2" => Some(launch),
        _ => None,
    }
}

/// Reads a `dim3` parameter.
fn dimensions(machine: &mut Machine<'_>, inst: &Inst, index: usize, lane: usize) -> [u32; 3] {
    [0, 4, 8].map(|at| field(machine, inst, index, at, lane))
}

/// Returns the launch that the parameters at `indices` describe, or why it is invalid.
fn described(machine: &mut Machine<'_>, inst: &Inst, indices: [usize; 4], lane: usize) -> Result<Child, u32> {
    let address: u64 = parameter(machine, inst, indices[0], lane);
    let (grid, block) = (dimensions(machine, inst, indices[1], lane), dimensions(machine, inst, indices[2], lane));
    let dynamic_shared = parameter(machine, inst, indices[3], lane);
    let offset = window::offset_in(window::FUNCTION_ADDRESS, address).filter(|offset| offset % FUNCTION_STEP == 0);
    let function = offset.map_or(u32::MAX, |offset| (offset / FUNCTION_STEP) as u32);
    let kernel_info = machine.env.code.kernels.iter().find(|info| info.function == function);
    let info = kernel_info.ok_or(error::INVALID_DEVICE_FUNCTION)?;
    let within = |sizes: [u32; 3], most: [u32; 3]| sizes.iter().zip(most).all(|(size, most)| (1..=most).contains(size));
    let threads: u64 = block.iter().map(|size| u64::from(*size)).product();
    let fits = within(grid, MAX_GRID)
        && within(block, MAX_BLOCK)
        && threads <= u64::from(info.max_threads)
        && u64::from(info.static_shared) + u64::from(dynamic_shared) <= u64::from(MAX_BLOCK_SHARED_BYTES)
        && info.required_block.is_none_or(|required| required == block)
        && info.required_cluster.is_none_or(|cluster| grid.iter().zip(cluster).all(|(grid, size)| grid % size == 0));
    if !fits {
        return Err(error::INVALID_CONFIGURATION);
    }
    Ok(Child { function, grid, block, dynamic_shared, params: Vec::new() })
}

/// Allocates memory for parameters. Without room, returns null and sets an error for the lane.
fn buffer(
    machine: &mut Machine<'_>,
    inst: &Inst,
    lane: usize,
    size: u64,
    child: Result<Child, u32>,
) -> Option<FaultKind> {
    let result = child.and_then(|child| {
        let buffer = machine
            .env
            .host
            .allocate(DeviceHeap::Runtime, size.max(1), PARAM_ALIGN_BYTES)
            .ok_or(error::MEMORY_ALLOCATION)?;
        machine.runtime().buffers.insert(buffer, child);
        Ok(buffer)
    });
    machine.note_error(lane, result.err().unwrap_or(error::CUDA_SUCCESS));
    set_result(machine, inst, lane, result.unwrap_or(0)).err()
}

/// `void *GetParameterBufferV2(void *kernel, dim3 grid, dim3 block, unsigned shared)`
fn get_buffer(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let child = described(machine, inst, [0, 1, 2, 3], lane);
        let size = child.as_ref().map_or(0, |child| u64::from(params_of(machine, child)));
        if let Some(kind) = buffer(machine, inst, lane, size, child) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// `void *GetParameterBuffer(size_t alignment, size_t size)`: the launch names the kernel later.
fn get_plain_buffer(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for lane in lanes_of(machine.mask) {
        let (align, size): (u64, u64) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        let fits = align <= PARAM_ALIGN_BYTES && size <= MAX_PARAMETER_BYTES;
        let child = if fits { Ok(Child::default()) } else { Err(error::INVALID_VALUE) };
        if let Some(kind) = buffer(machine, inst, lane, size, child) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// Returns the bytes of the parameters of a kernel.
fn params_of(machine: &Machine<'_>, child: &Child) -> u32 {
    let info = machine.env.code.kernels.iter().find(|info| info.function == child.function);
    info.map_or(0, |info| info.param_bytes)
}

/// `cudaError_t LaunchDeviceV2(void *buffer, cudaStream_t stream)`
fn launch(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (address, stream) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        let child = machine.runtime().buffers.get(&address).cloned();
        match child {
            Some(child) => submit(machine, lane, address, child, stream),
            None => Ok(error::INVALID_VALUE),
        }
    })
}

/// `cudaError_t LaunchDevice(void *kernel, void *buffer, dim3 grid, dim3 block, unsigned shared, cudaStream_t stream)`
fn launch_plain(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (address, stream) = (parameter(machine, inst, 1, lane), parameter(machine, inst, 5, lane));
        if !machine.runtime().buffers.contains_key(&address) {
            return Ok(error::INVALID_VALUE);
        }
        match described(machine, inst, [0, 2, 3, 4], lane) {
            Ok(child) => submit(machine, lane, address, child, stream),
            Err(code) => Ok(code),
        }
    })
}

/// Takes the parameters out of their buffer and queues the launch.
fn submit(
    machine: &mut Machine<'_>,
    lane: usize,
    address: u64,
    mut child: Child,
    stream: u64,
) -> Result<u32, FaultKind> {
    let most = machine.env.host.answer(Question::Limit(PENDING_LIMIT.0)).unwrap_or(PENDING_LIMIT.1);
    let size = params_of(machine, &child);
    for at in 0..u64::from(size) {
        child.params.push(machine.read::<u8>(Space::Generic, lane, address.wrapping_add(at))?);
    }
    let code = {
        let mut runtime = machine.runtime();
        runtime.buffers.remove(&address);
        if !is_launchable(&runtime, stream) {
            error::INVALID_RESOURCE_HANDLE
        } else if (runtime.jobs.len() + runtime.tails.len()) as u64 >= most {
            error::PENDING_COUNT_EXCEEDED
        } else {
            let queue = if stream == TAIL_LAUNCH_STREAM { &mut runtime.tails } else { &mut runtime.jobs };
            queue.push_back(DeferredWork::Launch(child));
            error::CUDA_SUCCESS
        }
    };
    machine.env.host.free(DeviceHeap::Runtime, address);
    Ok(code)
}

impl Child {
    /// Converts it to a launch of a kernel of the program of `parent`.
    pub(crate) fn launch(self, parent: &Kernel) -> Option<crate::api::Launch> {
        let Self { function, grid, block, dynamic_shared, params } = self;
        let kernel = Kernel::of(&parent.code, function)?;
        Some(crate::api::Launch { kernel, grid, block, dynamic_shared, params, cooperative: false, cluster: None })
    }
}
