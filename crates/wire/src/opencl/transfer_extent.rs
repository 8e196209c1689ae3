//! The part of a memory object that a command moves. The program's side of it always travels without gaps: rows and
//! slices that have some are gathered and scattered where the program's memory is.

use crate::codec::Field;

/// A run of bytes of a buffer: `origin[0]` and `region[0]`.
pub const BUFFER_RUN: u32 = 0;
/// A box of a buffer: bytes, rows, slices; with the buffer's own pitches.
pub const BUFFER_BOX: u32 = 1;
/// A box of an image: elements, rows, slices.
pub const IMAGE_BOX: u32 = 2;

/// Where in the object, and how much.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferExtent {
    /// First byte or element.
    pub origin: [u64; 3],
    /// Bytes or elements, rows, slices.
    pub region: [u64; 3],
    /// Bytes from row to row of a buffer; 0: no gaps. Of an image the fourth number of its origin: the level, where three are
    /// taken by the place in it.
    pub row: u64,
    /// Bytes from slice to slice of a buffer; 0: no gaps.
    pub slice: u64,
}

impl TransferExtent {
    /// A run of a buffer.
    #[must_use]
    pub fn run(offset: u64, size: u64) -> Self {
        Self { origin: [offset, 0, 0], region: [size, 1, 1], row: 0, slice: 0 }
    }

    /// Bytes that it moves, of elements of `element` bytes; none when that is beyond any memory.
    #[must_use]
    pub fn bytes(&self, element: u64) -> Option<u64> {
        let [width, height, depth] = self.region;
        width.checked_mul(height)?.checked_mul(depth)?.checked_mul(element)
    }
}

impl Field for TransferExtent {
    fn put(&self, out: &mut Vec<u8>) {
        self.origin.iter().chain(&self.region).chain([&self.row, &self.slice]).for_each(|number| number.put(out));
    }

    fn take(bytes: &mut &[u8]) -> Option<Self> {
        let mut three = || Some([u64::take(bytes)?, u64::take(bytes)?, u64::take(bytes)?]);
        let (origin, region) = (three()?, three()?);
        Some(Self { origin, region, row: u64::take(bytes)?, slice: u64::take(bytes)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_comes_back() {
        let extent = TransferExtent { origin: [1, 2, 3], region: [4, 5, 6], row: 7, slice: 8 };
        let mut bytes = Vec::new();
        extent.put(&mut bytes);
        assert_eq!(bytes.len(), 64);
        assert_eq!(TransferExtent::take(&mut &bytes[..]), Some(extent));
        assert_eq!(TransferExtent::take(&mut &bytes[..63]), None);
    }

    #[test]
    fn sizes_do_not_overflow() {
        assert_eq!(TransferExtent::run(3, 10).bytes(1), Some(10));
        assert_eq!(TransferExtent { region: [u64::MAX, 2, 1], ..TransferExtent::default() }.bytes(1), None);
    }
}
