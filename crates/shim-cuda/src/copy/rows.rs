//! Two- and three-dimensional copies: rows at a pitch on each side, in slices at a distance. Here they are described and checked;
//! `array_copy.rs` does them. Gaps on the program's side are never read or written: they may not be mapped.

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUresult, Function, memory_type};

use crate::copy::side::{Claim, Side, locate};
use crate::ffi::arguments::refuse;

/// How much is copied: bytes of a row, rows of a slice, slices.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
}

impl Extent {
    /// Of all rows, without gaps.
    pub(crate) fn bytes(self) -> u64 {
        self.width * self.height * self.depth
    }

    /// Whether there is nothing to copy.
    pub(crate) fn is_empty(self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }
}

/// A side as a descriptor gives it.
pub(crate) struct DescribedSide {
    kind: u32,
    host: u64,
    device: u64,
    /// Bytes from row to row; 0: rows without gap.
    pitch: usize,
    /// Rows from slice to slice; 0: slices without gap.
    rows: usize,
    /// First byte, row and slice.
    pub(crate) first: [usize; 3],
}

/// One side: where its first row lies, and how many bytes further the next row and the next slice are.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) side: Side,
    pub(crate) pitch: u64,
    pub(crate) slice: u64,
}

/// Both sides of a copy, found, and its bytes, rows and slices.
pub(crate) struct Sides {
    pub(crate) target: Rows,
    pub(crate) source: Rows,
    pub(crate) extent: [u64; 3],
}

/// Both sides of a copy as its descriptor gives them, and how much is copied.
pub(crate) fn described(copy: &CUDA_MEMCPY3D) -> (DescribedSide, DescribedSide, Extent) {
    let source = DescribedSide {
        kind: copy.srcMemoryType,
        host: copy.srcHost.expose_provenance() as u64,
        device: copy.srcDevice,
        pitch: copy.srcPitch,
        rows: copy.srcHeight,
        first: [copy.srcXInBytes, copy.srcY, copy.srcZ],
    };
    let target = DescribedSide {
        kind: copy.dstMemoryType,
        host: copy.dstHost.expose_provenance() as u64,
        device: copy.dstDevice,
        pitch: copy.dstPitch,
        rows: copy.dstHeight,
        first: [copy.dstXInBytes, copy.dstY, copy.dstZ],
    };
    let extent = Extent { width: copy.WidthInBytes as u64, height: copy.Height as u64, depth: copy.Depth as u64 };
    (target, source, extent)
}

/// Whether a side is an array.
pub(crate) fn has_array(copy: &CUDA_MEMCPY3D) -> bool {
    [copy.dstMemoryType, copy.srcMemoryType].contains(&memory_type::ARRAY)
}

/// Checks a copy of something, and finds its sides.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for memory that is not there, and rows that overlap.
pub(crate) fn sides(copy: &CUDA_MEMCPY3D) -> Result<Sides, CUresult> {
    let (target, source, extent) = described(copy);
    let Extent { width, height, depth } = extent;
    let (target, source) = (target.find(extent)?, source.find(extent)?);
    Ok(Sides { target, source, extent: [width, height, depth] })
}

impl Rows {
    /// Where its first row lies.
    pub(crate) fn address(&self) -> u64 {
        let (Side::Gpu(address) | Side::Shared(address) | Side::Own(address)) = self.side;
        address
    }

    /// Whether they and their slices follow each other without gaps.
    pub(crate) fn are_a_range(&self, extent: Extent) -> bool {
        let Extent { width, height, depth } = extent;
        (height == 1 || self.pitch == width) && (depth == 1 || self.slice == width * height)
    }

    /// Whether only the program reaches them.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.side, Side::Own(_))
    }

    /// Whether the program reaches them.
    pub(crate) fn is_near(&self) -> bool {
        !matches!(self.side, Side::Gpu(_))
    }
}

impl DescribedSide {
    /// Checks that all rows lie in one block, and finds it.
    pub(crate) fn find(&self, extent: Extent) -> Result<Rows, CUresult> {
        let (claim, base) = match self.kind {
            memory_type::HOST => (Claim::Host, self.host),
            memory_type::DEVICE => (Claim::Device, self.device),
            memory_type::UNIFIED => (Claim::Any, self.device),
            memory_type::ARRAY => {
                return Err(refuse(Function::cuMemcpy3D_v2, "with arrays is not supported in graphs"));
            }
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        let layout = self.layout(extent).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let address = base.checked_add(layout.start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        Ok(Rows { side: locate(claim, address, layout.span)?, pitch: layout.pitch, slice: layout.slice })
    }

    /// Distances that count, and where the bytes are. None when rows or slices overlap, or numbers pass all bounds.
    fn layout(&self, extent: Extent) -> Option<SideLayout> {
        let [x, y, z] = self.first.map(|first| first as u64);
        let (row, rows) = (x.checked_add(extent.width)?, y.checked_add(extent.height)?);
        let pitch = if self.pitch == 0 { row } else { self.pitch as u64 };
        let height = if self.rows == 0 { rows } else { self.rows as u64 };
        let slice = pitch.checked_mul(height)?;
        let overlaps = (pitch < row && (rows > 1 || z + extent.depth > 1)) || (height < rows && z + extent.depth > 1);
        if overlaps {
            return None;
        }
        let start = z.checked_mul(slice)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x)?;
        let last_row = (extent.depth - 1).checked_mul(slice)?.checked_add((extent.height - 1).checked_mul(pitch)?)?;
        Some(SideLayout { pitch, slice, start, span: last_row.checked_add(extent.width)? })
    }
}

/// Where the bytes of a side are, relative to its base.
#[derive(Debug, PartialEq, Eq)]
struct SideLayout {
    pitch: u64,
    slice: u64,
    /// Offset of the first byte.
    start: u64,
    /// Bytes from the first to the last.
    span: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(pitch: usize, rows: usize, first: [usize; 3]) -> DescribedSide {
        DescribedSide { kind: memory_type::HOST, host: 0, device: 0, pitch, rows, first }
    }

    fn layout(described: &DescribedSide, width: u64, height: u64, depth: u64) -> Option<(u64, u64, u64, u64)> {
        let layout = described.layout(Extent { width, height, depth })?;
        Some((layout.pitch, layout.slice, layout.start, layout.span))
    }

    #[test]
    fn spans_reach_from_the_first_byte_to_the_last() {
        assert_eq!(layout(&described(512, 0, [8, 2, 0]), 100, 3, 1), Some((512, 5 * 512, 1032, 1124)));
        assert_eq!(layout(&described(0, 0, [0, 0, 0]), 100, 3, 1), Some((100, 300, 0, 300)));
        assert_eq!(layout(&described(50, 0, [0, 0, 0]), 100, 1, 1), Some((50, 50, 0, 100)));
        assert_eq!(layout(&described(64, 10, [4, 1, 2]), 32, 3, 2), Some((64, 640, 1348, 800)));
    }

    #[test]
    fn rows_and_slices_that_overlap_or_overflow_are_refused() {
        assert_eq!(layout(&described(99, 0, [0, 0, 0]), 100, 2, 1), None);
        assert_eq!(layout(&described(104, 0, [8, 0, 0]), 100, 2, 1), None);
        assert_eq!(layout(&described(usize::MAX, 0, [0, 2, 0]), 100, 2, 1), None);
        assert_eq!(layout(&described(100, 2, [0, 0, 0]), 100, 3, 2), None);
    }
}
