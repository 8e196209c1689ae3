//! Streams, and the words in memory that they wait for and write.
//!
//! Every function that takes a stream accepts the special handles: null and 1 are the legacy default stream of the
//! current context, 2 is the calling thread's own; in the `_ptsz` forms null is the thread's own too. Anything else that
//! is no living stream gives 400.

#![expect(unsafe_code, reason = "functions of the driver API take raw pointers")]

use std::cell::Cell;

use katydid_cuda_sys::{CUcontext, CUevent, CUresult, CUstream};

use super::contexts::as_handle;
use crate::border::{Out, Outcome, api};
use crate::stream::{self, create, resolve};
use crate::wait_value::{self, Width};
use crate::{current, event, process};

/// A stream handle for a number.
fn handle(number: usize) -> CUstream {
    CUstream(std::ptr::without_provenance_mut(number))
}

thread_local! {
    /// Nothing is ever captured, so the mode is only kept.
    static CAPTURE_MODE: Cell<u32> = const { Cell::new(0) };
}

/// Ends a stream's handle; the default streams have none.
fn destroy(stream: CUstream) -> Outcome {
    process::ready()?;
    stream::destroy(stream)
}

api! {
    /// Flag 1 makes it independent of the legacy default stream.
    fn cuStreamCreate(stream: Out<CUstream>, flags: u32) {
        stream.set(handle(create(&current::usable()?, flags, 0)?.handle));
    }

    /// The priority is cut to the range and reported; it changes nothing.
    fn cuStreamCreateWithPriority(stream: Out<CUstream>, flags: u32, priority: i32) {
        stream.set(handle(create(&current::usable()?, flags, priority)?.handle));
    }

    /// The handle ends at once, the work in it goes on.
    fn cuStreamDestroy(stream: CUstream) {
        destroy(stream)?;
    }

    /// The handle ends at once, the work in it goes on.
    fn cuStreamDestroy_v2(stream: CUstream) {
        destroy(stream)?;
    }

    /// Default streams have priority 0.
    fn cuStreamGetPriority(stream: CUstream, priority: Out<i32>) {
        priority.set(resolve(stream)?.priority);
    }

    /// Default streams have no flags.
    fn cuStreamGetFlags(stream: CUstream, flags: Out<u32>) {
        flags.set(resolve(stream)?.flags);
    }

    /// The default streams of every thread and context have their own.
    fn cuStreamGetId(stream: CUstream, id: Out<u64>) {
        id.set(resolve(stream)?.id);
    }

    /// The device of the stream's context.
    fn cuStreamGetDevice(stream: CUstream, device: Out<i32>) {
        device.set(resolve(stream)?.context()?.device.ordinal);
    }

    /// For default streams the current context.
    fn cuStreamGetCtx(stream: CUstream, context: Out<CUcontext>) {
        context.set(as_handle(resolve(stream)?.context()?.handle));
    }

    /// The legacy default stream waits for all blocking streams.
    fn cuStreamSynchronize(stream: CUstream) {
        resolve(stream)?.synchronise()?;
    }

    /// 600 while anything is pending.
    fn cuStreamQuery(stream: CUstream) {
        resolve(stream)?.query()?;
    }

    /// The flag for external events means something during capture only.
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32) {
        let (stream, event) = (resolve(stream)?, event::resolve(event)?);
        if flags != 0 {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        event.hold_back(&stream)?;
    }

    /// Never: there are no graphs.
    fn cuStreamIsCapturing(stream: CUstream, status: Out<u32>) {
        resolve(stream)?;
        status.set(0);
    }

    /// Kept for each thread, as nothing is ever captured.
    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        mode.set(CAPTURE_MODE.replace(mode.get()));
    }

    /// Any word that the device reaches, registered host memory included.
    fn cuStreamWriteValue32(stream: CUstream, address: u64, value: u32, flags: u32) {
        wait_value::write(&resolve(stream)?, address, u64::from(value), Width::Four, flags)?;
    }

    /// Any word that the device reaches, registered host memory included.
    fn cuStreamWriteValue32_v2(stream: CUstream, address: u64, value: u32, flags: u32) {
        wait_value::write(&resolve(stream)?, address, u64::from(value), Width::Four, flags)?;
    }

    /// Any word that the device reaches, registered host memory included.
    fn cuStreamWriteValue64(stream: CUstream, address: u64, value: u64, flags: u32) {
        wait_value::write(&resolve(stream)?, address, value, Width::Eight, flags)?;
    }

    /// Any word that the device reaches, registered host memory included.
    fn cuStreamWriteValue64_v2(stream: CUstream, address: u64, value: u64, flags: u32) {
        wait_value::write(&resolve(stream)?, address, value, Width::Eight, flags)?;
    }

    /// The stream waits, not the caller; the low flag bits choose the comparison.
    fn cuStreamWaitValue32(stream: CUstream, address: u64, value: u32, flags: u32) {
        wait_value::wait(&resolve(stream)?, address, u64::from(value), Width::Four, flags)?;
    }

    /// The stream waits, not the caller; the low flag bits choose the comparison.
    fn cuStreamWaitValue32_v2(stream: CUstream, address: u64, value: u32, flags: u32) {
        wait_value::wait(&resolve(stream)?, address, u64::from(value), Width::Four, flags)?;
    }

    /// The stream waits, not the caller; the low flag bits choose the comparison.
    fn cuStreamWaitValue64(stream: CUstream, address: u64, value: u64, flags: u32) {
        wait_value::wait(&resolve(stream)?, address, value, Width::Eight, flags)?;
    }

    /// The stream waits, not the caller; the low flag bits choose the comparison.
    fn cuStreamWaitValue64_v2(stream: CUstream, address: u64, value: u64, flags: u32) {
        wait_value::wait(&resolve(stream)?, address, value, Width::Eight, flags)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capture_mode_is_exchanged() {
        let mut mode = 2;
        // SAFETY: a local.
        unsafe {
            assert_eq!((cuThreadExchangeStreamCaptureMode(&mut mode), mode), (CUresult::SUCCESS, 0));
            assert_eq!((cuThreadExchangeStreamCaptureMode(&mut mode), mode), (CUresult::SUCCESS, 2));
        }
    }
}
