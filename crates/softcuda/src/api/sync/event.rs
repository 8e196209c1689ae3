//! Events, and what other processes may have of this one: events and memory.
//!
//! Handles that are no living event give 400, the null handle too.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle, CUresult, CUstream};

use katydid_driver_rules::stream::is_external;
use katydid_graph::CaptureOutcome;

use crate::context::stack;
use crate::ffi::{MaybeOut, Out, Outcome, api};
use crate::graphs;
use crate::memory::ipc;
use crate::process::state;
use crate::sync::streams::resolve;
use crate::sync::{event, synchronise};

/// The event stands for this point of the stream, or of the graph that the stream is captured into.
fn record(event: CUevent, stream: CUstream, is_external: bool) -> Outcome {
    let (event_record, stream) = (event::resolve(event)?, resolve(stream)?);
    match graphs::of_process().record(event, stream.capture_stream(), is_external)? {
        CaptureOutcome::Yes => Ok(()),
        CaptureOutcome::No => event_record.record(&stream),
    }
}

/// Ends an event's handle.
fn destroy(handle: CUevent) -> Outcome {
    state::ready()?;
    graphs::of_process().forget_event(handle);
    event::destroy(handle)
}

/// Milliseconds from one event to another.
fn elapsed(milliseconds: &MaybeOut<f32>, start: CUevent, end: CUevent) -> Outcome {
    let (first, last) = (event::resolve(start)?, event::resolve(end)?);
    graphs::of_process().check_event(start)?;
    graphs::of_process().check_event(end)?;
    let elapsed = event::elapsed(&first, &last)?;
    milliseconds.set(elapsed);
    // What is wrong with the events comes first.
    if milliseconds.is_wanted() { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

api! {
    /// Those for other processes have no times.
    fn cuEventCreate(event: Out<CUevent>, flags: u32) {
        let made = event::create(&*stack::usable()?, flags)?;
        event.set(CUevent(std::ptr::without_provenance_mut(made.handle)));
    }

    /// What waits for the event still does.
    fn cuEventDestroy(event: CUevent) {
        destroy(event)?;
    }

    /// What waits for the event still does.
    fn cuEventDestroy_v2(event: CUevent) {
        destroy(event)?;
    }

    /// The event stands for this record from now on.
    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream, false)?;
    }

    /// The only flag there is means something during capture only.
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) {
        record(event, stream, is_external(flags)?)?;
    }

    /// 600 before it is reached; never recorded is as good as reached.
    fn cuEventQuery(event: CUevent) {
        let event_record = event::resolve(event)?;
        graphs::of_process().check_event(event)?;
        graphs::forbid()?;
        event_record.query()?;
    }

    /// Waits for the latest record; without one it returns at once.
    fn cuEventSynchronize(event: CUevent) {
        let event_record = event::resolve(event)?;
        graphs::of_process().check_event(event)?;
        graphs::forbid()?;
        synchronise::event(&event_record)?;
    }

    /// 400 for events without a time, 600 for those not reached.
    fn cuEventElapsedTime(milliseconds: MaybeOut<f32>, start: CUevent, end: CUevent) {
        elapsed(&milliseconds, start, end)?;
    }

    /// 400 for events without a time, 600 for those not reached.
    fn cuEventElapsedTime_v2(milliseconds: MaybeOut<f32>, start: CUevent, end: CUevent) {
        elapsed(&milliseconds, start, end)?;
    }

    /// For another process, which must open it while this one lives.
    fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle>, event: CUevent) {
        handle.set(event::handle_of(&*event::resolve(event)?)?);
    }

    /// Of memory of `cuMemAlloc`, for another process, which must open it while this one lives.
    fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, address: CUdeviceptr) {
        stack::usable()?;
        handle.set(ipc::handle_of(address)?);
    }

    /// Memory of another process, which is not open here.
    fn cuIpcOpenMemHandle(address: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) {
        address.set(ipc::open_once(&*stack::usable()?, handle, flags)?);
    }

    /// Memory of another process.
    fn cuIpcOpenMemHandle_v2(address: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) {
        address.set(ipc::open(&*stack::usable()?, handle, flags)?);
    }

    /// As often as it was opened.
    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        graphs::forbid()?;
        state::ready()?;
        ipc::close(address)?;
    }

    /// An event of another process.
    fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: CUipcEventHandle) {
        let opened = event::open(&*stack::usable()?, &handle)?;
        event.set(CUevent(std::ptr::without_provenance_mut(opened.handle)));
    }
}
