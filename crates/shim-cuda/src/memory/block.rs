//! Blocks of device memory, allocated from the arenas.

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::CUresult;

use crate::context::{device, stack};
use crate::memory::device_backing::DeviceBacking;
use crate::memory::{idle, ipc};
use crate::process::session::shim;

/// Blocks start at multiples of this many bytes, and take whole ones, as the driver's do: textures need it.
const BLOCK_ALIGN_BYTES: u64 = 512;

/// Allocates a block on the current device and enters it into the address map.
pub(crate) fn allocate(size: u64) -> Result<u64, CUresult> {
    let context = stack::active()?.owner();
    if size == 0 {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let shim = shim()?;
    let backing = DeviceBacking { ordinal: context.device };
    // No other block can use the rest of the last unit, so it is not free.
    let block_bytes = size.checked_next_multiple_of(BLOCK_ALIGN_BYTES).ok_or(CUresult::ERROR_OUT_OF_MEMORY)?;
    let address = device::all()?[context.device as usize].memory.allocate(block_bytes, BLOCK_ALIGN_BYTES, &backing)?;
    shim.regions.insert(address, size, RegionKind::Device, context.device, context.slot.handle);
    Ok(address)
}

/// Frees the block that starts at exactly this address. It is invalid at once, and its memory is used again when the GPU has
/// done all work sent before.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for an address of no such block.
pub(crate) fn free(address: u64) -> Result<(), CUresult> {
    let shim = shim()?;
    let is_block = |region: &Region| region.kind == RegionKind::Device;
    let region = shim.regions.remove(address, is_block).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    ipc::freed(address)?;
    idle::free(&device::all()?[region.device as usize], address, shim.session.enqueued())
}
