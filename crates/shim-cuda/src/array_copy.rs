//! Copies with an array on a side.
//!
//! Between arrays, and between an array and memory that the worker reaches, one message is one copy. The program's own
//! memory travels in pieces of packed rows. Both sides are checked as a whole before anything moves.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::ffi::c_void;
use std::sync::Arc;

use katydid_client::regions::Region;
use katydid_cuda_sys::{CUDA_MEMCPY3D, CUarray, CUdeviceptr, CUresult, CUstream, memory_type};
use katydid_wire::message::{kdArrayCopy, kdArrayRead, kdArrayWrite};

use crate::array::Array;
use crate::copy::{Side, Wait};
use crate::copy_rows::{self, Described, Extent, Rows, described};
use crate::handle::object;
use crate::session::shim;
use crate::transfer::Way;
use crate::{current, pinned, stream};

/// Bytes of one piece: what travels well inside the ring.
const PIECE: u64 = 128 << 10;

/// One side, checked.
enum End {
    /// An array, from a byte, row and slice on.
    Array(Arc<Array>, [u64; 3]),
    /// Rows in memory.
    Memory(Rows),
}

impl End {
    /// Finds a side; one that is an array must hold all of the copy.
    fn find(kind: u32, array: CUarray, described: &Described, extent: Extent) -> Result<Self, CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        if kind != memory_type::ARRAY {
            return Ok(Self::Memory(described.find(extent)?));
        }
        let array = object(array).map_err(|_| wrong)?;
        let first = described.first.map(|first| first as u64);
        let wanted = [extent.width, extent.height, extent.depth];
        let fits = first.into_iter().zip(wanted).zip(array.bounds());
        let inside =
            fits.into_iter().all(|((first, count), end)| first.checked_add(count).is_some_and(|stop| stop <= end));
        if inside { Ok(Self::Array(array, first)) } else { Err(wrong) }
    }

    /// As a side of a message: array, address, first indices, pitch, rows.
    fn message(&self, extent: Extent) -> (u32, u64, [u64; 3], u64, u64) {
        match self {
            Self::Array(array, first) => (array.wire(), 0, *first, 0, 0),
            Self::Memory(rows) => {
                let address = match rows.side {
                    Side::Gpu(address) | Side::Shared(address) | Side::Own(address) => address,
                };
                let high = if extent.depth > 1 { rows.slice / rows.pitch.max(1) } else { extent.height };
                (0, address, [0; 3], rows.pitch, high)
            }
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, Self::Memory(Rows { side: Side::Shared(_), .. }))
    }
}

/// Checks a copy of which at least one side is an array.
pub(crate) fn check(it: &CUDA_MEMCPY3D) -> Result<(), CUresult> {
    let (target, source, extent) = described(it);
    End::find(it.dstMemoryType, it.dstArray, &target, extent)?;
    End::find(it.srcMemoryType, it.srcArray, &source, extent).map(drop)
}

/// A copy of which at least one side is an array.
///
/// # Safety
///
/// Sides that are the program's own memory are valid for their rows.
pub(crate) unsafe fn copy(it: &CUDA_MEMCPY3D, stream: u32, wait: Wait) -> Result<(), CUresult> {
    let (target, source, extent) = described(it);
    let way = Way { context: current::wire()?, stream };
    if extent.is_empty() {
        return Ok(());
    }
    let to = End::find(it.dstMemoryType, it.dstArray, &target, extent)?;
    let from = End::find(it.srcMemoryType, it.srcArray, &source, extent)?;
    match (&to, &from) {
        (End::Array(array, first), End::Memory(rows)) if matches!(rows.side, Side::Own(_)) => {
            // SAFETY: handed on.
            unsafe { write(way, array, *first, *rows, extent) }?;
            if wait == Wait::Yes { stream::settle_copy(stream) } else { Ok(()) }
        }
        (End::Memory(rows), End::Array(array, first)) if matches!(rows.side, Side::Own(_)) => {
            // SAFETY: handed on.
            unsafe { fetch(way, array, *first, *rows, extent) }
        }
        _ => {
            between(way, &to, &from, extent)?;
            let waits = wait == Wait::Yes && (to.is_shared() || from.is_shared());
            if waits { stream::synchronize_wire(stream) } else { Ok(()) }
        }
    }
}

