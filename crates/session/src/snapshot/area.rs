//! Areas: memory with contents, and the copies of its bytes to and from memory of the worker.
//!
//! Every area is a sequence of bytes, cut into chunks, wherever they lie: at contiguous addresses, as texels of an array, in
//! many variables, in memory of this process. The image has areas as its regions. After a restore the same code finds the
//! same areas, and they are matched by kind, object and address.

#![expect(unsafe_code, reason = "has the driver copy")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUarray, CUcontext, CUresult, CUstream, memory_type};
use katydid_driver::Driver;
use katydid_image::Region;

pub(super) use katydid_session_core::CHUNK_BYTES;

/// The location of an area's bytes.
#[derive(Debug, Clone)]
pub(super) enum AreaLocation {
    /// Device memory at contiguous addresses.
    Linear(u64),
    /// The texels of an array, or of a level of a mipmap.
    Texels(Texels),
    /// Variables, one after the other: address and size of each.
    Variables(Vec<(u64, u64)>),
    /// Memory of this process, which the driver copies from and to.
    Host(u64),
    /// Memory of this process that the driver does not copy.
    Heap(u64),
}

/// One level of an array, its rows packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Texels {
    pub(super) array: CUarray,
    /// Bytes of a row.
    pub(super) width: u64,
    /// Rows of a slice.
    pub(super) height: u64,
}

/// One range of memory with contents.
#[derive(Debug)]
pub(super) struct Area {
    /// Its description in the image, without the chunks.
    pub(super) region: Region,
    /// The context for copies.
    pub(super) context: CUcontext,
    pub(super) location: AreaLocation,
}

/// The other end of a copy: memory of the worker.
#[derive(Debug, Clone, Copy)]
pub(super) enum WorkerMemory {
    /// Device memory, by its address.
    Device(u64),
    /// Host memory, registered if the driver allowed it.
    Host(u64),
}

/// The direction of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Out of the area.
    Out,
    /// Into the area, from memory of the worker.
    In,
}

impl Area {
    /// Returns the number of its chunks.
    pub(super) fn chunks(&self) -> usize {
        self.region.bytes.div_ceil(u64::from(self.region.chunk_bytes).max(1)) as usize
    }

    /// Returns the first byte of a chunk, and its length.
    pub(super) fn chunk(&self, index: usize) -> (u64, u64) {
        let full = u64::from(self.region.chunk_bytes);
        let start = full * index as u64;
        (start, full.min(self.region.bytes.saturating_sub(start)))
    }

    /// Returns the address of a byte, if all bytes are contiguous.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        match self.location {
            AreaLocation::Linear(start) => Some(start + offset),
            _ => None,
        }
    }

    /// Copies `length` bytes from `offset` on between the area and `other`, in `stream`.
    ///
    /// # Safety
    ///
    /// The area must be alive, `other` must be as long as the copy, and no other thread may use either until the stream has
    /// been waited for.
    pub(super) unsafe fn carry(
        &self,
        driver: &Driver,
        stream: CUstream,
        (offset, length): (u64, u64),
        other: WorkerMemory,
        direction: Direction,
    ) -> Result<(), CUresult> {
        // SAFETY: the caller's promise, for each part of the copy.
        unsafe {
            match &self.location {
                AreaLocation::Linear(start) => bytes(driver, stream, start + offset, other, length, direction),
                AreaLocation::Texels(texels) => texels.carry(driver, stream, (offset, length), other, direction),
                AreaLocation::Variables(all) => variables(driver, stream, all, (offset, length), other, direction),
                AreaLocation::Host(start) | AreaLocation::Heap(start) => {
                    host(driver, stream, start + offset, other, length, direction)
                }
            }
        }
    }
}

