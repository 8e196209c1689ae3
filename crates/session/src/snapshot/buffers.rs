//! Registered memory for contents on their way ([`super::transfer`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use katydid_driver::Driver;

use super::area::CHUNK_BYTES;
use super::error::SnapshotError;
use crate::memory::pinned_alloc::PinnedAlloc;

/// Most threads; fewer with fewer processors.
pub(super) const MAX_TRANSFER_THREADS: usize = 16;
/// Buffers of a thread, of a chunk each.
pub(super) const CHUNKS_PER_THREAD: usize = 2;
/// First address for registered memory. Each has its own place: it must not move what the driver maps
/// (`worker/src/os/layout.rs`).
const PINNED_BASE_ADDRESS: usize = 0x4b00_0000_0000;
/// Bytes between two places: the most that one can have.
const PINNED_STRIDE_BYTES: usize = MAX_TRANSFER_THREADS * CHUNKS_PER_THREAD * CHUNK_BYTES as usize;
/// Number of places; then they begin again.
const PINNED_SLOTS: usize = 256;

/// Host memory of so many chunks, registered with the driver. A driver that refuses to register it copies through its own
/// memory, at a lower speed.
pub(super) struct Buffers(PinnedAlloc);

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("start", &self.0.start()).field("size", &self.0.size()).finish_non_exhaustive()
    }
}

/// The next place.
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

    /// Returns the number of chunks.
    pub(super) fn count(&self) -> usize {
        self.0.size() / CHUNK_BYTES as usize
    }
}
