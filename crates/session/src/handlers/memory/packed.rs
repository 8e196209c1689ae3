//! Copies with compressed bytes, over links that are slower than a compressor (`katydid_transport::compression`).
//!
//! A program's sizes are checked before memory is allocated for them. A block that does not decompress to its announced size
//! ends the session.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::Arc;
use std::time::Instant;

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_transport::compression::{Pace, unpack};
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD_BYTES};
use katydid_wire::message::{kdCopyInPacked, kdCopyOutPacked, kdCopyOutPackedReply};

use crate::calls::fault::{Fault, SessionError};
use crate::handlers::memory::copy::copy_out;
use crate::handlers::{EnqueueResult, ExecutorResult};
use crate::state::Session;
use crate::transfer::reply_pool;

/// Bytes of a reply that describe its data.
const REPLY_FACTS_BYTES: usize = 16;

/// Decompresses the frame's bytes and copies them to the device.
pub(crate) fn kdCopyInPacked(session: &mut Session, head: &FrameHead, message: kdCopyInPacked<'_>) -> EnqueueResult {
    let size = bounded(message.destination, message.size, MAX_PAYLOAD_BYTES)?;
    session.address_check.check(message.destination, u64::from(message.size))?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let mut data = reply_pool::take(size);
    unpack(message.data, &mut data).map_err(|error| SessionError::DamagedPart {
        message: "kdCopyInPacked",
        part: "data",
        reason: error.to_string(),
    })?;
    // SAFETY: the data is readable for the call; being pageable memory, it is not read after it. The target is the
    // session's.
    let status =
        unsafe { session.driver().cuMemcpyHtoDAsync_v2(message.destination, data.as_ptr().cast(), size, stream) };
    reply_pool::keep(data);
    Ok(status)
}

/// Copies device memory into the reply, compressed if it arrives sooner so.
pub(crate) fn kdCopyOutPacked(
    session: &mut Session,
    head: &FrameHead,
    message: kdCopyOutPacked,
) -> ExecutorResult<kdCopyOutPackedReply> {
    let size = bounded(message.source, message.size, MAX_PAYLOAD_BYTES - REPLY_FACTS_BYTES)?;
    session.address_check.check(message.source, u64::from(message.size))?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let (packer, start) = (Arc::clone(&session.packer), Instant::now());
    Ok(Box::new(move |driver| {
        let mut data = reply_pool::take(size);
        let status = copy_out(driver, data.as_mut_ptr(), message.source, size, stream);
        if status != CUresult::SUCCESS {
            return (status, kdCopyOutPackedReply { isPacked: 0, packerPace: 0, waited: 0, data: Vec::new() });
        }
        let packed = packer.pack_over(Pace(message.pace), &data);
        let packerPace = packer.packer().map_or(0, |pace| pace.0);
        let (isPacked, data) = packed.map_or_else(|| (0, data), |packed| (1, packed));
        let waited = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
        (status, kdCopyOutPackedReply { isPacked, packerPace, waited, data })
    }))
}

/// Checks a number of bytes that one frame may decompress to.
fn bounded(address: u64, size: u32, most: usize) -> Result<usize, Fault> {
    let bad = || SessionError::BadRange { what: "one frame", address, size: size.into() };
    usize::try_from(size).ok().filter(|size| *size <= most).ok_or_else(|| bad().into())
}