/// Both sides are in the worker's reach.
fn between(way: Way, to: &End, from: &End, extent: Extent) -> Result<(), CUresult> {
    let (to_array, to, to_first, to_pitch, to_rows) = to.message(extent);
    let (from_array, from, from_first, from_pitch, from_rows) = from.message(extent);
    let Extent { width, height, depth } = extent;
    let message = kdArrayCopy {
        stream: way.stream,
        toArray: to_array,
        to,
        toX: to_first[0],
        toY: to_first[1],
        toZ: to_first[2],
        toPitch: to_pitch,
        toRows: to_rows,
        fromArray: from_array,
        from,
        fromX: from_first[0],
        fromY: from_first[1],
        fromZ: from_first[2],
        fromPitch: from_pitch,
        fromRows: from_rows,
        width,
        height,
        depth,
    };
    shim()?.session.enqueue(way.context, &message)
}

/// A rectangle of a slice: bytes and rows from the first of the copy, and their numbers.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    x: u64,
    y: u64,
    width: u64,
    height: u64,
}

/// The parts that a slice is moved in: whole rows where some fit, else parts of one row.
fn parts(width: u64, height: u64) -> impl Iterator<Item = Part> {
    let (wide, high) = (width.min(PIECE), (PIECE / width).max(1));
    (0..height).step_by(high as usize).flat_map(move |y| {
        let columns = (0..width).step_by(wide as usize);
        columns.map(move |x| Part { x, y, width: wide.min(width - x), height: high.min(height - y) })
    })
}

/// The address of byte `x` of row `y` of slice `z` of rows in the program's memory.
fn place(rows: &Rows, x: u64, y: u64, z: u64) -> *mut u8 {
    let (Side::Own(start) | Side::Shared(start) | Side::Gpu(start)) = rows.side;
    std::ptr::with_exposed_provenance_mut((start + z * rows.slice + y * rows.pitch + x) as usize)
}

/// From the program's memory into an array; the memory has been read when this returns.
///
/// # Safety
///
/// The rows are readable.
unsafe fn write(way: Way, array: &Array, first: [u64; 3], rows: Rows, extent: Extent) -> Result<(), CUresult> {
    let shim = shim()?;
    let (Side::Own(start) | Side::Shared(start) | Side::Gpu(start)) = rows.side;
    if let Some(region) = shim.regions.find(start).filter(Region::is_host) {
        pinned::prepare_read(&region, way.stream)?;
    }
    let mut packed = Vec::new();
    for slice in 0..extent.depth {
        for Part { x, y, width, height } in parts(extent.width, extent.height) {
            packed.clear();
            for row in y..y + height {
                let from = place(&rows, x, row, slice).cast_const();
                // SAFETY: a part of a row, readable by the contract.
                packed.extend_from_slice(unsafe { std::slice::from_raw_parts(from, width as usize) });
            }
            let [x, y, z] = [first[0] + x, first[1] + y, first[2] + slice];
            let message =
                kdArrayWrite { array: array.wire(), stream: way.stream, x, y, z, width, height, data: &packed };
            shim.session.enqueue(way.context, &message)?;
        }
    }
    Ok(())
}

/// From an array into the program's memory, and waits for it.
///
/// # Safety
///
/// The rows are writable.
unsafe fn fetch(way: Way, array: &Array, first: [u64; 3], rows: Rows, extent: Extent) -> Result<(), CUresult> {
    let shim = shim()?;
    for slice in 0..extent.depth {
        for part in parts(extent.width, extent.height) {
            let [x, y, z] = [first[0] + part.x, first[1] + part.y, first[2] + slice];
            let (width, height) = (part.width, part.height);
            let message = kdArrayRead { array: array.wire(), stream: way.stream, x, y, z, width, height };
            let data = shim.session.call(way.context, &message)?.data;
            if data.len() as u64 != width * height {
                return Err(CUresult::ERROR_UNKNOWN);
            }
            for (row, bytes) in data.chunks_exact(width as usize).enumerate() {
                let to = place(&rows, part.x, part.y + row as u64, slice);
                // SAFETY: a part of a row, writable by the contract.
                unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            }
        }
    }
    Ok(())
}

/// One end of a copy of one row, as the functions name it.
enum Row {
    Array(CUarray, usize),
    Device(CUdeviceptr),
    Host(u64),
}

