//! The staging area: memory that both sides see, in pieces that change hands for bulk copies.
//!
//! The program takes a piece, and whoever is done with it gives it back: the worker by [`Staging::release`], or the
//! GPU itself by writing 0 to the piece's busy word. The GPU wakes nobody, so a program that waits for a piece looks
//! again and again, with short naps between.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::LinkError;
use crate::channel::{BUSY, BUSY_STRIDE, STAGING};
use crate::descriptor::Descriptor;
use crate::shared::Shared;
use crate::wait::Spin;

/// Bytes of a piece.
pub const PIECE: usize = 4 << 20;
/// Number of pieces.
pub const PIECES: usize = 16;
/// Between two looks of a program that waits for a piece; copying one takes some 80 µs.
const NAP: Duration = Duration::from_micros(20);
/// Between two looks whether the worker is still there.
const CHECK: Duration = Duration::from_millis(100);

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

    fn start(self) -> usize {
        STAGING + self.0 as usize * PIECE
    }

    fn busy(self) -> usize {
        BUSY + self.0 as usize * BUSY_STRIDE
    }

    /// Offset in the channel, if the bytes lie in the piece.
    fn place(self, offset: usize, length: usize) -> Option<usize> {
        offset.checked_add(length).filter(|end| *end <= PIECE).map(|_| self.start() + offset)
    }
}

/// One side's view of the staging area.
#[derive(Debug)]
pub struct Staging {
    shared: Arc<Shared>,
    /// Whom a waiting program depends on; none in the worker, which takes no pieces.
    peer: Option<Arc<Descriptor>>,
    spin: Spin,
}

impl Staging {
    pub(crate) fn new(shared: Arc<Shared>, peer: Option<Arc<Descriptor>>) -> Self {
        Self { shared, peer, spin: Spin::new() }
    }

    /// Takes a free piece; none if all are in use.
    #[must_use]
    pub fn try_take(&self) -> Option<Piece> {
        (0..PIECES as u32).map(Piece).find(|piece| {
            let word = self.shared.word(piece.busy());
            let free = word.load(Ordering::Relaxed) == 0;
            free && word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes a piece, waiting for one to come free.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the worker ends meanwhile.
    pub fn take(&self) -> Result<Piece, LinkError> {
        if let Some(piece) = self.spin.until(|| self.try_take()) {
            return Ok(piece);
        }
        let mut checked = Instant::now();
        loop {
            if let Some(piece) = self.try_take() {
                return Ok(piece);
            }
            std::thread::sleep(NAP);
            if checked.elapsed() >= CHECK {
                self.peer.as_ref().map_or(Ok(()), |peer| peer.check())?;
                checked = Instant::now();
            }
        }
    }

    /// Gives a piece back.
    pub fn release(&self, piece: Piece) {
        self.shared.word(piece.busy()).store(0, Ordering::Release);
    }

    /// Whether somebody still uses the piece.
    #[must_use]
    pub fn is_busy(&self, piece: Piece) -> bool {
        self.shared.word(piece.busy()).load(Ordering::Acquire) != 0
    }

    /// Copies `bytes` to `offset` in the piece; false (and nothing copied) if they do not fit.
    #[must_use]
    pub fn write(&self, piece: Piece, offset: usize, bytes: &[u8]) -> bool {
        let place = piece.place(offset, bytes.len());
        place.map(|place| self.shared.copy_in(place, bytes)).is_some()
    }

    /// Copies out of the piece; false (and nothing copied) if that passes its end.
    #[must_use]
    pub fn read(&self, piece: Piece, offset: usize, bytes: &mut [u8]) -> bool {
        let place = piece.place(offset, bytes.len());
        place.map(|place| self.shared.copy_out(place, bytes)).is_some()
    }

    /// Start of the piece's [`PIECE`] bytes in this process, for a driver's or one's own raw copies: the peer may
    /// write them at any time, so no reference may be made of it. Valid as long as the link.
    #[must_use]
    pub fn pointer(&self, piece: Piece) -> *mut u8 {
        self.shared.pointer(piece.start())
    }

    /// Address of the piece's busy word, a `u32` inside [`Staging::region`]: 0 gives the piece back.
    #[must_use]
    pub fn busy_word(&self, piece: Piece) -> *mut u32 {
        self.shared.word(piece.busy()).as_ptr()
    }

    /// Page-aligned start and length of busy words and pieces, for `cuMemHostRegister`.
    #[must_use]
    pub fn region(&self) -> (*mut u8, usize) {
        (self.shared.pointer(BUSY), STAGING - BUSY + PIECES * PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{LENGTH, create};

    fn both_sides() -> (Staging, Staging) {
        let fd = create("test", LENGTH as u64).unwrap();
        let side = || Staging::new(Arc::new(Shared::map(&fd, LENGTH).unwrap()), None);
        (side(), side())
    }

    #[test]
    fn a_piece_changes_hands() {
        let (program, worker) = both_sides();
        let piece = program.try_take().unwrap();
        assert!(program.write(piece, 100, b"bulk"));
        let mut got = [0; 4];
        assert!(worker.read(Piece::new(piece.number()).unwrap(), 100, &mut got));
        assert_eq!(&got, b"bulk");
        assert!(program.is_busy(piece));
        worker.release(piece);
        assert!(!program.is_busy(piece));
    }

    #[test]
    fn pieces_run_out_and_come_back() {
        let (program, worker) = both_sides();
        let pieces: Vec<Piece> = std::iter::from_fn(|| program.try_take()).collect();
        assert_eq!(pieces.len(), PIECES);
        std::thread::scope(|scope| {
            scope.spawn(|| worker.release(pieces[3]));
            assert_eq!(program.take().unwrap(), pieces[3]);
        });
    }

    #[test]
    fn nothing_reaches_past_a_piece() {
        let (program, _) = both_sides();
        let piece = program.try_take().unwrap();
        assert!(program.write(piece, PIECE - 4, b"last"));
        assert!(!program.write(piece, PIECE - 3, b"over") && !program.write(piece, usize::MAX, b"over"));
        assert!(!program.read(piece, PIECE, &mut [0]));
        assert_eq!((Piece::new(15).map(Piece::number), Piece::new(16)), (Some(15), None));
    }

    #[test]
    fn the_region_holds_words_and_pieces() {
        let (program, _) = both_sides();
        let (start, length) = program.region();
        let last = Piece::new(PIECES as u32 - 1).unwrap();
        let end = start as usize + length;
        assert!((start as usize).is_multiple_of(4096) && program.busy_word(last) as usize >= start as usize);
        assert_eq!(program.pointer(last) as usize + PIECE, end);
    }
}
