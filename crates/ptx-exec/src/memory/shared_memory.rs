//! Shared memory of a block.
//!
//! One thread runs all warps of a block, so no other thread touches it. It still goes through the same raw accesses as device
//! memory, because generic addresses reach both.

use crate::engine::registers::Row;

/// The bytes of shared memory, in rows that are aligned for any access.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedMemory {
    rows: Vec<Row>,
    bytes: u32,
    /// Address of the first byte in this process.
    base: u64,
    /// Address of the first byte in the space of shared memory.
    first: u64,
}

impl SharedMemory {
    /// Resizes it to `bytes` bytes. The content is left from the last block, as on the GPU.
    pub(crate) fn resize(&mut self, bytes: u32) {
        self.rows.resize(Self::rows_for(bytes), Row::ZERO);
        self.bytes = bytes;
        self.base = self.rows.as_mut_ptr().expose_provenance() as u64;
    }

    /// Returns the number of rows that hold `bytes` bytes.
    pub(crate) fn rows_for(bytes: u32) -> usize {
        bytes.div_ceil(size_of::<Row>() as u32) as usize
    }

    /// Returns its content; no thread may be running the block.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns its content for writing; no thread may be running the block.
    pub(crate) fn rows_mut(&mut self) -> &mut [Row] {
        &mut self.rows
    }

    /// Sets its address in the space of shared memory, which is not 0 only if programs look into other blocks.
    pub(crate) fn begin_at(&mut self, first: u64) {
        self.first = first;
    }

    /// Returns the address of the first byte in the space of shared memory.
    #[inline(always)]
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// Returns its size in bytes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.bytes)
    }

    /// Returns the address in this process of `bytes` bytes at `address`, if they all exist.
    #[inline(always)]
    pub(crate) fn span(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.first);
        let fits = bytes <= u64::from(self.bytes) && offset <= u64::from(self.bytes) - bytes;
        fits.then_some(self.base.wrapping_add(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_end_with_the_memory() {
        let mut shared = SharedMemory::default();
        shared.resize(100);
        assert!(shared.span(0, 100).is_some() && shared.span(96, 4).is_some());
        shared.begin_at(1 << 24);
        assert!(shared.span((1 << 24) + 96, 4).is_some() && shared.span(96, 4).is_none());
        shared.begin_at(0);
        assert!(shared.span(97, 4).is_none() && shared.span(u64::MAX, 4).is_none() && shared.span(0, 101).is_none());
    }
}
