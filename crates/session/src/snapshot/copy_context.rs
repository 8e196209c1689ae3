//! The worker's objects in a context for copying contents: its own streams, and the hash kernel.
//!
//! All of them are made before the program's first object in a context, in every worker alike. Made later, they would move
//! what the driver places after them, and a restored session's variables with it. The kernel is in primary contexts.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUcontext, CUresult, CUstream, stream_flags};
use katydid_driver::Driver;

use super::hash::HashKernel;
use crate::device::ask::ask;

/// Number of streams: copies of as many threads at a time.
const COPY_STREAMS: usize = 8;

/// Streams in one context, with which they end.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyStreams {
    pub(super) context: CUcontext,
    streams: [CUstream; COPY_STREAMS],
}

// SAFETY: driver handles, which any thread may use.
unsafe impl Send for CopyStreams {}
// SAFETY: as above.
unsafe impl Sync for CopyStreams {}

impl CopyStreams {
    /// Makes them in `context`, which is current.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub(super) fn make(driver: &Driver, context: CUcontext) -> Result<Self, CUresult> {
        let mut streams = [CUstream::NULL; COPY_STREAMS];
        for stream in &mut streams {
            // SAFETY: the output is a local.
            *stream = ask(|out| unsafe { driver.cuStreamCreate(out, stream_flags::NON_BLOCKING) })?;
        }
        Ok(Self { context, streams })
    }

    /// Returns the stream of a thread.
    pub(super) fn of(&self, thread: usize) -> CUstream {
        self.streams[thread % COPY_STREAMS]
    }
}

/// The worker's objects in one context, with which they end.
#[derive(Debug, Clone)]
pub struct CopyContext {
    pub(super) device: i32,
    pub(super) context: CUcontext,
    pub(super) streams: CopyStreams,
    /// None for a device whose memory host code reads as fast.
    pub(super) kernel: Option<HashKernel>,
}

// SAFETY: driver handles, which any thread may use.
unsafe impl Send for CopyContext {}
// SAFETY: as above.
unsafe impl Sync for CopyContext {}

impl CopyContext {
    /// Makes everything in `context`, the primary one of `device`, and leaves it current. `seed` is the seed of the hash,
    /// the same on all devices.
    ///
    /// # Errors
    ///
    /// The driver's code.
    pub fn make(driver: &Driver, device: i32, context: CUcontext, seed: Option<u64>) -> Result<Self, CUresult> {
        // SAFETY: the caller has retained the context.
        unsafe { driver.cuCtxSetCurrent(context) }.ok()?;
        Self::make_in_current(driver, device, context, seed)
    }

    /// Makes everything in `context`, which is current.
    pub(super) fn make_in_current(
        driver: &Driver,
        device: i32,
        context: CUcontext,
        seed: Option<u64>,
    ) -> Result<Self, CUresult> {
        let streams = CopyStreams::make(driver, context)?;
        let kernel = seed.map(|seed| HashKernel::load(driver, seed)).transpose()?;
        if let Some(kernel) = &kernel {
            // Drivers load code at its first use, which takes memory as well. It runs in no stream of the worker: each
            // stream that was used once costs every kernel of a graph 20 ns and more for as long as it lives (H200).
            kernel.warm(driver, CUstream::NULL)?;
        }
        Ok(Self { device, context, streams, kernel })
    }
}
