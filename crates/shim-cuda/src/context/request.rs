//! Messages in the calling thread's current context, or in another one.

use katydid_cuda_sys::{CUresult, Pod};
use katydid_wire::codec::Message;

use crate::context::stack;
use crate::process::session::shim;

/// Returns the current context's wire id, or 0: some queries need no context.
pub(crate) fn any_context() -> u32 {
    stack::wire().unwrap_or(0)
}

/// Decodes a structure from the bytes of a reply.
#[allow(dead_code, reason = "which generated symbols call this depends on the lines of the spec")]
pub(crate) fn structure<T: Pod>(message: &'static str, bytes: &[u8]) -> Result<T, CUresult> {
    match T::from_bytes(bytes) {
        Some(value) => Ok(value),
        None => Err(shim()?.session.broken(message)),
    }
}

/// Queues a message in the context of a wire id (0: in none).
#[allow(dead_code, reason = "which generated symbols call this depends on the lines of the spec")]
pub(crate) fn enqueue_in<M: Message>(context: u32, message: &M) -> Result<(), CUresult> {
    shim()?.session.enqueue(context, message)
}

/// Sends a message in the context of a wire id (0: in none) and waits for its reply.
pub(crate) fn call_in<M: Message>(context: u32, message: &M) -> Result<M::Reply, CUresult> {
    shim()?.session.call(context, message)
}

/// Queues a message in the current context.
pub(crate) fn enqueue<M: Message>(message: &M) -> Result<(), CUresult> {
    let context = stack::wire()?;
    shim()?.session.enqueue(context, message)
}

/// Sends a message in the current context and waits for its reply.
pub(crate) fn call<M: Message>(message: &M) -> Result<M::Reply, CUresult> {
    let context = stack::wire()?;
    shim()?.session.call(context, message)
}
