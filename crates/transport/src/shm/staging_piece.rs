//! Pieces of the staging memory, by their numbers.

use crate::shm::layout::{BUSY_STRIDE_BYTES, BUSY_WORDS_OFFSET, STAGING_PIECE_BYTES, STAGING_PIECES};

/// A piece's number, below [`STAGING_PIECES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StagingPiece(u32);

impl StagingPiece {
    /// Returns the piece of a number that came in a message; none if there is no such piece.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        ((number as usize) < STAGING_PIECES).then_some(Self(number))
    }

    /// Returns the piece's number, as messages name it.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// Iterates over all staging pieces.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..STAGING_PIECES as u32).map(Self)
    }

    /// Returns the piece's offset in the memory of the pieces.
    pub(crate) fn start(self) -> usize {
        self.0 as usize * STAGING_PIECE_BYTES
    }

    pub(crate) fn busy(self) -> usize {
        BUSY_WORDS_OFFSET + self.0 as usize * BUSY_STRIDE_BYTES
    }

    /// Returns the offset in the memory of the pieces, if the bytes lie in this piece.
    pub(crate) fn offset_of(self, offset: usize, length: usize) -> Option<usize> {
        offset.checked_add(length).filter(|end| *end <= STAGING_PIECE_BYTES).map(|_| self.start() + offset)
    }
}
