//! Copies of three dimensions, and all copies with an array: rows at a distance, in slices at a distance.
//!
//! Both sides are checked entirely before anything moves. In an array, rows and slices lie without gaps, and layers and faces are
//! slices. Indices beyond an extent are refused, whatever the memory holds.

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUarray, CUresult, memory_type};
use katydid_driver_rules::copy::{CopyExtent, DescribedSide, SideLayout, described};

use crate::context::state::Context;
use crate::copy::linear::{self, CallMode};
use crate::copy::side::CopySide;
use crate::copy::transfer::{self, AccessRange};
use crate::ffi::Outcome;
use crate::memory::space::Access;
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;
use crate::texture::array::{self, Array};

/// One checked side: all its bytes from the first to the last, and the distances of rows and slices.
#[derive(Clone, Copy)]
struct Rows {
    span: AccessRange,
    pitch: u64,
    slice: u64,
}

/// Lays out a copy's side in an array; `None` if it leaves the array.
fn inside(array: &Array, side: &DescribedSide, extent: CopyExtent) -> Option<SideLayout> {
    let level = &array.level;
    let [_, rows, deep] = level.extent.map(u64::from);
    let row = u64::from(level.extent[0]) * array.format.texel_bytes();
    if !side.is_inside([row, rows, deep * u64::from(level.layers)], extent) {
        return None;
    }
    let [x, y, z] = side.first;
    let start = z * level.slice + y * level.pitch + x;
    let span = (extent.depth - 1) * level.slice + (extent.height - 1) * level.pitch + extent.width;
    Some(SideLayout { pitch: level.pitch, slice: level.slice, start, span })
}

/// Finds and checks the bytes of a side. A row of memory must fit the pitch, even if it is the only one.
fn find(side: &DescribedSide, context: &Context, extent: CopyExtent, access: Access) -> Outcome<Rows> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    let (layout, span) = if side.kind == memory_type::ARRAY {
        let array = array::resolve(side.array).map_err(|_| wrong)?;
        let layout = inside(&array, side, extent).ok_or(wrong)?;
        let span = AccessRange::reached(context, array.level.address, array.bytes(), access)?;
        (layout, span.part(layout.start, layout.span))
    } else {
        let (claim, base) = side.memory().ok_or(wrong)?;
        let layout = side.layout(extent).filter(|_| side.fits_pitch(extent)).ok_or(wrong)?;
        let start = base.checked_add(layout.start).ok_or(wrong)?;
        (layout, CopySide::of(claim).span(context, start, layout.span, access)?)
    };
    Ok(Rows { span, pitch: layout.pitch, slice: layout.slice })
}

/// Checks a copy without performing it.
pub(crate) fn check(context: &Context, it: &CUDA_MEMCPY3D) -> Outcome {
    let (target, source, extent) = described(it);
    find(&target, context, extent, Access::ReadWrite)?;
    find(&source, context, extent, Access::Read).map(drop)
}

/// `cuMemcpy3D` and its asynchronous form.
pub(crate) fn copy(stream: &Arc<Stream>, it: &CUDA_MEMCPY3D, mode: CallMode) -> Outcome {
    let (target, source, extent) = described(it);
    run(stream, &target, &source, extent, mode)
}

/// `cuMemcpy2D` with an array on a side.
pub(crate) fn copy_plane(stream: &Arc<Stream>, it: &CUDA_MEMCPY2D, mode: CallMode) -> Outcome {
    copy(stream, &it.into(), mode)
}

/// One end of a copy of one row: an array with an offset into its first row, or memory.
pub(crate) enum RowEnd {
    /// An array, from a byte of its first row on.
    Array(CUarray, usize),
    /// Memory of the device.
    Device(u64),
    /// Memory of the device or of the program.
    Any(u64),
}

impl RowEnd {
    fn describe(&self) -> DescribedSide {
        let (kind, array, device, x) = match *self {
            Self::Array(array, x) => (memory_type::ARRAY, array, 0, x as u64),
            Self::Device(address) => (memory_type::DEVICE, CUarray::NULL, address, 0),
            Self::Any(address) => (memory_type::UNIFIED, CUarray::NULL, address, 0),
        };
        DescribedSide { kind, host: 0, device, array, pitch: 0, rows: 0, first: [x, 0, 0] }
    }
}

/// `cuMemcpyHtoA` and its relatives: bytes of the first row.
pub(crate) fn copy_row(stream: &Arc<Stream>, to: &RowEnd, from: &RowEnd, size: usize, mode: CallMode) -> Outcome {
    let row = CopyExtent { width: size as u64, height: 1, depth: 1 };
    run(stream, &to.describe(), &from.describe(), row, mode)
}

/// Checks both sides and submits the copy. Waits for the program's own memory.
fn run(stream: &Arc<Stream>, to: &DescribedSide, from: &DescribedSide, extent: CopyExtent, mode: CallMode) -> Outcome {
    let context = stream.context()?;
    if extent.is_empty() {
        return Ok(());
    }
    let target = find(to, &context, extent, Access::ReadWrite)?;
    let source = find(from, &context, extent, Access::Read)?;
    let job = StreamJob::new(move |_| {
        let CopyExtent { width, height, depth } = extent;
        for slice in 0..depth {
            let part = |rows: Rows| rows.span.part(slice * rows.slice, (height - 1) * rows.pitch + width);
            transfer::copy(&part(target), &part(source), width, height, (target.pitch, source.pitch))?;
        }
        Ok(())
    });
    if mode == CallMode::Blocking || source.span.pageable || target.span.pageable {
        return linear::finish(stream, job);
    }
    stream.submit(job).map(drop)
}
