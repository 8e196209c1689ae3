//! Copies of three dimensions, and every copy that an array is a side of: rows at a distance, in slices at a distance.
//!
//! Both sides are checked whole before anything moves. In an array, rows and slices lie without gaps, layers and faces
//! are slices, and indices beyond an extent are refused whatever the memory holds.

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUresult, memory_type};

use crate::context::state::Context;
use crate::copy::linear::{self, When};
use crate::copy::side::Side;
use crate::copy::transfer::{self, Span};
use crate::ffi::Outcome;
use crate::memory::space::Access;
use crate::sync::job::Job;
use crate::sync::stream::Stream;
use crate::texture::array::{self, Array};

/// How much is copied: bytes of a row, rows of a slice, slices.
type Extent = [u64; 3];

/// One side as a descriptor gives it.
struct Described {
    kind: u32,
    host: u64,
    device: u64,
    array: CUarray,
    /// Bytes from row to row; 0: without gaps.
    pitch: u64,
    /// Rows from slice to slice; 0: without gaps.
    rows: u64,
    /// First byte, row and slice.
    first: [u64; 3],
}

/// One side, checked: all its bytes from the first to the last, and the distances of rows and slices.
#[derive(Clone, Copy)]
struct Rows {
    span: Span,
    pitch: u64,
    slice: u64,
}

/// Where the bytes of a side are, relative to its base.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    pitch: u64,
    slice: u64,
    start: u64,
    span: u64,
}

impl Layout {
    /// None when rows or slices overlap, or numbers pass all bounds.
    fn new(pitch: u64, rows: u64, [x, y, z]: [u64; 3], [width, height, depth]: Extent) -> Option<Self> {
        let (row, used) = (x.checked_add(width)?, y.checked_add(height)?);
        let pitch = if pitch == 0 { row } else { pitch };
        let rows = if rows == 0 { used } else { rows };
        let slice = pitch.checked_mul(rows)?;
        let many = z.checked_add(depth)? > 1;
        if pitch < row || (rows < used && many) {
            return None;
        }
        let start = z.checked_mul(slice)?.checked_add(y.checked_mul(pitch)?)?.checked_add(x)?;
        let last = (depth - 1).checked_mul(slice)?.checked_add((height - 1).checked_mul(pitch)?)?;
        Some(Self { pitch, slice, start, span: last.checked_add(width)? })
    }
}

/// The place of a copy's side in an array; `INVALID_VALUE` where it leaves the array.
fn inside(array: &Array, [x, y, z]: [u64; 3], [width, height, depth]: Extent) -> Option<Layout> {
    let level = &array.level;
    let [_, rows, deep] = level.extent.map(u64::from);
    let slices = deep * u64::from(level.layers);
    let fits = |first: u64, count: u64, end: u64| first.checked_add(count).is_some_and(|stop| stop <= end);
    let row = u64::from(level.extent[0]) * array.format.texel_bytes();
    if !fits(x, width, row) || !fits(y, height, rows) || !fits(z, depth, slices) {
        return None;
    }
    let start = z * level.slice + y * level.pitch + x;
    let span = (depth - 1) * level.slice + (height - 1) * level.pitch + width;
    Some(Layout { pitch: level.pitch, slice: level.slice, start, span })
}

impl Described {
    /// Finds and checks the bytes of a side.
    fn find(&self, context: &Context, extent: Extent, access: Access) -> Outcome<Rows> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        let (layout, span) = if self.kind == memory_type::ARRAY {
            let array = array::resolve(self.array).map_err(|_| wrong)?;
            let layout = inside(&array, self.first, extent).ok_or(wrong)?;
            let span = Span::reached(context, array.level.address, array.bytes(), access)?;
            let span = span.part(layout.start, layout.span);
            (layout, span)
        } else {
            let (side, base) = match self.kind {
                memory_type::HOST => (Side::Any, self.host),
                memory_type::DEVICE => (Side::Device, self.device),
                memory_type::UNIFIED => (Side::Any, self.device),
                _ => return Err(wrong),
            };
            let layout = Layout::new(self.pitch, self.rows, self.first, extent).ok_or(wrong)?;
            let start = base.checked_add(layout.start).ok_or(wrong)?;
            let span = side.span(context, start, layout.span, access)?;
            (layout, span)
        };
        Ok(Rows { span, pitch: layout.pitch, slice: layout.slice })
    }
}

