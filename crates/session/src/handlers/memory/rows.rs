//! Rows of a slice: packed on the program's side; on the GPU's side in an array, or at a pitch in memory.
//!
//! The driver checks the bounds of an array. Here only accesses that could reach memory of the worker are checked, and the
//! sizes of data in frames.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::c_void;

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUarray, CUresult, CUstream, memory_type};
use katydid_driver::Driver;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdRowsIn, kdRowsInStaged, kdRowsOut, kdRowsOutReply, kdRowsOutStaged, kdRowsOutStagedReply,
};

use crate::calls::fault::{Fault, SessionError};
use crate::handlers::memory::staging_pieces;
use crate::handlers::textures::array::span;
use crate::handlers::{EnqueueResult, ExecutorResult, MAX_REPLY_DATA_BYTES};
use crate::state::Session;
use crate::transfer::reply_pool;

/// The rows of a copy at its end on the GPU.
#[derive(Clone, Copy)]
struct Rows {
    kind: u32,
    array: CUarray,
    /// Address of the first byte, if that end is memory.
    address: u64,
    /// First byte, row and slice of an array.
    first: [u64; 3],
    /// Bytes from row to row in memory.
    pitch: u64,
    width: u64,
    height: u64,
}

impl Rows {
    /// Finds the end on the GPU: `array` from `first` on, or memory at `first[0]`.
    fn find(session: &Session, array: u32, first: [u64; 3], pitch: u64, size: [u64; 2]) -> Result<Self, Fault> {
        let [width, height] = size;
        let wrong = CUresult::ERROR_INVALID_VALUE;
        if width == 0 || height == 0 {
            return Err(wrong.into());
        }
        if array != 0 {
            let array = session.tables.arrays.array(array)?;
            return Ok(Self { kind: memory_type::ARRAY, array, address: 0, first, pitch: 0, width, height });
        }
        let address = first[0];
        session.address_check.check(address, span(pitch, height, [width, height, 1]).ok_or(wrong)?)?;
        Ok(Self { kind: memory_type::UNIFIED, array: CUarray::NULL, address, first: [0; 3], pitch, width, height })
    }

    /// Returns the copy of packed rows to it.
    fn from(&self, packed: *const c_void) -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            srcMemoryType: memory_type::HOST,
            srcHost: packed,
            srcPitch: self.width as usize,
            srcHeight: self.height as usize,
            dstMemoryType: self.kind,
            dstArray: self.array,
            dstDevice: self.address,
            dstPitch: self.pitch as usize,
            dstXInBytes: self.first[0] as usize,
            dstY: self.first[1] as usize,
            dstZ: self.first[2] as usize,
            ..self.extent()
        }
    }

    /// Returns the copy from it to packed rows.
    fn to(&self, packed: *mut c_void) -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            srcMemoryType: self.kind,
            srcArray: self.array,
            srcDevice: self.address,
            srcPitch: self.pitch as usize,
            srcXInBytes: self.first[0] as usize,
            srcY: self.first[1] as usize,
            srcZ: self.first[2] as usize,
            dstMemoryType: memory_type::HOST,
            dstHost: packed,
            dstPitch: self.width as usize,
            dstHeight: self.height as usize,
            ..self.extent()
        }
    }

    fn extent(&self) -> CUDA_MEMCPY3D {
        CUDA_MEMCPY3D {
            WidthInBytes: self.width as usize,
            Height: self.height as usize,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        }
    }
}

/// Returns the bytes of rows without gaps; none on overflow.
fn bytes(width: u64, height: u64) -> Option<u64> {
    width.checked_mul(height)
}

