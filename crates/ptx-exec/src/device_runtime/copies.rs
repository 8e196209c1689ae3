//! Copies and fills in streams of device code: slices of rows of bytes between device addresses.

use super::error;
use super::streams::is_launchable;
use crate::control::call_args::{field, parameter};
use crate::device_runtime::jobs::{DeferredWork, RowArea};
use crate::device_runtime::per_lane::for_each;
use crate::engine::fault::FaultKind;
use crate::engine::machine::{Exec, Flow, Inst, Machine};
use crate::host::Host;
use crate::memory::stretch;
use crate::types::Space;

/// Largest `cudaMemcpyKind`.
const LAST_MEMCPY_KIND: u32 = 4;

/// Offsets in `cudaMemcpy3DParms`: array, position and pitched pointer of the source, the same of the destination, extent, kind.
mod parms {
    pub(super) const SOURCE: u64 = 0;
    pub(super) const DESTINATION: u64 = 64;
    pub(super) const EXTENT: u64 = 128;
    pub(super) const KIND: u64 = 152;
    /// In each side: offsets of position and pointer after the array.
    pub(super) const POSITION: u64 = 8;
    pub(super) const POINTER: u64 = 32;
}

/// Returns a function by the name after `__cudaCDP2`.
pub(super) fn find(name: &str) -> Option<Exec> {
    match name {
        "MemcpyAsync" => Some(copy),
        "Memcpy2DAsync" => Some(copy_2d),
        "Memcpy3DAsync" => Some(copy_3d),
        "MemsetAsync" => Some(fill),
        "Memset2DAsync" => Some(fill_2d),
        "Memset3DAsync" => Some(fill_3d),
        _ => None,
    }
}

/// Queues a job for the end of the grid.
fn keep(machine: &Machine<'_>, job: DeferredWork, stream: u64) -> u32 {
    let mut runtime = machine.runtime();
    if !is_launchable(&runtime, stream) {
        return error::INVALID_RESOURCE_HANDLE;
    }
    let queue = if stream == super::streams::TAIL_LAUNCH_STREAM { &mut runtime.tails } else { &mut runtime.jobs };
    queue.push_back(job);
    error::CUDA_SUCCESS
}

/// Returns an area of a single row.
fn line(address: u64) -> RowArea {
    RowArea { address, pitch: 0, slice: 0 }
}

/// `MemcpyAsync(void *to, const void *from, size_t count, cudaMemcpyKind kind, cudaStream_t stream)`
fn copy(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let [to, from, size] = [0, 1, 2].map(|index| parameter::<u64>(machine, inst, index, lane));
        let (kind, stream): (u32, u64) = (parameter(machine, inst, 3, lane), parameter(machine, inst, 4, lane));
        if kind > LAST_MEMCPY_KIND {
            return Ok(error::INVALID_MEMCPY_DIRECTION);
        }
        Ok(keep(machine, DeferredWork::Copy { to: line(to), from: line(from), extent: [size, 1, 1] }, stream))
    })
}

/// `Memcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, kind, stream)`
fn copy_2d(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let values: [u64; 6] = std::array::from_fn(|index| parameter(machine, inst, index, lane));
        let [to, to_pitch, from, from_pitch, width, height] = values;
        let (kind, stream): (u32, u64) = (parameter(machine, inst, 6, lane), parameter(machine, inst, 7, lane));
        if kind > LAST_MEMCPY_KIND {
            return Ok(error::INVALID_MEMCPY_DIRECTION);
        }
        if width > to_pitch || width > from_pitch {
            return Ok(error::INVALID_VALUE);
        }
        let (to, from) = (
            RowArea { address: to, pitch: to_pitch, slice: 0 },
            RowArea { address: from, pitch: from_pitch, slice: 0 },
        );
        Ok(keep(machine, DeferredWork::Copy { to, from, extent: [width, height, 1] }, stream))
    })
}

