//! Access to memory for copies and fills: the only module that moves bytes.
//!
//! A range is checked twice. The check in the call tells the caller of a bad pointer at once. The check at execution sees that
//! the memory has not gone in between.

#![expect(unsafe_code, reason = "moves bytes between addresses that have been looked up")]

use std::ptr::{self, with_exposed_provenance, with_exposed_provenance_mut};

use katydid_cuda_sys::CUresult;

use crate::context::state::Context;
use crate::ffi::Outcome;
use crate::memory::space::{self, ALL_PEERS, Access};

/// Addresses below this are never valid.
const LOWEST_ADDRESS: u64 = 4096;

/// Bytes that an operation will touch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRange {
    /// Address of the first byte.
    pub(crate) address: u64,
    /// Length in bytes.
    pub(crate) size: u64,
    access: Access,
    /// Memory that this library does not know: the program is responsible for it.
    pub(crate) pageable: bool,
    device: i32,
}

impl AccessRange {
    /// Returns a range that `context` reaches, else fails with `INVALID_VALUE`.
    pub(crate) fn reached(context: &Context, address: u64, size: u64, access: Access) -> Outcome<Self> {
        let span = Self { address, size, access, pageable: false, device: context.device.ordinal };
        if span.is_there() { Ok(span) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Returns a range in any memory: reachable by `context`, or the program's own.
    pub(crate) fn anywhere(context: &Context, address: u64, size: u64, access: Access) -> Outcome<Self> {
        let pageable = address >= LOWEST_ADDRESS && space::read().is_foreign(address, size);
        let span = Self { address, size, access, pageable, device: context.device.ordinal };
        if span.is_there() { Ok(span) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }

    /// Returns the range of work that starts now, after a call has checked it. Memory that the stream frees later is still there.
    /// The functions that touch the bytes check again. `anywhere`: they may be the program's own.
    pub(crate) fn at_execution(context: &Context, address: u64, size: u64, access: Access, anywhere: bool) -> Self {
        let pageable = anywhere && address >= LOWEST_ADDRESS && space::read().is_foreign(address, size);
        Self { address, size, access, pageable, device: context.device.ordinal }
    }

    /// Returns `size` of its bytes, from `offset` on. They must lie inside.
    pub(crate) fn part(self, offset: u64, size: u64) -> Self {
        debug_assert!(offset + size <= self.size, "a part lies inside the whole");
        Self { address: self.address + offset, size, ..self }
    }

    /// The condition of both checks. Pageable memory must still be unreserved, since it may have been reserved meanwhile.
    fn is_there(&self) -> bool {
        let space = space::read();
        match self.pageable {
            true => space.is_foreign(self.address, self.size),
            false => space.allows(self.address, self.size, self.access, self.device, ALL_PEERS),
        }
    }

    /// The check at execution, with [`space::working`] held.
    fn check(&self) -> Outcome {
        let is_valid = match self.pageable {
            true => self.is_there(),
            false => space::read().still_allows(self.address, self.size, self.access, self.device, ALL_PEERS),
        };
        if is_valid { Ok(()) } else { Err(CUresult::ERROR_ILLEGAL_ADDRESS) }
    }
}

/// Copies the present bytes of a range.
pub(crate) fn snapshot(span: &AccessRange) -> Outcome<Vec<u8>> {
    let _working = space::working();
    span.check()?;
    let mut bytes = Vec::with_capacity(span.size as usize);
    let source = with_exposed_provenance::<u8>(span.address as usize);
    // SAFETY: the span was looked up above and `_working` keeps its memory (the program keeps a pageable one); the
    // vector has room for `size` bytes, which the copy initialises.
    unsafe {
        ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), span.size as usize);
        bytes.set_len(span.size as usize);
    }
    Ok(bytes)
}

/// Writes bytes to the start of a range of the same size.
pub(crate) fn write(to: &AccessRange, bytes: &[u8]) -> Outcome {
    let _working = space::working();
    to.check()?;
    let size = bytes.len().min(to.size as usize);
    // SAFETY: the span was looked up above and `_working` keeps its memory; `size` is not more than either side has.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), with_exposed_provenance_mut(to.address as usize), size) };
    Ok(())
}

/// Copies between ranges row by row: `rows` rows of `width` bytes, with a distance between rows for each side. Both ranges hold
/// all their rows.
pub(crate) fn copy(to: &AccessRange, from: &AccessRange, width: u64, rows: u64, pitches: (u64, u64)) -> Outcome {
    let _working = space::working();
    to.check()?;
    from.check()?;
    for row in 0..rows {
        let target = with_exposed_provenance_mut::<u8>((to.address + row * pitches.0) as usize);
        let source = with_exposed_provenance::<u8>((from.address + row * pitches.1) as usize);
        // SAFETY: both spans were looked up above and `_working` keeps their memory; each row lies in them, as the
        // caller computed their sizes from width, rows and pitches. They may overlap.
        unsafe { ptr::copy(source, target, width as usize) };
    }
    Ok(())
}

/// Fills `rows` rows of `width` bytes with a pattern of 1, 2 or 4 bytes. `width` is a multiple of the pattern.
pub(crate) fn fill(to: &AccessRange, pattern: &[u8], width: u64, rows: u64, pitch: u64) -> Outcome {
    /// Bytes of the repeated pattern, a multiple of every pattern.
    const FILL_BLOCK_BYTES: usize = 4096;
    let _working = space::working();
    to.check()?;
    let piece = pattern.repeat(FILL_BLOCK_BYTES / pattern.len().max(1));
    for row in 0..rows {
        let mut at = 0;
        while at < width {
            let step = (width - at).min(piece.len() as u64);
            let target = with_exposed_provenance_mut::<u8>((to.address + row * pitch + at) as usize);
            // SAFETY: the span was looked up above and `_working` keeps its memory; the row lies in it, as the caller
            // computed its size, and `step` is neither more than what is left of the row nor than the piece.
            unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), target, step as usize) };
            at += step;
        }
    }
    Ok(())
}
