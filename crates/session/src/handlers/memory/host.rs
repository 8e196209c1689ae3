//! Pinned host memory: registration, and on stream links its contents.

use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdHostPull, kdHostPullReply, kdHostPush, kdHostPushWords, kdHostRegister, kdHostRegisterReply, kdHostUnregister,
    kdHostUnregisterReply,
};
use katydid_wire::ranges;

use crate::calls::executor::{ExecutorCall, ExecutorTask, task};
use crate::calls::fault::{Fault, SessionError};
use crate::calls::session_shared::CudaSessionShared;
use crate::handlers::{CallResult, EnqueueResult, ExecutorResult, MAX_REPLY_DATA_BYTES, success};
use crate::memory::host_memory::{HostMemory, PAGE_BYTES, PageWords, out_of_range};
use crate::state::Session;

/// Registers a block, always as portable and mapped, whatever flags the program passes.
pub(crate) fn kdHostRegister(
    session: &mut Session,
    _head: &FrameHead,
    message: kdHostRegister,
) -> CallResult<kdHostRegisterReply> {
    let driver = Arc::clone(&session.shared.driver);
    let context = session.current;
    arena(session)?.register(&driver, context, message.address, message.size)?;
    session.address_check.admit_pinned(message.address, message.size);
    success(kdHostRegisterReply {})
}

/// Ends a registration, after the GPU is done with the block.
pub(crate) fn kdHostUnregister(
    session: &mut Session,
    _head: &FrameHead,
    message: kdHostUnregister,
) -> ExecutorResult<kdHostUnregisterReply> {
    let leaving = arena(session)?.unregister(message.address, message.size)?;
    Ok(Box::new(move |driver| (leaving.end(driver), kdHostUnregisterReply {})))
}

/// Applies the program's writes to a block.
pub(crate) fn kdHostPush(session: &mut Session, _head: &FrameHead, message: kdHostPush<'_>) -> EnqueueResult {
    let (address, size) = (message.address, message.data.len() as u64);
    if push_now(&session.shared, &message) { Ok(CUresult::SUCCESS) } else { Err(out_of_range(address, size)) }
}

/// Applies the program's writes to a part of a page.
pub(crate) fn kdHostPushWords(session: &mut Session, _head: &FrameHead, message: kdHostPushWords<'_>) -> EnqueueResult {
    let is_pushed = push_words_now(&session.shared, &message)?;
    if is_pushed { Ok(CUresult::SUCCESS) } else { Err(out_of_range(message.address, PAGE_BYTES)) }
}

fn page_words<'a>(message: &kdHostPushWords<'a>) -> Result<PageWords<'a>, SessionError> {
    let (address, size) = (message.address, message.words.len() as u64);
    PageWords::of(message.words).ok_or(SessionError::BadRange { what: "words of a page", address, size })
}

/// Returns the GPU's writes to blocks.
pub(crate) fn kdHostPull(
    session: &mut Session,
    _head: &FrameHead,
    message: kdHostPull<'_>,
) -> ExecutorResult<kdHostPullReply> {
    let ranges = ranges(&message)?;
    let first = ranges.first().copied().unwrap_or_default();
    let job = pull_job(&session.shared, ranges);
    job.ok_or_else(|| out_of_range(first.0, u64::from(first.1)))
}

/// Makes the job that returns the GPU's writes to blocks, without a session; none for memory that is not in the tables.
fn pull_job(shared: &CudaSessionShared, ranges: Vec<(u64, u32)>) -> Option<ExecutorCall<kdHostPullReply>> {
    let blocks = Arc::clone(&shared.blocks);
    let is_there = ranges.iter().all(|(address, size)| blocks.holds(*address, u64::from(*size)));
    let pull = move || match blocks.pull(&ranges) {
        Some(data) => (CUresult::SUCCESS, kdHostPullReply { data }),
        None => (CUresult::ERROR_HOST_MEMORY_NOT_REGISTERED, kdHostPullReply::default()),
    };
    is_there.then(|| -> ExecutorCall<kdHostPullReply> { Box::new(move |_| pull()) })
}

/// Makes a task of the job of `pull_job`.
pub(crate) fn pull_task(
    shared: &CudaSessionShared,
    head: FrameHead,
    message: &kdHostPull<'_>,
) -> Result<Option<ExecutorTask>, SessionError> {
    Ok(pull_job(shared, ranges(message)?).map(|job| task(head, job)))
}

/// Applies the program's writes without a session; false for memory that is not in the tables.
pub(crate) fn push_now(shared: &CudaSessionShared, message: &kdHostPush<'_>) -> bool {
    shared.blocks.push(message.address, message.data)
}

/// Applies the program's writes to a part of a page without a session; false for memory that is not in the tables.
pub(crate) fn push_words_now(shared: &CudaSessionShared, message: &kdHostPushWords<'_>) -> Result<bool, SessionError> {
    Ok(shared.blocks.patch(message.address, page_words(message)?))
}

/// Decodes the ranges to be pulled: at most as many bytes as a reply has room for.
fn ranges(message: &kdHostPull<'_>) -> Result<Vec<(u64, u32)>, SessionError> {
    let bad = |what, address, size| SessionError::BadRange { what, address, size };
    let ranges = ranges::decode(message.ranges);
    let ranges = ranges.ok_or_else(|| bad("a list of ranges", 0, message.ranges.len() as u64))?;
    let size = ranges.iter().map(|(_, size)| u64::from(*size)).sum();
    if size > MAX_REPLY_DATA_BYTES as u64 {
        return Err(bad("one reply", ranges.first().map_or(0, |(address, _)| *address), size));
    }
    Ok(ranges)
}

/// Returns the arena; sessions without one have no pinned memory, and their programs know.
fn arena(session: &mut Session) -> Result<&mut HostMemory, Fault> {
    session.host.as_mut().ok_or_else(|| CUresult::ERROR_NOT_SUPPORTED.into())
}
