//! Staged pieces that a message names: found, registered, and given back whatever becomes of the message.

use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;

use super::Enqueued;
use crate::fault::{Fault, SessionError};
use crate::host_memory::pointer;
use crate::session::Session;
use crate::staged::StagingArea;

/// Has `copy` read `size` bytes at `offset`, which lie in piece `number`, in the order of a stream, and gives the piece back
/// when that has been done. What `ready` finds first is for the copy; if it fails, the piece is given back at once: the
/// program waits for it.
///
/// # Errors
///
/// A session error if the bytes do not lie in that piece; what `ready` says.
pub(super) fn copy_in<T>(
    session: &mut Session,
    head: &FrameHead,
    stream: u32,
    (offset, size, number): (u64, u64, u32),
    ready: impl FnOnce(&mut Session) -> Result<T, Fault>,
    copy: impl FnOnce(&Driver, T, *const c_void, CUstream) -> CUresult,
) -> Enqueued {
    let driver = Arc::clone(&session.shared.driver);
    let context = session.current;
    let (address, piece) = area(session)?.locate(offset, size)?;
    if piece != number as usize {
        return Err(bad(offset, size));
    }
    let ready = ready(session).and_then(|ready| Ok((ready, session.handle(head, stream)?)));
    let area = area(session)?;
    area.register(&driver, context, piece);
    let (ready, stream) = match ready {
        Ok(ready) => ready,
        Err(fault) => {
            let _ = area.release_now(&driver, CUstream::NULL, piece);
            return Err(fault);
        }
    };
    let copied = copy(&driver, ready, pointer(address).cast_const().cast(), stream);
    let released = area.release_after(&driver, stream, piece);
    Ok(copied.ok().and(released).err().unwrap_or(CUresult::SUCCESS))
}

/// The address of `size` bytes at `offset`, which lie in one piece, for a copy that the program waits for.
///
/// # Errors
///
/// A session error if they do not.
pub(super) fn place(session: &mut Session, offset: u64, size: u64) -> Result<u64, Fault> {
    let driver = Arc::clone(&session.shared.driver);
    let context = session.current;
    let area = area(session)?;
    let (address, piece) = area.locate(offset, size)?;
    area.register(&driver, context, piece);
    Ok(address)
}

/// The staging area; a stream link has none.
fn area(session: &mut Session) -> Result<&mut StagingArea, Fault> {
    session.staging.as_mut().ok_or_else(|| bad(0, 0))
}

fn bad(address: u64, size: u64) -> Fault {
    SessionError::BadRange { what: "a staged piece", address, size }.into()
}
