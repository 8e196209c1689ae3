//! Module images on their way in: they come in pieces, one image a program thread at a time.
//!
//! The program says the whole size with every piece, so the rule kept here is simple: a total is bounded before it
//! sizes anything, pieces never exceed it, and all threads together stay within [`MAX_PENDING`].

use std::collections::HashMap;

/// Largest image in bytes; cuDNN's and cuBLAS's stay far below.
pub(crate) const MAX_IMAGE: u64 = 2 << 30;
/// Bytes that all unfinished images of a session may take together.
const MAX_PENDING: u64 = 3 << 30;

/// What was wrong with a piece; the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// The announced size is beyond the bound.
    #[error("an image of {total} bytes was announced; images have 1 to {MAX_IMAGE} bytes")]
    TooLarge {
        /// What was announced.
        total: u64,
    },
    /// Pieces of one image name different totals.
    #[error("an image of {before} bytes became one of {now} bytes in the middle")]
    Changed {
        /// The first piece's total.
        before: u64,
        /// This piece's.
        now: u64,
    },
    /// More bytes came than were announced.
    #[error("{excess} bytes more than the announced {total} of an image came")]
    Excess {
        /// Bytes beyond the total.
        excess: u64,
        /// What was announced.
        total: u64,
    },
    /// All threads together hold too much.
    #[error("unfinished images take {bytes} bytes, more than {MAX_PENDING}")]
    TooMuch {
        /// Bytes announced in all.
        bytes: u64,
    },
    /// A load came before all pieces did.
    #[error("an image was loaded when {missing} of its {total} bytes had not come")]
    Incomplete {
        /// Bytes that did not come.
        missing: u64,
        /// What was announced.
        total: u64,
    },
    /// A load came without any image.
    #[error("a load came without an image")]
    None,
}

/// One image, growing.
#[derive(Debug, Default)]
struct Upload {
    total: u64,
    bytes: Vec<u8>,
}

/// The images of all program threads.
#[derive(Debug, Default)]
pub(crate) struct Uploads {
    pending: HashMap<u32, Upload>,
}

impl Uploads {
    /// Adds a piece to the image that `thread` is sending.
    ///
    /// # Errors
    ///
    /// [`UploadError`], after which the session cannot go on.
    pub(crate) fn add(&mut self, thread: u32, total: u64, piece: &[u8]) -> Result<(), UploadError> {
        if total == 0 || total > MAX_IMAGE {
            return Err(UploadError::TooLarge { total });
        }
        let announced: u64 =
            self.pending.iter().filter(|(other, _)| **other != thread).map(|(_, upload)| upload.total).sum();
        if announced + total > MAX_PENDING {
            return Err(UploadError::TooMuch { bytes: announced + total });
        }
        let upload = self.pending.entry(thread).or_insert_with(|| Upload { total, bytes: Vec::new() });
        if upload.total != total {
            return Err(UploadError::Changed { before: upload.total, now: total });
        }
        let excess = (upload.bytes.len() as u64 + piece.len() as u64).saturating_sub(total);
        if excess > 0 {
            return Err(UploadError::Excess { excess, total });
        }
        upload.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// The finished image of `thread`, which may start another.
    ///
    /// # Errors
    ///
    /// [`UploadError::None`] or [`UploadError::Incomplete`].
    pub(crate) fn finish(&mut self, thread: u32) -> Result<Vec<u8>, UploadError> {
        let upload = self.pending.remove(&thread).ok_or(UploadError::None)?;
        let missing = upload.total - upload.bytes.len() as u64;
        if missing > 0 { Err(UploadError::Incomplete { missing, total: upload.total }) } else { Ok(upload.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_two_threads_do_not_mix() {
        let mut uploads = Uploads::default();
        uploads.add(1, 4, b"ab").unwrap();
        uploads.add(2, 2, b"xy").unwrap();
        uploads.add(1, 4, b"cd").unwrap();
        assert_eq!(uploads.finish(1), Ok(b"abcd".into()));
        assert_eq!(uploads.finish(2), Ok(b"xy".into()));
        assert_eq!(uploads.finish(1), Err(UploadError::None));
    }

    #[test]
    fn false_sizes_are_refused() {
        let mut uploads = Uploads::default();
        assert_eq!(uploads.add(1, 0, b""), Err(UploadError::TooLarge { total: 0 }));
        assert_eq!(uploads.add(1, MAX_IMAGE + 1, b"x"), Err(UploadError::TooLarge { total: MAX_IMAGE + 1 }));
        uploads.add(1, 3, b"ab").unwrap();
        assert_eq!(uploads.add(1, 4, b"c"), Err(UploadError::Changed { before: 3, now: 4 }));
        assert_eq!(uploads.add(1, 3, b"cde"), Err(UploadError::Excess { excess: 2, total: 3 }));
        assert_eq!(uploads.finish(1), Err(UploadError::Incomplete { missing: 1, total: 3 }));
    }

    #[test]
    fn all_threads_together_are_bounded() {
        let mut uploads = Uploads::default();
        uploads.add(1, MAX_IMAGE, b"x").unwrap();
        assert_eq!(uploads.add(2, MAX_IMAGE, b"x"), Err(UploadError::TooMuch { bytes: 2 * MAX_IMAGE }));
    }
}
