//! Events.
//!
//! Handles that are no living event give 400, the null handle too.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUevent, CUresult, CUstream};

use crate::border::{Out, Outcome, api};
use crate::stream::resolve;
use crate::{current, event, process};

/// Ends an event's handle.
fn destroy(handle: CUevent) -> Outcome {
    process::ready()?;
    event::destroy(handle)
}

/// Milliseconds from one event to another.
fn elapsed(milliseconds: &Out<f32>, start: CUevent, end: CUevent) -> Outcome {
    milliseconds.set(event::elapsed(&*event::resolve(start)?, &*event::resolve(end)?)?);
    Ok(())
}

api! {
    /// Events for other processes are refused.
    fn cuEventCreate(event: Out<CUevent>, flags: u32) {
        let made = event::create(&*current::usable()?, flags)?;
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
        event::resolve(event)?.record(&resolve(stream)?)?;
    }

    /// The only flag there is means something during capture only.
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: u32) {
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        event::resolve(event)?.record(&resolve(stream)?)?;
    }

    /// 600 before it is reached; never recorded is as good as reached.
    fn cuEventQuery(event: CUevent) {
        event::resolve(event)?.query()?;
    }

    /// Waits for the latest record; without one it returns at once.
    fn cuEventSynchronize(event: CUevent) {
        event::resolve(event)?.synchronise()?;
    }

    /// 400 for events without a time, 600 for those not reached.
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(&milliseconds, start, end)?;
    }

    /// 400 for events without a time, 600 for those not reached.
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: CUevent, end: CUevent) {
        elapsed(&milliseconds, start, end)?;
    }
}
