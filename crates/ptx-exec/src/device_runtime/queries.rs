//! Queries of device code: devices, limits, kernels, occupancy, the version; and memory of the heap.

use super::error;
use crate::code::KernelInfo;
use crate::control::call_args::parameter;
use crate::control::flow::FUNCTION_STEP;
use crate::device_runtime::per_lane::for_each;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::host::{DeviceHeap, Question};
use crate::types::Space;
use crate::window;
use std::sync::Arc;

/// Alignment of `cudaMalloc`.
const CUDA_MALLOC_ALIGN_BYTES: u64 = 16;

/// Largest `cudaLimit` with a name.
const LAST_LIMIT: u32 = 6;

/// Returns a function by the name after `__cudaCDP2`.
pub(super) fn find(name: &str) -> Option<Exec> {
    match name {
        "GetDevice" => Some(device),
        "GetDeviceCount" => Some(device_count),
        "DeviceGetAttribute" => Some(attribute),
        "DeviceGetLimit" => Some(limit),
        "DeviceGetCacheConfig" => Some(cache_config),
        "DeviceGetSharedMemConfig" => Some(shared_config),
        "RuntimeGetVersion" => Some(version),
        "FuncGetAttributes" => Some(kernel_attributes),
        "OccupancyMaxActiveBlocksPerMultiprocessor" | "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags" => {
            Some(occupancy)
        }
        "Malloc" => Some(malloc),
        "Free" => Some(free),
        _ => None,
    }
}

/// Writes the 32-bit answer to a question to the address in parameter 0.
fn answer(
    machine: &mut Machine<'_>,
    inst: &Inst,
    question: impl Fn(&mut Machine<'_>, usize) -> Question,
    none: u32,
) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let target = parameter(machine, inst, 0, lane);
        let question = question(machine, lane);
        match machine.env.host.answer(question) {
            Some(value) => machine.write(Space::Generic, lane, target, value as u32).map(|()| error::CUDA_SUCCESS),
            None => Ok(none),
        }
    })
}

/// `GetDevice(int *device)`
fn device(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    answer(machine, inst, |_, _| Question::Device, error::INVALID_DEVICE)
}

/// `GetDeviceCount(int *count)`
fn device_count(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    answer(machine, inst, |_, _| Question::DeviceCount, error::INVALID_DEVICE)
}

/// `DeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)`
fn attribute(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let question = |machine: &mut Machine<'_>, lane| {
        let device: u32 = parameter(machine, inst, 2, lane);
        Question::Attribute { device: device.cast_signed(), id: parameter(machine, inst, 1, lane) }
    };
    answer(machine, inst, question, error::INVALID_VALUE)
}

/// `DeviceGetLimit(size_t *value, cudaLimit limit)`
fn limit(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (target, id): (u64, u32) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        match machine.env.host.answer(Question::Limit(id)) {
            Some(value) => machine.write(Space::Generic, lane, target, value).map(|()| error::CUDA_SUCCESS),
            None if id <= LAST_LIMIT => Ok(error::UNSUPPORTED_LIMIT),
            None => Ok(error::INVALID_VALUE),
        }
    })
}

/// Writes a number to the address in parameter 0.
fn fixed(machine: &mut Machine<'_>, inst: &Inst, value: u32) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let target = parameter(machine, inst, 0, lane);
        machine.write(Space::Generic, lane, target, value).map(|()| error::CUDA_SUCCESS)
    })
}

/// `DeviceGetCacheConfig(cudaFuncCache *config)`: no preference.
fn cache_config(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    fixed(machine, inst, 0)
}

/// `DeviceGetSharedMemConfig(cudaSharedMemConfig *config)`: banks of four bytes.
fn shared_config(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    fixed(machine, inst, 1)
}

