//! Messages in the calling thread's current context.

use katydid_cuda_sys::CUresult;
use katydid_wire::codec::Message;

use crate::context::stack;
use crate::process::session::shim;

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