impl WorkerMemory {
    fn plus(self, bytes: u64) -> Self {
        match self {
            Self::Device(start) => Self::Device(start + bytes),
            Self::Host(start) => Self::Host(start + bytes),
        }
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies between device memory and the other end.
///
/// # Safety
///
/// As [`Area::carry`].
unsafe fn bytes(
    driver: &Driver,
    stream: CUstream,
    address: u64,
    other: WorkerMemory,
    length: u64,
    direction: Direction,
) -> Result<(), CUresult> {
    let length = length as usize;
    // SAFETY: the caller's promise.
    let status = unsafe {
        match (other, direction) {
            (WorkerMemory::Device(to), Direction::Out) => driver.cuMemcpyDtoDAsync_v2(to, address, length, stream),
            (WorkerMemory::Device(from), Direction::In) => driver.cuMemcpyDtoDAsync_v2(address, from, length, stream),
            (WorkerMemory::Host(to), Direction::Out) => {
                driver.cuMemcpyDtoHAsync_v2(pointer(to), address, length, stream)
            }
            (WorkerMemory::Host(from), Direction::In) => {
                driver.cuMemcpyHtoDAsync_v2(address, pointer(from), length, stream)
            }
        }
    };
    status.ok()
}

/// Copies between memory of this process and the other end.
///
/// # Safety
///
/// As [`Area::carry`].
unsafe fn host(
    driver: &Driver,
    stream: CUstream,
    address: u64,
    other: WorkerMemory,
    length: u64,
    direction: Direction,
) -> Result<(), CUresult> {
    let host_pointer = pointer(address).cast::<u8>();
    let length = length as usize;
    // SAFETY: the caller's promise; the two ends are different memory.
    unsafe {
        match (other, direction) {
            (WorkerMemory::Host(to), Direction::Out) => host_pointer.copy_to_nonoverlapping(pointer(to).cast(), length),
            (WorkerMemory::Host(from), Direction::In) => {
                host_pointer.copy_from_nonoverlapping(pointer(from).cast(), length)
            }
            (WorkerMemory::Device(to), Direction::Out) => {
                return driver.cuMemcpyHtoDAsync_v2(to, host_pointer.cast(), length, stream).ok();
            }
            (WorkerMemory::Device(from), Direction::In) => {
                return driver.cuMemcpyDtoHAsync_v2(host_pointer.cast(), from, length, stream).ok();
            }
        }
    }
    Ok(())
}

/// Copies the parts of variables between two bytes of their packed sequence.
///
/// # Safety
///
/// As [`Area::carry`].
unsafe fn variables(
    driver: &Driver,
    stream: CUstream,
    all: &[(u64, u64)],
    (offset, length): (u64, u64),
    other: WorkerMemory,
    direction: Direction,
) -> Result<(), CUresult> {
    let (mut at, end) = (0, offset + length);
    for (address, size) in all {
        let (first, last) = (at.max(offset), (at + size).min(end));
        if first < last {
            // SAFETY: the caller's promise; the part lies inside the variable and inside the copy.
            unsafe {
                bytes(driver, stream, address + (first - at), other.plus(first - offset), last - first, direction)
            }?;
        }
        at += size;
    }
    Ok(())
}

impl Texels {
    /// Returns the bytes of a chunk: whole rows.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.width * (CHUNK_BYTES / self.width.max(1)).max(1)
    }

    /// # Safety
    ///
    /// As [`Area::carry`]; the copy begins and ends with a row.
    unsafe fn carry(
        &self,
        driver: &Driver,
        stream: CUstream,
        (offset, length): (u64, u64),
        other: WorkerMemory,
        direction: Direction,
    ) -> Result<(), CUresult> {
        for part in self.parts(offset / self.width, (offset + length) / self.width) {
            let at = other.plus((part.slice * self.height + part.row) * self.width - offset);
            let copy = self.copy(&part, at, direction);
            // SAFETY: the caller's promise; the part lies inside the array and inside the copy.
            unsafe { driver.cuMemcpy3DAsync_v2(&raw const copy, stream) }.ok()?;
        }
        Ok(())
    }

    /// Splits consecutive rows into boxes: the rest of a slice, whole slices, the start of another.
    fn parts(&self, first: u64, end: u64) -> Vec<ArrayBox> {
        let mut parts = Vec::new();
        let mut at = first;
        while at < end {
            let (slice, row) = (at / self.height, at % self.height);
            let whole = if row == 0 { (end - at) / self.height } else { 0 };
            let rows = if whole > 0 { self.height } else { (self.height - row).min(end - at) };
            parts.push(ArrayBox { slice, row, rows, slices: whole.max(1) });
            at += rows * whole.max(1);
        }
        parts
    }

    fn copy(&self, part: &ArrayBox, other: WorkerMemory, direction: Direction) -> CUDA_MEMCPY3D {
        let mut copy = CUDA_MEMCPY3D {
            WidthInBytes: self.width as usize,
            Height: part.rows as usize,
            Depth: part.slices as usize,
            ..CUDA_MEMCPY3D::default()
        };
        let (width, rows, row, slice) =
            (self.width as usize, part.rows as usize, part.row as usize, part.slice as usize);
        let (kind, address) = match other {
            WorkerMemory::Device(address) => (memory_type::DEVICE, address),
            WorkerMemory::Host(address) => (memory_type::HOST, address),
        };
        let device = if kind == memory_type::DEVICE { address } else { 0 };
        let host = if kind == memory_type::HOST { pointer(address) } else { std::ptr::null_mut() };
        if direction == Direction::Out {
            (copy.srcMemoryType, copy.srcArray, copy.srcY, copy.srcZ) = (memory_type::ARRAY, self.array, row, slice);
            (copy.dstMemoryType, copy.dstDevice, copy.dstHost) = (kind, device, host);
            (copy.dstPitch, copy.dstHeight) = (width, rows);
        } else {
            (copy.dstMemoryType, copy.dstArray, copy.dstY, copy.dstZ) = (memory_type::ARRAY, self.array, row, slice);
            (copy.srcMemoryType, copy.srcDevice, copy.srcHost) = (kind, device, host.cast_const());
            (copy.srcPitch, copy.srcHeight) = (width, rows);
        }
        copy
    }
}

/// A box of an array, as wide as the array.
#[derive(Debug, PartialEq, Eq)]
struct ArrayBox {
    slice: u64,
    row: u64,
    rows: u64,
    slices: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(slice: u64, row: u64, rows: u64, slices: u64) -> ArrayBox {
        ArrayBox { slice, row, rows, slices }
    }

    #[test]
    fn rows_become_few_boxes() {
        let texels = Texels { array: CUarray::NULL, width: 16, height: 10 };
        assert_eq!(texels.parts(3, 7), [part(0, 3, 4, 1)]);
        assert_eq!(texels.parts(5, 42), [part(0, 5, 5, 1), part(1, 0, 10, 3), part(4, 0, 2, 1)]);
        assert_eq!(texels.parts(10, 30), [part(1, 0, 10, 2)]);
        assert_eq!(texels.parts(4, 4), []);
    }

    #[test]
    fn chunks_of_arrays_are_whole_rows() {
        let chunk = |width| Texels { array: CUarray::NULL, width, height: 1 }.chunk_bytes();
        assert_eq!((chunk(16), chunk(3000), chunk(CHUNK_BYTES)), (CHUNK_BYTES, 3000 * 699, CHUNK_BYTES));
    }
}
