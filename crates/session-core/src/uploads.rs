//! Uploads: long data from the program, such as code or command data, which comes in pieces, for one message of a program
//! thread at a time.
//!
//! The program sends the total with every piece. A total is checked against a bound before it sizes anything, pieces never
//! exceed it, and all threads together stay within a bound too.

use std::collections::HashMap;

/// Largest image in bytes; cuDNN's and cuBLAS's stay far below.
pub const MAX_MODULE_IMAGE_BYTES: u64 = 2 << 30;

/// Why a piece is invalid; the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadError {
    /// The announced size is beyond the bound.
    #[error("{total} bytes were announced; 1 to {most} are allowed")]
    TooLarge {
        /// Total that the piece announced, in bytes.
        total: u64,
        /// Largest total allowed, in bytes.
        most: u64,
    },
    /// Pieces for one message announce different totals.
    #[error("upload size changed from {before} to {now} bytes")]
    Changed {
        /// The first piece's total.
        before: u64,
        /// Total that this piece announced, in bytes.
        now: u64,
    },
    /// More bytes came than the first piece announced.
    #[error("{excess} bytes more than the announced {total} came")]
    Excess {
        /// Bytes beyond the total.
        excess: u64,
        /// Total that the first piece announced, in bytes.
        total: u64,
    },
    /// The system has no memory for it.
    #[error("no memory for {total} bytes of data")]
    NoMemory {
        /// Total that the piece announced, in bytes.
        total: u64,
    },
    /// All threads together hold too many bytes.
    #[error("unfinished data takes {bytes} bytes, more than {most}")]
    TooMuch {
        /// Bytes announced in all.
        bytes: u64,
        /// Most bytes that the session holds of unfinished uploads.
        most: u64,
    },
    /// The message came before all its pieces.
    #[error("upload incomplete: {missing} of {total} bytes are missing")]
    Incomplete {
        /// Bytes that are missing.
        missing: u64,
        /// Total that the first piece announced, in bytes.
        total: u64,
    },
    /// A message refers to an upload, and there is none.
    #[error("a message came without its data")]
    None,
}

/// The data of one message so far.
#[derive(Debug, Default)]
struct Upload {
    total: u64,
    bytes: Vec<u8>,
}

/// The data of all program threads.
#[derive(Debug)]
pub struct Uploads {
    /// Most bytes of one message.
    most: u64,
    /// Most bytes of all messages together.
    most_pending: u64,
    pending: HashMap<u32, Upload>,
}

impl Uploads {
    /// Makes empty uploads with bounds in bytes: for one message, and for all together.
    #[must_use]
    pub fn new(most: u64, most_pending: u64) -> Self {
        Self { most, most_pending, pending: HashMap::new() }
    }

    /// Makes empty uploads with the bounds for images of modules: [`MAX_MODULE_IMAGE_BYTES`] each, 3 GiB in all.
    pub fn of_images() -> Self {
        Self::new(MAX_MODULE_IMAGE_BYTES, 3 << 30)
    }

    /// Adds a piece to the data that `thread` is sending.
    ///
    /// # Errors
    ///
    /// [`UploadError`], after which the session cannot go on.
    pub fn add(&mut self, thread: u32, total: u64, piece: &[u8]) -> Result<(), UploadError> {
        if total == 0 || total > self.most {
            return Err(UploadError::TooLarge { total, most: self.most });
        }
        let others = self.pending.iter().filter(|(other, _)| **other != thread);
        let bytes = others.map(|(_, upload)| upload.total).sum::<u64>() + total;
        if bytes > self.most_pending {
            return Err(UploadError::TooMuch { bytes, most: self.most_pending });
        }
        let upload = self.pending.entry(thread).or_insert_with(|| Upload { total, bytes: Vec::new() });
        if upload.bytes.is_empty() && upload.bytes.try_reserve_exact(total as usize).is_err() {
            return Err(UploadError::NoMemory { total });
        }
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

    /// Stores complete data, in place of an upload of `thread`.
    pub fn give(&mut self, thread: u32, bytes: Vec<u8>) {
        self.pending.insert(thread, Upload { total: bytes.len() as u64, bytes });
    }

    /// Drops the upload of `thread`, whose message was refused.
    pub fn discard(&mut self, thread: u32) {
        self.pending.remove(&thread);
    }

    /// Returns incomplete uploads: thread, announced size, and the bytes so far.
    pub fn unfinished(&self) -> Vec<(u32, u64, Vec<u8>)> {
        let mut all: Vec<_> =
            self.pending.iter().map(|(thread, upload)| (*thread, upload.total, upload.bytes.clone())).collect();
        all.sort_unstable_by_key(|(thread, ..)| *thread);
        all
    }

    /// Takes over the result of [`Uploads::unfinished`].
    ///
    /// # Errors
    ///
    /// [`UploadError`] for impossible uploads.
    pub fn resume(&mut self, all: Vec<(u32, u64, Vec<u8>)>) -> Result<(), UploadError> {
        self.pending.clear();
        all.iter().try_for_each(|(thread, total, bytes)| self.add(*thread, *total, bytes))
    }

    /// Takes the complete upload of `thread`, which may start another.
    ///
    /// # Errors
    ///
    /// [`UploadError::None`] or [`UploadError::Incomplete`].
    pub fn finish(&mut self, thread: u32) -> Result<Vec<u8>, UploadError> {
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
        let mut uploads = Uploads::of_images();
        uploads.add(1, 4, b"ab").unwrap();
        uploads.add(2, 2, b"xy").unwrap();
        uploads.add(1, 4, b"cd").unwrap();
        assert_eq!(uploads.finish(1), Ok(b"abcd".into()));
        assert_eq!(uploads.finish(2), Ok(b"xy".into()));
        assert_eq!(uploads.finish(1), Err(UploadError::None));
    }

    #[test]
    fn false_sizes_are_refused() {
        let mut uploads = Uploads::of_images();
        assert_eq!(uploads.add(1, 0, b""), Err(UploadError::TooLarge { total: 0, most: MAX_MODULE_IMAGE_BYTES }));
        assert_eq!(
            uploads.add(1, MAX_MODULE_IMAGE_BYTES + 1, b"x"),
            Err(UploadError::TooLarge { total: MAX_MODULE_IMAGE_BYTES + 1, most: MAX_MODULE_IMAGE_BYTES })
        );
        uploads.add(1, 3, b"ab").unwrap();
        assert_eq!(uploads.add(1, 4, b"c"), Err(UploadError::Changed { before: 3, now: 4 }));
        assert_eq!(uploads.add(1, 3, b"cde"), Err(UploadError::Excess { excess: 2, total: 3 }));
        assert_eq!(uploads.finish(1), Err(UploadError::Incomplete { missing: 1, total: 3 }));
    }

    #[test]
    fn all_threads_together_are_bounded() {
        let mut uploads = Uploads::of_images();
        uploads.add(1, MAX_MODULE_IMAGE_BYTES, b"x").unwrap();
        assert_eq!(
            uploads.add(2, MAX_MODULE_IMAGE_BYTES, b"x"),
            Err(UploadError::TooMuch { bytes: 2 * MAX_MODULE_IMAGE_BYTES, most: 3 << 30 })
        );
    }
}
