//! Words in memory by which streams and the program signal each other: written and awaited in stream order.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, Function, batch_operation as id};
use katydid_driver_rules::copy::DeclaredMemory;
use katydid_driver_rules::stream::{WordAccess, WordOperation, word_operations};
use katydid_wire::message::{
    cuStreamWaitValue32_v2, cuStreamWaitValue64_v2, cuStreamWriteValue32_v2, cuStreamWriteValue64_v2,
};

use crate::context::request::enqueue;
use crate::copy::side::{CopySide, locate};
use crate::ffi::arguments::refuse;
use crate::graph::capture;
use crate::sync::stream;

/// Checks an operation on a word that the GPU reaches. On a stream link the program's pinned memory is only synchronized now
/// and then, so that a wait for a word there would never end: it is refused.
fn check(address: u64, operation: Option<WordOperation>) -> Result<(), CUresult> {
    let Some(WordOperation { size, access, .. }) = operation else { return Ok(()) };
    match locate(DeclaredMemory::Device, address, size)? {
        CopySide::Gpu(_) | CopySide::Shared(_) => Ok(()),
        CopySide::Own(_) => {
            let function = match (access, size) {
                (WordAccess::Write, 4) => Function::cuStreamWriteValue32_v2,
                (WordAccess::Write, _) => Function::cuStreamWriteValue64_v2,
                (WordAccess::Wait(_), 4) => Function::cuStreamWaitValue32_v2,
                (WordAccess::Wait(_), _) => Function::cuStreamWaitValue64_v2,
            };
            Err(refuse(function, "with pinned memory needs a link with shared memory"))
        }
    }
}

/// Queues an operation that is a call of its own.
fn single(stream: CUstream, operation: u32, address: u64, value: u64, flags: u32) -> Result<(), CUresult> {
    let it = CUstreamBatchMemOpParams { operation, address, value, flags, rest: [0; 2] };
    check(address, WordOperation::of_call(&it)?)?;
    if capture::word(stream, it)? { Ok(()) } else { queue(stream::wire(stream)?, &it) }
}

/// Writes a word of 4 bytes in stream order.
pub(crate) fn write_32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) -> Result<(), CUresult> {
    single(stream, id::WRITE_VALUE_32, addr, u64::from(value), flags)
}

/// Writes a word of 8 bytes in stream order.
pub(crate) fn write_64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) -> Result<(), CUresult> {
    single(stream, id::WRITE_VALUE_64, addr, value, flags)
}

/// Answers `cuStreamWaitValue32`: the stream waits, not the caller.
pub(crate) fn wait_32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) -> Result<(), CUresult> {
    single(stream, id::WAIT_VALUE_32, addr, u64::from(value), flags)
}

/// Answers `cuStreamWaitValue64`: the stream waits, not the caller.
pub(crate) fn wait_64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) -> Result<(), CUresult> {
    single(stream, id::WAIT_VALUE_64, addr, value, flags)
}

/// Answers `cuStreamBatchMemOp`: all operations are checked before the first is queued.
///
/// # Safety
///
/// `operations` is null or has `count` entries.
pub(crate) unsafe fn batch(
    stream: CUstream,
    count: u32,
    operations: *mut CUstreamBatchMemOpParams,
    flags: u32,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let operations = unsafe { word_operations(operations, count, flags) }?;
    operations.iter().try_for_each(|it| check(it.address, WordOperation::of_batch(it)?))?;
    if capture::batch(stream, &operations)? {
        return Ok(());
    }
    let stream = stream::wire(stream)?;
    operations.iter().try_for_each(|operation| queue(stream, operation))
}

/// Queues a checked operation.
fn queue(stream: u32, it: &CUstreamBatchMemOpParams) -> Result<(), CUresult> {
    let (addr, value, flags) = (it.address, it.value, it.flags);
    match it.operation {
        id::WAIT_VALUE_32 => enqueue(&cuStreamWaitValue32_v2 { stream, addr, value: value as u32, flags }),
        id::WAIT_VALUE_64 => enqueue(&cuStreamWaitValue64_v2 { stream, addr, value, flags }),
        id::WRITE_VALUE_32 => enqueue(&cuStreamWriteValue32_v2 { stream, addr, value: value as u32, flags: 0 }),
        id::WRITE_VALUE_64 => enqueue(&cuStreamWriteValue64_v2 { stream, addr, value, flags: 0 }),
        _ => Ok(()),
    }
}
