//! Two-dimensional copies: rows at a pitch on each side.
//!
//! Rows that follow each other without gap on both sides are one copy. Otherwise each row is one, in order; a copy
//! into the program's memory fetches the rows with what lies between them and picks them out here, because each fetch
//! would wait for a reply. Gaps on the program's side are never read or written: they may not be mapped.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use katydid_cuda_sys::{CUDA_MEMCPY2D, CUresult, CUstream, Function, memory_type};

use crate::border::refuse;
use crate::copy::{Claim, Side, Wait, locate, run};
use crate::transfer::{Way, copy_out};
use crate::{current, stream};

/// Rows are fetched together while all of them with their gaps stay below this many bytes.
const TOGETHER: u64 = 64 << 20;

/// One side: where its first row lies, and how many bytes further the next one is.
#[derive(Clone, Copy)]
struct Rows {
    side: Side,
    pitch: u64,
}

/// # Safety
///
/// `copy` is null or readable; sides that are the program's own memory are valid for their rows.
pub(crate) unsafe fn two_dimensional(copy: *const CUDA_MEMCPY2D) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy_rows(copy, stream::default_wire(), Wait::Yes) }
}

/// # Safety
///
/// As [`two_dimensional`].
pub(crate) unsafe fn two_dimensional_async(copy: *const CUDA_MEMCPY2D, stream: CUstream) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { copy_rows(copy, stream::wire(stream)?, Wait::No) }
}

/// # Safety
///
/// As [`two_dimensional`].
unsafe fn copy_rows(copy: *const CUDA_MEMCPY2D, stream: u32, wait: Wait) -> Result<(), CUresult> {
    if copy.is_null() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    // SAFETY: not null, so readable by the contract.
    let copy = unsafe { copy.read_unaligned() };
    let way = Way { context: current::wire()?, stream };
    let (width, height) = (copy.WidthInBytes as u64, copy.Height as u64);
    if width == 0 || height == 0 {
        return Ok(());
    }
    let source_host = copy.srcHost.expose_provenance() as u64;
    let source = (copy.srcMemoryType, source_host, copy.srcDevice, copy.srcPitch, copy.srcXInBytes, copy.srcY);
    let target_host = copy.dstHost.expose_provenance() as u64;
    let target = (copy.dstMemoryType, target_host, copy.dstDevice, copy.dstPitch, copy.dstXInBytes, copy.dstY);
    let (source, target) = (rows(source, width, height)?, rows(target, width, height)?);
    // SAFETY: handed on.
    unsafe { run_rows(way, target, source, (width, height), wait) }
}

/// Type, host address, device address, pitch, first byte and first row of a side, as the descriptor has them.
type Described = (u32, u64, u64, usize, usize, usize);

/// Checks a side of the descriptor and finds it.
fn rows(described: Described, width: u64, height: u64) -> Result<Rows, CUresult> {
    let (kind, host, device, pitch, x, y) = described;
    let (claim, base) = match kind {
        memory_type::HOST => (Claim::Host, host),
        memory_type::DEVICE => (Claim::Device, device),
        memory_type::UNIFIED => (Claim::Any, device),
        memory_type::ARRAY => return Err(refuse(Function::cuMemcpy2D_v2, "with arrays is not supported yet")),
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    let (pitch, start, span) =
        extent(pitch as u64, x as u64, y as u64, (width, height)).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let address = base.checked_add(start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    Ok(Rows { side: locate(claim, address, span)?, pitch })
}

/// The pitch that counts (0 means rows without gap), the offset of the first byte, and the bytes from the first to the
/// last. None when rows overlap, or numbers pass all bounds.
fn extent(pitch: u64, x: u64, y: u64, (width, height): (u64, u64)) -> Option<(u64, u64, u64)> {
    let row = x.checked_add(width)?;
    let pitch = if pitch == 0 { row } else { pitch };
    if pitch < row && (height > 1 || y > 0) {
        return None;
    }
    let start = y.checked_mul(pitch)?.checked_add(x)?;
    let span = (height - 1).checked_mul(pitch)?.checked_add(width)?;
    Some((pitch, start, span))
}

/// # Safety
///
/// As [`two_dimensional`].
unsafe fn run_rows(
    way: Way,
    target: Rows,
    source: Rows,
    (width, height): (u64, u64),
    wait: Wait,
) -> Result<(), CUresult> {
    if height == 1 || (target.pitch == width && source.pitch == width) {
        // SAFETY: rows without gap are one range, valid by the contract.
        return unsafe { run(way, target.side, source.side, width * height, wait) };
    }
    let span = (height - 1) * source.pitch + width;
    if let (Side::Own(to), Side::Gpu(from)) = (target.side, source.side)
        && span <= TOGETHER
        && source.pitch <= 8 * width
    {
        // SAFETY: handed on.
        return unsafe { fetch_rows(way, (to, target.pitch), (from, source.pitch), (width, height)) };
    }
    for row in 0..height {
        let (to, from) = (target.side.plus(row * target.pitch), source.side.plus(row * source.pitch));
        let wait = if row + 1 == height { wait } else { Wait::No };
        // SAFETY: one row of each side, valid by the contract.
        unsafe { run(way, to, from, width, wait) }?;
    }
    Ok(())
}

/// Fetches all rows with their gaps, and picks them out.
///
/// # Safety
///
/// The target's rows are writable.
unsafe fn fetch_rows(
    way: Way,
    (target, target_pitch): (u64, u64),
    (source, source_pitch): (u64, u64),
    (width, height): (u64, u64),
) -> Result<(), CUresult> {
    let span = (height - 1) * source_pitch + width;
    let mut fetched = vec![0u8; span as usize];
    // SAFETY: the vector has `span` bytes.
    unsafe { copy_out(way, fetched.as_mut_ptr(), source, span) }?;
    for row in 0..height {
        let from = &fetched[(row * source_pitch) as usize..][..width as usize];
        let to = std::ptr::with_exposed_provenance_mut::<u8>((target + row * target_pitch) as usize);
        // SAFETY: one row of the target, writable by the contract.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_reach_from_the_first_byte_to_the_last() {
        assert_eq!(extent(512, 8, 2, (100, 3)), Some((512, 1032, 1124)));
        assert_eq!(extent(0, 0, 0, (100, 3)), Some((100, 0, 300)));
        assert_eq!(extent(50, 0, 0, (100, 1)), Some((50, 0, 100)));
    }

    #[test]
    fn rows_that_overlap_or_overflow_are_refused() {
        assert_eq!(extent(99, 0, 0, (100, 2)), None);
        assert_eq!(extent(104, 8, 0, (100, 2)), None);
        assert_eq!(extent(u64::MAX, 0, 2, (100, 2)), None);
    }
}
