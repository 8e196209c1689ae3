//! Staging pieces of messages: found, registered, and released whatever becomes of the message.

use std::ffi::c_void;
use std::sync::Arc;

use katydid_cuda_sys::{CUresult, CUstream};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;

use crate::calls::fault::{Fault, SessionError};
use crate::handlers::{EnqueueResult, ExecutorResult};
use crate::memory::address::pointer;
use crate::state::Session;
use crate::transfer::bulk::CopyEnd;
use crate::transfer::staged::StagingArea;

/// Has `copy` read `size` bytes at `offset`, inside piece `number`, in stream order, and releases the piece when that is
/// done. `ready` first finds what the copy needs; if it fails, the piece is released at once: the program waits for it.
///
/// # Errors
///
/// A session error if the bytes do not lie in that piece; the error of `ready`.
pub(crate) fn copy_in<T>(
    session: &mut Session,
    head: &FrameHead,
    stream: u32,
    (offset, size, number): (u64, u64, u32),
    ready: impl FnOnce(&mut Session) -> Result<T, Fault>,
    copy: impl FnOnce(&Driver, T, *const c_void, CUstream) -> CUresult,
) -> EnqueueResult {
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

/// Smallest part of a copy out, in bytes, after which others may follow: a smaller copy has one part.
const MIN_MARKED_BYTES: u64 = 512 << 10;

/// Has `copy` write `size` bytes to `offset`, inside one piece, in stream order, and waits for that elsewhere.
///
/// If the driver has registered the piece, `copy` returns before it is done, and is called here. So the GPU has the next
/// part of a large copy while the program reads the last, and each part is waited for separately. If executors called it,
/// all parts would often be in the stream before the first was waited for, and reach the program at once.
///
/// # Errors
///
/// A session error if the bytes do not lie in one piece; the error of `copy`.
pub(crate) fn copy_out<R: Send + 'static>(
    session: &mut Session,
    (offset, size): (u64, u64),
    stream: CUstream,
    copy: impl Fn(&Driver, *mut c_void) -> CUresult + Send + 'static,
    reply: R,
) -> ExecutorResult<R> {
    let driver = Arc::clone(&session.shared.driver);
    let context = session.current;
    let area = area(session)?;
    let (target, piece) = area.locate(offset, size)?;
    if area.register(&driver, context, piece) {
        copy(&driver, pointer(target).cast()).ok()?;
        let ending = CopyEnd::of_last(&driver, stream, size >= MIN_MARKED_BYTES);
        return Ok(Box::new(move |driver| (ending.wait(driver), reply)));
    }
    Ok(Box::new(move |driver| {
        let copied = copy(driver, pointer(target).cast());
        let status =
            if copied == CUresult::SUCCESS { CopyEnd::of_last(driver, stream, false).wait(driver) } else { copied };
        (status, reply)
    }))
}

/// Returns the staging area; a stream link has none.
fn area(session: &mut Session) -> Result<&mut StagingArea, Fault> {
    session.staging.as_mut().ok_or_else(|| bad(0, 0))
}

fn bad(address: u64, size: u64) -> Fault {
    SessionError::BadRange { what: "a staged piece", address, size }.into()
}
