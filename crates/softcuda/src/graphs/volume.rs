//! Copies of up to three dimensions between linear memory, for copy nodes.

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUresult, memory_type};

use crate::context::state::Context;
use crate::copy::side::Side;
use crate::copy::transfer::{self, Span};
use crate::ffi::{Outcome, unsupported};
use crate::memory::space::{self, Access};

/// One side: where its first byte is, and how far rows and slices are apart.
#[derive(Clone, Copy)]
struct Layout {
    side: Side,
    start: u64,
    pitch: u64,
    slice: u64,
}

/// A side as the descriptor gives it.
struct Described {
    kind: u32,
    host: u64,
    device: u64,
    pitch: usize,
    height: usize,
    first: [usize; 3],
}

impl Described {
    /// Refuses arrays, and rows and slices that overlap.
    fn layout(&self, extent: [u64; 3]) -> Outcome<Layout> {
        let (side, base) = match self.kind {
            memory_type::HOST => (Side::Any, self.host),
            memory_type::DEVICE => (Side::Device, self.device),
            memory_type::UNIFIED => (Side::Any, self.device),
            memory_type::ARRAY => return Err(unsupported("a graph's copy to or from an array")),
            _ => return Err(CUresult::ERROR_INVALID_VALUE),
        };
        let layout = || {
            let [x, y, z] = self.first.map(|first| first as u64);
            let (row, rows) = (x.checked_add(extent[0])?, y.checked_add(extent[1])?);
            let pitch = if self.pitch == 0 { row } else { self.pitch as u64 };
            let height = if self.height == 0 { rows } else { self.height as u64 };
            let slice = pitch.checked_mul(height)?;
            let overlaps = (rows > 1 && pitch < row) || (z + extent[2] > 1 && height < rows);
            let offset = z.checked_mul(slice)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x)?;
            let start = base.checked_add(offset)?;
            (!overlaps).then_some(Layout { side, start, pitch, slice })
        };
        layout().ok_or(CUresult::ERROR_INVALID_VALUE)
    }
}

/// A checked copy.
#[derive(Clone, Copy)]
pub(super) struct Volume {
    target: Layout,
    source: Layout,
    extent: [u64; 3],
}

impl Volume {
    /// Refuses what is no copy between memory that `context` reaches.
    pub(super) fn new(context: &Context, it: &CUDA_MEMCPY3D) -> Outcome<Self> {
        let extent = [it.WidthInBytes as u64, it.Height as u64, it.Depth as u64];
        let source = Described {
            kind: it.srcMemoryType,
            host: it.srcHost.addr() as u64,
            device: it.srcDevice,
            pitch: it.srcPitch,
            height: it.srcHeight,
            first: [it.srcXInBytes, it.srcY, it.srcZ],
        };
        let target = Described {
            kind: it.dstMemoryType,
            host: it.dstHost.addr() as u64,
            device: it.dstDevice,
            pitch: it.dstPitch,
            height: it.dstHeight,
            first: [it.dstXInBytes, it.dstY, it.dstZ],
        };
        let volume = Self { target: target.layout(extent)?, source: source.layout(extent)?, extent };
        for slice in [0, extent[2] - 1] {
            for (layout, access) in [(&volume.target, Access::ReadWrite), (&volume.source, Access::Read)] {
                let (at, size) = volume.slice(layout, slice)?;
                layout.side.span(context, at, size, access)?;
            }
        }
        Ok(volume)
    }

    /// Where one slice of a side begins, and its bytes to the last.
    fn slice(&self, layout: &Layout, slice: u64) -> Outcome<(u64, u64)> {
        let [width, rows, _] = self.extent;
        let at = slice.checked_mul(layout.slice).and_then(|offset| layout.start.checked_add(offset));
        let size = (rows - 1).checked_mul(layout.pitch).and_then(|skipped| skipped.checked_add(width));
        at.zip(size).ok_or(CUresult::ERROR_INVALID_VALUE)
    }

    /// Copies. Memory that has gone since is a fault, as it is for a kernel; what was freed behind the launch has not.
    pub(super) fn run(&self, context: &Context) -> Outcome {
        let [width, rows, slices] = self.extent;
        let span = |layout: &Layout, slice, access| -> Outcome<Span> {
            let (at, size) = self.slice(layout, slice)?;
            Ok(layout.side.due(context, at, size, access))
        };
        for slice in 0..slices {
            let (target, source) =
                (span(&self.target, slice, Access::ReadWrite)?, span(&self.source, slice, Access::Read)?);
            transfer::copy(&target, &source, width, rows, (self.target.pitch, self.source.pitch))?;
        }
        Ok(())
    }

    /// What kind of memory each side is: a device's by its number, or the host's.
    pub(super) fn kinds(&self) -> (u32, u32) {
        let kind = |layout: &Layout| {
            let space = space::read();
            let region = space.find(layout.start).filter(|region| !region.is_host());
            region.map_or(0, |region| region.device as u32 + 1)
        };
        (kind(&self.target), kind(&self.source))
    }
}
