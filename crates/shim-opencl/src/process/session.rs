//! The single session of this process, and the functions that send its messages. OpenCL messages name no context.

use std::sync::OnceLock;

use katydid_opencl_sys::Code;
use katydid_transport::{LinkError, Staging};
use katydid_wire::codec::Message;

/// An OpenCL session.
pub(crate) type Session = katydid_client::session::Session<Code>;

static PROCESS_SESSION: OnceLock<Session> = OnceLock::new();

/// Installs the session of the process.
pub(crate) fn begin(session: Session) -> &'static Session {
    PROCESS_SESSION.get_or_init(|| session)
}

/// Returns the session, if it has begun.
pub(crate) fn if_started() -> Option<&'static Session> {
    PROCESS_SESSION.get()
}

/// Returns the session. Every object comes from one, so a thread that holds an object has it.
fn session() -> Result<&'static Session, Code> {
    if_started().ok_or(Code::INVALID_PLATFORM)
}

/// Sends a message without waiting.
pub(crate) fn enqueue<M: Message>(message: &M) -> Result<(), Code> {
    session()?.enqueue(0, message)
}

/// Sends a message whose effect no program could see at once: a sleeping worker may sleep on for a while.
pub(crate) fn enqueue_lazily<M: Message>(message: &M) -> Result<(), Code> {
    session()?.enqueue_lazily(0, message)
}

/// Sends a message and waits for its reply.
pub(crate) fn call<M: Message>(message: &M) -> Result<M::Reply, Code> {
    session()?.call(0, message)
}

/// Sends a message and waits for its reply, whose bytes `read` reads in place.
pub(crate) fn call_and_read<M: Message, R>(message: &M, read: impl FnOnce(&[u8]) -> Option<R>) -> Result<R, Code> {
    session()?.call_and_read(0, message, read)
}

/// Reports the first failure of a message that no thread waited for; for calls that wait for commands.
pub(crate) fn take_deferred() -> Result<(), Code> {
    session()?.take_deferred()
}

/// Returns a number for the present worker: another one may have other devices behind the same ids.
pub(crate) fn worker() -> Result<u32, Code> {
    Ok(session()?.moves() as u32)
}

/// Returns the memory shared with the worker; `None` on a stream.
pub(crate) fn staging() -> Result<Option<&'static Staging>, Code> {
    Ok(session()?.staging())
}

/// Backs at least this many bytes of the shared addresses with memory.
pub(crate) fn lengthen_pinned(bytes: u64) -> Result<(), Code> {
    session()?.lengthen_pinned(bytes).map_err(|_| Code::OUT_OF_HOST_MEMORY)
}

/// Ends the session because a reply does not match its message.
#[cold]
pub(crate) fn broken(what: &str) -> Code {
    session().map_or_else(|code| code, |session| session.broken(what))
}

/// Returns the code for a link error during `what`.
#[cold]
pub(crate) fn fail(what: &str, error: &LinkError) -> Code {
    session().map_or_else(|code| code, |session| session.fail(what, error))
}
