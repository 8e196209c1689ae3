//! The staging area as the worker uses it: drivers copy from its pieces and to them, so data of a program on this machine
//! passes through one memory instead of three.
//!
//! A piece that comes with a write is the worker's until the command has ended, then the program has it back. A piece for a
//! read stays the program's: it waits for the command. Nothing in the area is ever read by Rust code.

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
    /// Pieces that commands are still reading.
    held_bytes: Arc<AtomicUsize>,
}

/// Memory of both sides that a command reads; the program has it back when this is dropped.
#[derive(Debug)]
pub(crate) struct StagedRead {
    /// The address of the busy word.
    busy: usize,
    held_bytes: Arc<AtomicUsize>,
}

impl StagedRead {
    /// Counted by `held_bytes`. At `busy` lies a word that stays mapped as long as the worker runs, aligned, and touched by
    /// atomics alone.
    pub(crate) fn new(busy: usize, held_bytes: &Arc<AtomicUsize>) -> Self {
        held_bytes.fetch_add(1, Ordering::AcqRel);
        Self { busy, held_bytes: Arc::clone(held_bytes) }
    }
}

impl StagingArea {
    /// Takes down the addresses.
    pub(crate) fn new(staging: &Staging) -> Self {
        let staged = |piece| StagedPiece {
            start: staging.pointer(piece).expose_provenance(),
            busy: staging.busy_word(piece).expose_provenance(),
        };
        let pieces = (0..STAGING_PIECES as u32).filter_map(StagingPiece::new).map(staged).collect();
        Self { pieces, held_bytes: Arc::default() }
    }

    /// An area of one piece without bytes.
    #[cfg(test)]
    pub(crate) fn of_one(busy: &AtomicU32) -> Self {
        let staged = StagedPiece { start: 4096, busy: busy.as_ptr().expose_provenance() };
        Self { pieces: vec![staged], held_bytes: Arc::default() }
    }

    /// All pieces, which lie one behind the other: their start and bytes.
    pub(crate) fn whole(&self) -> (*mut void, usize) {
        let start = self.pieces.first().map_or(0, |staged| staged.start);
        (std::ptr::with_exposed_provenance_mut(start), self.pieces.len() * STAGING_PIECE_BYTES)
    }

    /// Where the first `size` bytes of a piece are; none if there is no such piece, or it has fewer.
    pub(crate) fn pointer(&self, piece: u32, size: u64) -> Option<*mut void> {
        let staged = self.pieces.get(piece as usize).filter(|_| size <= STAGING_PIECE_BYTES as u64)?;
        Some(std::ptr::with_exposed_provenance_mut(staged.start))
    }

    /// Takes over a piece that came with a message, until the result is dropped.
    pub(crate) fn hold(&self, piece: u32) -> Option<StagedRead> {
        Some(StagedRead::new(self.pieces.get(piece as usize)?.busy, &self.held_bytes))
    }

    /// How many pieces commands are still reading.
    pub(crate) fn pieces_in_use(&self) -> usize {
        self.held_bytes.load(Ordering::Acquire)
    }
}

impl Drop for StagedRead {
    fn drop(&mut self) {
        let word = std::ptr::with_exposed_provenance_mut::<u32>(self.busy);
        // SAFETY: the address of a busy word: aligned, mapped as long as the worker runs, and touched by atomics alone on
        // both sides.
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
