//! Executable graphs: instantiate, change, launch, end; and the data of their host functions.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;

use katydid_cuda_sys::{CUcontext, CUresult, CUstream, instantiate_flags};
use katydid_wire::facts::{GraphFacts, StepFacts};
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdGraphArguments, kdGraphChange, kdGraphChangeReply, kdGraphCondition, kdGraphConditionReply, kdGraphDestroy,
    kdGraphForget, kdGraphInstantiate, kdGraphInstantiateReply, kdGraphLaunch, kdGraphUpload, kdUpcallBytes,
    kdUpcallBytesReply, kdUpcallData, kdUpcallsBegin,
};

use crate::calls::executor::{ExecutorTask, task};
use crate::calls::fault::{Fault, SessionError};
use crate::calls::session_shared::CudaSessionShared;
use crate::handlers::{CallResult, EnqueueResult, ExecutorResult, MAX_REPLY_DATA_BYTES, success};
use crate::journal::{Steps, TakenUpload, needs};
use crate::state::Session;

fn damaged(message: &'static str, error: impl ToString) -> Fault {
    SessionError::DamagedPart { message, part: "steps", reason: error.to_string() }.into()
}

/// Builds and instantiates the graph whose description the calling thread has sent.
pub(crate) fn kdGraphInstantiate(
    session: &mut Session,
    head: &FrameHead,
    message: kdGraphInstantiate,
) -> CallResult<kdGraphInstantiateReply> {
    let bytes = session.uploads.finish(head.thread)?;
    let facts = GraphFacts::decode(&bytes).map_err(|error| damaged("kdGraphInstantiate", error))?;
    // The program's side frees memory, and an upload has its own message.
    let flags = message.flags & u64::from(instantiate_flags::USE_NODE_PRIORITY);
    session.instantiate_graph(head, (message.exec, message.graph), &facts, flags)?;
    session.journal.attach(TakenUpload::Steps(Steps { bytes: Arc::new(bytes), needs: needs(&facts) }));
    success(kdGraphInstantiateReply {})
}

/// Changes the parameters of one node of an executable graph.
pub(crate) fn kdGraphChange(
    session: &mut Session,
    head: &FrameHead,
    message: kdGraphChange<'_>,
) -> CallResult<kdGraphChangeReply> {
    let step = StepFacts::decode(message.step).map_err(|error| damaged("kdGraphChange", error))?;
    session.change_graph(head, message.exec, message.number as usize, &step)?;
    success(kdGraphChangeReply {})
}

/// Gives a step's kernel other arguments.
pub(crate) fn kdGraphArguments(
    session: &mut Session,
    head: &FrameHead,
    message: kdGraphArguments<'_>,
) -> EnqueueResult {
    let step = StepFacts::decode(message.step).map_err(|error| damaged("kdGraphArguments", error))?;
    session.change_graph(head, message.exec, message.number as usize, &step)?;
    Ok(CUresult::SUCCESS)
}

/// Launches an executable graph in a stream.
pub(crate) fn kdGraphLaunch(session: &mut Session, head: &FrameHead, message: kdGraphLaunch) -> EnqueueResult {
    let stream: CUstream = session.handle(head, message.stream)?;
    let context = session.owner_of_stream(message.stream)?;
    session.launch_graph(message.exec, stream, context)
}

/// Prepares a graph's launch in a stream (`cuGraphUpload`).
pub(crate) fn kdGraphUpload(session: &mut Session, head: &FrameHead, message: kdGraphUpload) -> EnqueueResult {
    let stream: CUstream = session.handle(head, message.stream)?;
    let handle = session.graphs.exec(message.exec)?.handle;
    // SAFETY: handles are the driver's own.
    Ok(unsafe { session.driver().cuGraphUpload(handle, stream) })
}

/// Ends an executable graph.
pub(crate) fn kdGraphDestroy(session: &mut Session, _head: &FrameHead, message: kdGraphDestroy) -> EnqueueResult {
    session.destroy_graph(message.exec)
}

/// Creates a conditional handle. It is the driver's own, because kernels get it.
pub(crate) fn kdGraphCondition(
    session: &mut Session,
    head: &FrameHead,
    message: kdGraphCondition,
) -> CallResult<kdGraphConditionReply> {
    let context: CUcontext = session.handle(head, message.context)?;
    let graph = session.draft(message.graph)?;
    let mut handle = 0;
    let (default, flags) = (message.default, message.flags);
    // SAFETY: handles are the driver's own; the output is a local.
    unsafe { session.driver().cuGraphConditionalHandleCreate(&raw mut handle, graph, context, default, flags) }.ok()?;
    success(kdGraphConditionReply { handle })
}

/// Forgets a graph with conditional handles that the program destroyed.
pub(crate) fn kdGraphForget(session: &mut Session, _head: &FrameHead, message: kdGraphForget) -> EnqueueResult {
    session.forget_draft(message.graph)
}

/// Announces functions of the program; from here on the relay reads the link while the main loop is blocked.
pub(crate) fn kdUpcallsBegin(_session: &mut Session, _head: &FrameHead, _message: kdUpcallsBegin) -> EnqueueResult {
    Ok(CUresult::SUCCESS)
}

/// Fills a staging block with the program's data.
pub(crate) fn kdUpcallData(session: &mut Session, _head: &FrameHead, message: kdUpcallData<'_>) -> EnqueueResult {
    Ok(fill_staging_block(&session.shared, message))
}

/// Fills a staging block without a session, for the relay while the main loop is blocked.
pub(crate) fn fill_staging_block(shared: &CudaSessionShared, message: kdUpcallData<'_>) -> CUresult {
    shared.staging_blocks.fill(message.token, message.offset, message.data).into()
}

/// Returns what a graph has copied for the program.
pub(crate) fn kdUpcallBytes(
    session: &mut Session,
    _head: &FrameHead,
    message: kdUpcallBytes,
) -> ExecutorResult<kdUpcallBytesReply> {
    bytes_job(Arc::clone(&session.shared), message)
}

fn bytes_job(shared: Arc<CudaSessionShared>, message: kdUpcallBytes) -> ExecutorResult<kdUpcallBytesReply> {
    let size = message.size as usize;
    if size > MAX_REPLY_DATA_BYTES {
        let (address, size) = (message.offset, u64::from(message.size));
        return Err(SessionError::BadRange { what: "one reply", address, size }.into());
    }
    Ok(Box::new(move |_| match shared.staging_blocks.bytes(message.token, message.offset, size) {
        Ok(data) => (CUresult::SUCCESS, kdUpcallBytesReply { data }),
        Err(code) => (code, kdUpcallBytesReply::default()),
    }))
}

/// Makes the task that returns what a graph has copied for the program, without a session.
pub(crate) fn bytes_task(
    shared: &Arc<CudaSessionShared>,
    head: FrameHead,
    message: kdUpcallBytes,
) -> Result<ExecutorTask, Fault> {
    Ok(task(head, bytes_job(Arc::clone(shared), message)?))
}
