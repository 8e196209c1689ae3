//! Events, and exports to other processes: of events and of memory.
//!
//! Handles of no live event fail with 400, as does the null handle.

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
use crate::sync::{event, synchronize};

/// Records an event at the current point of the stream, or of the graph that captures it.
fn record(event: CUevent, stream: CUstream, is_external: bool) -> Outcome {
    let (event_record, stream) = (event::resolve(event)?, resolve(stream)?);
    match graphs::of_process().record(event, stream.capture_stream(), is_external)? {
        CaptureOutcome::Yes => Ok(()),
        CaptureOutcome::No => event_record.record(&stream),
    }
}

/// Ends the handle of an event.
fn destroy(handle: CUevent) -> Outcome {
    state::ready()?;
    graphs::of_process().forget_event(handle);
    event::destroy(handle)
}

/// Returns the milliseconds from one event to another.
fn elapsed(milliseconds: &MaybeOut<f32>, start: CUevent, end: CUevent) -> Outcome {
    let (first, last) = (event::resolve(start)?, event::resolve(end)?);
    graphs::of_process().check_event(start)?;
    graphs::of_process().check_event(end)?;
    let elapsed = event::elapsed(&first, &last)?;
    milliseconds.set(elapsed);
    // Faults of the events come first.
    if milliseconds.is_wanted() { Ok(()) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

api! {
    /// Creates an event. Events for other processes have no times.
    fn cuEventCreate(event: Out<CUevent>, flags: u32) {
        let made = event::create(&*stack::usable()?, flags)?;
        event.set(CUevent(std::ptr::without_provenance_mut(made.handle)));
    }

    /// Destroys an event. Work that waits for it still does.
    fn cuEventDestroy(event: CUevent) {
        destroy(event)?;
    }

    /// Destroys an event. Work that waits for it still does.
    fn cuEventDestroy_v2(event: CUevent) {
        destroy(event)?;
    }

    /// Records an event, which replaces its earlier record.
    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream, false)?;
    }

    /// Records an event. The only flag matters during capture alone.
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) {
        record(event, stream, is_external(flags)?)?;
    }

    /// Fails with 600 until the event is reached. One that was never recorded counts as reached.
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
        synchronize::event(&event_record)?;
    }

    /// Returns the time between events. Fails with 400 for events without times, with 600 for events not reached.
    fn cuEventElapsedTime(milliseconds: MaybeOut<f32>, start: CUevent, end: CUevent) {
        elapsed(&milliseconds, start, end)?;
    }

    /// Returns the time between events. Fails with 400 for events without times, with 600 for events not reached.
    fn cuEventElapsedTime_v2(milliseconds: MaybeOut<f32>, start: CUevent, end: CUevent) {
        elapsed(&milliseconds, start, end)?;
    }

    /// Exports an event. The other process must open it while this one lives.
    fn cuIpcGetEventHandle(handle: Out<CUipcEventHandle>, event: CUevent) {
        handle.set(event::handle_of(&*event::resolve(event)?)?);
    }

    /// Exports memory of `cuMemAlloc`. The other process must open it while this one lives.
    fn cuIpcGetMemHandle(handle: Out<CUipcMemHandle>, address: CUdeviceptr) {
        stack::usable()?;
        handle.set(ipc::handle_of(address)?);
    }

    /// Opens memory of another process that is not open here yet.
    fn cuIpcOpenMemHandle(address: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) {
        address.set(ipc::open_once(&*stack::usable()?, handle, flags)?);
    }

    /// Opens memory of another process.
    fn cuIpcOpenMemHandle_v2(address: Out<CUdeviceptr>, handle: CUipcMemHandle, flags: u32) {
        address.set(ipc::open(&*stack::usable()?, handle, flags)?);
    }

    /// Closes opened memory, once for each time it was opened.
    fn cuIpcCloseMemHandle(address: CUdeviceptr) {
        graphs::forbid()?;
        state::ready()?;
        ipc::close(address)?;
    }

    /// Opens an event of another process.
    fn cuIpcOpenEventHandle(event: Out<CUevent>, handle: CUipcEventHandle) {
        let opened = event::open(&*stack::usable()?, &handle)?;
        event.set(CUevent(std::ptr::without_provenance_mut(opened.handle)));
    }
}
