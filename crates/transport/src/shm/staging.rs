//! The staging area: memory that both sides see, in pieces that change hands for bulk copies.
//!
//! The program takes a piece, and its last user gives it back: the worker by [`Staging::release`], or the GPU itself by writing 0
//! to the piece's busy word. The GPU wakes no thread, so a program that waits for a piece polls, with short naps in between.
//!
//! Busy words lie in the channel and keep their values when a program moves to another worker. The worker makes the pieces'
//! memory ([`crate::shm::staging_map`]), which a program touches only by [`Staging::with`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::link::batch;
use crate::link::error::LinkError;
use crate::os::descriptor::Descriptor;
use crate::shm::layout::{
    BUSY_WORDS_OFFSET, PAGE_BYTES, STAGING_PIECE_BYTES, STAGING_PIECES, ZERO_COPY_BYTES, ZERO_COPY_OFFSET,
};
use crate::shm::shared_mapping::SharedMapping;
use crate::shm::staging_map::StagingMap;
use crate::shm::staging_piece::StagingPiece;
use crate::sync::wait;
use crate::sync::wait::Spin;

/// Of all pieces, those reserved for batches ([`crate::link::batch`]). Other threads may wait for a batch while they hold a
/// piece.
const PIECES_FOR_BATCHES: usize = 4;
/// How often a program polls for a piece; copying one takes some 80 µs.
pub const PIECE_POLL_INTERVAL: Duration = Duration::from_micros(20);
/// Interval between checks whether the worker is still there.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The zero-copy area in a worker. The worker makes this memory; its program maps it too, and may read it
/// ([`Staging::read_zero_copy`]). Nothing lies there before the worker reports it.
#[derive(Debug)]
pub struct ZeroCopyMemory {
    /// The file that both have mapped.
    pub file: OwnedFd,
    /// Offset of the area in the file.
    pub offset: u64,
    /// Address of the mapping, valid as long as the link.
    pub start: *mut u8,
    /// Bytes of the area. Untouched ones take no memory.
    pub length: usize,
}

/// Offset of the zero-copy area's epoch, a `u32`. The worker increments it before it takes contents of the area for itself. The
/// first page has this word and [`ZERO_COPY_WRITERS_OFFSET`], and nothing else.
pub const ZERO_COPY_EPOCH_OFFSET: usize = 0;
/// Offset of the word that counts the program's threads that are copying to the zero-copy area.
pub const ZERO_COPY_WRITERS_OFFSET: usize = 64;

/// Converts an offset in the zero-copy area to one in the whole mapping, if the bytes lie in the area.
fn in_zero_copy(offset: u64, length: usize) -> Option<usize> {
    let start = usize::try_from(offset).ok()?;
    let fits = start.checked_add(length).is_some_and(|end| length > 0 && end <= ZERO_COPY_BYTES);
    fits.then(|| ZERO_COPY_OFFSET + start)
}

/// A mapping of the staging area by one side.
#[derive(Debug)]
pub struct Staging {
    channel: Arc<SharedMapping>,
    map: StagingMap,
    /// The peer that a waiting program depends on; none in the worker, which takes no pieces.
    peer: Option<Arc<Descriptor>>,
    spin: Spin,
}

impl Staging {
    /// Combines the busy words in `channel` with the pieces in `map`.
    pub(crate) fn new(channel: Arc<SharedMapping>, map: StagingMap, peer: Option<Arc<Descriptor>>) -> Self {
        Self { channel, map, peer, spin: Spin::new(wait::MAX_MEMORY_SPIN_NS) }
    }

    /// Takes a free piece for its first `length` bytes, 1 to [`STAGING_PIECE_BYTES`]. Returns none if all are in use.
    #[must_use]
    pub fn try_take(&self, length: usize) -> Option<StagingPiece> {
        self.try_take_of(STAGING_PIECES, length)
    }

    /// Takes one of the first `most` pieces that is free, for its first `length` bytes. Returns none if all are in use.
    fn try_take_of(&self, most: usize, length: usize) -> Option<StagingPiece> {
        let length = length.clamp(1, STAGING_PIECE_BYTES) as u32;
        StagingPiece::all().take(most).find(|piece| {
            let word = self.channel.word(piece.busy());
            let free = word.load(Ordering::Relaxed) == 0;
            free && word.compare_exchange(0, length, Ordering::Acquire, Ordering::Relaxed).is_ok()
        })
    }

