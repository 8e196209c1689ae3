//! Two- and three-dimensional copies: rows at a pitch on each side, slices at a distance. This module describes and checks
//! them; `array_copy.rs` runs them. Gaps on the program's side are never read or written: they may not be mapped.

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUresult, Function, memory_type};
use katydid_driver_rules::copy::{CopyExtent, DescribedSide, described};

use crate::copy::side::{CopySide, locate};
use crate::ffi::arguments::refuse;

/// One side: the location of its first row, and the bytes from a row to the next and from a slice to the next.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) side: CopySide,
    pub(crate) pitch: u64,
    pub(crate) slice: u64,
}

/// Both located sides of a copy, and its bytes, rows and slices.
pub(crate) struct CopySides {
    pub(crate) target: Rows,
    pub(crate) source: Rows,
    pub(crate) extent: [u64; 3],
}

/// Whether a side is an array.
pub(crate) fn has_array(copy: &CUDA_MEMCPY3D) -> bool {
    [copy.dstMemoryType, copy.srcMemoryType].contains(&memory_type::ARRAY)
}

/// Checks a copy, and locates its sides.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for memory that does not exist, and rows that overlap.
pub(crate) fn sides(copy: &CUDA_MEMCPY3D) -> Result<CopySides, CUresult> {
    let (target, source, extent) = described(copy);
    let CopyExtent { width, height, depth } = extent;
    let (target, source) = (find(&target, extent)?, find(&source, extent)?);
    Ok(CopySides { target, source, extent: [width, height, depth] })
}

impl Rows {
    /// Address of its first row.
    pub(crate) fn address(&self) -> u64 {
        let (CopySide::Gpu(address) | CopySide::Shared(address) | CopySide::Own(address)) = self.side;
        address
    }

    /// Returns whether rows and slices follow each other without gaps.
    pub(crate) fn are_a_range(&self, extent: CopyExtent) -> bool {
        let CopyExtent { width, height, depth } = extent;
        (height == 1 || self.pitch == width) && (depth == 1 || self.slice == width * height)
    }

    /// Returns whether only the program reaches them.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.side, CopySide::Own(_))
    }

    /// Returns whether the program reaches them.
    pub(crate) fn is_near(&self) -> bool {
        !matches!(self.side, CopySide::Gpu(_))
    }
}

/// Checks that all rows of a side lie in one block, and locates it.
pub(crate) fn find(side: &DescribedSide, extent: CopyExtent) -> Result<Rows, CUresult> {
    if side.kind == memory_type::ARRAY {
        return Err(refuse(Function::cuMemcpy3D_v2, "with arrays is not supported in graphs"));
    }
    let (claim, base) = side.memory().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let layout = side.layout(extent).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let address = base.checked_add(layout.start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok(Rows { side: locate(claim, address, layout.span)?, pitch: layout.pitch, slice: layout.slice })
}
