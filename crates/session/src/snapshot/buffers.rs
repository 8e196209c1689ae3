//! Registered memory that contents pass through ([`super::transfer`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use katydid_driver::Driver;

use super::area::CHUNK_BYTES;
use super::error::SnapshotError;
use crate::memory::pinned_alloc::PinnedAlloc;

/// Threads at most; with fewer processors, fewer.
pub(super) const MAX_TRANSFER_THREADS: usize = 16;
/// Buffers of a chunk each that a thread copies through.
pub(super) const CHUNKS_PER_THREAD: usize = 2;
/// Where registered memory is asked for, each at a place of its own: it must not move what the driver maps
/// (`worker/src/os/layout.rs`).
const PINNED_BASE_ADDRESS: usize = 0x4b00_0000_0000;
/// Bytes between two places, as many as one can have.
const PINNED_STRIDE_BYTES: usize = MAX_TRANSFER_THREADS * CHUNKS_PER_THREAD * CHUNK_BYTES as usize;
/// Places; then they begin anew.
const PINNED_SLOTS: usize = 256;

/// Host memory of so many chunks, registered with the driver. One that will not register it copies through memory of its own, at
/// a lower speed.
pub(super) struct Buffers(PinnedAlloc);

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("start", &self.0.start()).field("size", &self.0.size()).finish_non_exhaustive()
    }
}

/// The place after the last one.
static NEXT_SLOT: AtomicUsize = AtomicUsize::new(0);

impl Buffers {
    pub(super) fn make(driver: &Arc<Driver>, count: usize) -> Result<Self, SnapshotError> {
        let address =
            PINNED_BASE_ADDRESS + NEXT_SLOT.fetch_add(1, Ordering::Relaxed) % PINNED_SLOTS * PINNED_STRIDE_BYTES;
        let pages = PinnedAlloc::map(driver, address, count * CHUNK_BYTES as usize);
        let pages = pages.map_err(|source| SnapshotError::System { what: "map memory", source: source.into() })?;
        let _ = pages.register();
        Ok(Self(pages))
    }

    pub(super) fn chunk(&self, number: usize) -> u64 {
        self.0.start().expose_provenance() as u64 + number as u64 * CHUNK_BYTES
    }

    /// How many it is.
    pub(super) fn count(&self) -> usize {
        self.0.size() / CHUNK_BYTES as usize
    }
}
