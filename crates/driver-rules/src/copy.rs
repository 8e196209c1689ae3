//! Copies of rows and slices: the sides in a descriptor, and the layout of their bytes.

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUarray, memory_type};

/// The extent of a copy: bytes of a row, rows of a slice, slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyExtent {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub height: u64,
    /// Number of slices.
    pub depth: u64,
}

impl CopyExtent {
    /// Returns the bytes of all rows and slices, without gaps.
    #[inline]
    pub fn bytes(self) -> u64 {
        self.width * self.height * self.depth
    }

    /// Returns whether there is nothing to copy.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

/// The kind of memory that a program declares for a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeclaredMemory {
    /// Memory that the GPU reaches.
    Device,
    /// Memory that the processor reaches; with unified addressing it may be the GPU's as well.
    Host,
    /// Memory of any kind, by its address.
    Any,
}

/// A side of a copy, as in its descriptor.
#[derive(Debug, Clone, Copy)]
pub struct DescribedSide {
    /// Kind of the memory, a `CUmemorytype`.
    pub kind: u32,
    /// Address of host memory.
    pub host: u64,
    /// Address of device memory, or of any.
    pub device: u64,
    /// Handle of an array.
    pub array: CUarray,
    /// Bytes from row to row; 0: rows without gap.
    pub pitch: u64,
    /// Rows from slice to slice; 0: slices without gap.
    pub rows: u64,
    /// First byte, row and slice.
    pub first: [u64; 3],
}

/// The layout of a side's bytes, relative to its base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SideLayout {
    /// Bytes from row to row.
    pub pitch: u64,
    /// Bytes from slice to slice.
    pub slice: u64,
    /// Offset of the first byte.
    pub start: u64,
    /// Bytes from the first to the last.
    pub span: u64,
}

/// Returns target and source of a copy as in its descriptor, and its extent.
pub fn described(it: &CUDA_MEMCPY3D) -> (DescribedSide, DescribedSide, CopyExtent) {
    let source = DescribedSide {
        kind: it.srcMemoryType,
        host: it.srcHost.expose_provenance() as u64,
        device: it.srcDevice,
        array: it.srcArray,
        pitch: it.srcPitch as u64,
        rows: it.srcHeight as u64,
        first: [it.srcXInBytes, it.srcY, it.srcZ].map(|first| first as u64),
    };
    let target = DescribedSide {
        kind: it.dstMemoryType,
        host: it.dstHost.expose_provenance() as u64,
        device: it.dstDevice,
        array: it.dstArray,
        pitch: it.dstPitch as u64,
        rows: it.dstHeight as u64,
        first: [it.dstXInBytes, it.dstY, it.dstZ].map(|first| first as u64),
    };
    let extent = CopyExtent { width: it.WidthInBytes as u64, height: it.Height as u64, depth: it.Depth as u64 };
    (target, source, extent)
}

impl DescribedSide {
    /// Returns the declared kind and the address of a side that is memory; none for an array and for an invalid side.
    pub fn memory(&self) -> Option<(DeclaredMemory, u64)> {
        match self.kind {
            memory_type::HOST => Some((DeclaredMemory::Host, self.host)),
            memory_type::DEVICE => Some((DeclaredMemory::Device, self.device)),
            memory_type::UNIFIED => Some((DeclaredMemory::Any, self.device)),
            _ => None,
        }
    }

    /// Returns whether rows fit their pitch.
    pub fn fits_pitch(&self, extent: CopyExtent) -> bool {
        self.pitch == 0 || self.first[0].checked_add(extent.width).is_some_and(|row| row <= self.pitch)
    }

