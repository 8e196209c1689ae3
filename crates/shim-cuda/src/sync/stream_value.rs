//! Words in memory that streams and the program signal each other with: written and waited for in the stream's turn.
#![expect(unsafe_code, reason = "reads arrays of C callers")]

use katydid_cuda_sys::{CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, Function, batch_operation as id};
use katydid_wire::message::{
    cuStreamWaitValue32_v2, cuStreamWaitValue64_v2, cuStreamWriteValue32_v2, cuStreamWriteValue64_v2,
};

use crate::context::request::enqueue;
use crate::copy::side::{Claim, Side, locate};
use crate::ffi::arguments::refuse;
use crate::graph::capture;
use crate::sync::stream;

/// `CU_STREAM_WAIT_VALUE_FLUSH`, beside the four comparisons in the low bits.
const FLUSH: u32 = 1 << 30;
/// The highest comparison: `CU_STREAM_WAIT_VALUE_NOR`.
const NOR: u32 = 3;
/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which batches allow.
const NO_BARRIER: u32 = 1;
/// Most operations of a batch.
const MAX_OPERATIONS: u32 = 256;

/// Passes a word that the GPU reaches. On a stream link the program's pinned memory is only copied now and then, so a word
/// there would be waited for in vain: it is refused.
fn check(function: Function, address: u64, size: u64) -> Result<(), CUresult> {
    if !address.is_multiple_of(size) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    match locate(Claim::Device, address, size)? {
        Side::Gpu(_) | Side::Shared(_) => Ok(()),
        Side::Own(_) => Err(refuse(function, "with pinned memory needs a link with shared memory")),
    }
}

fn check_write(address: u64, size: u64, flags: u32) -> Result<(), CUresult> {
    let function = if size == 4 { Function::cuStreamWriteValue32_v2 } else { Function::cuStreamWriteValue64_v2 };
    if flags == 0 { check(function, address, size) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

fn check_wait(address: u64, size: u64, flags: u32) -> Result<(), CUresult> {
    let function = if size == 4 { Function::cuStreamWaitValue32_v2 } else { Function::cuStreamWaitValue64_v2 };
    if flags & !FLUSH <= NOR { check(function, address, size) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// An operation as a node of a graph has it.
fn word(operation: u32, address: u64, value: u64, flags: u32) -> CUstreamBatchMemOpParams {
    CUstreamBatchMemOpParams { operation, address, value, flags, rest: [0; 2] }
}

/// Writes a word of 4 bytes in the turn of a stream.
pub(crate) fn write_32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) -> Result<(), CUresult> {
    check_write(addr, 4, flags)?;
    if capture::word(stream, word(id::WRITE_VALUE_32, addr, u64::from(value), flags))? {
        return Ok(());
    }
    let stream = stream::wire(stream)?;
    enqueue(&cuStreamWriteValue32_v2 { stream, addr, value, flags })
}

/// Writes a word of 8 bytes in the turn of a stream.
pub(crate) fn write_64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) -> Result<(), CUresult> {
    check_write(addr, 8, flags)?;
    if capture::word(stream, word(id::WRITE_VALUE_64, addr, value, flags))? {
        return Ok(());
    }
    let stream = stream::wire(stream)?;
    enqueue(&cuStreamWriteValue64_v2 { stream, addr, value, flags })
}

/// `cuStreamWaitValue32`: the stream waits, not the caller.
pub(crate) fn wait_32(stream: CUstream, addr: CUdeviceptr, value: u32, flags: u32) -> Result<(), CUresult> {
    check_wait(addr, 4, flags)?;
    if capture::word(stream, word(id::WAIT_VALUE_32, addr, u64::from(value), flags))? {
        return Ok(());
    }
    let stream = stream::wire(stream)?;
    enqueue(&cuStreamWaitValue32_v2 { stream, addr, value, flags })
}

/// `cuStreamWaitValue64`: the stream waits, not the caller.
pub(crate) fn wait_64(stream: CUstream, addr: CUdeviceptr, value: u64, flags: u32) -> Result<(), CUresult> {
    check_wait(addr, 8, flags)?;
    if capture::word(stream, word(id::WAIT_VALUE_64, addr, value, flags))? {
        return Ok(());
    }
    let stream = stream::wire(stream)?;
    enqueue(&cuStreamWaitValue64_v2 { stream, addr, value, flags })
}

/// `cuStreamBatchMemOp`: all operations are checked before the first is queued.
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
    if operations.is_null() || !(1..=MAX_OPERATIONS).contains(&count) || flags != 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: below `count`, by the contract.
    let operations: Vec<_> = (0..count as usize).map(|at| unsafe { operations.add(at).read_unaligned() }).collect();
    operations.iter().try_for_each(check_operation)?;
    if capture::words(stream, &operations)? {
        return Ok(());
    }
    let stream = stream::wire(stream)?;
    operations.iter().try_for_each(|operation| queue(stream, operation))
}

/// Passes an operation of a batch. The flag of a write allows less order than is always kept here.
fn check_operation(it: &CUstreamBatchMemOpParams) -> Result<(), CUresult> {
    match it.operation {
        id::WAIT_VALUE_32 => check_wait(it.address, 4, it.flags),
        id::WAIT_VALUE_64 => check_wait(it.address, 8, it.flags),
        id::WRITE_VALUE_32 => check_write(it.address, 4, it.flags & !NO_BARRIER),
        id::WRITE_VALUE_64 => check_write(it.address, 8, it.flags & !NO_BARRIER),
        id::FLUSH_REMOTE_WRITES | id::BARRIER => Ok(()),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Queues an operation that was checked.
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
