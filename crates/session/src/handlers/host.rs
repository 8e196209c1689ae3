//! Pinned host memory: registration, and on stream links its contents.

#![expect(unsafe_code, reason = "calls the driver and reads the pinned arena")]

use std::sync::Arc;

use katydid_cuda_sys::CUresult;
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD};
use katydid_wire::message::{
    kdHostPull, kdHostPullReply, kdHostPush, kdHostRegister, kdHostRegisterReply, kdHostUnregister,
    kdHostUnregisterReply,
};

use super::module::is_managed;
use super::{Called, Detached, Enqueued, done};
use crate::fault::{Fault, SessionError};
use crate::host_memory::{HostMemory, out_of_range, pull, push};
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
    session.reach.admit_pinned(message.address, message.size);
    done(kdHostRegisterReply {})
}

/// Ends a registration, which waits until the GPU has done with the block.
pub(crate) fn kdHostUnregister(
    session: &mut Session,
    _head: &FrameHead,
    message: kdHostUnregister,
) -> Detached<kdHostUnregisterReply> {
    let leaving = arena(session)?.unregister(message.address, message.size)?;
    Ok(Box::new(move |driver| (leaving.end(driver), kdHostUnregisterReply {})))
}

/// Takes what the program wrote into a block.
pub(crate) fn kdHostPush(session: &mut Session, _head: &FrameHead, message: kdHostPush<'_>) -> Enqueued {
    check(session, message.address, message.data.len() as u64)?;
    // SAFETY: just checked.
    unsafe { push(message.address, message.data) };
    Ok(CUresult::SUCCESS)
}

/// Sends what the GPU wrote into a block.
pub(crate) fn kdHostPull(session: &mut Session, _head: &FrameHead, message: kdHostPull) -> Detached<kdHostPullReply> {
    let size = message.size as usize;
    if size > MAX_PAYLOAD - LENGTH {
        let (address, size) = (message.address, u64::from(message.size));
        return Err(SessionError::BadRange { what: "one reply", address, size }.into());
    }
    check(session, message.address, u64::from(message.size))?;
    Ok(Box::new(move |_| {
        // SAFETY: just checked; no program asks for memory while it unregisters or unloads it.
        let data = unsafe { pull(message.address, size) };
        (CUresult::SUCCESS, kdHostPullReply { data })
    }))
}

/// Passes a range that is registered, lies in a block of the host's memory that the program mapped, or in a variable that
/// is managed memory: the driver is asked, because a variable goes with its module.
fn check(session: &Session, address: u64, size: u64) -> Result<(), Fault> {
    let is_variable = || {
        let ends = [address, address.saturating_add(size.saturating_sub(1))];
        session.reach.is_variable(address, size) && ends.iter().all(|end| is_managed(session.driver(), *end))
    };
    let is_registered = session.host.as_ref().is_some_and(|host| host.holds(address, size));
    if is_registered || session.virtual_memory.is_open(address, size) || is_variable() {
        Ok(())
    } else {
        Err(out_of_range(address, size))
    }
}

/// The arena; sessions without one have no pinned memory, and their programs know.
fn arena(session: &mut Session) -> Result<&mut HostMemory, Fault> {
    session.host.as_mut().ok_or_else(|| CUresult::ERROR_NOT_SUPPORTED.into())
}
