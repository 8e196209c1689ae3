//! The part of a memory object that a command transfers. The program's side is always sent without gaps: rows and slices with
//! gaps are gathered and scattered in the program's process.

use crate::codec::Field;

/// A run of bytes of a buffer: `origin[0]` and `region[0]`.
pub const BUFFER_RUN: u32 = 0;
/// A box of a buffer: bytes, rows, slices; with the buffer's own pitches.
pub const BUFFER_BOX: u32 = 1;
/// A box of an image: elements, rows, slices.
pub const IMAGE_BOX: u32 = 2;

/// The location in the object, and the size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransferExtent {
    /// First byte or element.
    pub origin: [u64; 3],
    /// Bytes or elements, rows, slices.
    pub region: [u64; 3],
    /// Bytes from row to row of a buffer; 0 is without gaps. For an image, the fourth number of its origin: the level, where the
    /// location takes the other three.
    pub row: u64,
    /// Bytes from slice to slice of a buffer; 0 is without gaps.
    pub slice: u64,
}

impl TransferExtent {
    /// Describes a run of a buffer.
    #[must_use]
    pub fn run(offset: u64, size: u64) -> Self {
        Self { origin: [offset, 0, 0], region: [size, 1, 1], row: 0, slice: 0 }
    }

    /// Returns the bytes that it transfers, given `element` bytes of an element; none if that exceeds any memory.
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
