//! The staging area: memory that both sides see, in pieces that change hands for bulk copies.
//!
//! The program takes a piece, and whoever is done with it gives it back: the worker by [`Staging::release`], or the
//! GPU itself by writing 0 to the piece's busy word.

/// Bytes of a piece.
pub const PIECE: usize = 4 << 20;
/// Number of pieces.
pub const PIECES: usize = 16;

/// A piece's number, below [`PIECES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece(u32);

impl Piece {
    /// The piece of this number, as it came in a message; none if there is no such piece.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        ((number as usize) < PIECES).then_some(Self(number))
    }

    /// Its number, for messages.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// One side's view of the staging area.
#[derive(Debug)]
pub struct Staging {}

impl Staging {
    /// Takes a free piece; none if all are in use.
    #[must_use]
    pub fn try_take(&self) -> Option<Piece> {
        todo!()
    }

    /// Takes a piece, waiting for one to come free.
    ///
    /// # Errors
    /// [`crate::LinkError::Closed`] if the worker ends meanwhile.
    pub fn take(&self) -> Result<Piece, crate::LinkError> {
        todo!()
    }

    /// Gives a piece back.
    pub fn release(&self, piece: Piece) {
        todo!("{piece:?}")
    }

    /// Whether somebody still uses the piece.
    #[must_use]
    pub fn is_busy(&self, piece: Piece) -> bool {
        todo!("{piece:?}")
    }

    /// Copies `bytes` to `offset` in the piece; false (and nothing copied) if they do not fit.
    #[must_use]
    pub fn write(&self, piece: Piece, offset: usize, bytes: &[u8]) -> bool {
        todo!("{piece:?} {offset} {bytes:?}")
    }

    /// Copies out of the piece; false (and nothing copied) if that passes its end.
    #[must_use]
    pub fn read(&self, piece: Piece, offset: usize, bytes: &mut [u8]) -> bool {
        todo!("{piece:?} {offset} {bytes:?}")
    }

    /// Start of the piece's [`PIECE`] bytes in this process, for a driver's or one's own raw copies: the peer may
    /// write them at any time, so no reference may be made of it. Valid as long as the link.
    #[must_use]
    pub fn pointer(&self, piece: Piece) -> *mut u8 {
        todo!("{piece:?}")
    }

    /// Address of the piece's busy word, a `u32` inside [`Staging::region`]: 0 gives the piece back.
    #[must_use]
    pub fn busy_word(&self, piece: Piece) -> *mut u32 {
        todo!("{piece:?}")
    }

    /// Page-aligned start and length of busy words and pieces, for `cuMemHostRegister`.
    #[must_use]
    pub fn region(&self) -> (*mut u8, usize) {
        todo!()
    }
}
