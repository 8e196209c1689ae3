//! Host functions and stream callbacks: enqueued here, run by the program.

#![expect(unsafe_code, reason = "gives the driver functions of ours to call")]

use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{kdHostFunction, kdStreamCallback, kdUpcallNext, kdUpcallNextReply};

use crate::calls::executor::{ExecutorCall, ExecutorTask, task};
use crate::calls::session_shared::CudaSessionShared;
use crate::handlers::{EnqueueResult, ExecutorResult};
use crate::state::Session;

/// The data that the driver passes back when a function is due.
struct Registration {
    shared: Arc<CudaSessionShared>,
    token: u64,
}

impl Registration {
    /// Returns it as the driver's pointer.
    fn into_raw(self) -> *mut c_void {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Takes it back from the driver's pointer.
    ///
    /// # Safety
    ///
    /// `data` must come from [`Registration::into_raw`], and not have been taken back before.
    unsafe fn from_raw(data: *mut c_void) -> Box<Self> {
        // SAFETY: by the caller's promise this is the box that `into_raw` gave away.
        unsafe { Box::from_raw(data.cast()) }
    }
}

/// Waits for the next due function; the argument acknowledges the one before.
pub(crate) fn kdUpcallNext(
    session: &mut Session,
    head: &FrameHead,
    message: kdUpcallNext,
) -> ExecutorResult<kdUpcallNextReply> {
    Ok(next(Arc::clone(&session.shared), *head, message))
}

/// Makes the task that waits for the next function, without a session, for the relay while the main loop is blocked.
pub(crate) fn upcall_task(shared: &Arc<CudaSessionShared>, head: FrameHead, message: kdUpcallNext) -> ExecutorTask {
    task(head, next(Arc::clone(shared), head, message))
}

fn next(shared: Arc<CudaSessionShared>, head: FrameHead, message: kdUpcallNext) -> ExecutorCall<kdUpcallNextReply> {
    Box::new(move |_| {
        let due = shared.upcalls.next(&head, message.done);
        (CUresult::SUCCESS, kdUpcallNextReply { token: due.token, status: due.status })
    })
}

/// Enqueues a host function.
pub(crate) fn kdHostFunction(session: &mut Session, head: &FrameHead, message: kdHostFunction) -> EnqueueResult {
    let stream: CUstream = session.handle(head, message.stream)?;
    let data = Registration { shared: Arc::clone(&session.shared), token: message.token }.into_raw();
    // SAFETY: `run_host_function` takes back what `data` is; the driver calls it once, if at all.
    let status = unsafe { session.driver().cuLaunchHostFunc(stream, Some(run_host_function), data) };
    Ok(drop_unless_enqueued(status, data))
}

/// Enqueues a stream callback.
pub(crate) fn kdStreamCallback(session: &mut Session, head: &FrameHead, message: kdStreamCallback) -> EnqueueResult {
    let stream: CUstream = session.handle(head, message.stream)?;
    let data = Registration { shared: Arc::clone(&session.shared), token: message.token }.into_raw();
    // SAFETY: as above.
    let status = unsafe { session.driver().cuStreamAddCallback(stream, Some(run_stream_callback), data, 0) };
    Ok(drop_unless_enqueued(status, data))
}

/// Drops a registration that the driver refused.
fn drop_unless_enqueued(status: CUresult, data: *mut c_void) -> CUresult {
    if status != CUresult::SUCCESS {
        // SAFETY: the driver refused, so it will never call with `data`, which was made just before.
        drop(unsafe { Registration::from_raw(data) });
    }
    status
}

/// Called by the driver's thread; the stream stalls until the program has run the function.
extern "C" fn run_host_function(data: *mut c_void) {
    // SAFETY: the driver passes the registered pointer, once.
    let registration = unsafe { Registration::from_raw(data) };
    registration.shared.upcalls.run(registration.token, 0);
}

/// As above, with the stream's state.
extern "C" fn run_stream_callback(_stream: CUstream, status: CUresult, data: *mut c_void) {
    // SAFETY: as above.
    let registration = unsafe { Registration::from_raw(data) };
    registration.shared.upcalls.run(registration.token, status.0);
}
