//! Copies: between addresses that both sides know, from the frame, through the staging area.
//!
//! Sizes are in bytes. Only addresses inside the session's arenas and variables pass ([`crate::memory::address_check`]).

#![expect(unsafe_code, reason = "calls the driver")]

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdCopy, kdCopyIn, kdCopyInStaged, kdCopyOut, kdCopyOutReply, kdCopyOutStaged, kdCopyOutStagedReply,
};

use crate::calls::fault::SessionError;
use crate::handlers::memory::staging_pieces;
use crate::handlers::{EnqueueResult, ExecutorResult, MAX_REPLY_DATA_BYTES};
use crate::state::Session;
use crate::transfer::bulk::CopiedOut;
use crate::transfer::reply_pool;

/// Copies between device memory, pinned memory and variables, in any direction.
pub(crate) fn kdCopy(session: &mut Session, head: &FrameHead, message: kdCopy) -> EnqueueResult {
    session.address_check.check(message.destination, message.size)?;
    session.address_check.check(message.source, message.size)?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let size = message.size as usize;
    // SAFETY: both ranges belong to the session, by the checks above; what is not mapped in them the driver refuses.
    Ok(unsafe { session.driver().cuMemcpyAsync(message.destination, message.source, size, stream) })
}

/// Copies the frame's own bytes to the device.
pub(crate) fn kdCopyIn(session: &mut Session, head: &FrameHead, message: kdCopyIn<'_>) -> EnqueueResult {
    session.address_check.check(message.destination, message.data.len() as u64)?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let (data, size) = (message.data.as_ptr().cast(), message.data.len());
    // SAFETY: `read_payload` keeps `data` readable for as long as the copy reads it; the target is the session's.
    Ok(session
        .read_payload(stream, |driver| unsafe { driver.cuMemcpyHtoDAsync_v2(message.destination, data, size, stream) }))
}

/// Copies a staged piece to the device, and releases the piece when the copy is done.
pub(crate) fn kdCopyInStaged(session: &mut Session, head: &FrameHead, message: kdCopyInStaged) -> EnqueueResult {
    let kdCopyInStaged { destination, stream, offset, size, piece } = message;
    let bytes = u64::from(size);
    let ready = |session: &mut Session| session.address_check.check(destination, bytes);
    staging_pieces::copy_in(session, head, stream, (offset, bytes, piece), ready, |driver, (), source, stream| {
        // SAFETY: the source lies in the staging area, which is mapped as long as the link; the target is the session's.
        unsafe { driver.cuMemcpyHtoDAsync_v2(destination, source, size as usize, stream) }
    })
}

/// Copies device memory into the reply.
pub(crate) fn kdCopyOut(session: &mut Session, head: &FrameHead, message: kdCopyOut) -> ExecutorResult<CopiedOut> {
    let size = message.size as usize;
    if size > MAX_REPLY_DATA_BYTES {
        let (address, size) = (message.source, u64::from(message.size));
        return Err(SessionError::BadRange { what: "one reply", address, size }.into());
    }
    session.address_check.check(message.source, u64::from(message.size))?;
    let stream: CUstream = session.handle(head, message.stream)?;
    if let Some(under_way) = session.begin_copy_out(message.source, size, stream)? {
        return Ok(Box::new(move |driver| under_way.wait(driver)));
    }
    Ok(Box::new(move |driver| {
        let mut data = reply_pool::take(size);
        let status = copy_out(driver, data.as_mut_ptr(), message.source, size, stream);
        if status != CUresult::SUCCESS {
            data.clear();
        }
        (status, CopiedOut::Memory(kdCopyOutReply { data }))
    }))
}

/// Copies device memory into the staging area.
pub(crate) fn kdCopyOutStaged(
    session: &mut Session,
    head: &FrameHead,
    message: kdCopyOutStaged,
) -> ExecutorResult<kdCopyOutStagedReply> {
    let size = u64::from(message.size);
    session.address_check.check(message.source, size)?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let copy = move |driver: &Driver, target| {
        // SAFETY: the target is `size` bytes of the staging area, which is mapped as long as the link.
        unsafe { driver.cuMemcpyDtoHAsync_v2(target, message.source, message.size as usize, stream) }
    };
    staging_pieces::copy_out(session, (message.offset, size), stream, copy, kdCopyOutStagedReply {})
}

/// Copies to memory of the worker and waits until the bytes are there.
pub(crate) fn copy_out(driver: &Driver, to: *mut u8, source: u64, size: usize, stream: CUstream) -> CUresult {
    // SAFETY: callers give `size` writable bytes at `to` that outlive the wait below.
    let copied = unsafe { driver.cuMemcpyDtoHAsync_v2(to.cast(), source, size, stream) };
    if copied != CUresult::SUCCESS {
        return copied;
    }
    // SAFETY: takes a handle from the driver.
    unsafe { driver.cuStreamSynchronize(stream) }
}
