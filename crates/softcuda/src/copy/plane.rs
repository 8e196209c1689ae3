//! Copies and fills of two dimensions: rows of bytes at a distance.

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUresult, memory_type};
use katydid_driver_rules::copy::{CopyExtent, DescribedSide, described};

use crate::copy::linear::{self, CallMode, MAX_INLINE_COPY_BYTES};
use crate::copy::side::CopySide;
use crate::copy::transfer::{self, AccessRange};
use crate::ffi::Outcome;
use crate::graphs::capture;
use crate::memory::space::Access;
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;
use crate::texture::volume;

/// One side of a copy: the start of its first row, and the distance between rows.
struct Rows {
    side: CopySide,
    start: u64,
    pitch: u64,
}

impl Rows {
    /// Refuses rows that do not fit their pitch.
    fn new(described: &DescribedSide, extent: CopyExtent) -> Outcome<Self> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        let (claim, base) = described.memory().filter(|_| described.fits_pitch(extent)).ok_or(wrong)?;
        let [x, y, _] = described.first;
        let row = x.checked_add(extent.width).ok_or(wrong)?;
        let pitch = if described.pitch == 0 { row } else { described.pitch };
        let offset = y.checked_mul(pitch).and_then(|skipped| skipped.checked_add(x));
        let start = offset.and_then(|offset| base.checked_add(offset)).ok_or(wrong)?;
        Ok(Self { side: CopySide::of(claim), start, pitch })
    }
}

/// Returns the bytes from the first of the first row to the last of the last row.
fn extent(width: u64, rows: u64, pitch: u64) -> Outcome<u64> {
    let skipped = (rows - 1).checked_mul(pitch).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    skipped.checked_add(width).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemcpy2D` and its asynchronous form. Both wait for the program's own memory.
pub(crate) fn copy_rows(stream: &Arc<Stream>, it: &CUDA_MEMCPY2D, mode: CallMode) -> Outcome {
    if [it.srcMemoryType, it.dstMemoryType].contains(&memory_type::ARRAY) {
        return volume::copy_plane(stream, it, mode);
    }
    let (target, source, size) = described(&CUDA_MEMCPY3D::from(it));
    let (from, to) = (Rows::new(&source, size)?, Rows::new(&target, size)?);
    let (width, rows) = (size.width, size.height);
    if width == 0 || rows == 0 || (mode == CallMode::Asynchronous && capture::rows(stream, it)?) {
        return Ok(());
    }
    let context = stream.context()?;
    let target = to.side.span(&context, to.start, extent(width, rows, to.pitch)?, Access::ReadWrite)?;
    let source = from.side.span(&context, from.start, extent(width, rows, from.pitch)?, Access::Read)?;
    let pitches = (to.pitch, from.pitch);
    let job = StreamJob::new(move |_| transfer::copy(&target, &source, width, rows, pitches));
    if mode == CallMode::Blocking || source.pageable || target.pageable {
        return linear::finish(stream, job);
    }
    stream.submit(job).map(drop)
}

/// `cuMemsetD*`: `rows` rows of `count` elements, each the little-endian `pattern`. Never waits: only later work of a stream
/// reads the device's memory.
pub(crate) fn fill<const SIZE: usize>(
    stream: &Arc<Stream>,
    address: u64,
    pattern: [u8; SIZE],
    count: usize,
    (rows, pitch): (usize, usize),
) -> Outcome {
    let (rows, pitch) = (rows as u64, pitch as u64);
    let width = (count as u64).checked_mul(SIZE as u64).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if !address.is_multiple_of(SIZE as u64) || (rows > 1 && pitch < width) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    if width == 0 || rows == 0 {
        return Ok(());
    }
    let mut value = [0; 4];
    value[..SIZE].copy_from_slice(&pattern);
    let node = CUDA_MEMSET_NODE_PARAMS {
        dst: address,
        pitch: pitch as usize,
        value: u32::from_le_bytes(value),
        elementSize: SIZE as u32,
        width: count,
        height: rows as usize,
    };
    if capture::fill(stream, &node)? {
        return Ok(());
    }
    let size = extent(width, rows, pitch)?;
    let target = AccessRange::reached(&*stream.context()?, address, size, Access::ReadWrite)?;
    let job = StreamJob::new(move |_| transfer::fill(&target, &pattern, width, rows, pitch));
    stream.submit(if size <= MAX_INLINE_COPY_BYTES { job.short() } else { job }).map(drop)
}
