//! Copies that are more than a range: one side is an array, or rows have gaps.
//!
//! If the worker reaches both ends, one message is one copy. The program's own memory travels as packed rows (`packed.rs`).
//! Both sides are checked as a whole before anything moves.
#![expect(unsafe_code, reason = "reads and writes memory of the program")]

use std::sync::Arc;

use katydid_cuda_sys::{CUDA_MEMCPY3D, CUresult, memory_type};
use katydid_driver_rules::copy::{CopyExtent, DescribedSide, described};
use katydid_wire::message::kdArrayCopy;

use crate::context::stack;
use crate::copy::linear::{CopyWait, run};
use crate::copy::packed::{self, FarEnd};
use crate::copy::rows::{self, Rows};
use crate::copy::side::CopySide;
use crate::copy::transfer::StreamIds;
use crate::ffi::handle::object;
use crate::process::session::shim;
use crate::sync::wait;
use crate::texture::array::Array;

/// One side of a copy, after all checks.
enum ArrayCopyEnd {
    /// An array, and the first byte, row and slice of the copy.
    Array(Arc<Array>, [u64; 3]),
    /// Rows in memory, at a pitch.
    Memory(Rows),
}

impl ArrayCopyEnd {
    /// Finds a side; an array must hold all of the copy.
    fn find(side: &DescribedSide, extent: CopyExtent) -> Result<Self, CUresult> {
        let wrong = CUresult::ERROR_INVALID_VALUE;
        if side.kind != memory_type::ARRAY {
            return Ok(Self::Memory(rows::find(side, extent)?));
        }
        let array = object(side.array).map_err(|_| wrong)?;
        if side.is_inside(array.bounds(), extent) { Ok(Self::Array(array, side.first)) } else { Err(wrong) }
    }

    /// Returns the side for a message: array, address, first indices, pitch, rows.
    fn message(&self, extent: CopyExtent) -> (u32, u64, [u64; 3], u64, u64) {
        match self {
            Self::Array(array, first) => (array.wire(), 0, *first, 0, 0),
            Self::Memory(rows) => {
                let high = if extent.depth > 1 { rows.slice / rows.pitch.max(1) } else { extent.height };
                (0, rows.address(), [0; 3], rows.pitch, high)
            }
        }
    }

    /// Returns the side as an end that only the worker reaches.
    fn far(&self) -> FarEnd {
        match self {
            Self::Array(array, first) => FarEnd::Array(array.wire(), *first),
            Self::Memory(rows) => FarEnd::Memory(*rows),
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self, Self::Memory(Rows { side: CopySide::Shared(_), .. }))
    }
}

/// Checks a copy of which at least one side is an array.
pub(crate) fn check(it: &CUDA_MEMCPY3D) -> Result<(), CUresult> {
    let (target, source, extent) = described(it);
    ArrayCopyEnd::find(&target, extent)?;
    ArrayCopyEnd::find(&source, extent).map(drop)
}

/// Copies rows and slices between arrays and memory.
///
/// # Safety
///
/// Sides that are the program's own memory are valid for their rows.
pub(crate) unsafe fn copy(it: &CUDA_MEMCPY3D, stream: u32, wait: CopyWait) -> Result<(), CUresult> {
    let (target, source, extent) = described(it);
    let ids = StreamIds { context: stack::wire()?, stream };
    if extent.is_empty() {
        return Ok(());
    }
    let to = ArrayCopyEnd::find(&target, extent)?;
    let from = ArrayCopyEnd::find(&source, extent)?;
    if let (ArrayCopyEnd::Memory(to), ArrayCopyEnd::Memory(from)) = (&to, &from) {
        if to.are_a_range(extent) && from.are_a_range(extent) {
            // SAFETY: rows without gaps are one range, valid by the contract.
            return unsafe { run(ids, to.side, from.side, extent.bytes(), wait) };
        }
        if to.is_near() && from.is_near() && (to.is_own() || from.is_own()) {
            // SAFETY: handed on; the program also reaches blocks of the pinned arena.
            return unsafe { copy_host_rows(ids, to, from, extent) };
        }
    }
    match (&to, &from) {
        (_, ArrayCopyEnd::Memory(rows)) if rows.is_own() => {
            // SAFETY: handed on.
            unsafe { packed::write(ids, to.far(), rows, extent) }?;
            if wait == CopyWait::Yes { wait::synchronize_copy(stream) } else { Ok(()) }
        }
        (ArrayCopyEnd::Memory(rows), _) if rows.is_own() => {
            // SAFETY: handed on.
            wait::waits_in(stream, || unsafe { packed::fetch(ids, from.far(), rows, extent) })
        }
        _ => {
            between(ids, &to, &from, extent)?;
            let waits = wait == CopyWait::Yes && (to.is_shared() || from.is_shared());
            if waits { wait::synchronize_wire(stream) } else { Ok(()) }
        }
    }
}

/// Copies where the worker reaches both sides.
fn between(ids: StreamIds, to: &ArrayCopyEnd, from: &ArrayCopyEnd, extent: CopyExtent) -> Result<(), CUresult> {
    let (to_array, to, to_first, to_pitch, to_rows) = to.message(extent);
    let (from_array, from, from_first, from_pitch, from_rows) = from.message(extent);
    let CopyExtent { width, height, depth } = extent;
    let message = kdArrayCopy {
        stream: ids.stream,
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
    shim()?.session.enqueue(ids.context, &message)
}

/// Copies where the program reaches both sides: the processor copies, after all earlier work.
///
/// # Safety
///
/// The rows of both are readable and writable.
unsafe fn copy_host_rows(ids: StreamIds, to: &Rows, from: &Rows, extent: CopyExtent) -> Result<(), CUresult> {
    wait::synchronize_all_before(ids.context, ids.stream)?;
    for (z, y) in (0..extent.depth).flat_map(|z| (0..extent.height).map(move |y| (z, y))) {
        let row = |rows: &Rows| (rows.address() + z * rows.slice + y * rows.pitch) as usize;
        let (to, from) = (std::ptr::with_exposed_provenance_mut::<u8>(row(to)), row(from));
        // SAFETY: one row of each side, valid by the contract; they may be the same.
        unsafe { to.copy_from(std::ptr::with_exposed_provenance(from), extent.width as usize) };
    }
    Ok(())
}
