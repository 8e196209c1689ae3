//! Sends long data to the worker: in parts before the message that uses it, or inside that message. Initial contents of memory
//! objects go through shared memory where it exists.
#![expect(unsafe_code, reason = "reads the memory that programs name")]

use std::borrow::Cow;

use katydid_opencl_sys::Code;
use katydid_wire::codec::Field as _;
use katydid_wire::opencl::message::kdclUpload;
use katydid_wire::opencl::{MAX_REPLY_VALUE_BYTES, STAGED_IN_HOST};

use crate::host::rows::Rows;
use crate::host::transfer_blocks::CallBlock;
use crate::process::session;

/// Most bytes of data that go inside a message.
const MAX_INLINE_BYTES: usize = 64 << 10;
/// Most bytes of data of one message; the worker accepts no more.
pub(crate) const MAX_DATA_BYTES: usize = 16 << 30;

/// Data that was sent, as its message refers to it.
pub(crate) struct SentData<'a> {
    /// 1: it was sent before the message.
    pub(crate) staged: u32,
    /// The bytes inside the message.
    pub(crate) inline: &'a [u8],
}

/// Initial contents of a memory object, for a call that waits for its reply.
pub(crate) struct InitialData<'a> {
    /// As for [`SentData`], or [`STAGED_IN_HOST`].
    pub(crate) staged: u32,
    /// The bytes inside the message.
    pub(crate) inline: Cow<'a, [u8]>,
    /// The block that holds the data until the reply.
    _block: Option<CallBlock>,
}

impl<'a> InitialData<'a> {
    /// Returns the value for an object without initial contents.
    pub(crate) fn none() -> Self {
        Self { staged: 0, inline: Cow::Borrowed(&[]), _block: None }
    }

    /// Copies the bytes of the rows to shared memory where it exists, or sends them.
    ///
    /// # Safety
    ///
    /// The rows are readable while the value lives.
    pub(crate) unsafe fn of(rows: &Rows) -> Result<Self, Code> {
        // SAFETY: by the contract.
        if let Some(block) = unsafe { CallBlock::of(rows) } {
            let mut inline = Vec::new();
            [block.start(), rows.len()].into_iter().for_each(|number| (number as u64).put(&mut inline));
            return Ok(Self { staged: STAGED_IN_HOST, inline: Cow::Owned(inline), _block: Some(block) });
        }
        // SAFETY: by the contract.
        let bytes = unsafe { rows.gather() };
        let staged = send(&bytes)?.staged;
        Ok(Self { staged, inline: if staged == 0 { bytes } else { Cow::Borrowed(&[]) }, _block: None })
    }
}

/// Sends data in parts unless it fits inside its message.
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
