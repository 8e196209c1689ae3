//! The worker's side of the staging area. Drivers copy from and to its pieces, so data of a program on this machine passes
//! through one memory instead of three.
//!
//! The worker holds a piece that comes with a write until the command has ended; then the program gets it back. A piece for a
//! read stays the program's, which waits for the command. Rust code never reads the area.

#![expect(unsafe_code, reason = "gives pieces of shared memory back")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use katydid_opencl_sys::void;
use katydid_transport::{STAGING_PIECE_BYTES, STAGING_PIECES, Staging, StagingPiece};

/// One piece: the addresses of its bytes and of its busy word.
#[derive(Debug, Clone, Copy)]
struct StagedPiece {
    start: usize,
    busy: usize,
}

/// Addresses of the area; valid as long as the link, which outlives the session.
#[derive(Debug)]
pub(crate) struct StagingArea {
    pieces: Vec<StagedPiece>,
    /// Number of pieces that commands still read.
    held_bytes: Arc<AtomicUsize>,
}

/// Shared memory that a command reads; dropping this returns it to the program.
#[derive(Debug)]
pub(crate) struct StagedRead {
    /// The address of the busy word.
    busy: usize,
    held_bytes: Arc<AtomicUsize>,
}

impl StagedRead {
    /// Counts this read in `held_bytes`. The word at `busy` is aligned, stays mapped for the worker's life, and is accessed only
    /// atomically.
    pub(crate) fn new(busy: usize, held_bytes: &Arc<AtomicUsize>) -> Self {
        held_bytes.fetch_add(1, Ordering::AcqRel);
        Self { busy, held_bytes: Arc::clone(held_bytes) }
    }
}

impl StagingArea {
    /// Records the addresses.
    pub(crate) fn new(staging: &Staging) -> Self {
        let staged = |piece| StagedPiece {
            start: staging.pointer(piece).expose_provenance(),
            busy: staging.busy_word(piece).expose_provenance(),
        };
        let pieces = (0..STAGING_PIECES as u32).filter_map(StagingPiece::new).map(staged).collect();
        Self { pieces, held_bytes: Arc::default() }
    }

    /// Returns an area of one piece without bytes.
    #[cfg(test)]
    pub(crate) fn of_one(busy: &AtomicU32) -> Self {
        let staged = StagedPiece { start: 4096, busy: busy.as_ptr().expose_provenance() };
        Self { pieces: vec![staged], held_bytes: Arc::default() }
    }

    /// Returns the start and length of all pieces, which are contiguous.
    pub(crate) fn whole(&self) -> (*mut void, usize) {
        let start = self.pieces.first().map_or(0, |staged| staged.start);
        (std::ptr::with_exposed_provenance_mut(start), self.pieces.len() * STAGING_PIECE_BYTES)
    }

    /// Returns where the first `size` bytes of a piece are; `None` if the piece does not exist or is smaller.
    pub(crate) fn pointer(&self, piece: u32, size: u64) -> Option<*mut void> {
        let staged = self.pieces.get(piece as usize).filter(|_| size <= STAGING_PIECE_BYTES as u64)?;
        Some(std::ptr::with_exposed_provenance_mut(staged.start))
    }

    /// Holds a piece that came with a message, until the result is dropped.
    pub(crate) fn hold(&self, piece: u32) -> Option<StagedRead> {
        Some(StagedRead::new(self.pieces.get(piece as usize)?.busy, &self.held_bytes))
    }

    /// Returns how many pieces commands still read.
    pub(crate) fn pieces_in_use(&self) -> usize {
        self.held_bytes.load(Ordering::Acquire)
    }
}

impl Drop for StagedRead {
    fn drop(&mut self) {
        let word = std::ptr::with_exposed_provenance_mut::<u32>(self.busy);
        // SAFETY: the address of a busy word: aligned, mapped for the worker's life, and accessed only atomically on both sides.
        unsafe { AtomicU32::from_ptr(word) }.store(0, Ordering::Release);
        self.held_bytes.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_given_back_when_it_is_dropped() {
        let word = AtomicU32::new(1);
        let area = StagingArea::of_one(&word);
        let held_bytes = area.hold(0).unwrap();
        assert_eq!((word.load(Ordering::Acquire), area.pieces_in_use()), (1, 1));
        drop(held_bytes);
        assert_eq!((word.load(Ordering::Acquire), area.pieces_in_use()), (0, 0));
        assert!(area.hold(1).is_none() && area.pointer(1, 1).is_none());
        assert!(
            area.pointer(0, STAGING_PIECE_BYTES as u64 + 1).is_none()
                && area.pointer(0, STAGING_PIECE_BYTES as u64).is_some()
        );
    }
}
