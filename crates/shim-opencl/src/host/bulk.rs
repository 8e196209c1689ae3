//! Long data on its way to the worker: in pieces before the message that uses it, or behind that message's own bytes.

use katydid_opencl_sys::Code;
use katydid_wire::opencl::MAX_REPLY_VALUE_BYTES;
use katydid_wire::opencl::message::kdclPiece;

use crate::process::session;

/// Data up to here goes with its message, bytes.
const MAX_INLINE_BYTES: usize = 64 << 10;
/// Most data of one message, bytes; the worker takes no more.
pub(crate) const MAX_DATA_BYTES: usize = 16 << 30;

/// Data that is on its way, and what its message says of it.
pub(crate) struct SentData<'a> {
    /// 1: it came before the message.
    pub(crate) staged: u32,
    /// What goes with the message.
    pub(crate) inline: &'a [u8],
}

/// Sends what does not go with the message itself.
pub(crate) fn send(bytes: &[u8]) -> Result<SentData<'_>, Code> {
    if bytes.len() <= MAX_INLINE_BYTES {
        return Ok(SentData { staged: 0, inline: bytes });
    }
    if bytes.len() > MAX_DATA_BYTES {
        return Err(Code::OUT_OF_RESOURCES);
    }
    for piece in bytes.chunks(MAX_REPLY_VALUE_BYTES) {
        session::enqueue(&kdclPiece { total: bytes.len() as u64, data: piece })?;
    }
    Ok(SentData { staged: 1, inline: &[] })
}
