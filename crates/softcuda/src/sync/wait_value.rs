//! `cuStreamWriteValue`, `cuStreamWaitValue` and batches of both: put into a stream, or into the graph that it is captured into.

use std::sync::Arc;

use katydid_cuda_sys::{CUresult, CUstreamBatchMemOpParams, batch_operation as id};

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::graphs::capture;
use crate::memory::space::Access;
use crate::sync::job::Job;
use crate::sync::memory_word::{Condition, Operation, Width, Word, wait_here};
use crate::sync::stream::Stream;

/// `cuStreamWriteValue32/64`.
pub(crate) fn write(stream: &Arc<Stream>, address: u64, value: u64, width: Width, flags: u32) -> Outcome {
    if flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let operation = if width == Width::Four { id::WRITE_VALUE_32 } else { id::WRITE_VALUE_64 };
    if capture::word(stream, CUstreamBatchMemOpParams { operation, address, value, flags, rest: [0; 2] })? {
        return Ok(());
    }
    let word = Word::new(&*stream.context()?, address, width, Access::ReadWrite)?;
    stream.submit(Job::new(move |context| word.store(context, value)).short()).map(drop)
}

/// `cuStreamWaitValue32/64`.
pub(crate) fn wait(stream: &Arc<Stream>, address: u64, value: u64, width: Width, flags: u32) -> Outcome {
    let condition = Condition::from_flags(flags)?;
    let operation = if width == Width::Four { id::WAIT_VALUE_32 } else { id::WAIT_VALUE_64 };
    if capture::word(stream, CUstreamBatchMemOpParams { operation, address, value, flags, rest: [0; 2] })? {
        return Ok(());
    }
    let word = Word::new(&*stream.context()?, address, width, Access::Read)?;
    stream.submit(Job::new(move |context| wait_here(context, word, condition, value))).map(drop)
}

/// `cuStreamBatchMemOp`: all operations are checked first.
pub(crate) fn batch(stream: &Arc<Stream>, list: Vec<CUstreamBatchMemOpParams>) -> Outcome {
    let context = stream.context()?;
    let checked = list.iter().map(|it| Operation::new(&context, it)).collect::<Outcome<Vec<_>>>()?;
    if capture::words(stream, list)? {
        return Ok(());
    }
    let perform = move |context: &Context| checked.iter().try_for_each(|operation| operation.perform(context));
    stream.submit(Job::new(perform)).map(drop)
}
