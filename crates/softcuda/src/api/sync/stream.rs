//! Streams, and the words in memory that they wait for and write.
//!
//! Every function accepts the special stream handles: null and 1 are the legacy default stream of the current context, 2 is the
//! calling thread's own. In the `_ptsz` forms, null also is the thread's own. Any other handle of no live stream fails with 400.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use katydid_cuda_sys::{CUcontext, CUevent, CUresult, CUstream, CUstreamBatchMemOpParams, batch_operation as id};
use katydid_driver_rules::stream::{is_external, word_operations};
use katydid_graph::{CaptureOutcome, UncapturedCall};

use crate::api::context::as_handle;
use crate::context::{green_ctx, stack};
use crate::ffi::{Out, Outcome, api};
use crate::graphs;
use crate::process::state;
use crate::sync::streams::{self, create, resolve};
use crate::sync::{event, synchronize, wait_value};

/// A stream handle for a number.
fn handle(number: usize) -> CUstream {
    CUstream(std::ptr::without_provenance_mut(number))
}

/// Ends the handle of a stream; the default streams have none.
fn destroy(stream: CUstream) -> Outcome {
    state::ready()?;
    if let Ok(stream) = streams::created(stream) {
        graphs::of_process().forget_stream(stream.capture_stream().key);
    }
    streams::destroy(stream)
}

api! {
    /// Creates a stream. Flag 1 makes it independent of the legacy default stream.
    fn cuStreamCreate(stream: Out<CUstream>, flags: u32) {
        stream.set(handle(create(&stack::usable()?, green_ctx::or_none(stack::handle()), flags, 0)?.handle));
    }

    /// Creates a stream. The priority is clamped to the range and reported, without effect.
    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) {
        stream.set(handle(create(&stack::usable()?, green_ctx::or_none(stack::handle()), flags, priority)?.handle));
    }

    /// Ends the handle at once; pending work goes on.
    fn cuStreamDestroy(stream: CUstream) {
        destroy(stream)?;
    }

    /// Ends the handle at once; pending work goes on.
    fn cuStreamDestroy_v2(stream: CUstream) {
        destroy(stream)?;
    }

    /// Returns the priority, 0 for default streams.
    fn cuStreamGetPriority(stream: CUstream, priority: Out<i32>) {
        priority.set(resolve(stream)?.priority);
    }

    /// Returns the flags, 0 for default streams.
    fn cuStreamGetFlags(stream: CUstream, flags: Out<u32>) {
        flags.set(resolve(stream)?.flags);
    }

    /// Returns the id. Each thread's and context's default stream has its own.
    fn cuStreamGetId(stream: CUstream, id: Out<u64>) {
        id.set(resolve(stream)?.id);
    }

    /// Returns the device of the stream's context.
    fn cuStreamGetDevice(stream: CUstream, device: Out<i32>) {
        device.set(resolve(stream)?.context()?.device.ordinal);
    }

    /// Returns the context of the stream; for default streams, the current one.
    fn cuStreamGetCtx(stream: CUstream, context: Out<CUcontext>) {
        let stream_record = resolve(stream)?;
        let green = if stream_record.is_default() { green_ctx::or_none(stack::handle()) } else { stream_record.green() };
        context.set(as_handle(if green == 0 { stream_record.context()?.handle } else { green }));
    }

    /// Waits for the stream. The legacy default stream waits for all blocking streams.
    fn cuStreamSynchronize(stream: CUstream) {
        let stream = resolve(stream)?;
        graphs::of_process().forbid(UncapturedCall::Stream(stream.capture_stream()))?;
        synchronize::stream(&stream)?;
    }

    /// Fails with 600 while work is pending.
    fn cuStreamQuery(stream: CUstream) {
        let stream = resolve(stream)?;
        graphs::of_process().forbid(UncapturedCall::Stream(stream.capture_stream()))?;
        stream.query()?;
    }

    /// Makes the stream wait for an event. The flag for external events matters during capture alone.
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) {
        let (stream, event_record) = (resolve(stream)?, event::resolve(event)?);
        let (is_external, was_recorded) = (is_external(flags)?, event_record.was_recorded());
        if graphs::of_process().wait(event, stream.capture_stream(), is_external, was_recorded)? == CaptureOutcome::No {
            event_record.hold_back(&stream)?;
        }
    }

    /// Submits operations on any words that the device reaches, in registered host memory too.
    fn cuStreamBatchMemOp_v2(stream: CUstream, count: u32, operations: *mut CUstreamBatchMemOpParams, flags: u32) {
        let stream = resolve(stream)?;
        // SAFETY: the caller's array has `count` entries.
        let list = unsafe { word_operations(operations, count, flags) }?;
        wait_value::batch(&stream, list)?;
    }

    /// Fails, as NVIDIA's driver does since 11.7. The second version replaces it.
    fn cuStreamWriteValue32(_stream: CUstream, _address: u64, _value: u32, _flags: u32) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }

    /// Writes any word that the device reaches, in registered host memory too.
    fn cuStreamWriteValue32_v2(stream: CUstream, address: u64, value: u32, flags: u32) {
        wait_value::single(&resolve(stream)?, id::WRITE_VALUE_32, address, u64::from(value), flags)?;
    }

    /// Fails, as NVIDIA's driver does since 11.7. The second version replaces it.
    fn cuStreamWriteValue64(_stream: CUstream, _address: u64, _value: u64, _flags: u32) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }

    /// Writes any word that the device reaches, in registered host memory too.
    fn cuStreamWriteValue64_v2(stream: CUstream, address: u64, value: u64, flags: u32) {
        wait_value::single(&resolve(stream)?, id::WRITE_VALUE_64, address, value, flags)?;
    }

    /// Fails, as NVIDIA's driver does since 11.7. The second version replaces it.
    fn cuStreamWaitValue32(_stream: CUstream, _address: u64, _value: u32, _flags: u32) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }

    /// Makes the stream wait for a word. The low flag bits choose the comparison.
    fn cuStreamWaitValue32_v2(stream: CUstream, address: u64, value: u32, flags: u32) {
        wait_value::single(&resolve(stream)?, id::WAIT_VALUE_32, address, u64::from(value), flags)?;
    }

    /// Fails, as NVIDIA's driver does since 11.7. The second version replaces it.
    fn cuStreamWaitValue64(_stream: CUstream, _address: u64, _value: u64, _flags: u32) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }

    /// Makes the stream wait for a word. The low flag bits choose the comparison.
    fn cuStreamWaitValue64_v2(stream: CUstream, address: u64, value: u64, flags: u32) {
        wait_value::single(&resolve(stream)?, id::WAIT_VALUE_64, address, value, flags)?;
    }
}
