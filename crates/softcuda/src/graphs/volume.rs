//! Copies of up to three dimensions between linear memory, for copy nodes.

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUresult, memory_type};
use katydid_driver_rules::copy::{CopyExtent, DescribedSide, described};

use crate::context::state::Context;
use crate::copy::side::CopySide;
use crate::copy::transfer::{self, AccessRange};
use crate::ffi::{Outcome, unsupported};
use crate::memory::space::{self, Access};

/// One side: the address of its first byte, and the distances of rows and slices.
#[derive(Clone, Copy)]
struct Layout {
    side: CopySide,
    start: u64,
    pitch: u64,
    slice: u64,
}

/// Refuses arrays, and rows and slices that overlap.
fn layout(described: &DescribedSide, extent: CopyExtent) -> Outcome<Layout> {
    if described.kind == memory_type::ARRAY {
        return Err(unsupported("a graph's copy to or from an array"));
    }
    let (claim, base) = described.memory().ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let layout = described.layout(extent).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let start = base.checked_add(layout.start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok(Layout { side: CopySide::of(claim), start, pitch: layout.pitch, slice: layout.slice })
}

/// A copy whose sides have been checked.
#[derive(Clone, Copy)]
pub(super) struct Volume {
    target: Layout,
    source: Layout,
    extent: CopyExtent,
}

impl Volume {
    /// Refuses a copy that is not between memory that `context` reaches.
    pub(super) fn new(context: &Context, it: &CUDA_MEMCPY3D) -> Outcome<Self> {
        let (target, source, extent) = described(it);
        let volume = Self { target: layout(&target, extent)?, source: layout(&source, extent)?, extent };
        for slice in [0, extent.depth - 1] {
            for (layout, access) in [(&volume.target, Access::ReadWrite), (&volume.source, Access::Read)] {
                let (at, size) = volume.slice(layout, slice)?;
                layout.side.span(context, at, size, access)?;
            }
        }
        Ok(volume)
    }

    /// Returns the start of one slice of a side, and its size to the last byte.
    fn slice(&self, layout: &Layout, slice: u64) -> Outcome<(u64, u64)> {
        let CopyExtent { width, height, .. } = self.extent;
        let at = slice.checked_mul(layout.slice).and_then(|offset| layout.start.checked_add(offset));
        let size = (height - 1).checked_mul(layout.pitch).and_then(|skipped| skipped.checked_add(width));
        at.zip(size).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Copies. As for a kernel, memory that has gone since is a fault, but not memory that was freed after the launch.
    pub(super) fn run(&self, context: &Context) -> Outcome {
        let CopyExtent { width, height, depth } = self.extent;
        let span = |layout: &Layout, slice, access| -> Outcome<AccessRange> {
            let (at, size) = self.slice(layout, slice)?;
            Ok(layout.side.at_execution(context, at, size, access))
        };
        for slice in 0..depth {
            let (target, source) =
                (span(&self.target, slice, Access::ReadWrite)?, span(&self.source, slice, Access::Read)?);
            transfer::copy(&target, &source, width, height, (self.target.pitch, self.source.pitch))?;
        }
        Ok(())
    }

    /// Returns the memory kind of each side: a device by its number, or the host.
    pub(super) fn kinds(&self) -> (u32, u32) {
        let kind = |layout: &Layout| {
            let space = space::read();
            let region = space.find(layout.start).filter(|region| !region.is_host());
            region.map_or(0, |region| region.device as u32 + 1)
        };
        (kind(&self.target), kind(&self.source))
    }
}