    /// Takes a piece for its first `length` bytes. Waits until one is free.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the worker ends meanwhile.
    pub fn take(&self, length: usize) -> Result<StagingPiece, LinkError> {
        let most = if batch::is_in_batch() { STAGING_PIECES } else { STAGING_PIECES - PIECES_FOR_BATCHES };
        if let Some(piece) = self.spin.until(|| self.try_take_of(most, length)) {
            return Ok(piece);
        }
        let mut checked = Instant::now();
        loop {
            if let Some(piece) = self.try_take_of(most, length) {
                return Ok(piece);
            }
            std::thread::sleep(PIECE_POLL_INTERVAL);
            if checked.elapsed() >= PEER_CHECK_INTERVAL {
                self.peer.as_ref().map_or(Ok(()), |peer| peer.check())?;
                checked = Instant::now();
            }
        }
    }

    /// Gives a piece back.
    pub fn release(&self, piece: StagingPiece) {
        self.channel.word(piece.busy()).store(0, Ordering::Release);
    }

    /// Returns whether the piece is still in use.
    #[must_use]
    pub fn is_busy(&self, piece: StagingPiece) -> bool {
        self.used(piece) != 0
    }

    /// Copies `bytes` to `offset` in the piece. Returns false, and copies nothing, if they do not fit, or the link has ended.
    #[must_use]
    pub fn write(&self, piece: StagingPiece, offset: usize, bytes: &[u8]) -> bool {
        let offset_in_area = piece.offset_of(offset, bytes.len());
        offset_in_area
            .is_some_and(|offset_in_area| self.map.with(|memory| memory.copy_in(offset_in_area, bytes)).is_ok())
    }

    /// Copies out of the piece. Returns false, and copies nothing, if that passes its end, or the link has ended.
    #[must_use]
    pub fn read(&self, piece: StagingPiece, offset: usize, bytes: &mut [u8]) -> bool {
        let offset_in_area = piece.offset_of(offset, bytes.len());
        offset_in_area
            .is_some_and(|offset_in_area| self.map.with(|memory| memory.copy_out(offset_in_area, bytes)).is_ok())
    }

    /// Program: runs `copy` with the start of the piece's [`STAGING_PIECE_BYTES`] bytes, for raw copies. The peer may write them
    /// at any time, so no reference may be made to them. The address is valid until `copy` returns. A program that leaves its
    /// worker waits for that, so `copy` must send nothing.
    ///
    /// # Errors
    /// [`LinkError::Closed`] if the program has left its worker and no other will come.
    pub fn with<T>(&self, piece: StagingPiece, copy: impl FnOnce(*mut u8) -> T) -> Result<T, LinkError> {
        self.map.with(|memory| copy(memory.pointer(piece.start())))
    }

    /// Program: returns a number that changes whenever the contents of the worker's zero-copy area are lost.
    #[must_use]
    pub fn absences(&self) -> u64 {
        self.map.absences()
    }

    /// Program: runs `copy` with the address of `length` bytes of the zero-copy area that were there when [`Staging::absences`]
    /// had this value. Returns none if they are gone, or lie outside of the area. The rules of [`Staging::with`] apply.
    ///
    /// # Errors
    /// As [`Staging::with`].
    pub fn read_zero_copy<T>(
        &self,
        absences: u64,
        (offset, length): (u64, usize),
        copy: impl FnOnce(*const u8) -> T,
    ) -> Result<Option<T>, LinkError> {
        let Some(start) = in_zero_copy(offset, length) else { return Ok(None) };
        self.map.with_zero_copy(absences, start..start + length, |memory| copy(memory.pointer(start)))
    }