/// `RuntimeGetVersion(int *version)`: the toolkit of the kernel's PTX.
fn version(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    let function = machine.env.function;
    let ptx = machine.env.code.kernels.iter().find(|info| info.function == function).map_or(0, |info| info.ptx_version);
    fixed(machine, inst, toolkit_of(ptx))
}

/// Returns the first toolkit that writes a version of PTX: 9.0 is 13.0, 8.8 is 12.9, 8.4 is 12.4.
fn toolkit_of(ptx: u32) -> u32 {
    match ptx {
        90.. => 13_000 + (ptx - 90) * 10,
        85..90 => 12_050 + (ptx - 84) * 10,
        _ => 12_000 + ptx.saturating_sub(80) * 10,
    }
}

/// Returns the kernel at an address.
fn kernel_at(machine: &Machine<'_>, address: u64) -> Option<Arc<KernelInfo>> {
    let offset = window::offset_in(window::FUNCTION_ADDRESS, address).filter(|offset| offset % FUNCTION_STEP == 0)?;
    let function = (offset / FUNCTION_STEP) as u32;
    machine.env.code.kernels.iter().find(|info| info.function == function).cloned()
}

/// `FuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel)`
fn kernel_attributes(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (target, address): (u64, u64) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        let Some(info) = kernel_at(machine, address) else { return Ok(error::INVALID_DEVICE_FUNCTION) };
        let sizes = [info.static_shared, info.const_bytes, info.local_bytes];
        for (at, size) in (0..).step_by(8).zip(sizes) {
            machine.write(Space::Generic, lane, target.wrapping_add(at), u64::from(size))?;
        }
        let [width, height, depth] = info.required_cluster.unwrap_or_default();
        let must = u32::from(info.needs_cluster || info.required_cluster.is_some());
        let dynamic = (48_u32 << 10).saturating_sub(info.static_shared);
        let words = [
            info.max_threads,
            info.registers,
            info.target,
            info.target,
            0,
            dynamic,
            u32::MAX,
            must,
            width,
            height,
            depth,
            0,
            0,
        ];
        for (at, word) in (24..).step_by(4).zip(words) {
            machine.write(Space::Generic, lane, target.wrapping_add(at), word)?;
        }
        Ok(error::CUDA_SUCCESS)
    })
}

/// `OccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t dynamic)`
fn occupancy(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (target, address): (u64, u64) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        let (threads, dynamic_shared): (u32, u64) =
            (parameter(machine, inst, 2, lane), parameter(machine, inst, 3, lane));
        let Some(info) = kernel_at(machine, address) else { return Ok(error::INVALID_DEVICE_FUNCTION) };
        let (registers, max_threads, static_shared) = (info.registers, info.max_threads, info.static_shared);
        let question = Question::Occupancy { registers, max_threads, static_shared, threads, dynamic_shared };
        match machine.env.host.answer(question) {
            Some(blocks) => machine.write(Space::Generic, lane, target, blocks as u32).map(|()| error::CUDA_SUCCESS),
            None => Ok(error::INVALID_VALUE),
        }
    })
}

/// `Malloc(void **pointer, size_t size)`: memory of the heap of `malloc`.
fn malloc(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (target, size): (u64, u64) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        let largest = if size == 0 {
            Some(0)
        } else {
            machine.env.host.allocate(DeviceHeap::Malloc, size, CUDA_MALLOC_ALIGN_BYTES)
        };
        match largest {
            Some(address) => machine.write(Space::Generic, lane, target, address).map(|()| error::CUDA_SUCCESS),
            None => Ok(error::MEMORY_ALLOCATION),
        }
    })
}

/// `Free(void *pointer)`
fn free(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        machine.env.host.free(DeviceHeap::Malloc, parameter(machine, inst, 0, lane));
        Ok(error::CUDA_SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_ptx_belong_to_toolkits() {
        assert_eq!([80, 84, 85, 88, 90, 91].map(toolkit_of), [12_000, 12_040, 12_060, 12_090, 13_000, 13_010]);
    }
}
