//! State that the main loop and the executors of one session share: the driver, the link for replies, errors not yet
//! reported.

#![expect(unsafe_code, reason = "makes a context current on the executor's thread")]

use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult};
use katydid_driver::Driver;
use katydid_session_core::{Api, Calls, Capture, Messages, Replies, Usage};
use katydid_transport::LinkError;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{message_layout, message_name};

use crate::calls::upcalls::Upcalls;
use crate::graphs::StagingBlocks;
use crate::memory::host_memory::Blocks;
use crate::memory::reclaim::Reclaim;

/// Shared by all threads of a session.
pub struct CudaSessionShared {
    /// The CUDA driver that the session calls.
    pub(crate) driver: Arc<Driver>,
    /// Host functions that are due.
    pub(crate) upcalls: Upcalls,
    /// Memory of the worker that graphs copy from or to in place of the program's.
    pub(crate) staging_blocks: StagingBlocks,
    /// Memory that programs push and pull: registered memory, variables, open mappings.
    pub(crate) blocks: Arc<Blocks>,
    /// The session's resource usage.
    pub(crate) usage: Arc<Usage>,
    /// Reclaim requests of this session and of others.
    pub(crate) reclaim: Arc<Reclaim>,
    /// Calls that executors run.
    pub(crate) calls: Calls,
    /// Sends replies to the program.
    pub(crate) replies: Replies,
}

/// The context of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskContext {
    /// The driver's handle; null for the current context.
    pub(crate) context: CUcontext,
    /// The session's count of context changes: a new context may have an old one's handle.
    pub(crate) epoch: u64,
}

/// The API of this crate's sessions.
#[derive(Debug)]
pub enum Cuda {}

impl Api for Cuda {
    type Code = CUresult;
    type SessionShared = CudaSessionShared;
    type Context = TaskContext;

    const SUCCESS: CUresult = CUresult::SUCCESS;
    const NO_CONTEXT: TaskContext = TaskContext { context: CUcontext::NULL, epoch: 0 };
    const EXECUTORS_SPIN: bool = true;
    const MESSAGES: Messages = Messages { name: message_name, layout: message_layout };

    fn to_wire(code: CUresult) -> u32 {
        code.0
    }

    fn brings_output(code: CUresult) -> bool {
        !matches!(code, CUresult::SUCCESS | CUresult::ERROR_NOT_READY)
    }

    fn calls(shared: &CudaSessionShared) -> &Calls {
        &shared.calls
    }

    fn usage(shared: &CudaSessionShared) -> &Usage {
        &shared.usage
    }

    fn replies(shared: &CudaSessionShared) -> &Replies {
        &shared.replies
    }

    fn enter(shared: &CudaSessionShared, context: TaskContext) {
        // SAFETY: the handle came from the driver. One that was destroyed since is refused by the driver, and so
        // is the call that follows.
        let _ = unsafe { shared.driver.cuCtxSetCurrent(context.context) };
    }
}

impl CudaSessionShared {
    pub(crate) fn new(driver: Arc<Driver>, capture: Capture, usage: Arc<Usage>, blocks: Arc<Blocks>) -> Self {
        Self {
            driver,
            upcalls: Upcalls::default(),
            staging_blocks: StagingBlocks::default(),
            blocks,
            usage,
            reclaim: Arc::default(),
            calls: Calls::default(),
            replies: Replies::new(capture, CUresult::ERROR_NOT_SUPPORTED.0),
        }
    }

    /// Answers a call with a reply in two parts. After a synchronization (`synchronized`) or a failure it adds the text that
    /// the driver printed meanwhile: that may be the reason of a failure.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub(crate) fn answer(
        &self,
        head: &FrameHead,
        status: CUresult,
        message: [&[u8]; 2],
        synchronized: bool,
    ) -> Result<(), LinkError> {
        self.replies.send(head, status.0, message, synchronized || Cuda::brings_output(status))
    }
}