    /// Program: does the same for a copy to the zero-copy area, whose epoch the worker has told. Returns none also if the epoch
    /// has changed. The worker waits for such copies after it has incremented the epoch.
    ///
    /// # Errors
    /// As [`Staging::with`].
    /// As of [`Staging::with`].
    pub fn fill<T>(
        &self,
        (absences, epoch): (u64, u32),
        (offset, length): (u64, usize),
        copy: impl FnOnce(*mut u8) -> T,
    ) -> Result<Option<T>, LinkError> {
        let Some(start) = in_zero_copy(offset, length) else { return Ok(None) };
        let within = self.map.with_zero_copy(absences, start..start + length, |memory| {
            let writers = memory.word(ZERO_COPY_OFFSET + ZERO_COPY_WRITERS_OFFSET);
            // Either the worker sees this thread, or this thread the next epoch: `SeqCst` orders both for all threads.
            writers.fetch_add(1, Ordering::SeqCst);
            let is_now = memory.word(ZERO_COPY_OFFSET + ZERO_COPY_EPOCH_OFFSET).load(Ordering::SeqCst) == epoch;
            let done = is_now.then(|| copy(memory.pointer(start)));
            writers.fetch_sub(1, Ordering::SeqCst);
            done
        });
        within.map(Option::flatten)
    }

    /// Worker: returns the zero-copy area of this process, behind the pieces in `file`.
    pub(crate) fn zero_copy(&self, file: OwnedFd) -> ZeroCopyMemory {
        ZeroCopyMemory {
            file,
            offset: ZERO_COPY_OFFSET as u64,
            start: self.map.memory().pointer(ZERO_COPY_OFFSET),
            length: ZERO_COPY_BYTES,
        }
    }

    /// Worker: returns the start of the piece's [`STAGING_PIECE_BYTES`] bytes in this process, for the driver. Valid as long as
    /// the link.
    #[must_use]
    pub fn pointer(&self, piece: StagingPiece) -> *mut u8 {
        self.map.memory().pointer(piece.start())
    }

    /// Returns the address of the piece's busy word, a `u32` inside [`Staging::busy_words`]. Writing 0 gives the piece back.
    #[must_use]
    pub fn busy_word(&self, piece: StagingPiece) -> *mut u32 {
        self.channel.word(piece.busy()).as_ptr()
    }

    /// Returns start and length of the page of all busy words, for `cuMemHostRegister`.
    #[must_use]
    pub fn busy_words(&self) -> (*mut u8, usize) {
        (self.channel.pointer(BUSY_WORDS_OFFSET), PAGE_BYTES)
    }

    /// Returns the bytes that the piece was taken for; 0 if it is free.
    fn used(&self, piece: StagingPiece) -> usize {
        self.channel.word(piece.busy()).load(Ordering::Acquire) as usize
    }

    /// Program: puts the pieces away, and saves the contents of those in use.
    ///
    /// # Errors
    /// As [`StagingMap::suspend`].
    pub(crate) fn suspend(&self) -> io::Result<()> {
        self.map.suspend(|piece| self.used(piece))
    }

    /// Program: takes `fd` for the memory of the pieces.
    ///
    /// # Errors
    /// As [`StagingMap::bring_back`].
    pub(crate) fn bring_back(&self, fd: impl AsFd) -> io::Result<()> {
        self.map.bring_back(fd)
    }

    /// Program: notes that the pieces will not come back.
    pub(crate) fn give_up(&self) {
        self.map.give_up();
    }