/// A copy of bytes of the first row of an array; without a stream, in the default one.
///
/// # Safety
///
/// A side that is host memory is valid for `size` bytes.
unsafe fn row(to: &Row, from: &Row, size: usize, stream: Option<CUstream>) -> Result<(), CUresult> {
    let mut it = CUDA_MEMCPY3D { WidthInBytes: size, Height: 1, Depth: 1, ..CUDA_MEMCPY3D::default() };
    match *to {
        Row::Array(array, x) => (it.dstMemoryType, it.dstArray, it.dstXInBytes) = (memory_type::ARRAY, array, x),
        Row::Device(address) => (it.dstMemoryType, it.dstDevice) = (memory_type::DEVICE, address),
        Row::Host(address) => {
            let host = std::ptr::with_exposed_provenance_mut(address as usize);
            (it.dstMemoryType, it.dstHost) = (memory_type::HOST, host);
        }
    }
    match *from {
        Row::Array(array, x) => (it.srcMemoryType, it.srcArray, it.srcXInBytes) = (memory_type::ARRAY, array, x),
        Row::Device(address) => (it.srcMemoryType, it.srcDevice) = (memory_type::DEVICE, address),
        Row::Host(address) => {
            let host = std::ptr::with_exposed_provenance(address as usize);
            (it.srcMemoryType, it.srcHost) = (memory_type::HOST, host);
        }
    }
    // SAFETY: handed on.
    unsafe {
        match stream {
            Some(stream) => copy_rows::three_dimensional_async(&raw const it, stream),
            None => copy_rows::three_dimensional(&raw const it),
        }
    }
}

/// The program's memory as an end.
fn host(pointer: *const c_void) -> Row {
    Row::Host(pointer.expose_provenance() as u64)
}

/// # Safety
///
/// Host pointers are valid for `size` bytes; this holds for every function below.
pub(crate) unsafe fn host_to_array(
    array: CUarray,
    offset: usize,
    source: *const c_void,
    size: usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&Row::Array(array, offset), &host(source), size, None) }
}

/// # Safety
///
/// As [`host_to_array`].
pub(crate) unsafe fn host_to_array_async(
    array: CUarray,
    offset: usize,
    source: *const c_void,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&Row::Array(array, offset), &host(source), size, Some(stream)) }
}

/// # Safety
///
/// As [`host_to_array`].
pub(crate) unsafe fn array_to_host(
    target: *mut c_void,
    array: CUarray,
    offset: usize,
    size: usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&host(target), &Row::Array(array, offset), size, None) }
}

/// # Safety
///
/// As [`host_to_array`].
pub(crate) unsafe fn array_to_host_async(
    target: *mut c_void,
    array: CUarray,
    offset: usize,
    size: usize,
    stream: CUstream,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    unsafe { row(&host(target), &Row::Array(array, offset), size, Some(stream)) }
}

/// Nothing has to be waited for.
pub(crate) fn device_to_array(array: CUarray, offset: usize, source: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    // SAFETY: no side is the program's memory.
    unsafe { row(&Row::Array(array, offset), &Row::Device(source), size, None) }
}

/// Nothing has to be waited for.
pub(crate) fn array_to_device(target: CUdeviceptr, array: CUarray, offset: usize, size: usize) -> Result<(), CUresult> {
    // SAFETY: no side is the program's memory.
    unsafe { row(&Row::Device(target), &Row::Array(array, offset), size, None) }
}

/// Nothing has to be waited for.
pub(crate) fn array_to_array(
    target: CUarray,
    target_offset: usize,
    source: CUarray,
    source_offset: usize,
    size: usize,
) -> Result<(), CUresult> {
    let (to, from) = (Row::Array(target, target_offset), Row::Array(source, source_offset));
    // SAFETY: no side is the program's memory.
    unsafe { row(&to, &from, size, None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_every_byte_once() {
        for (width, height) in [(1, 1), (PIECE, 3), (1000, 700), (PIECE * 2 + 5, 2)] {
            let covered: u64 = parts(width, height).map(|part| part.width * part.height).sum();
            assert_eq!(covered, width * height);
            assert!(parts(width, height).all(|part| part.width * part.height <= PIECE && part.width > 0));
        }
        assert_eq!(parts(10, 4).collect::<Vec<_>>(), [Part { x: 0, y: 0, width: 10, height: 4 }]);
    }
}
