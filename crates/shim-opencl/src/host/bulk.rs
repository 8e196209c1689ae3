//! Long data on its way to the worker: in pieces before the message that uses it, or behind that message's own bytes. What
//! memory objects begin with lies in memory of both sides where there is some.
#![expect(unsafe_code, reason = "reads the memory that programs name")]

use std::borrow::Cow;

use katydid_opencl_sys::Code;
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::kdclUpload;
use katydid_wire::opencl::{MAX_REPLY_VALUE_BYTES, STAGED_IN_HOST};

use crate::host::rows::Rows;
use crate::host::transfer_blocks::LentBlock;
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

/// What a memory object begins with, for a call that waits for its reply.
pub(crate) struct InitialData<'a> {
    /// As [`SentData`] has it, or [`STAGED_IN_HOST`].
    pub(crate) staged: u32,
    /// What goes with the message.
    pub(crate) inline: Cow<'a, [u8]>,
    /// Where the data lies until the reply.
    _lent: Option<LentBlock>,
}

impl<'a> InitialData<'a> {
    /// The data of an object that begins with nothing.
    pub(crate) fn none() -> Self {
        Self { staged: 0, inline: Cow::Borrowed(&[]), _lent: None }
    }

    /// Has the bytes of the rows ready: in memory that the worker has too where there is some, or on their way.
    ///
    /// # Safety
    ///
    /// The rows are readable while the value lives.
    pub(crate) unsafe fn of(rows: &Rows) -> Result<Self, Code> {
        // SAFETY: by the contract.
        if let Some(lent) = unsafe { LentBlock::of(rows) } {
            let mut inline = Vec::new();
            [lent.start(), rows.len()].into_iter().for_each(|number| (number as u64).put(&mut inline));
            return Ok(Self { staged: STAGED_IN_HOST, inline: Cow::Owned(inline), _lent: Some(lent) });
        }
        // SAFETY: by the contract.
        let bytes = unsafe { rows.gather() };
        let staged = send(&bytes)?.staged;
        Ok(Self { staged, inline: if staged == 0 { bytes } else { Cow::Borrowed(&[]) }, _lent: None })
    }
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
        session::enqueue(&kdclUpload { total: bytes.len() as u64, data: piece })?;
    }
    Ok(SentData { staged: 1, inline: &[] })
}
