//! Copies of one row: which memory each side may be, and when the call returns.
//!
//! As in the real driver, the program's own (pageable) memory is read or written before the call returns. Copies between memory
//! that the device reaches happen in stream order.

use std::sync::Arc;

use katydid_cuda_sys::CUresult;

use crate::context::stack;
use crate::context::state::Context;
use crate::copy::side::CopySide;
use crate::copy::transfer::{self, AccessRange};
use crate::ffi::Outcome;
use crate::graphs::capture;
use crate::memory::space::Access;
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;

/// Largest pageable source that a call buffers. It waits for larger ones.
const MAX_SNAPSHOT_BYTES: u64 = 4 << 20;

/// Copies up to this size are done by the calling thread if the stream is idle.
pub(crate) const MAX_INLINE_COPY_BYTES: u64 = 64 << 10;

/// Whether the call returns before the copy is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallMode {
    /// Returns after the copy.
    Blocking,
    /// Returns before the copy is done, as far as the memory allows it.
    Asynchronous,
}

/// Refuses a copy if a side is not what it may be.
pub(crate) fn check(context: &Context, to: (CopySide, u64), from: (CopySide, u64), size: usize) -> Outcome {
    to.0.span(context, to.1, size as u64, Access::ReadWrite)?;
    from.0.span(context, from.1, size as u64, Access::Read).map(drop)
}

/// Copies `size` bytes in `stream`.
pub(crate) fn copy(
    stream: &Arc<Stream>,
    to: (CopySide, u64),
    from: (CopySide, u64),
    size: usize,
    mode: CallMode,
) -> Outcome {
    if size == 0 || (mode == CallMode::Asynchronous && capture::copy(stream, to, from, size)?) {
        return Ok(());
    }
    // The caller's context decides which mapped memory its device reaches, whatever stream the call names (seen on two H200,
    // driver 580).
    let (context, size) = (stack::usable().or_else(|_| stream.context())?, size as u64);
    let target = to.0.span(&context, to.1, size, Access::ReadWrite)?;
    let source = from.0.span(&context, from.1, size, Access::Read)?;
    between(stream, target, source, mode)
}

/// `cuMemcpyPeer`: each side belongs to the context that it names.
pub(crate) fn peer(
    stream: &Arc<Stream>,
    to: (&Context, u64),
    from: (&Context, u64),
    size: usize,
    mode: CallMode,
) -> Outcome {
    if size == 0 {
        return Ok(());
    }
    let target = AccessRange::reached(to.0, to.1, size as u64, Access::ReadWrite)?;
    let source = AccessRange::reached(from.0, from.1, size as u64, Access::Read)?;
    between(stream, target, source, mode)
}

/// Copies between checked spans of the same size.
fn between(stream: &Arc<Stream>, target: AccessRange, source: AccessRange, mode: CallMode) -> Outcome {
    let size = source.size;
    if mode == CallMode::Asynchronous && source.pageable && !target.pageable && size <= MAX_SNAPSHOT_BYTES {
        let bytes = transfer::snapshot(&source).map_err(|_| CUresult::ERROR_INVALID_VALUE)?;
        let job = StreamJob::new(move |_| transfer::write(&target, &bytes));
        return stream.submit(if size <= MAX_INLINE_COPY_BYTES { job.short() } else { job }).map(drop);
    }
    let job = StreamJob::new(move |_| transfer::copy(&target, &source, size, 1, (0, 0)));
    if mode == CallMode::Blocking || source.pageable || target.pageable {
        return finish(stream, job);
    }
    stream.submit(if size <= MAX_INLINE_COPY_BYTES { job.short() } else { job }).map(drop)
}

/// Runs a job to its end, writes the kernels' earlier output, and returns the sticky error if there is one.
pub(crate) fn finish(stream: &Arc<Stream>, job: StreamJob) -> Outcome {
    stream.perform(job)?;
    let context = stream.context()?;
    context.output.flush();
    context.healthy()
}