    /// Returns the effective pitches, and the location of the bytes of a copy that is not empty. None if rows or slices
    /// overlap, or on overflow.
    pub fn layout(&self, extent: CopyExtent) -> Option<SideLayout> {
        let [x, y, z] = self.first;
        let (row, rows) = (x.checked_add(extent.width)?, y.checked_add(extent.height)?);
        let pitch = if self.pitch == 0 { row } else { self.pitch };
        let height = if self.rows == 0 { rows } else { self.rows };
        let slice = pitch.checked_mul(height)?;
        let has_slices = z.checked_add(extent.depth)? > 1;
        if (pitch < row && (rows > 1 || has_slices)) || (height < rows && has_slices) {
            return None;
        }
        let start = z.checked_mul(slice)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x)?;
        let skipped_slices = extent.depth.checked_sub(1)?.checked_mul(slice)?;
        let last_row = skipped_slices.checked_add(extent.height.checked_sub(1)?.checked_mul(pitch)?)?;
        Some(SideLayout { pitch, slice, start, span: last_row.checked_add(extent.width)? })
    }

    /// Returns whether an array of `bounds` (bytes of a row, rows, slices) contains all of the copy.
    pub fn is_inside(&self, bounds: [u64; 3], extent: CopyExtent) -> bool {
        let counts = [extent.width, extent.height, extent.depth];
        let mut sides = self.first.into_iter().zip(counts).zip(bounds);
        sides.all(|((first, count), end)| first.checked_add(count).is_some_and(|stop| stop <= end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(pitch: u64, rows: u64, first: [u64; 3]) -> DescribedSide {
        DescribedSide { kind: memory_type::HOST, host: 0, device: 0, array: CUarray::NULL, pitch, rows, first }
    }

    fn layout(side: &DescribedSide, width: u64, height: u64, depth: u64) -> Option<(u64, u64, u64, u64)> {
        let layout = side.layout(CopyExtent { width, height, depth })?;
        Some((layout.pitch, layout.slice, layout.start, layout.span))
    }

    #[test]
    fn spans_reach_from_the_first_byte_to_the_last() {
        assert_eq!(layout(&side(512, 0, [8, 2, 0]), 100, 3, 1), Some((512, 5 * 512, 1032, 1124)));
        assert_eq!(layout(&side(0, 0, [0, 0, 0]), 100, 3, 1), Some((100, 300, 0, 300)));
        assert_eq!(layout(&side(50, 0, [0, 0, 0]), 100, 1, 1), Some((50, 50, 0, 100)));
        assert_eq!(layout(&side(64, 10, [4, 1, 2]), 32, 3, 2), Some((64, 640, 1348, 800)));
    }

    #[test]
    fn rows_and_slices_that_overlap_or_overflow_are_refused() {
        assert_eq!(layout(&side(99, 0, [0, 0, 0]), 100, 2, 1), None);
        assert_eq!(layout(&side(104, 0, [8, 0, 0]), 100, 2, 1), None);
        assert_eq!(layout(&side(u64::MAX, 0, [0, 2, 0]), 100, 2, 1), None);
        assert_eq!(layout(&side(100, 2, [0, 0, 0]), 100, 3, 2), None);
        assert_eq!(layout(&side(0, 0, [0, 0, u64::MAX]), 100, 3, 2), None);
        let one_row = CopyExtent { width: 100, height: 1, depth: 1 };
        assert!(!side(99, 0, [0; 3]).fits_pitch(one_row) && !side(107, 0, [8, 0, 0]).fits_pitch(one_row));
        assert!(side(0, 0, [0; 3]).fits_pitch(one_row) && side(108, 0, [8, 0, 0]).fits_pitch(one_row));
    }

    #[test]
    fn a_copy_leaves_no_array() {
        let copy = CopyExtent { width: 32, height: 3, depth: 2 };
        assert!(
            side(0, 0, [4, 1, 2]).is_inside([36, 4, 4], copy) && !side(0, 0, [4, 1, 3]).is_inside([36, 4, 4], copy)
        );
        assert!(!side(0, 0, [u64::MAX, 0, 0]).is_inside([36, 4, 4], copy));
    }

    #[test]
    fn a_descriptor_says_which_memory_a_side_is() {
        let mut it = CUDA_MEMCPY3D { srcMemoryType: memory_type::DEVICE, srcDevice: 7, ..CUDA_MEMCPY3D::default() };
        (it.dstMemoryType, it.dstDevice, it.dstXInBytes, it.WidthInBytes) = (memory_type::UNIFIED, 9, 3, 5);
        let (target, source, extent) = described(&it);
        assert_eq!(
            (target.memory(), source.memory()),
            (Some((DeclaredMemory::Any, 9)), Some((DeclaredMemory::Device, 7)))
        );
        assert_eq!((target.first, extent.width, extent.is_empty()), ([3, 0, 0], 5, true));
        assert_eq!(DescribedSide { kind: memory_type::ARRAY, ..target }.memory(), None);
    }
}
