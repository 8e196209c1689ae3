//! The last error of each thread, and the names of errors.

use super::error;
use crate::control::call_args::{parameter, set_result};
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::engine::registers::lanes_of;
use crate::host::DeviceHeap;
use crate::types::Space;

/// Name and text of each code that device code can encounter, as in the runtime library.
const RUNTIME_ERROR_TEXTS: &[(u32, &str, &str)] = &[
    (error::CUDA_SUCCESS, "cudaSuccess", "no error"),
    (error::INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"),
    (error::MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"),
    (error::INVALID_CONFIGURATION, "cudaErrorInvalidConfiguration", "invalid configuration argument"),
    (error::INVALID_MEMCPY_DIRECTION, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"),
    (
        error::PENDING_COUNT_EXCEEDED,
        "cudaErrorLaunchPendingCountExceeded",
        "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount",
    ),
    (error::INVALID_DEVICE_FUNCTION, "cudaErrorInvalidDeviceFunction", "invalid device function"),
    (error::INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"),
    (error::UNSUPPORTED_LIMIT, "cudaErrorUnsupportedLimit", "limit is not supported on this architecture"),
    (error::INVALID_RESOURCE_HANDLE, "cudaErrorInvalidResourceHandle", "invalid resource handle"),
];

/// Returns a function by the name after `__cudaCDP2`.
pub(super) fn find(name: &str) -> Option<Exec> {
    match name {
        "GetLastError" => Some(take_last),
        "PeekAtLastError" => Some(peek_last),
        "GetErrorName" => Some(name_of),
        "GetErrorString" => Some(text_of),
        _ => None,
    }
}

/// Returns each lane's last error, and clears it if `take`.
fn last(machine: &mut Machine<'_>, inst: &Inst, take: bool) -> Flow {
    for lane in lanes_of(machine.mask) {
        let last_error = machine.warp.errors.get_mut(lane);
        let code = last_error.map_or(error::CUDA_SUCCESS, |code| if take { std::mem::take(code) } else { *code });
        if let Err(kind) = set_result(machine, inst, lane, code) {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// `cudaError_t GetLastError()`
fn take_last(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    last(machine, inst, true)
}

/// `cudaError_t PeekAtLastError()`
fn peek_last(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    last(machine, inst, false)
}

/// `const char *GetErrorName(cudaError_t error)`
fn name_of(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    texts(machine, inst, true)
}

/// `const char *GetErrorString(cudaError_t error)`
fn text_of(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    texts(machine, inst, false)
}

/// Returns the address of a name or a text to each lane.
fn texts(machine: &mut Machine<'_>, inst: &Inst, names: bool) -> Flow {
    for lane in lanes_of(machine.mask) {
        let code: u32 = parameter(machine, inst, 0, lane);
        let done = text_at(machine, lane, code, names).and_then(|address| set_result(machine, inst, lane, address));
        if let Err(kind) = done {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// Returns the address of a text, which is written to memory at first use; null if there is no room for it.
fn text_at(machine: &mut Machine<'_>, lane: usize, code: u32, name: bool) -> Result<u64, FaultKind> {
    let unknown = (u32::MAX >> 1, "unrecognized error code", "unrecognized error code");
    let (code, called, text) = *RUNTIME_ERROR_TEXTS.iter().find(|(known, ..)| *known == code).unwrap_or(&unknown);
    let (key, text) = (code << 1 | u32::from(name), if name { called } else { text });
    if let Some(address) = machine.runtime().texts.get(&key) {
        return Ok(*address);
    }
    let size = text.len() as u64 + 1;
    let Some(address) = machine.env.host.allocate(DeviceHeap::Runtime, size, 1) else { return Ok(0) };
    for (at, byte) in (0..).zip(text.bytes().chain([0])) {
        machine.write::<u8>(Space::Generic, lane, address + at, byte)?;
    }
    // If another thread was faster, its text stays.
    let text_address = *machine.runtime().texts.entry(key).or_insert(address);
    if text_address != address {
        machine.env.host.free(DeviceHeap::Runtime, address);
    }
    Ok(text_address)
}
