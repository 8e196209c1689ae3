//! Copies between the GPU and the buffers of a link that shares no memory.
//!
//! A driver takes a copy to memory that it has registered in without waiting for it. So the main loop does that, in the
//! order of the frames; the executors wait each for the end of its own part and send it, while the GPU copies the next ones.
//! The thread that gives a driver the address of a payload does so within [`Session::read_payload`].

#![expect(unsafe_code, reason = "has the driver write to buffers")]

use std::mem;
use std::sync::Arc;

use katydid_cuda_sys::{CUevent, CUresult, CUstream, event_flags};
use katydid_driver::Driver;
use katydid_transport::Buffer;
use katydid_wire::codec::{CodecError, Reply};
use katydid_wire::message::kdCopyOutReply;

use crate::calls::fault::Fault;
use crate::device::ask::ask;
use crate::state::Session;

/// Least bytes for which a buffer is worth it: below, a driver is as fast with memory of its own.
const MIN_BULK_BUFFER_BYTES: usize = 128 << 10;

/// The reply to `kdCopyOut`, sent from the memory that the driver has copied to.
pub(crate) enum CopiedOut {
    Buffer(Buffer),
    Memory(kdCopyOutReply),
}

impl CopiedOut {
    /// The reply to a copy that failed.
    pub(crate) fn nothing() -> Self {
        Self::Memory(kdCopyOutReply { data: Vec::new() })
    }
}

impl Reply for CopiedOut {
    fn encode(&self, out: &mut Vec<u8>) {
        // Less than a frame, since that is all that can be asked for.
        out.extend_from_slice(&(self.tail().len() as u32).to_le_bytes());
    }

    fn tail(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer.bytes(),
            Self::Memory(reply) => reply.tail(),
        }
    }

    fn into_tail(self) -> Vec<u8> {
        match self {
            Self::Buffer(_) => Vec::new(),
            Self::Memory(reply) => reply.into_tail(),
        }
    }

    fn decode(payload: &[u8]) -> Result<Self, CodecError> {
        kdCopyOutReply::decode(payload).map(Self::Memory)
    }
}

/// The end of a copy to memory of the worker's that the driver has taken in.
pub(crate) struct CopyEnd {
    stream: CUstream,
    /// Recorded behind the copy; none if the driver would not, or no thread wanted it.
    end: Option<CUevent>,
}

impl CopyEnd {
    /// The end of the copy that was given to `stream` last. `is_marked`: more may come behind it that is not to be waited
    /// for.
    pub(crate) fn of_last(driver: &Driver, stream: CUstream, is_marked: bool) -> Self {
        Self { stream, end: is_marked.then(|| record(driver, stream)).flatten() }
    }

    /// Blocks until the copy is complete; returns the driver's code.
    pub(crate) fn wait(self, driver: &Driver) -> CUresult {
        if let Some(end) = self.end {
            // SAFETY: the event is this value's own.
            let status = unsafe { driver.cuEventSynchronize(end) };
            destroy(driver, end);
            return status;
        }
        // SAFETY: the handle came from the driver, which refuses one that is gone.
        unsafe { driver.cuStreamSynchronize(self.stream) }
    }
}

/// A copy to a buffer that the driver has taken in.
pub(crate) struct PendingCopy {
    buffer: Buffer,
    ending: CopyEnd,
}

impl PendingCopy {
    /// Waits for the copy, and for nothing that comes behind it.
    pub(crate) fn wait(self, driver: &Driver) -> (CUresult, CopiedOut) {
        match self.ending.wait(driver) {
            CUresult::SUCCESS => (CUresult::SUCCESS, CopiedOut::Buffer(self.buffer)),
            failed => {
                // No thread knows whether the driver still copies, so no thread is given that buffer again.
                mem::forget(self.buffer);
                (failed, CopiedOut::nothing())
            }
        }
    }
}

impl Session {
    /// Has `copy` give the driver a copy out of the payload of the current frame, in the order of `stream`. A payload in a
    /// buffer of the link, which the driver reads when it comes to that, stays there until the GPU says that it was read;
    /// other memory the driver has read when it returns.
    pub(crate) fn read_payload(&mut self, stream: CUstream, copy: impl FnOnce(&Driver) -> CUresult) -> CUresult {
        let driver = Arc::clone(&self.shared.driver);
        let Some((area, number)) = self.buffered.as_mut().zip(self.payload_buffer) else { return copy(&driver) };
        area.register(&driver, self.current, number);
        area.occupy(number);
        let copied = copy(&driver);
        let released = area.release_after(&driver, stream, number);
        copied.ok().and(released).err().unwrap_or(CUresult::SUCCESS)
    }

    /// Begins a large copy of device memory to a buffer of the link; none if there is none that the driver has registered,
    /// so that it would make the main loop wait.
    ///
    /// # Errors
    ///
    /// What the driver says to the copy.
    pub(crate) fn begin_copy_out(
        &mut self,
        source: u64,
        size: usize,
        stream: CUstream,
    ) -> Result<Option<PendingCopy>, Fault> {
        let (Some(buffers), Some(area), true) = (&self.buffers, &mut self.buffered, size >= MIN_BULK_BUFFER_BYTES)
        else {
            return Ok(None);
        };
        let driver = Arc::clone(&self.shared.driver);
        let Some(mut buffer) = buffers.try_take() else { return Ok(None) };
        if !area.register(&driver, self.current, buffer.number()) {
            return Ok(None);
        }
        let Some(bytes) = buffer.resized(size) else { return Ok(None) };
        // SAFETY: `size` bytes of a buffer that is no other code's until the copy was waited for.
        unsafe { driver.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), source, size, stream) }.ok()?;
        Ok(Some(PendingCopy { buffer, ending: CopyEnd::of_last(&driver, stream, true) }))
    }
}

/// An event at the end of what `stream` has to do so far; none if the driver refuses.
fn record(driver: &Driver, stream: CUstream) -> Option<CUevent> {
    // SAFETY: the output is a local that outlives the call.
    let end: CUevent = ask(|out| unsafe { driver.cuEventCreate(out, event_flags::DISABLE_TIMING) }).ok()?;
    // SAFETY: handles from the driver.
    let status = unsafe { driver.cuEventRecord(end, stream) };
    if status != CUresult::SUCCESS {
        destroy(driver, end);
        return None;
    }
    Some(end)
}

/// Ends an event of ours.
fn destroy(driver: &Driver, event: CUevent) {
    // SAFETY: no other code has it, and no code uses it again. One whose context is gone is refused.
    let _ = unsafe { driver.cuEventDestroy_v2(event) };
}