    /// Program: in a forked child, which does not have the memory.
    pub(crate) fn abandon(&self) {
        self.map.memory().abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::channel::create;
    use crate::shm::layout::STAGING_BYTES;
    use crate::shm::layout::{CHANNEL_ADDRESS, CHANNEL_BYTES};

    fn both_sides() -> (Staging, Staging) {
        let channel = create("test", CHANNEL_BYTES as u64).unwrap();
        let pieces = create("test", STAGING_BYTES as u64).unwrap();
        let side = || {
            let channel = SharedMapping::map(&channel, CHANNEL_BYTES, CHANNEL_ADDRESS).unwrap();
            Staging::new(Arc::new(channel), StagingMap::new(&pieces).unwrap(), None)
        };
        (side(), side())
    }

    #[test]
    fn a_piece_changes_hands() {
        let (program, worker) = both_sides();
        let piece = program.try_take(104).unwrap();
        assert!(program.write(piece, 100, b"bulk"));
        let mut got = [0; 4];
        assert!(worker.read(StagingPiece::new(piece.number()).unwrap(), 100, &mut got));
        assert_eq!(&got, b"bulk");
        assert!(program.is_busy(piece));
        worker.release(piece);
        assert!(!program.is_busy(piece));
    }

    #[test]
    fn pieces_run_out_and_come_back() {
        let (program, worker) = both_sides();
        let pieces: Vec<StagingPiece> = std::iter::from_fn(|| program.try_take(1)).collect();
        assert_eq!(pieces.len(), STAGING_PIECES);
        std::thread::scope(|scope| {
            scope.spawn(|| worker.release(pieces[3]));
            assert_eq!(program.take(1).unwrap(), pieces[3]);
        });
    }

    #[test]
    fn a_train_finds_pieces_that_others_leave() {
        let (program, _) = both_sides();
        let pieces: Vec<StagingPiece> =
            (0..STAGING_PIECES - PIECES_FOR_BATCHES).map(|_| program.take(1).unwrap()).collect();
        assert!(program.try_take_of(STAGING_PIECES - PIECES_FOR_BATCHES, 1).is_none());
        let own = batch::in_batch(1, || program.take(1).unwrap());
        assert!(!pieces.contains(&own));
    }

    #[test]
    fn nothing_reaches_past_a_piece() {
        let (program, _) = both_sides();
        let piece = program.try_take(STAGING_PIECE_BYTES).unwrap();
        assert!(program.write(piece, STAGING_PIECE_BYTES - 4, b"last"));
        assert!(!program.write(piece, STAGING_PIECE_BYTES - 3, b"over") && !program.write(piece, usize::MAX, b"over"));
        assert!(!program.read(piece, STAGING_PIECE_BYTES, &mut [0]));
        assert_eq!((StagingPiece::new(15).map(StagingPiece::number), StagingPiece::new(16)), (Some(15), None));
    }

    #[test]
    fn the_words_are_one_page_and_the_pieces_lie_side_by_side() {
        let (program, _) = both_sides();
        let (start, length) = program.busy_words();
        assert!(start.addr().is_multiple_of(length));
        for (before, piece) in StagingPiece::all().zip(StagingPiece::all().skip(1)) {
            assert!((start.addr()..start.addr() + length).contains(&program.busy_word(piece).addr()));
            assert_eq!(program.pointer(before).addr() + STAGING_PIECE_BYTES, program.pointer(piece).addr());
        }
    }

    #[test]
    fn a_copy_to_the_zero_copy_area_is_visible_in_its_epoch_only() {
        let (program, worker) = both_sides();
        program.map.close_zero_copy().unwrap();
        let (absences, bytes) = (program.absences(), (PAGE_BYTES as u64, 1));
        // SAFETY: a byte of the zero-copy area, which no other thread has.
        #[expect(unsafe_code, reason = "copies to memory of both sides")]
        let copy = |to: *mut u8| unsafe { to.write_volatile(7) };
        assert_eq!(program.fill((absences, 0), bytes, copy).unwrap(), Some(()));
        let copied = worker.map.memory().pointer(ZERO_COPY_OFFSET + PAGE_BYTES);
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "as above")]
        let read = |from: *const u8| unsafe { from.read_volatile() };
        assert_eq!((read(copied), program.read_zero_copy(absences, bytes, read).unwrap()), (7, Some(7)));
        let zero_copy_words = [ZERO_COPY_EPOCH_OFFSET, ZERO_COPY_WRITERS_OFFSET]
            .map(|word| worker.map.memory().word(ZERO_COPY_OFFSET + word));
        zero_copy_words[0].store(1, Ordering::SeqCst);
        assert_eq!(program.fill((absences, 0), bytes, copy).unwrap(), None);
        assert_eq!(zero_copy_words[1].load(Ordering::SeqCst), 0);
        for beyond in [(ZERO_COPY_BYTES as u64, 1), (u64::MAX, 2), (0, 0)] {
            assert!(program.read_zero_copy(absences, beyond, read).unwrap().is_none(), "{beyond:?}");
        }
    }

    #[test]
    fn a_piece_that_is_in_use_keeps_what_it_was_taken_for() {
        let (program, _) = both_sides();
        let piece = program.try_take(5).unwrap();
        assert!(program.write(piece, 0, b"bytes and more"));
        program.suspend().unwrap();
        program.bring_back(create("test", STAGING_BYTES as u64).unwrap()).unwrap();
        let mut got = [1; 7];
        assert!(program.read(piece, 0, &mut got) && program.is_busy(piece));
        assert_eq!(&got, b"bytes\0\0");
    }
}
