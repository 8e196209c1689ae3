//! Calls that may wait, for the executors of a session (`katydid_session_core`).

use std::mem::ManuallyDrop;
use std::sync::Arc;

use katydid_opencl_sys::Code;
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;

use crate::calls::session_shared::{OpenCl, OpenclSessionShared};

/// A task of an executor: the call, and its reply.
pub(crate) type ExecutorTask = katydid_session_core::Task<OpenCl>;

/// The part of a call that may wait; an executor runs it.
pub(crate) type ExecutorCall<R> = Box<dyn FnOnce(&Arc<OpenclSessionShared>) -> Result<R, Code> + Send>;

/// Wraps a job and its answer as a task for an executor.
pub(crate) fn task<R: Reply + 'static>(head: FrameHead, job: ExecutorCall<R>) -> ExecutorTask {
    ManuallyDrop::new(Box::new(move |shared: &Arc<OpenclSessionShared>| {
        // A program that is gone needs no answer; the monitor ends the process.
        let _ = match job(shared) {
            Ok(reply) => shared.answer(&head, Code::SUCCESS, &reply, true),
            Err(code) => shared.answer(&head, code, &(), true),
        };
    }))
}
