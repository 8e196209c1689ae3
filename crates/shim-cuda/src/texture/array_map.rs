//! Memory of arrays that is mapped later: tile by tile for sparse ones, as a whole for deferred ones.
//!
//! The worker's driver checks the program's requests; the shim replaces handles by ids. Mappings are recorded by tile, since
//! each keeps a block alive whose handle the program has released, as a mapping at an address does.
#![expect(unsafe_code, reason = "reads and writes structures of C callers")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_cuda_sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUarray, CUarrayMapInfo, CUdevice, CUmipmappedArray,
    CUresult, CUstream, array_map as id,
};
use katydid_driver_rules::caller;
use katydid_driver_rules::texture::{TILE_BYTES, array_flag, is_mapped_later};
use katydid_wire::array_map::Change;
use katydid_wire::message::{kdArrayMap, kdArrayNeeds, kdArraySparse};

use crate::context::device::{self, device};
use crate::context::request::call;
use crate::context::stack;
use crate::ffi::arguments::out;
use crate::ffi::handle::object;
use crate::memory::virtual_memory::{self, Allocation};
use crate::process::session::{Shim, shim};
use crate::sync::stream;

/// Most entries of one call: more make no sense, and this many fit into a message.
const MAX_MAP_ENTRIES: usize = 4096;

/// The mapped memory of an array or mipmap whose memory is mapped later.
pub(crate) struct DeferredMemory {
    is_sparse: bool,
    properties: OnceLock<CUDA_ARRAY_SPARSE_PROPERTIES>,
    mapped: Mutex<HashMap<ArrayPiece, Arc<Allocation>>>,
}

/// A piece of an array that can be mapped separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ArrayPiece {
    /// All of a deferred array.
    Whole,
    /// A tile: level, layer, and its position in each direction.
    Tile([u32; 5]),
    /// A tile's bytes of the small levels: layer, and which tile.
    Tail(u32, u64),
}

/// Returns the pieces of an entry that the driver has accepted.
fn pieces(info: &CUarrayMapInfo, tile: Option<[u32; 3]>) -> Vec<ArrayPiece> {
    let Some(tile) = tile else { return vec![ArrayPiece::Whole] };
    if info.subresourceType == id::MIPTAIL {
        let (layer, offset, size) = info.tail();
        return (offset / TILE_BYTES..offset.saturating_add(size).div_ceil(TILE_BYTES))
            .map(|at| ArrayPiece::Tail(layer, at))
            .collect();
    }
    let [level, layer, x, y, z, width, height, depth] = info.sparse_level();
    let range = |axis: usize, first: u32, count: u32| {
        let tile = tile[axis].max(1);
        first / tile..first.saturating_add(count).div_ceil(tile)
    };
    let mut pieces = Vec::new();
    for z in range(2, z, depth) {
        for y in range(1, y, height) {
            pieces.extend(range(0, x, width).map(|x| ArrayPiece::Tile([level, layer, x, y, z])));
        }
    }
    pieces
}

impl DeferredMemory {
    /// Makes the record for an array with these flags; none if its memory is not mapped later.
    pub(crate) fn of(flags: u32) -> Option<Arc<Self>> {
        let later = || Self {
            is_sparse: flags & array_flag::SPARSE != 0,
            properties: OnceLock::new(),
            mapped: Mutex::default(),
        };
        is_mapped_later(flags).then(|| Arc::new(later()))
    }

    /// Returns the driver's properties of the tiles, which never change.
    fn properties(&self, array: u32) -> Result<CUDA_ARRAY_SPARSE_PROPERTIES, CUresult> {
        if let Some(properties) = self.properties.get() {
            return Ok(*properties);
        }
        let reply = shim()?.session.call(0, &kdArraySparse { array })?;
        let properties = CUDA_ARRAY_SPARSE_PROPERTIES {
            tileExtent: [reply.width, reply.height, reply.depth],
            miptailFirstLevel: reply.first,
            miptailSize: reply.tail,
            flags: reply.flags,
            reserved: [0; 4],
        };
        Ok(*self.properties.get_or_init(|| properties))
    }

    /// Records the mappings that a call has made or removed.
    fn note(
        &self,
        shim: &Shim,
        array: u32,
        info: &CUarrayMapInfo,
        block: Option<&Arc<Allocation>>,
    ) -> Result<(), CUresult> {
        let tile = if self.is_sparse { Some(self.properties(array)?.tileExtent) } else { None };
        let mut mapped = self.mapped.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in pieces(info, tile) {
            let old_block = match block {
                Some(block) => {
                    block.map(shim)?;
                    mapped.insert(piece, Arc::clone(block))
                }
                None => mapped.remove(&piece),
            };
            old_block.map_or(Ok(()), |old_block| old_block.unmap(shim))?;
        }
        Ok(())
    }

    /// Removes all mappings of an array that has ended.
    pub(crate) fn end(&self) -> Result<(), CUresult> {
        virtual_memory::in_order(|shim| {
            let mapped = std::mem::take(&mut *self.mapped.lock().unwrap_or_else(PoisonError::into_inner));
            mapped.into_values().try_for_each(|block| block.unmap(shim))
        })
    }
}

/// The array of an entry: number of the array or mipmap, and the state of its memory.
struct NamedArray {
    array: u32,
    later: Arc<DeferredMemory>,
}

