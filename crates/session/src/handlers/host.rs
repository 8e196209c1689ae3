//! Pinned host memory: registration, and on stream links its contents.

#![expect(unsafe_code, reason = "calls the driver and reads the pinned arena")]

use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD};
use katydid_wire::message::{
    kdHostPull, kdHostPullReply, kdHostPush, kdHostRegister, kdHostRegisterReply, kdHostUnregister,
    kdHostUnregisterReply,
};

use super::{Called, Detached, Enqueued, done};
use crate::fault::{Fault, SessionError};
use crate::host_memory::{HostMemory, pointer, pull};
use crate::session::Session;

/// Bytes of a reply that describe the data.
const LENGTH: usize = 4;

/// Registers a block. What the program wished for its mapping is of no matter: it is always portable and mapped.
pub(crate) fn kdHostRegister(
    session: &mut Session,
    _head: &FrameHead,
    message: kdHostRegister,
) -> Called<kdHostRegisterReply> {
    let driver = Arc::clone(&session.shared.driver);
    let context = session.current;
    arena(session)?.register(&driver, context, message.address, message.size)?;
    done(kdHostRegisterReply {})
}

/// Ends a registration, which waits until the GPU has done with the block.
pub(crate) fn kdHostUnregister(
    session: &mut Session,
    _head: &FrameHead,
    message: kdHostUnregister,
) -> Detached<kdHostUnregisterReply> {
    let is_known = arena(session)?.unregister(message.address, message.size)?;
    Ok(Box::new(move |driver| {
        if !is_known {
            return (CUresult::SUCCESS, kdHostUnregisterReply {});
        }
        // SAFETY: the block was registered at this address, and has left the books.
        let status = unsafe { driver.cuMemHostUnregister(pointer(message.address).cast()) };
        (status, kdHostUnregisterReply {})
    }))
}

/// Takes what the program wrote into a block.
pub(crate) fn kdHostPush(session: &mut Session, _head: &FrameHead, message: kdHostPush<'_>) -> Enqueued {
    arena(session)?.push(message.address, message.data)?;
    Ok(CUresult::SUCCESS)
}

/// Sends what the GPU wrote into a block.
pub(crate) fn kdHostPull(session: &mut Session, _head: &FrameHead, message: kdHostPull) -> Detached<kdHostPullReply> {
    let size = message.size as usize;
    if size > MAX_PAYLOAD - LENGTH {
        let (address, size) = (message.address, u64::from(message.size));
        return Err(SessionError::BadRange { what: "one reply", address, size }.into());
    }
    arena(session)?.check_registered(message.address, u64::from(message.size))?;
    Ok(Box::new(move |_| {
        // SAFETY: the range is registered, hence inside the arena, which is mapped as long as the session.
        let data = unsafe { pull(message.address, size) };
        (CUresult::SUCCESS, kdHostPullReply { data })
    }))
}

/// The arena; sessions without one have no pinned memory, and their programs know.
fn arena(session: &mut Session) -> Result<&mut HostMemory, Fault> {
    session.host.as_mut().ok_or_else(|| CUresult::ERROR_NOT_SUPPORTED.into())
}