/// Both sides of a copy, and how much is copied.
fn sides(it: &CUDA_MEMCPY3D) -> (Described, Described, Extent) {
    let source = Described {
        kind: it.srcMemoryType,
        host: it.srcHost.addr() as u64,
        device: it.srcDevice,
        array: it.srcArray,
        pitch: it.srcPitch as u64,
        rows: it.srcHeight as u64,
        first: [it.srcXInBytes, it.srcY, it.srcZ].map(|first| first as u64),
    };
    let target = Described {
        kind: it.dstMemoryType,
        host: it.dstHost.addr() as u64,
        device: it.dstDevice,
        array: it.dstArray,
        pitch: it.dstPitch as u64,
        rows: it.dstHeight as u64,
        first: [it.dstXInBytes, it.dstY, it.dstZ].map(|first| first as u64),
    };
    (target, source, [it.WidthInBytes, it.Height, it.Depth].map(|size| size as u64))
}

/// Refuses a copy that would be refused, and does nothing else.
pub(crate) fn check(context: &Context, it: &CUDA_MEMCPY3D) -> Outcome {
    let (target, source, extent) = sides(it);
    target.find(context, extent, Access::ReadWrite)?;
    source.find(context, extent, Access::Read).map(drop)
}

/// `cuMemcpy3D` and its asynchronous form.
pub(crate) fn copy(stream: &Arc<Stream>, it: &CUDA_MEMCPY3D, when: When) -> Outcome {
    let (target, source, extent) = sides(it);
    run(stream, &target, &source, extent, when)
}

/// `cuMemcpy2D` with an array on a side.
pub(crate) fn copy_plane(stream: &Arc<Stream>, it: &CUDA_MEMCPY2D, when: When) -> Outcome {
    copy(stream, &it.into(), when)
}

/// One end of a copy of one row: an array with an offset into its first row, or memory.
pub(crate) enum End {
    /// An array, from a byte of its first row on.
    Array(CUarray, usize),
    /// Memory of the device.
    Device(u64),
    /// Memory of the device or of the program.
    Any(u64),
}

impl End {
    fn describe(&self) -> Described {
        let (kind, array, device, x) = match *self {
            Self::Array(array, x) => (memory_type::ARRAY, array, 0, x as u64),
            Self::Device(address) => (memory_type::DEVICE, CUarray::NULL, address, 0),
            Self::Any(address) => (memory_type::UNIFIED, CUarray::NULL, address, 0),
        };
        Described { kind, host: 0, device, array, pitch: 0, rows: 0, first: [x, 0, 0] }
    }
}

/// `cuMemcpyHtoA` and the like: bytes of the first row.
pub(crate) fn copy_row(stream: &Arc<Stream>, to: &End, from: &End, size: usize, when: When) -> Outcome {
    run(stream, &to.describe(), &from.describe(), [size as u64, 1, 1], when)
}

/// Checks both sides and submits the copy; the program's own memory is waited for.
fn run(stream: &Arc<Stream>, to: &Described, from: &Described, extent: Extent, when: When) -> Outcome {
    let context = stream.context()?;
    if extent.contains(&0) {
        return Ok(());
    }
    let target = to.find(&context, extent, Access::ReadWrite)?;
    let source = from.find(&context, extent, Access::Read)?;
    let job = Job::new(move |_| {
        let [width, height, depth] = extent;
        for slice in 0..depth {
            let part = |rows: Rows| rows.span.part(slice * rows.slice, (height - 1) * rows.pitch + width);
            transfer::copy(&part(target), &part(source), width, height, (target.pitch, source.pitch))?;
        }
        Ok(())
    });
    if when == When::Now || source.span.pageable || target.span.pageable {
        return linear::finish(stream, job);
    }
    stream.submit(job).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_reach_from_the_first_byte_to_the_last() {
        let layout = Layout::new(64, 10, [4, 1, 2], [32, 3, 2]).unwrap();
        assert_eq!((layout.slice, layout.start, layout.span), (640, 1348, 640 + 2 * 64 + 32));
        assert_eq!(Layout::new(0, 0, [0; 3], [100, 3, 1]).map(|layout| layout.span), Some(300));
    }

    #[test]
    fn rows_and_slices_that_overlap_or_overflow_are_refused() {
        assert_eq!(Layout::new(99, 0, [0; 3], [100, 1, 1]), None);
        assert_eq!(Layout::new(100, 2, [0; 3], [100, 3, 2]), None);
        assert_eq!(Layout::new(u64::MAX, 0, [0, 2, 0], [100, 2, 1]), None);
    }
}
