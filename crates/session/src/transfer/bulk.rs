//! Copies between the GPU and the buffers of a link without shared memory.
//!
//! A driver accepts a copy to registered memory without waiting for it. So the main loop starts copies, in the order of the
//! frames. Each executor waits for the end of its own part and sends it, while the GPU copies the next ones.
//! [`Session::read_payload`] surrounds every call that gives a driver the address of a payload.

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

/// Fewest bytes for which a buffer is worth it: below, a driver is as fast with its own memory.
const MIN_BULK_BUFFER_BYTES: usize = 128 << 10;

/// The reply to `kdCopyOut`, sent from the memory of the copy.
pub(crate) enum CopiedOut {
    Buffer(Buffer),
    Memory(kdCopyOutReply),
}

impl CopiedOut {
    /// Returns the reply to a failed copy.
    pub(crate) fn nothing() -> Self {
        Self::Memory(kdCopyOutReply { data: Vec::new() })
    }
}

impl Reply for CopiedOut {
    fn encode(&self, out: &mut Vec<u8>) {
        // Less than a frame: no request asks for more.
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

/// The end of a started copy to memory of the worker.
pub(crate) struct CopyEnd {
    stream: CUstream,
    /// Recorded after the copy; none if the driver refuses, or it is not needed.
    end: Option<CUevent>,
}

impl CopyEnd {
    /// Returns the end of the last copy in `stream`. `is_marked`: later copies may follow, which this one does not wait for.
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

/// A started copy to a buffer.
pub(crate) struct PendingCopy {
    buffer: Buffer,
    ending: CopyEnd,
}

impl PendingCopy {
    /// Waits for the copy, but not for later ones.
    pub(crate) fn wait(self, driver: &Driver) -> (CUresult, CopiedOut) {
        match self.ending.wait(driver) {
            CUresult::SUCCESS => (CUresult::SUCCESS, CopiedOut::Buffer(self.buffer)),
            failed => {
                // The driver may still be copying, so the buffer is never used again.
                mem::forget(self.buffer);
                (failed, CopiedOut::nothing())
            }
        }
    }
}

impl Session {
    /// Runs `copy`, which has the driver copy the payload of the current frame, in stream order. A payload in a buffer of
    /// the link, which the driver reads later, stays there until the GPU has read it; from other memory the driver has read
    /// it when it returns.
    pub(crate) fn read_payload(&mut self, stream: CUstream, copy: impl FnOnce(&Driver) -> CUresult) -> CUresult {
        let driver = Arc::clone(&self.shared.driver);
        let Some((area, number)) = self.buffered.as_mut().zip(self.payload_buffer) else { return copy(&driver) };
        area.register(&driver, self.current, number);
        area.occupy(number);
        let copied = copy(&driver);
        let released = area.release_after(&driver, stream, number);
        copied.ok().and(released).err().unwrap_or(CUresult::SUCCESS)
    }

    /// Begins a large copy of device memory to a buffer of the link; none without a free buffer that the driver has
    /// registered, since the copy would block the main loop.
    ///
    /// # Errors
    ///
    /// The driver's code for the copy.
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
        // SAFETY: `size` bytes of a buffer that no other code uses until the copy was waited for.
        unsafe { driver.cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), source, size, stream) }.ok()?;
        Ok(Some(PendingCopy { buffer, ending: CopyEnd::of_last(&driver, stream, true) }))
    }
}

/// Records an event after all current work of `stream`; none if the driver refuses.
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

/// Destroys an event of the worker.
fn destroy(driver: &Driver, event: CUevent) {
    // SAFETY: no other code has it or uses it again. If its context is gone, the driver refuses.
    let _ = unsafe { driver.cuEventDestroy_v2(event) };
}
