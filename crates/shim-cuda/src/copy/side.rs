//! The sides of a copy: the location of each, and the preparation of the program's side.

use katydid_client::regions::{Region, RegionKind};
use katydid_cuda_sys::{CUDA_MEMCPY3D, CUresult, memory_type};
use katydid_driver_rules::copy::DeclaredMemory;

use crate::copy::pattern::CheckedMemset;
use crate::copy::transfer::StreamIds;
use crate::launch::registry;
use crate::memory::pinned;
use crate::process::session::{Shim, shim};
use crate::sync::wait;

/// The location of a side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopySide {
    /// Only the worker reaches it.
    Gpu(u64),
    /// Both reach it: pinned memory on a shared-memory link.
    Shared(u64),
    /// Only the program reaches it: its own memory, registered or not; on a stream link, pinned memory too.
    Own(u64),
}

/// Returns an address as a pointer.
pub(crate) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Locates a side and checks that all of its `size` bytes lie in one block.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
pub(crate) fn locate(claim: DeclaredMemory, address: u64, size: u64) -> Result<CopySide, CUresult> {
    let shim = shim()?;
    let mut region = shim.regions.find(address);
    if let Some(mapped) =
        region.as_mut().filter(|region| region.kind == RegionKind::Mapped && !region.holds(address, size))
        && shim.regions.is_mapped(address, size)
    {
        mapped.size = address - mapped.start + size;
    }
    let shared = pinned::get().is_some_and(|pinned| pinned.is_shared);
    declared_side(claim, address, size, region, shared, is_arena(shim, address))
}

/// Returns whether only the shim's blocks can have this address.
fn is_arena(shim: &Shim, address: u64) -> bool {
    shim.arenas.map.device_of(address).is_some() || shim.arenas.map.is_pinned(address)
}

fn declared_side(
    claim: DeclaredMemory,
    address: u64,
    size: u64,
    region: Option<Region>,
    shared: bool,
    arena: bool,
) -> Result<CopySide, CUresult> {
    // The worker chose a variable's address, where the program may have memory of its own.
    let region =
        region.filter(|region| claim != DeclaredMemory::Host || !matches!(region.kind, RegionKind::Global { .. }));
    match region {
        Some(region) if !region.holds(address, size) => Err(CUresult::ERROR_INVALID_VALUE),
        Some(region) if !region.is_host() => Ok(CopySide::Gpu(address)),
        Some(region) if shared && (region.is_pinned() || region.is_managed_block()) => Ok(CopySide::Shared(address)),
        Some(_) => Ok(CopySide::Own(address)),
        None if claim == DeclaredMemory::Device || arena || address == 0 => Err(CUresult::ERROR_INVALID_VALUE),
        None => Ok(CopySide::Own(address)),
    }
}

/// Locates the memory of a fill.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE`.
pub(crate) fn of_fill(fill: &CheckedMemset) -> Result<CopySide, CUresult> {
    locate(DeclaredMemory::Device, fill.0.dst, fill.span().ok_or(CUresult::ERROR_INVALID_VALUE)?)
}

/// Describes a copy of one row as a node has it.
pub(crate) fn row(to: (DeclaredMemory, u64), from: (DeclaredMemory, u64), size: usize) -> CUDA_MEMCPY3D {
    let kind = |claim: DeclaredMemory| match claim {
        DeclaredMemory::Device => memory_type::DEVICE,
        DeclaredMemory::Host => memory_type::HOST,
        DeclaredMemory::Any => memory_type::UNIFIED,
    };
    let mut it = CUDA_MEMCPY3D { WidthInBytes: size, Height: 1, Depth: 1, ..CUDA_MEMCPY3D::default() };
    (it.srcMemoryType, it.dstMemoryType) = (kind(from.0), kind(to.0));
    match from.0 {
        DeclaredMemory::Host => it.srcHost = std::ptr::with_exposed_provenance(from.1 as usize),
        _ => it.srcDevice = from.1,
    }
    match to.0 {
        DeclaredMemory::Host => it.dstHost = std::ptr::with_exposed_provenance_mut(to.1 as usize),
        _ => it.dstDevice = to.1,
    }
    it
}

/// Prepares the program's side of a copy that does not wait for its stream: earlier work on that memory has finished, and
/// its results are there. For memory that the GPU does not reach, the program is responsible.
pub(crate) fn prepare(address: u64, ids: StreamIds) -> Result<(), CUresult> {
    let Some((shim, pinned)) = pinned::unshared()? else { return Ok(()) };
    let Some(region) = shim.regions.find(address).filter(Region::is_host) else { return Ok(()) };
    if !pinned.is_in_use(&region) && !registry::may_call_back() {
        return Ok(());
    }
    wait::synchronize_all_before(ids.context, ids.stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVALID_SIDE: Result<CopySide, CUresult> = Err(CUresult::ERROR_INVALID_VALUE);

    fn region(kind: RegionKind) -> Option<Region> {
        Some(Region { start: 0x1000, size: 1000, kind, device: 0, context: 1, id: 1 })
    }

    #[test]
    fn a_range_that_leaves_its_block_is_refused() {
        let device = region(RegionKind::Device);
        assert_eq!(declared_side(DeclaredMemory::Device, 0x1000, 1000, device, true, true), Ok(CopySide::Gpu(0x1000)));
        assert_eq!(declared_side(DeclaredMemory::Device, 0x1000, 1001, device, true, true), INVALID_SIDE);
        assert_eq!(declared_side(DeclaredMemory::Any, 0x1000 + 990, 11, device, true, true), INVALID_SIDE);
    }

    #[test]
    fn memory_of_the_program_is_no_device_memory() {
        assert_eq!(declared_side(DeclaredMemory::Device, 0x5555, 4, None, true, false), INVALID_SIDE);
        assert_eq!(declared_side(DeclaredMemory::Host, 0x5555, 4, None, true, false), Ok(CopySide::Own(0x5555)));
        assert_eq!(declared_side(DeclaredMemory::Any, 0x5555, 4, None, true, false), Ok(CopySide::Own(0x5555)));
        assert_eq!(declared_side(DeclaredMemory::Host, 0, 4, None, true, false), INVALID_SIDE);
    }

    #[test]
    fn freed_blocks_have_no_owner() {
        for claim in [DeclaredMemory::Device, DeclaredMemory::Host, DeclaredMemory::Any] {
            assert_eq!(declared_side(claim, 0x2000_0000_0000, 4, None, true, true), INVALID_SIDE);
        }
    }

    #[test]
    fn pinned_memory_is_shared_or_the_programs() {
        let host = region(RegionKind::Host { flags: 2 });
        assert_eq!(declared_side(DeclaredMemory::Host, 0x1000, 4, host, true, true), Ok(CopySide::Shared(0x1000)));
        assert_eq!(declared_side(DeclaredMemory::Device, 0x1000, 4, host, false, true), Ok(CopySide::Own(0x1000)));
        let registered = region(RegionKind::Registered { flags: 2 });
        assert_eq!(
            declared_side(DeclaredMemory::Device, 0x1000, 4, registered, true, false),
            Ok(CopySide::Own(0x1000))
        );
    }

    #[test]
    fn a_host_address_that_equals_a_variables_is_the_hosts() {
        let global = region(RegionKind::Global { owner: 1 });
        assert_eq!(declared_side(DeclaredMemory::Host, 0x1000, 4, global, true, false), Ok(CopySide::Own(0x1000)));
        assert_eq!(declared_side(DeclaredMemory::Device, 0x1000, 4, global, true, false), Ok(CopySide::Gpu(0x1000)));
    }
}
