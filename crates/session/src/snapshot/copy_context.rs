//! What a worker needs in a context to carry contents in and out: streams of its own, and the hash kernel.
//!
//! All of it is made before the program's first object in a context, in every worker alike. Made later, it would move what the
//! driver places after it, and a restored session's variables with it. The kernel is in primary contexts.

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUcontext, CUresult, CUstream, stream_flags};
use katydid_driver::Driver;

use super::hash::HashKernel;
use crate::device::ask::ask;

/// Streams: copies of as many threads at a time.
const COPY_STREAMS: usize = 8;

/// Streams in one context; they go with that.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopyStreams {
    pub(super) context: CUcontext,
    streams: [CUstream; COPY_STREAMS],
}

// SAFETY: handles of the driver's, which any thread may pass to it.
unsafe impl Send for CopyStreams {}
// SAFETY: as above.
unsafe impl Sync for CopyStreams {}

impl CopyStreams {
    /// Makes them in `context`, which is current.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub(super) fn make(driver: &Driver, context: CUcontext) -> Result<Self, CUresult> {
        let mut streams = [CUstream::NULL; COPY_STREAMS];
        for stream in &mut streams {
            // SAFETY: the output is a local.
            *stream = ask(|out| unsafe { driver.cuStreamCreate(out, stream_flags::NON_BLOCKING) })?;
        }
        Ok(Self { context, streams })
    }

    /// That of a thread.
    pub(super) fn of(&self, thread: usize) -> CUstream {
        self.streams[thread % COPY_STREAMS]
    }
}

/// What is there in one context; it goes with that.
#[derive(Debug, Clone)]
pub struct CopyContext {
    pub(super) device: i32,
    pub(super) context: CUcontext,
    pub(super) streams: CopyStreams,
    /// None for a device whose memory host code reads as fast.
    pub(super) kernel: Option<HashKernel>,
}

// SAFETY: handles of the driver's, which any thread may pass to it.
unsafe impl Send for CopyContext {}
// SAFETY: as above.
unsafe impl Sync for CopyContext {}

impl CopyContext {
    /// Makes everything in `context`, the primary one of `device`, and leaves that current. `seed` is of the hash, the same on all
    /// devices.
    ///
    /// # Errors
    ///
    /// What the driver says.
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
            // Drivers load code when it is first used, which takes memory as well. Not in a stream of ours: each that was used
            // once costs every kernel of a graph 20 ns and more for as long as it lives (H200).
            kernel.warm(driver, CUstream::NULL)?;
        }
        Ok(Self { device, context, streams, kernel })
    }
}
