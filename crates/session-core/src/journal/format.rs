//! Saved state as bytes: the format that the states of all APIs have in common.
//!
//! ```text
//! magic       8 bytes                    version  u32
//! ...
//! progress    deferred u32, calls u64, frames executed u64, printed: two texts of bytes
//! ...
//! uploads     count u32, then thread u32, total u64, bytes
//! kept        count u32, then thread u32, bytes: answers that threads have not fetched
//! ```
//!
//! Numbers are little-endian, bytes and texts have a `u32` length in front. A reader trusts nothing: a count costs input for
//! every item, and replayed frames pass the checks of every frame.

use katydid_wire::codec::{Field as _, Reader};
use katydid_wire::frame::FrameHead;

use crate::journal::record::StateError;
use crate::output::PrintedText;

/// The start of a state's format.
#[derive(Debug, Clone, Copy)]
pub struct StateFormat {
    /// Identifies the API.
    pub magic: [u8; 8],
    /// The version that this build writes, and the newest that it reads.
    pub version: u32,
}

impl StateFormat {
    /// Returns the start of a state.
    #[must_use]
    pub fn begin(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        self.version.put(&mut out);
        out
    }

    /// Returns a reader of what follows the version, and the version.
    ///
    /// # Errors
    ///
    /// [`StateError`] for bytes that are no state of this format, or of a newer version.
    pub fn open<'a>(&self, bytes: &'a [u8]) -> Result<(Reader<'a>, u32), StateError> {
        let rest = bytes.strip_prefix(&self.magic).ok_or(StateError::Magic)?;
        let mut reader = Reader::new("the state of a session", rest);
        match reader.take::<u32>()? {
            0 => Err(StateError::Damaged { what: "version 0" }),
            found if found > self.version => Err(StateError::TooNew { found, newest: self.version }),
            version => Ok((reader, version)),
        }
    }
}

/// Writes a list, with its length in front.
pub fn put_all<T>(out: &mut Vec<u8>, list: impl ExactSizeIterator<Item = T>, mut put: impl FnMut(T, &mut Vec<u8>)) {
    (list.len() as u32).put(out);
    list.for_each(|item| put(item, out));
}

/// Reads a list.
///
/// # Errors
///
/// Damaged bytes.
pub fn take_all<T>(
    reader: &mut Reader<'_>,
    mut take: impl FnMut(&mut Reader<'_>) -> Result<T, StateError>,
) -> Result<Vec<T>, StateError> {
    let count = reader.take::<u32>()?;
    (0..count).map(|_| take(reader)).collect()
}

/// Counters of a session at its checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SavedProgress {
    /// The code that waits for the next reply, as replies carry it.
    pub deferred: u32,
    /// Frames that [`Usage::calls`](crate::Usage::calls) had counted.
    pub calls: u64,
    /// Frames executed: the next one has this number.
    pub frames: u64,
    /// Text that the device printed, and that the program does not have yet.
    pub printed: PrintedText,
}

impl SavedProgress {
    /// Appends the encoded fields to `out`.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.deferred.put(out);
        self.calls.put(out);
        self.frames.put(out);
        self.printed.stdout.put(out);
        self.printed.stderr.put(out);
    }

    /// Reads it.
    ///
    /// # Errors
    ///
    /// Damaged bytes.
    pub fn take(reader: &mut Reader<'_>) -> Result<Self, StateError> {
        let (deferred, calls, frames) = (reader.take()?, reader.take()?, reader.take()?);
        let printed = PrintedText { stdout: reader.take()?, stderr: reader.take()? };
        Ok(Self { deferred, calls, frames, printed })
    }
}

/// Incomplete uploads: thread, announced size, and the bytes so far.
pub type UnfinishedUploads = Vec<(u32, u64, Vec<u8>)>;

/// Writes incomplete uploads.
pub fn put_uploads(uploads: &UnfinishedUploads, out: &mut Vec<u8>) {
    put_all(out, uploads.iter(), |(thread, total, bytes), out| {
        thread.put(out);
        total.put(out);
        bytes.put(out);
    });
}

/// Reads incomplete uploads.
///
/// # Errors
///
/// Damaged bytes.
pub fn take_uploads(reader: &mut Reader<'_>) -> Result<UnfinishedUploads, StateError> {
    take_all(reader, |reader| Ok((reader.take()?, reader.take()?, reader.take()?)))
}

/// Writes answers that threads have not fetched.
pub fn write_unread_answers(answers: &[(u32, Vec<u8>)], out: &mut Vec<u8>) {
    put_all(out, answers.iter(), |(thread, bytes), out| {
        thread.put(out);
        bytes.put(out);
    });
}

/// Reads answers that threads have not fetched.
///
/// # Errors
///
/// Damaged bytes.
pub fn read_unread_answers(reader: &mut Reader<'_>) -> Result<Vec<(u32, Vec<u8>)>, StateError> {
    take_all(reader, |reader| Ok((reader.take()?, reader.take()?)))
}

/// Returns the frame whose reply the program's upcall thread waits for.
///
/// # Errors
///
/// An error for thread 0, which no program has.
pub fn upcall_head(opcode: u16, thread: u32, context: u32, sequence: u64) -> Result<FrameHead, StateError> {
    if thread == 0 {
        return Err(StateError::Damaged { what: "thread 0" });
    }
    Ok(FrameHead { opcode, wants_reply: true, thread, context, sequence })
}
