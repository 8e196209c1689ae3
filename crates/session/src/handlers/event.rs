//! Events: the time between two of them, also across a restore.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUevent, CUresult};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdElapsedTime, kdElapsedTimeReply};

use crate::device::ask::ask;
use crate::handlers::{CallResult, success};
use crate::state::Session;

/// Returns the driver's answer, or the saved time for events that were recorded before a restore.
pub(crate) fn kdElapsedTime(
    session: &mut Session,
    head: &FrameHead,
    message: kdElapsedTime,
) -> CallResult<kdElapsedTimeReply> {
    let kdElapsedTime { start, end, version } = message;
    let handles: (CUevent, CUevent) = (session.handle(head, start)?, session.handle(head, end)?);
    let driver = session.driver();
    let answer = ask(|out| match version {
        // SAFETY: the output is a local, the handles are the driver's own.
        2 => unsafe { driver.cuEventElapsedTime_v2(out, handles.0, handles.1) },
        // SAFETY: as above.
        _ => unsafe { driver.cuEventElapsedTime(out, handles.0, handles.1) },
    });
    let milliseconds = match answer {
        Err(CUresult::ERROR_INVALID_HANDLE) if !session.event_times.is_empty() => {
            session.elapsed_since_restore((start, end), handles)?
        }
        answer => answer?,
    };
    success(kdElapsedTimeReply { milliseconds })
}
