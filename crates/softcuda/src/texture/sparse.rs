//! Calls that map memory to arrays later, and queries of such arrays.

use std::sync::Arc;

use katydid_cuda_sys::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUarray, CUarrayMapInfo, CUmipmappedArray, CUresult,
    array_map,
};
use katydid_driver_rules::texture::TILE_BYTES;

use crate::ffi::Outcome;
use crate::memory::physical::{self, Block};
use crate::sync::job::StreamJob;
use crate::sync::stream::Stream;
use crate::texture::array;
use crate::texture::backing::{Backing, Tiles};

/// A checked entry of a call.
struct SparseUpdate {
    backing: Arc<Backing>,
    tiles: Tiles,
    block: Option<(Arc<Block>, u64)>,
}

/// Returns the memory of the array that an entry names.
fn backing(info: &CUarrayMapInfo) -> Outcome<Arc<Backing>> {
    let handle = std::ptr::with_exposed_provenance_mut(info.resource as usize);
    let properties = match info.resourceType {
        array_map::ARRAY => array::resolve(CUarray(handle))?.own_backing(),
        array_map::MIPMAPPED_ARRAY => array::resolve_mipmap(CUmipmappedArray(handle))?.backing.clone(),
        _ => None,
    };
    properties.ok_or(CUresult::ERROR_INVALID_VALUE)
}

fn check(info: &CUarrayMapInfo, device: i32) -> Outcome<SparseUpdate> {
    let wrong = CUresult::ERROR_INVALID_VALUE;
    let backing = backing(info)?;
    let (is_here, is_plain) = (info.deviceBitMask == 1 << device, info.flags == 0 && info.reserved == [0; 2]);
    if !is_here || !is_plain || backing.device != device || info.memHandleType != array_map::GENERIC {
        return Err(wrong);
    }
    let tiles = backing.tiles(info)?;
    let size = tiles.len() as u64 * TILE_BYTES;
    let block = match info.memOperationType {
        array_map::UNMAP if info.memHandle == 0 => None,
        array_map::MAP => {
            let block = physical::get(info.memHandle)?;
            let inside = info.offset.checked_add(size).is_some_and(|end| end <= block.size);
            if !inside || !info.offset.is_multiple_of(TILE_BYTES) || !block.is_tiles || block.device.ordinal != device {
                return Err(wrong);
            }
            Some((block, info.offset))
        }
        _ => return Err(wrong),
    };
    Ok(SparseUpdate { backing, tiles, block })
}

/// `cuMemMapArrayAsync`: checks all entries, then applies them when the stream gets there.
pub(crate) fn map(infos: &[CUarrayMapInfo], stream: &Arc<Stream>) -> Outcome {
    let device = stream.context()?.device.ordinal;
    let changes = infos.iter().map(|info| check(info, device)).collect::<Outcome<Vec<_>>>()?;
    let job =
        StreamJob::always(move |_| changes.iter().try_for_each(|it| it.backing.change(&it.tiles, it.block.as_ref())));
    stream.submit(job.short()).map(drop)
}

/// `cuArrayGetSparseProperties`: refuses a level.
pub(crate) fn properties(array: CUarray) -> Outcome<CUDA_ARRAY_SPARSE_PROPERTIES> {
    array::resolve(array)?.own_backing().ok_or(CUresult::ERROR_INVALID_VALUE)?.properties()
}

/// `cuMipmappedArrayGetSparseProperties`
pub(crate) fn mipmap_properties(mipmap: CUmipmappedArray) -> Outcome<CUDA_ARRAY_SPARSE_PROPERTIES> {
    let mipmap = array::resolve_mipmap(mipmap)?;
    mipmap.backing.as_ref().ok_or(CUresult::ERROR_INVALID_VALUE)?.properties()
}

/// `cuArrayGetMemoryRequirements`
pub(crate) fn requirements(array: CUarray) -> Outcome<CUDA_ARRAY_MEMORY_REQUIREMENTS> {
    array::resolve(array)?.own_backing().ok_or(CUresult::ERROR_INVALID_VALUE)?.requirements()
}

/// `cuMipmappedArrayGetMemoryRequirements`
pub(crate) fn mipmap_requirements(mipmap: CUmipmappedArray) -> Outcome<CUDA_ARRAY_MEMORY_REQUIREMENTS> {
    let mipmap = array::resolve_mipmap(mipmap)?;
    mipmap.backing.as_ref().ok_or(CUresult::ERROR_INVALID_VALUE)?.requirements()
}
