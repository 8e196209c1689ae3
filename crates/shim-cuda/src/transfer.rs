//! Bytes between the program's own memory and the GPU: inside frames when few, through the staging area when many.
//!
//! A copy into the GPU has read the program's memory when it returns, a copy out has written it. Whoever calls has
//! checked both ranges as a whole, so only a failure of the session can end a copy in the middle, and is returned.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use katydid_cuda_sys::CUresult;
use katydid_transport::{PIECE, Piece, Staging};
use katydid_wire::message::{kdCopyIn, kdCopyInStaged, kdCopyOut, kdCopyOutStaged};

use crate::session::{Shim, shim};

/// Up to this many bytes a copy in travels inside the ring, even where there is a staging area: on an H200, giving a
/// piece back costs what copying so much once more does.
const INLINE_IN: u64 = 128 << 10;
/// The same for a copy out, whose reply has a place of its own.
const INLINE_OUT: u64 = 128 << 10;
/// Bytes of one frame on a stream link.
const FRAME: u64 = 1 << 20;

/// Where a copy runs: wire ids of context and stream.
#[derive(Clone, Copy)]
pub(crate) struct Way {
    pub(crate) context: u32,
    pub(crate) stream: u32,
}

/// Copies from the program's memory to the GPU.
///
/// # Safety
///
/// `source` is valid for reading `size` bytes.
pub(crate) unsafe fn copy_in(way: Way, target: u64, source: *const u8, size: u64) -> Result<(), CUresult> {
    let shim = shim()?;
    match shim.session.staging() {
        Some(staging) if size > INLINE_IN => pieces(size, PIECE as u64, |at, length| {
            let piece = staging.take().map_err(|error| shim.session.fail("a copy", &error))?;
            // SAFETY: inside the source, by the contract; the piece was taken, so nobody else writes it, and has room
            // for `length` bytes, which are at most its size.
            unsafe { staging.pointer(piece).copy_from_nonoverlapping(source.add(at as usize), length as usize) };
            let offset = u64::from(piece.number()) * PIECE as u64;
            let (destination, size) = (target + at, length as u32);
            let message = kdCopyInStaged { destination, stream: way.stream, offset, size, piece: piece.number() };
            shim.session.enqueue(way.context, &message)
        }),
        _ => pieces(size, FRAME, |at, length| {
            // SAFETY: inside the source, by the contract.
            let data = unsafe { std::slice::from_raw_parts(source.add(at as usize), length as usize) };
            shim.session.enqueue(way.context, &kdCopyIn { destination: target + at, stream: way.stream, data })
        }),
    }
}

/// Copies from the GPU to the program's memory, and waits for it.
///
/// # Safety
///
/// `target` is valid for writing `size` bytes.
pub(crate) unsafe fn copy_out(way: Way, target: *mut u8, source: u64, size: u64) -> Result<(), CUresult> {
    let shim = shim()?;
    match shim.session.staging() {
        Some(staging) if size > INLINE_OUT => {
            let piece = staging.take().map_err(|error| shim.session.fail("a copy", &error))?;
            let _given_back = GivenBack { staging, piece };
            pieces(size, PIECE as u64, |at, length| {
                let offset = u64::from(piece.number()) * PIECE as u64;
                let (source, size) = (source + at, length as u32);
                shim.session.call(way.context, &kdCopyOutStaged { source, size, stream: way.stream, offset })?;
                // SAFETY: inside the target, by the contract; the worker has written `length` bytes of our piece.
                unsafe { staging.pointer(piece).copy_to_nonoverlapping(target.add(at as usize), length as usize) };
                Ok(())
            })
        }
        _ => pieces(size, FRAME, |at, length| {
            // SAFETY: inside the target, by the contract.
            unsafe { copy_out_inline(shim, way, target.add(at as usize), source + at, length as u32) }
        }),
    }
}

/// # Safety
///
/// `target` is valid for writing `size` bytes.
unsafe fn copy_out_inline(shim: &Shim, way: Way, target: *mut u8, source: u64, size: u32) -> Result<(), CUresult> {
    let message = kdCopyOut { source, size, stream: way.stream };
    shim.session.call_in_place(way.context, &message, |payload| {
        let (length, data) = payload.split_first_chunk()?;
        if u32::from_le_bytes(*length) != size || data.len() != size as usize {
            return None;
        }
        // SAFETY: `data` has `size` bytes, as has the target by the contract.
        unsafe { target.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Some(())
    })
}

/// Gives a staging piece back however the copy ends.
struct GivenBack<'a> {
    staging: &'a Staging,
    piece: Piece,
}

impl Drop for GivenBack<'_> {
    fn drop(&mut self) {
        self.staging.release(self.piece);
    }
}

/// Runs `step` with offset and length of each piece of `size` bytes.
fn pieces(size: u64, most: u64, mut step: impl FnMut(u64, u64) -> Result<(), CUresult>) -> Result<(), CUresult> {
    (0..size).step_by(most as usize).try_for_each(|at| step(at, most.min(size - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        let mut seen = Vec::new();
        pieces(2500, 1000, |at, length| {
            seen.push((at, length));
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, [(0, 1000), (1000, 1000), (2000, 500)]);
        assert_eq!(pieces(0, 1000, |_, _| Err(CUresult::ERROR_UNKNOWN)), Ok(()));
    }

    #[test]
    fn the_first_failure_ends_a_copy() {
        let mut steps = 0;
        let result = pieces(3000, 1000, |at, _| {
            steps += 1;
            if at == 1000 { Err(CUresult::ERROR_UNKNOWN) } else { Ok(()) }
        });
        assert_eq!((result, steps), (Err(CUresult::ERROR_UNKNOWN), 2));
    }
}