/// `Memcpy3DAsync(const cudaMemcpy3DParms *parameters, cudaStream_t stream)`, between pointers only
fn copy_3d(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let (at, stream): (u64, u64) = (parameter(machine, inst, 0, lane), parameter(machine, inst, 1, lane));
        let mut word = |offset: u64| machine.read::<u64>(Space::Generic, lane, at.wrapping_add(offset));
        let mut side = |start: u64| -> Result<(u64, RowArea), FaultKind> {
            let [x, y, z] = [0, 8, 16].map(|part| word(start + parms::POSITION + part));
            let [pointer, pitch, height] = [0, 8, 24].map(|part| word(start + parms::POINTER + part));
            let (pitch, slice) = (pitch?, pitch?.wrapping_mul(height?));
            let skipped = z?.wrapping_mul(slice).wrapping_add(y?.wrapping_mul(pitch)).wrapping_add(x?);
            Ok((word(start)?, RowArea { address: pointer?.wrapping_add(skipped), pitch, slice }))
        };
        let ((from_array, from), (to_array, to)) = (side(parms::SOURCE)?, side(parms::DESTINATION)?);
        let extent = [word(parms::EXTENT)?, word(parms::EXTENT + 8)?, word(parms::EXTENT + 16)?];
        let kind = machine.read::<u32>(Space::Generic, lane, at.wrapping_add(parms::KIND))?;
        if kind > LAST_MEMCPY_KIND {
            return Ok(error::INVALID_MEMCPY_DIRECTION);
        }
        let arrays = from_array != 0 || to_array != 0;
        if arrays || extent[0] > to.pitch || extent[0] > from.pitch {
            return Ok(error::INVALID_VALUE);
        }
        Ok(keep(machine, DeferredWork::Copy { to, from, extent }, stream))
    })
}

/// `MemsetAsync(void *to, int value, size_t count, cudaStream_t stream)`
fn fill(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let [to, size, stream] = [0, 2, 3].map(|index| parameter::<u64>(machine, inst, index, lane));
        let byte = parameter::<u32>(machine, inst, 1, lane) as u8;
        Ok(keep(machine, DeferredWork::Fill { to: line(to), byte, extent: [size, 1, 1] }, stream))
    })
}

/// `Memset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)`
fn fill_2d(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let [address, pitch, width, height, stream] =
            [0, 1, 3, 4, 5].map(|index| parameter::<u64>(machine, inst, index, lane));
        let byte = parameter::<u32>(machine, inst, 2, lane) as u8;
        if width > pitch {
            return Ok(error::INVALID_VALUE);
        }
        let to = RowArea { address, pitch, slice: 0 };
        Ok(keep(machine, DeferredWork::Fill { to, byte, extent: [width, height, 1] }, stream))
    })
}

/// `Memset3DAsync(cudaPitchedPtr to, int value, cudaExtent extent, cudaStream_t stream)`
fn fill_3d(machine: &mut Machine<'_>, inst: &Inst) -> Flow {
    for_each(machine, inst, |machine, lane| {
        let [address, pitch, height] = [0, 8, 24].map(|at| field::<u64>(machine, inst, 0, at, lane));
        let byte = parameter::<u32>(machine, inst, 1, lane) as u8;
        let extent = [0, 8, 16].map(|at| field::<u64>(machine, inst, 2, at, lane));
        let stream = parameter(machine, inst, 3, lane);
        if extent[0] > pitch {
            return Ok(error::INVALID_VALUE);
        }
        let to = RowArea { address, pitch, slice: pitch.wrapping_mul(height) };
        Ok(keep(machine, DeferredWork::Fill { to, byte, extent }, stream))
    })
}

/// Executes a copy. The kind of the fault names the invalid address.
pub(crate) fn run_copy(host: &dyn Host, to: RowArea, from: RowArea, extent: [u64; 3]) -> Result<(), FaultKind> {
    rows(extent, |row, slice, width| {
        stretch::copy(host, row_address(to, row, slice), row_address(from, row, slice), width)
    })
}

/// Executes a fill.
pub(crate) fn run_fill(host: &dyn Host, to: RowArea, byte: u8, extent: [u64; 3]) -> Result<(), FaultKind> {
    rows(extent, |row, slice, width| stretch::fill(host, row_address(to, row, slice), byte, width))
}

/// Returns the first byte of a row.
fn row_address(area: RowArea, row: u64, slice: u64) -> u64 {
    let skipped = slice.wrapping_mul(area.slice).wrapping_add(row.wrapping_mul(area.pitch));
    area.address.wrapping_add(skipped)
}

/// Calls `copy_row` for every row; does nothing if the extent is empty.
fn rows(extent: [u64; 3], mut copy_row: impl FnMut(u64, u64, u64) -> Result<(), FaultKind>) -> Result<(), FaultKind> {
    let [width, height, depth] = extent;
    if width == 0 {
        return Ok(());
    }
    (0..depth).try_for_each(|slice| (0..height).try_for_each(|row| copy_row(row, slice, width)))
}