fn named(info: &CUarrayMapInfo) -> Result<NamedArray, CUresult> {
    let handle = std::ptr::with_exposed_provenance_mut(info.resource as usize);
    let (array, later) = match info.resourceType {
        id::ARRAY => object(CUarray(handle)).map(|array| (array.wire(), array.later.clone()))?,
        id::MIPMAPPED_ARRAY => object(CUmipmappedArray(handle)).map(|mipmap| (mipmap.wire(), mipmap.later.clone()))?,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    Ok(NamedArray { array, later: later.ok_or(CUresult::ERROR_INVALID_VALUE)? })
}

/// Maps the program's device bits to the worker's; an invalid bit stays invalid.
fn devices(mask: u32) -> Result<u32, CUresult> {
    let devices = device::all()?;
    let bit = |ordinal: u32| devices.get(ordinal as usize).map_or(1 << 31, |device| 1 << device.position);
    Ok((0..u32::BITS).filter(|ordinal| mask & (1 << ordinal) != 0).fold(0, |all, ordinal| all | bit(ordinal)))
}

/// Encodes an entry for the message.
fn travelling(info: &CUarrayMapInfo, array: u32, memory: u32) -> Result<Change, CUresult> {
    Ok(Change {
        kind: info.resourceType,
        array,
        part: info.subresourceType,
        operation: info.memOperationType,
        handle_kind: info.memHandleType,
        memory,
        devices: devices(info.deviceBitMask)?,
        unused: [info.flags, info.reserved[0], info.reserved[1]],
        subresource: info.subresource,
        offset: info.offset,
    })
}

/// Answers `cuMemMapArrayAsync`: the driver checks all entries, and changes all of them when the stream reaches the call.
///
/// # Safety
///
/// `infos` is null or has `count` entries.
pub(crate) unsafe fn change(infos: *mut CUarrayMapInfo, count: u32, stream: CUstream) -> Result<(), CUresult> {
    stack::wire()?;
    // SAFETY: handed on.
    let infos = unsafe { caller::array(infos, count as usize, MAX_MAP_ENTRIES) }?;
    let stream = stream::wire(stream)?;
    virtual_memory::in_order(|shim| {
        let (mut changes, mut notes) = (Vec::with_capacity(infos.len() * Change::BYTES), Vec::new());
        for info in &infos {
            let named = named(info)?;
            let block = match info.memHandle {
                0 => None,
                handle => Some(virtual_memory::allocation(handle)?),
            };
            let memory = block.as_ref().map_or(0, |block| block.wire());
            changes.extend(travelling(info, named.array, memory)?.encode());
            notes.push((named, block.filter(|_| info.memOperationType == id::MAP)));
        }
        call(&kdArrayMap { stream, changes: &changes })?;
        let mut updates = infos.iter().zip(&notes);
        updates.try_for_each(|(info, (named, block))| named.later.note(shim, named.array, info, block.as_ref()))
    })
}

/// # Safety
///
/// Pointers are null or valid; this holds for every function below.
pub(crate) unsafe fn properties(target: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    let array = object(array)?;
    let later = array.later.as_ref().filter(|later| later.is_sparse).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    target.write(later.properties(array.wire())?);
    Ok(())
}

/// # Safety
///
/// As [`properties`].
pub(crate) unsafe fn mipmap_properties(
    target: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
    mipmap: CUmipmappedArray,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    let mipmap = object(mipmap)?;
    let later = mipmap.later.as_ref().filter(|later| later.is_sparse).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    target.write(later.properties(mipmap.wire())?);
    Ok(())
}

/// Returns the driver's memory requirements of an array that is mapped as a whole.
fn needs(
    array: u32,
    later: Option<&Arc<DeferredMemory>>,
    ordinal: CUdevice,
) -> Result<CUDA_ARRAY_MEMORY_REQUIREMENTS, CUresult> {
    let position = device(ordinal)?.position as i32;
    later.filter(|later| !later.is_sparse).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let reply = shim()?.session.call(0, &kdArrayNeeds { array, device: position })?;
    let (size, alignment) = (reply.size as usize, reply.alignment as usize);
    Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS { size, alignment, reserved: [0; 4] })
}

/// # Safety
///
/// As [`properties`].
pub(crate) unsafe fn requirements(
    target: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: CUarray,
    device: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    let array = object(array)?;
    target.write(needs(array.wire(), array.later.as_ref(), device)?);
    Ok(())
}

/// # Safety
///
/// As [`properties`].
pub(crate) unsafe fn mipmap_requirements(
    target: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: CUmipmappedArray,
    device: CUdevice,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let target = unsafe { out(target) }?;
    let mipmap = object(mipmap)?;
    target.write(needs(mipmap.wire(), mipmap.later.as_ref(), device)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_all_the_tiles_that_it_touches() {
        let subresource = [1 << 32, 128 << 32 | 128, 256 << 32, 1 << 32 | 100];
        let info = CUarrayMapInfo { subresource, ..CUarrayMapInfo::default() };
        let tile = |x, y| ArrayPiece::Tile([0, 1, x, y, 0]);
        assert_eq!(pieces(&info, Some([128, 128, 1])), [tile(1, 1), tile(2, 1)]);
        assert_eq!(pieces(&info, None), [ArrayPiece::Whole]);
        let tail =
            CUarrayMapInfo { subresourceType: id::MIPTAIL, subresource: [2, TILE_BYTES, 2 * TILE_BYTES, 0], ..info };
        assert_eq!(pieces(&tail, Some([128, 128, 1])), [ArrayPiece::Tail(2, 1), ArrayPiece::Tail(2, 2)]);
    }
}
