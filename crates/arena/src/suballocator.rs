//! Hands out addresses of one device's memory, within what the worker has backed.

use std::ops::Range;

use thiserror::Error;

/// Growth comes in multiples of this: the driver's granularity.
pub const GRANULARITY: u64 = 2 << 20;
/// Least growth worth a round trip, where the device has that much left.
pub const MIN_GROWTH: u64 = 32 << 20;

/// The address is no block's start, or the block was freed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no block in use starts at {address:#x}")]
pub struct FreeError {
    /// What was to be freed.
    pub address: u64,
}

/// Best-fit allocator over the backed part of an arena.
#[derive(Debug)]
pub struct Suballocator {
    arena: Range<u64>,
}

impl Suballocator {
    /// Nothing of `arena` is backed yet.
    #[must_use]
    pub fn new(arena: Range<u64>) -> Self {
        Self { arena }
    }

    /// A block of `size` bytes (rounded up to 256; from 2 MiB on, the block starts at a multiple of 2 MiB) at a
    /// multiple of `align`; none: grow first, see [`Suballocator::growth_for`].
    pub fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        todo!("{size} {align} {:?}", self.arena)
    }

    /// The range whose backing would make room for such a block, in whole [`GRANULARITY`]; none if the arena ends
    /// first. Asking for up to `at_least` bytes saves later round trips.
    #[must_use]
    pub fn growth_for(&self, size: u64, align: u64, at_least: u64) -> Option<Range<u64>> {
        todo!("{size} {align} {at_least}")
    }

    /// The worker has backed this range, which is free from now on. Ranges may come in any order, not twice.
    pub fn grow(&mut self, range: Range<u64>) {
        todo!("{range:?}")
    }

    /// Frees a block: it waits in quarantine until [`Suballocator::release_until`] is told that the GPU has passed
    /// `epoch`. Returns its size.
    ///
    /// # Errors
    /// [`FreeError`].
    pub fn free(&mut self, address: u64, epoch: u64) -> Result<u64, FreeError> {
        todo!("{address} {epoch}")
    }

    /// Makes blocks that were freed at `epoch` or before usable again; returns how many bytes.
    pub fn release_until(&mut self, epoch: u64) -> u64 {
        todo!("{epoch}")
    }

    /// Start and size of the block in use that holds `address`.
    #[must_use]
    pub fn block_of(&self, address: u64) -> Option<(u64, u64)> {
        todo!("{address}")
    }

    /// Takes whole free [`GRANULARITY`] pieces out again, so that the worker can give their memory back.
    pub fn trim(&mut self) -> Vec<Range<u64>> {
        todo!()
    }

    /// Bytes that are backed and free.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        todo!()
    }

    /// Bytes in blocks in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        todo!()
    }

    /// Bytes in blocks that wait for the GPU.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        todo!()
    }

    /// Bytes that the worker has backed.
    #[must_use]
    pub fn backed_bytes(&self) -> u64 {
        todo!()
    }
}
