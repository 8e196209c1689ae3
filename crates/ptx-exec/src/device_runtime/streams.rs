//! Streams and events of device code: handles that only exist or not, since all work is in order anyway.

use super::error;
use crate::control::call_args::parameter;
use crate::device_runtime::jobs::Runtime;
use crate::device_runtime::per_lane::for_each;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::types::Space;

/// `cudaStreamTailLaunch`
pub(super) const TAIL_LAUNCH_STREAM: u64 = 3;

/// `cudaStreamFireAndForget`
const FIRE_AND_FORGET_STREAM: u64 = 4;

/// The named streams for launches of device code: the default one in its three spellings, and the two above.
const NAMED_STREAMS: std::ops::RangeInclusive<u64> = 0..=FIRE_AND_FORGET_STREAM;

/// Smallest handle of created streams and events, above the named ones. The lowest bit tells their kind.
const FIRST_CREATED_HANDLE: u64 = 0x100;

/// Lowest bit of an event's handle.
const EVENT_BIT: u64 = 1;

/// `cudaStreamNonBlocking`, mandatory for device code.
const STREAM_NON_BLOCKING: u32 = 1;

/// `cudaEventDisableTiming`, mandatory for device code.
const EVENT_DISABLE_TIMING: u32 = 2;

/// Returns a function by the name after `__cudaCDP2`.
pub(super) fn find(name: &str) -> Option<Exec> {
    match name {
        "StreamCreateWithFlags" => Some(create_stream),
        "StreamDestroy" => Some(destroy_stream),
        "StreamWaitEvent" => Some(wait),
        "EventCreateWithFlags" => Some(create_event),
        "EventDestroy" => Some(destroy_event),
        "EventRecord" | "EventRecordWithFlags" => Some(record),
        _ => None,
    }
}

/// Returns whether a stream accepts work.
pub(super) fn is_launchable(runtime: &Runtime, stream: u64) -> bool {
    NAMED_STREAMS.contains(&stream) || (stream & EVENT_BIT == 0 && runtime.handles.contains(&stream))
}

/// Returns whether a stream accepts events. Streams whose work has no order, or comes after everything, do not.
fn takes_events(runtime: &Runtime, stream: u64) -> bool {
    is_launchable(runtime, stream) && ![TAIL_LAUNCH_STREAM, FIRE_AND_FORGET_STREAM].contains(&stream)
}

/// Writes a new handle to the address in parameter 0, if parameter 1 has the mandatory flags.
fn create(machine: &mut Machine<'_>, inst: &Inst, kind: u64, needed: u32) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (target, flags): (u64, u32) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        if flags != needed {
            return Ok(error::INVALID_VALUE);
        }
        let handle = {
            let mut runtime = machine.runtime();
            runtime.last_handle = runtime.last_handle.max(FIRST_CREATED_HANDLE) + 2;
            let handle = runtime.last_handle & !EVENT_BIT | kind;
            runtime.handles.insert(handle);
            handle
        };
        machine.write(Space::Generic, lane, target, handle).map(|()| error::CUDA_SUCCESS)
    })
}

/// Ends the handle in parameter 0, if it has that kind.
fn destroy(machine: &mut Machine<'_>, inst: &Inst, kind: u64) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let handle: u64 = parameter(machine, inst, 0, lane);
        let is_live = handle & EVENT_BIT == kind && machine.runtime().handles.remove(&handle);
        Ok(if is_live { error::CUDA_SUCCESS } else { error::INVALID_RESOURCE_HANDLE })
    })
}

/// `StreamCreateWithFlags(cudaStream_t *stream, unsigned flags)`
fn create_stream(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    create(machine, inst, 0, STREAM_NON_BLOCKING)
}

/// `EventCreateWithFlags(cudaEvent_t *event, unsigned flags)`
fn create_event(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    create(machine, inst, EVENT_BIT, EVENT_DISABLE_TIMING)
}

/// `StreamDestroy(cudaStream_t stream)`: pending work stays.
fn destroy_stream(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    destroy(machine, inst, 0)
}

/// `EventDestroy(cudaEvent_t event)`
fn destroy_event(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    destroy(machine, inst, EVENT_BIT)
}

/// Checks a stream and an event, in parameters with these indices.
fn check(machine: &mut Machine<'_>, inst: &Inst, [stream, event]: [usize; 2]) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (stream, event): (u64, u64) =
            (parameter(machine, inst, stream, lane), parameter(machine, inst, event, lane));
        let runtime = machine.runtime();
        Ok(if event & EVENT_BIT == 0 || !runtime.handles.contains(&event) || !is_launchable(&runtime, stream) {
            error::INVALID_RESOURCE_HANDLE
        } else if takes_events(&runtime, stream) {
            error::CUDA_SUCCESS
        } else {
            error::INVALID_VALUE
        })
    })
}

/// `StreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)`
fn wait(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    check(machine, inst, [0, 1])
}

/// `EventRecord(cudaEvent_t event, cudaStream_t stream)`, with or without flags
fn record(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    check(machine, inst, [1, 0])
}