/// Copies the frame's rows.
pub(crate) fn kdRowsIn(session: &mut Session, head: &FrameHead, message: kdRowsIn<'_>) -> EnqueueResult {
    let kdRowsIn { array, x, y, z, pitch, width, height, data, .. } = message;
    if bytes(width, height) != Some(data.len() as u64) {
        return Err(SessionError::DamagedPart {
            message: "kdRowsIn",
            part: "data",
            reason: format!("{} bytes are not {height} rows of {width}", data.len()),
        }
        .into());
    }
    let rows = Rows::find(session, array, [x, y, z], pitch, [width, height])?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let copy = rows.from(data.as_ptr().cast());
    // SAFETY: `read_payload` keeps the rows readable for as long as the copy reads them. The other end is the session's.
    Ok(session.read_payload(stream, |driver| unsafe { driver.cuMemcpy3DAsync_v2(&raw const copy, stream) }))
}

/// Copies rows of a staged piece, and releases the piece when the copy is done.
pub(crate) fn kdRowsInStaged(session: &mut Session, head: &FrameHead, message: kdRowsInStaged) -> EnqueueResult {
    let kdRowsInStaged { array, x, y, z, pitch, width, height, offset, piece, .. } = message;
    let size = bytes(width, height).unwrap_or(u64::MAX);
    let ready = |session: &mut Session| Rows::find(session, array, [x, y, z], pitch, [width, height]);
    staging_pieces::copy_in(
        session,
        head,
        message.stream,
        (offset, size, piece),
        ready,
        |driver, rows, source, stream| {
            let copy = rows.from(source);
            // SAFETY: the source lies in the staging area, which is mapped as long as the link; the other end is the session's.
            unsafe { driver.cuMemcpy3DAsync_v2(&raw const copy, stream) }
        },
    )
}

/// Copies rows into the reply.
pub(crate) fn kdRowsOut(session: &mut Session, head: &FrameHead, message: kdRowsOut) -> ExecutorResult<kdRowsOutReply> {
    let kdRowsOut { array, x, y, z, pitch, width, height, .. } = message;
    let Some(size) = bytes(width, height).filter(|size| *size <= MAX_REPLY_DATA_BYTES as u64) else {
        return Err(SessionError::BadRange { what: "one reply", address: width, size: height }.into());
    };
    let rows = Rows::find(session, array, [x, y, z], pitch, [width, height])?;
    let stream: CUstream = session.handle(head, message.stream)?;
    Ok(Box::new(move |driver| {
        let mut data = reply_pool::take(size as usize);
        // SAFETY: the vector has room for all rows and outlives the wait.
        let status = unsafe { copy_out(driver, &rows.to(data.as_mut_ptr().cast()), stream) };
        if status != CUresult::SUCCESS {
            data.clear();
        }
        (status, kdRowsOutReply { data })
    }))
}

/// Copies rows into the staging area.
pub(crate) fn kdRowsOutStaged(
    session: &mut Session,
    head: &FrameHead,
    message: kdRowsOutStaged,
) -> ExecutorResult<kdRowsOutStagedReply> {
    let kdRowsOutStaged { array, x, y, z, pitch, width, height, offset, .. } = message;
    let rows = Rows::find(session, array, [x, y, z], pitch, [width, height])?;
    let stream: CUstream = session.handle(head, message.stream)?;
    let size = bytes(width, height).unwrap_or(u64::MAX);
    let copy = move |driver: &Driver, target| {
        let copy = rows.to(target);
        // SAFETY: the rows fit the piece, which is mapped as long as the link.
        unsafe { driver.cuMemcpy3DAsync_v2(&raw const copy, stream) }
    };
    staging_pieces::copy_out(session, (offset, size), stream, copy, kdRowsOutStagedReply {})
}

/// Copies to memory of the worker and waits until the bytes are there.
///
/// # Safety
///
/// The copy's target is writable, and stays so meanwhile.
unsafe fn copy_out(driver: &Driver, copy: &CUDA_MEMCPY3D, stream: CUstream) -> CUresult {
    // SAFETY: handed on; the source is the session's.
    let copied = unsafe { driver.cuMemcpy3DAsync_v2(&raw const *copy, stream) };
    if copied != CUresult::SUCCESS {
        return copied;
    }
    // SAFETY: takes a handle from the driver.
    unsafe { driver.cuStreamSynchronize(stream) }
}
