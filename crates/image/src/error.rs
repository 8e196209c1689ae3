//! Errors of an image and its location; every text says what to do.
//!
//! After any error, checkpoints that were complete before are untouched.

use std::io;

use crate::id::{CheckpointNumber, ChunkId};

/// Why an image could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "every field is named by the text above it")]
pub enum ImageError {
    /// There is no image at the location.
    #[error("{location}: no image here: give the folder that `katydid checkpoint -o` wrote")]
    NotAnImage { location: String },
    /// Something other than an image is at the location.
    #[error("{location}: neither empty nor an image: choose another folder")]
    Occupied { location: String },
    /// Another user can change what is in the folder.
    #[error("{location}: {problem}: an image has all memory of its programs; give a folder that only you can write to")]
    NotPrivate { location: String, problem: String },
    /// The image has a newer format; nothing after the version was interpreted.
    #[error("{location}: format {found} is newer than {newest}, the newest that this build reads: use a newer katydid")]
    TooNew { location: String, found: u32, newest: u32 },
    /// Bytes contradict each other or their hash.
    #[error(
        "{location}: damaged: {what}: restore the file from a copy, or use another checkpoint (`katydid images verify`)"
    )]
    Damaged { location: String, what: String },
    /// A file of the checkpoint is missing.
    #[error("{location}: missing, and checkpoint {checkpoint} needs it: put the file back, or use another checkpoint")]
    Missing { location: String, checkpoint: CheckpointNumber },
    /// No pack contains the chunk.
    #[error("{location}: chunk {chunk} is in none of the packs: one has been removed: use another checkpoint")]
    UnknownChunk { location: String, chunk: ChunkId },
    /// The image has no such checkpoint.
    #[error("{location}: no checkpoint {requested}: there {present}")]
    NoCheckpoint { location: String, requested: String, present: String },
    /// The disk, the quota or the size limit is full.
    #[error(
        "{location}: no free space for the image: free some space, or choose another place; the last complete checkpoint is whole"
    )]
    Full { location: String },
    /// Another process holds the image's lock, to write or to clean up.
    #[error("{location}: in use by {holder}: wait for it to end")]
    Locked { location: String, holder: String },
    /// The lock of an object store was not renewed in time, or another process has it.
    #[error(
        "{location}: the lock of this image could not be renewed in time, so another process may have it: begin again"
    )]
    LockLost { location: String },
    /// An earlier part of the checkpoint could not be written; the rest is refused.
    #[error("an earlier write failed, so this checkpoint cannot be completed: {cause}")]
    WriteFailed { cause: String },
    /// The caller asked for something that the format cannot hold.
    #[error("{location}: {what}")]
    Unfit { location: String, what: String },
    /// The operating system or the object store failed.
    #[error("{location}: cannot {action}: {source}{}", remedy(action, source))]
    Io { location: String, action: &'static str, source: io::Error },
}

/// What fails where an image's folder cannot be made.
pub(crate) const MAKE_FOLDER: &str = "make this folder";

/// Returns what a user can do about a system error, as the end of the message.
fn remedy(action: &str, source: &io::Error) -> &'static str {
    use io::ErrorKind::{AlreadyExists, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match source.kind() {
        AlreadyExists => "; something else lies there: choose another folder",
        NotFound | NotADirectory if action == MAKE_FOLDER => "; no folder can be made there: choose another place",
        NotFound | NotADirectory => "; give the folder of an image that is there",
        PermissionDenied | ReadOnlyFilesystem => "; let this user read and write there, or choose another place",
        _ => "",
    }
}

/// Results of this crate.
pub type Result<T, E = ImageError> = std::result::Result<T, E>;

impl ImageError {
    /// Makes an error of the operating system; those that mean a full disk become [`ImageError::Full`].
    pub(crate) fn io(location: &str, action: &'static str, source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full { location: location.to_owned() },
            _ => Self::Io { location: location.to_owned(), action, source },
        }
    }

    pub(crate) fn damaged(location: &str, what: impl Into<String>) -> Self {
        Self::Damaged { location: location.to_owned(), what: what.into() }
    }

    pub(crate) fn unfit(location: &str, what: impl Into<String>) -> Self {
        Self::Unfit { location: location.to_owned(), what: what.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_carry_a_remedy() {
        let unmade = ImageError::io("/proc/x", MAKE_FOLDER, io::ErrorKind::NotFound.into()).to_string();
        assert!(unmade.ends_with("no folder can be made there: choose another place"), "{unmade}");
        for (number, words) in [(2, "give the folder"), (13, "let this user"), (28, "free some space")] {
            let message = ImageError::io("/i", "open this folder", io::Error::from_raw_os_error(number)).to_string();
            assert!(message.starts_with("/i: ") && message.contains(words), "{message}");
        }
    }
}
