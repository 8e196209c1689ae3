//! Calls that may wait, for the executors of a session (`katydid_session_core`).

use std::mem::ManuallyDrop;
use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;

use crate::calls::session_shared::{Cuda, CudaSessionShared};
use crate::transfer::reply_pool;

/// A task of an executor: the call, and the reply.
pub(crate) type ExecutorTask = katydid_session_core::Task<Cuda>;

/// The executors of a session.
pub(crate) type Executors = katydid_session_core::Executors<Cuda>;

/// A call for an executor, and its answer.
pub(crate) type ExecutorCall<R> = Box<dyn FnOnce(&Driver) -> (CUresult, R) + Send>;

/// Makes a task of a call and its answer.
pub(crate) fn task<R: Reply + 'static>(head: FrameHead, job: ExecutorCall<R>) -> ExecutorTask {
    ManuallyDrop::new(Box::new(move |shared: &Arc<CudaSessionShared>| {
        let (status, reply) = job(&shared.driver);
        let mut payload = Vec::new();
        reply.encode(&mut payload);
        // A program that is gone needs no answer; the monitor ends the process.
        let _ = shared.answer(&head, status, [&payload, reply.tail()], true);
        reply_pool::keep(reply.into_tail());
    }))
}
