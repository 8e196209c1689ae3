//! `cuStreamWriteValue`, `cuStreamWaitValue` and batches of both: submitted to a stream, or captured into its graph.

use std::sync::Arc;

use katydid_cuda_sys::CUstreamBatchMemOpParams;
use katydid_driver_rules::stream::WordOperation;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::graphs::capture;
use crate::sync::job::StreamJob;
use crate::sync::memory_word::Operation;
use crate::sync::stream::Stream;

/// `cuStreamWriteValue32/64` and `cuStreamWaitValue32/64`.
pub(crate) fn single(stream: &Arc<Stream>, operation: u32, address: u64, value: u64, flags: u32) -> Outcome {
    let it = CUstreamBatchMemOpParams { operation, address, value, flags, rest: [0; 2] };
    let checked = WordOperation::of_call(&it)?;
    if capture::word(stream, it)? {
        return Ok(());
    }
    let operation = Operation::new(&*stream.context()?, address, checked)?;
    let is_short = matches!(operation, Operation::Write(..));
    let job = StreamJob::new(move |context| operation.perform(context));
    stream.submit(if is_short { job.short() } else { job }).map(drop)
}

/// `cuStreamBatchMemOp`: checks all operations first.
pub(crate) fn batch(stream: &Arc<Stream>, list: Vec<CUstreamBatchMemOpParams>) -> Outcome {
    let context = stream.context()?;
    let checked = list.iter().map(|it| Operation::of_batch(&context, it)).collect::<Outcome<Vec<_>>>()?;
    if capture::batch(stream, list)? {
        return Ok(());
    }
    let perform = move |context: &Context| checked.iter().try_for_each(|operation| operation.perform(context));
    stream.submit(StreamJob::new(perform)).map(drop)
}
