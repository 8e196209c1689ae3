//! The virtual memory API: reserved addresses, blocks of memory, and mappings.
//!
//! An address is reserved both in the program and in the worker, or in neither. So the shim reserves first, and asks the
//! worker for the same address. Each mapping is an entry of the address map; adjacent mappings can be used as one, as on the
//! GPU.
#![expect(unsafe_code, reason = "reads and writes memory of C callers")]

use std::ffi::c_void;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_arena::{RESERVATION_UNIT, RangeMap, Reservation};
use katydid_client::memory::retry_until_timeout;
use katydid_client::regions::RegionKind;
use katydid_client::slab::SlabSlot;
use katydid_cuda_sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation, CUresult,
    access_flags, allocation_type, location_type,
};
use katydid_driver_rules::memory::{self as rules, GRANULARITY_BYTES, HANDLE_TYPE_FILE_DESCRIPTOR, is_host};
use katydid_driver_rules::pool::grants as read_grants;
use katydid_wire::message::{
    kdAddressFree, kdAddressReserve, kdMemoryAccess, kdMemoryCreate, kdMemoryGranularity, kdMemoryMap, kdMemoryRelease,
    kdMemorySetAccess, kdMemoryUnmap,
};

use crate::context::{device, stack};
use crate::ffi::arguments::out;
use crate::ffi::handle::HandleTable;
use crate::memory::counts::MANAGED_VARIABLES;
use crate::memory::device_backing::in_need;
use crate::memory::{pinned, pinned_sync};
use crate::process::session::{Shim, shim};

/// Addresses for reservations without a requested one: between the arenas.
const UNHINTED_RESERVATIONS: std::ops::Range<u64> = 0x5000_0000_0000..0x6000_0000_0000;
/// Addresses that are tried for one reservation: each can be taken on one of the two sides.
const RESERVATION_ATTEMPTS: u32 = 64;
/// Bytes of a properties record in messages.
const ALLOCATION_PROP_BYTES: usize = size_of::<CUmemAllocationProp>();

/// A block of memory of a device, or of the host, without an address.
pub(crate) struct Allocation {
    slot: SlabSlot,
    /// Location of its memory; devices by the program's ordinal.
    location: CUmemLocation,
    /// The requested sharing and use, word by word.
    requested: (u32, u8, u8),
    size: u64,
    uses: Mutex<BlockUses>,
}

/// Blocks of memory without an address.
pub(crate) static ALLOCATIONS: HandleTable<Allocation> = HandleTable::new();

/// The references to a block.
struct BlockUses {
    /// How often the handle may still be released.
    handles: u32,
    mappings: u32,
}

impl Allocation {
    /// Returns the properties of its creation.
    fn properties(&self) -> CUmemAllocationProp {
        let (sharing, compression, rdma) = self.requested;
        CUmemAllocationProp {
            type_: allocation_type::PINNED,
            requestedHandleTypes: sharing,
            location: self.location,
            win32HandleMetaData: std::ptr::null_mut(),
            compressionType: compression,
            gpuDirectRDMACapable: rdma,
            // Queries do not return it, as with the driver.
            usage: 0,
            reserved: [0; 4],
        }
    }

    /// Returns the program's ordinal of its device; the first one for host memory.
    fn device(&self) -> u32 {
        if is_host(self.location) { 0 } else { self.location.id.unsigned_abs() }
    }

    /// The number that messages carry.
    pub(crate) fn wire(&self) -> u32 {
        self.slot.index + 1
    }

    /// Adds a mapping.
    pub(crate) fn map(&self, shim: &Shim) -> Result<(), CUresult> {
        self.change(shim, |uses| uses.mappings += 1)
    }

    /// Removes a mapping.
    pub(crate) fn unmap(&self, shim: &Shim) -> Result<(), CUresult> {
        self.change(shim, |uses| uses.mappings -= 1)
    }

    /// Changes the references to the block, and frees it with the last one. A mapped block without a handle can get one
    /// again, so the worker keeps its handle until then.
    fn change(&self, shim: &Shim, change: impl FnOnce(&mut BlockUses)) -> Result<(), CUresult> {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut uses);
        if uses.handles > 0 || uses.mappings > 0 {
            return Ok(());
        }
        let sent = shim.session.enqueue(0, &kdMemoryRelease { memory: self.wire() });
        ALLOCATIONS.get()?.remove(self.slot.handle);
        sent
    }
}

/// The program's reservations and mappings. Its lock is held across every message, so that both sides see one order and no
/// id is given to a second block too early.
#[derive(Default)]
struct VirtualMemory {
    state: Mutex<VirtualRanges>,
}

#[derive(Default)]
struct VirtualRanges {
    reservations: RangeMap<Reservation>,
    /// Where the next search starts, as an offset in the range.
    next: u64,
    mapped: RangeMap<Arc<Allocation>>,
}

static VIRTUAL_MEMORY: LazyLock<VirtualMemory> = LazyLock::new(VirtualMemory::default);

impl VirtualMemory {
    fn lock(&self) -> MutexGuard<'_, VirtualRanges> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VirtualRanges {
    /// Reserves at `address` on both sides; false when it is taken on one of them.
    fn reserve_at(&mut self, shim: &Shim, address: u64, size: u64) -> Result<bool, CUresult> {
        let Ok(reservation) = Reservation::at(address, size) else { return Ok(false) };
        match shim.session.call(0, &kdAddressReserve { address, size }) {
            Ok(_) => {}
            // The worker's driver may have taken the address for itself, or have no room there.
            Err(CUresult::ERROR_ALREADY_MAPPED | CUresult::ERROR_OUT_OF_MEMORY) => return Ok(false),
            Err(other) => return Err(other),
        }
        // The system gave these addresses just now, so no region can be there.
        let _ = self.reservations.insert(address, size, reservation);
        Ok(true)
    }

    /// Reserves wherever both sides have room. Steps grow, because obstacles may be large.
    fn reserve_anywhere(&mut self, shim: &Shim, size: u64, align: u64) -> Result<u64, CUresult> {
        let span = UNHINTED_RESERVATIONS.end - UNHINTED_RESERVATIONS.start;
        let mut step = size;
        for _ in 0..RESERVATION_ATTEMPTS {
            let address = (UNHINTED_RESERVATIONS.start + self.next).next_multiple_of(align.max(RESERVATION_UNIT));
            let Some(end) = address.checked_add(size).filter(|end| *end <= UNHINTED_RESERVATIONS.end) else {
                if self.next == 0 || size > span {
                    break;
                }
                (self.next, step) = (0, size);
                continue;
            };
            if self.reserve_at(shim, address, size)? {
                self.next = end - UNHINTED_RESERVATIONS.start;
                return Ok(address);
            }
            self.next = address - UNHINTED_RESERVATIONS.start + step;
            step = step.saturating_mul(2);
        }
        Err(CUresult::ERROR_OUT_OF_MEMORY)
    }

    /// Maps pages for the program where host memory is mapped; they are kept equal to the worker's like managed variables.
    /// The program does not reach device memory.
    fn open(&self, shim: &Shim, start: u64, size: u64) -> Result<(), CUresult> {
        let allocation = self.mapped.find(start).map(|(.., allocation)| allocation);
        let allocation = allocation.filter(|allocation| is_host(allocation.location));
        let is_closed = shim.regions.find(start).is_some_and(|region| region.kind == RegionKind::Mapped);
        let (Some(allocation), Some(pinned), true) = (allocation, pinned::get(), is_closed) else { return Ok(()) };
        let (first, _, reservation) = self.reservations.find(start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        reservation.map_private(start - first, size).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
        let contents = pinned_sync::contents(shim, start, size)?;
        // SAFETY: the pages were mapped just now, as many as there are bytes, and the program does not use them yet.
        unsafe {
            let target = std::ptr::with_exposed_provenance_mut::<u8>(start as usize);
            target.copy_from_nonoverlapping(contents.as_ptr(), contents.len());
        }
        shim.regions.remove(start, |region| region.kind == RegionKind::Mapped);
        shim.regions.insert(start, size, RegionKind::HostMapped, allocation.device(), 0);
        pinned.adopt(start, 0, contents);
        MANAGED_VARIABLES.begin();
        Ok(())
    }

    /// Unmaps such pages; the mapping stays, for devices.
    fn close(&self, shim: &Shim, start: u64) -> Result<(), CUresult> {
        let region = shim.regions.remove(start, |region| region.kind == RegionKind::HostMapped);
        let (Some(region), Some(pinned)) = (region, pinned::get()) else { return Ok(()) };
        pinned.forget(&region)?;
        MANAGED_VARIABLES.end();
        let (first, _, reservation) = self.reservations.find(start).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        reservation.unmap(start - first, region.size).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        shim.regions.insert(start, region.size, RegionKind::Mapped, region.device, 0);
        Ok(())
    }

    /// Removes the program's own pages of some mappings and runs `ask`, a request to the worker that they would block. The
    /// program's writes there are pushed first. If the worker refuses, nothing has changed.
    fn without_pages(
        &self,
        shim: &Shim,
        tiles: &[(u64, u64)],
        ask: impl FnOnce() -> Result<(), CUresult>,
    ) -> Result<(), CUresult> {
        let is_open = |start| shim.regions.find(start).is_some_and(|region| region.kind == RegionKind::HostMapped);
        let open: Vec<_> = tiles.iter().filter(|(start, _)| is_open(*start)).collect();
        if !open.is_empty() {
            pinned::push_named([], stack::wire().unwrap_or(0), 0)?.sent();
        }
        open.iter().try_for_each(|(start, _)| self.close(shim, *start))?;
        ask().inspect_err(|_| {
            for (start, length) in open {
                let _ = self.open(shim, *start, *length);
            }
        })
    }

    /// Returns the mappings that fill `address..address + size` exactly.
    fn tiles(&self, address: u64, size: u64) -> Result<Vec<(u64, u64)>, CUresult> {
        let end = address.checked_add(size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
        let tiles: Vec<_> = self.mapped.overlapping(address, end).map(|(at, length, _)| (at, length)).collect();
        let reached = tiles.iter().try_fold(address, |at, tile| (tile.0 == at).then(|| tile.0 + tile.1));
        if reached == Some(end) && size > 0 { Ok(tiles) } else { Err(CUresult::ERROR_INVALID_VALUE) }
    }
}

/// Reserves the requested address if it is free on both sides, otherwise another one.
///
/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn reserve(
    target: *mut CUdeviceptr,
    size: usize,
    align: usize,
    address: CUdeviceptr,
    flags: u64,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let (shim, size, align) = (shim()?, size as u64, align as u64);
    let align = rules::reservation(size, align, address, flags)?;
    let mut state = VIRTUAL_MEMORY.lock();
    let is_at_hint = address != 0 && address.is_multiple_of(align) && state.reserve_at(shim, address, size)?;
    target.write(if is_at_hint { address } else { state.reserve_anywhere(shim, size, align)? });
    Ok(())
}

/// Reserves addresses for memory that this library maps for the program.
pub(crate) fn reserve_for(size: u64) -> Result<u64, CUresult> {
    let shim = shim()?;
    if size == 0 || !size.is_multiple_of(GRANULARITY_BYTES) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    VIRTUAL_MEMORY.lock().reserve_anywhere(shim, size, GRANULARITY_BYTES)
}

/// Returns a block that was created for this kind of sharing.
///
/// # Errors
///
/// `ERROR_INVALID_VALUE` for any other.
pub(crate) fn shareable(handle: CUmemGenericAllocationHandle, sharing: u32) -> Result<Arc<Allocation>, CUresult> {
    let allocation = allocation(handle)?;
    let is_shareable = allocation.requested.0 & sharing != 0;
    if is_shareable { Ok(allocation) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Makes a handle for a block. `take` gets the block under its number, and returns size and the worker's ordinal of the
/// device.
pub(crate) fn adopt(
    sharing: u32,
    take: impl FnOnce(u32) -> Result<(u64, i32), CUresult>,
) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let _order = VIRTUAL_MEMORY.lock();
    let allocation = ALLOCATIONS.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
        let (size, position) = take(slot.index + 1)?;
        let device = device::all()?.iter().position(|device| device.position as i32 == position);
        let device = device.map_or(0, |ordinal| ordinal as i32);
        let uses = Mutex::new(BlockUses { handles: 1, mappings: 0 });
        let location = CUmemLocation { type_: location_type::DEVICE, id: device };
        Ok(Allocation { slot, location, requested: (sharing, 0, 0), size, uses })
    })?;
    Ok(allocation.slot.handle as u64)
}

/// Runs `body` in one order, for both sides, with other changes to blocks.
pub(crate) fn in_order<T>(body: impl FnOnce(&Shim) -> Result<T, CUresult>) -> Result<T, CUresult> {
    let shim = shim()?;
    let _order = VIRTUAL_MEMORY.lock();
    body(shim)
}

/// Frees a whole reservation without mappings.
pub(crate) fn unreserve(address: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    let (shim, size) = (shim()?, size as u64);
    let mut state = VIRTUAL_MEMORY.lock();
    let reservation =
        state.reservations.find(address).filter(|(start, length, _)| (*start, *length) == (address, size));
    reservation.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    shim.session.call(0, &kdAddressFree { address, size })?;
    state.reservations.remove(address);
    Ok(())
}

/// Returns a location with the worker's ordinal of a device; the host stays the host.
fn located(location: CUmemLocation) -> Result<CUmemLocation, CUresult> {
    if is_host(location) {
        return Ok(location);
    }
    let ordinal = usize::try_from(location.id).map_err(|_| CUresult::ERROR_INVALID_DEVICE)?;
    let device = device::all()?.get(ordinal).ok_or(CUresult::ERROR_INVALID_DEVICE)?;
    if location.type_ != location_type::DEVICE {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    Ok(CUmemLocation { id: device.position as i32, ..location })
}

/// Encodes properties for a message.
fn travelling(properties: &CUmemAllocationProp) -> Result<[u8; ALLOCATION_PROP_BYTES], CUresult> {
    if properties.requestedHandleTypes & !HANDLE_TYPE_FILE_DESCRIPTOR != 0 {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    let location = located(properties.location)?;
    let mut bytes = [0; ALLOCATION_PROP_BYTES];
    bytes[0..4].copy_from_slice(&properties.type_.to_le_bytes());
    bytes[4..8].copy_from_slice(&properties.requestedHandleTypes.to_le_bytes());
    bytes[8..12].copy_from_slice(&location.type_.to_le_bytes());
    bytes[12..16].copy_from_slice(&location.id.to_le_bytes());
    bytes[24..26].copy_from_slice(&[properties.compressionType, properties.gpuDirectRDMACapable]);
    bytes[26..28].copy_from_slice(&properties.usage.to_le_bytes());
    Ok(bytes)
}

/// Creates a block. This call reports that memory ran out.
///
/// # Safety
///
/// `target` is null or writable, `properties` null or readable.
pub(crate) unsafe fn create(
    target: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: u64,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, and null or readable, by the contract.
    let (target, properties) = unsafe { (out(target)?, properties.as_ref()) };
    let properties = *properties.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let (shim, size) = (shim()?, size as u64);
    if flags != 0 || size == 0 || properties.type_ != allocation_type::PINNED {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let requested = travelling(&properties)?;
    let make = || {
        let _order = VIRTUAL_MEMORY.lock();
        ALLOCATIONS.get()?.try_insert(CUresult::ERROR_OUT_OF_MEMORY, |slot| {
            shim.session.call(0, &kdMemoryCreate { memory: slot.index + 1, size, properties: &requested })?;
            let CUmemAllocationProp { requestedHandleTypes: sharing, compressionType: compression, .. } = properties;
            let requested = (sharing, compression, properties.gpuDirectRDMACapable);
            let uses = Mutex::new(BlockUses { handles: 1, mappings: 0 });
            let location = rules::reported_location(properties.location);
            Ok(Allocation { slot, location, requested, size, uses })
        })
    };
    let device = Some(properties.location).filter(|location| location.type_ == location_type::DEVICE);
    let allocation = match device.and_then(|location| u32::try_from(location.id).ok()) {
        Some(ordinal) => in_need(ordinal, size, make),
        None => retry_until_timeout(make),
    }?;
    target.write(allocation.slot.handle as u64);
    Ok(())
}

/// Returns the block of a handle that was not released.
pub(crate) fn allocation(handle: CUmemGenericAllocationHandle) -> Result<Arc<Allocation>, CUresult> {
    let allocation = ALLOCATIONS.get()?.get(handle as usize).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let alive = allocation.uses.lock().unwrap_or_else(PoisonError::into_inner).handles > 0;
    if alive { Ok(allocation) } else { Err(CUresult::ERROR_INVALID_VALUE) }
}

/// Returns another handle of a block, also of one that only mappings keep; none once nothing keeps it.
pub(crate) fn another_handle(block: &Allocation) -> Option<CUmemGenericAllocationHandle> {
    let _order = VIRTUAL_MEMORY.lock();
    let mut uses = block.uses.lock().unwrap_or_else(PoisonError::into_inner);
    let is_kept = uses.handles > 0 || uses.mappings > 0;
    uses.handles += u32::from(is_kept);
    is_kept.then_some(block.slot.handle as u64)
}

/// Releases a handle. The memory goes when its last mapping is gone too.
pub(crate) fn release(handle: CUmemGenericAllocationHandle) -> Result<(), CUresult> {
    let shim = shim()?;
    let _order = VIRTUAL_MEMORY.lock();
    allocation(handle)?.change(shim, |uses| uses.handles -= 1)
}

/// Maps a block, without access until that is granted.
pub(crate) fn map(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: u64,
) -> Result<(), CUresult> {
    let (shim, size, offset) = (shim()?, size as u64, offset as u64);
    let mut state = VIRTUAL_MEMORY.lock();
    let allocation = allocation(handle)?;
    rules::check_mapping(size, offset, allocation.size)?;
    if flags != 0 || state.reservations.find_span(address, size).is_none() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    shim.session.call(0, &kdMemoryMap { address, size, offset, memory: allocation.wire() })?;
    allocation.map(shim)?;
    let device = allocation.device();
    shim.regions.insert(address, size, RegionKind::Mapped, device, 0);
    // The worker has checked that nothing is mapped there.
    let _ = state.mapped.insert(address, size, allocation);
    Ok(())
}

/// Unmaps whole mappings, one or several adjacent ones.
pub(crate) fn unmap(address: CUdeviceptr, size: usize) -> Result<(), CUresult> {
    let (shim, size) = (shim()?, size as u64);
    let mut state = VIRTUAL_MEMORY.lock();
    let tiles = state.tiles(address, size)?;
    // The upcall thread keeps open pages equal, also while the driver waits for the GPU.
    let unmap = || shim.session.call(stack::wire().unwrap_or(0), &kdMemoryUnmap { address, size }).map(drop);
    state.without_pages(shim, &tiles, unmap)?;
    for (start, _) in tiles {
        shim.regions.remove(start, |region| region.kind == RegionKind::Mapped);
        let Some((_, allocation)) = state.mapped.remove(start) else { continue };
        allocation.unmap(shim)?;
    }
    Ok(())
}

/// Grants access to whole mappings; each grant names a device.
///
/// # Safety
///
/// `grants` is null or has `count` entries.
pub(crate) unsafe fn set_access(
    address: CUdeviceptr,
    size: usize,
    grants: *const CUmemAccessDesc,
    count: usize,
) -> Result<(), CUresult> {
    // SAFETY: handed on.
    let grants = unsafe { read_grants(grants, count) }?;
    let mut bytes = Vec::with_capacity(count * size_of::<CUmemAccessDesc>());
    let mut opening = None;
    for CUmemAccessDesc { location, flags } in grants {
        let location = located(location)?;
        bytes.extend([location.type_.to_le_bytes(), location.id.to_le_bytes(), flags.to_le_bytes()].as_flattened());
        if is_host(location) {
            opening = Some(flags == access_flags::READ_WRITE);
        }
    }
    let (shim, size) = (shim()?, size as u64);
    let state = VIRTUAL_MEMORY.lock();
    let tiles = state.tiles(address, size)?;
    let closing = if opening == Some(false) { &tiles[..] } else { &[] };
    let grant = || shim.session.call(0, &kdMemorySetAccess { address, size, grants: &bytes }).map(drop);
    state.without_pages(shim, closing, grant)?;
    if opening == Some(true) {
        tiles.iter().try_for_each(|(start, length)| state.open(shim, *start, *length))?;
    }
    Ok(())
}

/// # Safety
///
/// `flags` is null or writable, `location` null or readable.
pub(crate) unsafe fn access(
    flags: *mut u64,
    location: *const CUmemLocation,
    address: CUdeviceptr,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, and null or readable, by the contract.
    let (flags, location) = unsafe { (out(flags)?, location.as_ref()) };
    let location = located(*location.ok_or(CUresult::ERROR_INVALID_VALUE)?)?;
    let (shim, device) = (shim()?, location.id);
    VIRTUAL_MEMORY.lock().mapped.find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if is_host(location) {
        let is_open = shim.regions.find(address).is_some_and(|region| region.kind == RegionKind::HostMapped);
        flags.write(u64::from(if is_open { access_flags::READ_WRITE } else { access_flags::NONE }));
        return Ok(());
    }
    flags.write(shim.session.call(0, &kdMemoryAccess { address, device })?.flags);
    Ok(())
}

/// # Safety
///
/// `target` is null or writable, `properties` null or readable.
pub(crate) unsafe fn granularity(
    target: *mut usize,
    properties: *const CUmemAllocationProp,
    option: u32,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, and null or readable, by the contract.
    let (target, properties) = unsafe { (out(target)?, properties.as_ref()) };
    let requested = travelling(properties.ok_or(CUresult::ERROR_INVALID_VALUE)?)?;
    let reply = shim()?.session.call(0, &kdMemoryGranularity { option, properties: &requested })?;
    target.write(reply.granularity as usize);
    Ok(())
}

/// Returns the properties of a block's creation.
///
/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn properties(
    target: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    target.write(allocation(handle)?.properties());
    Ok(())
}

/// Returns a handle of the block mapped at an address, which then needs one more release.
///
/// # Safety
///
/// `target` is null or writable.
pub(crate) unsafe fn retain(target: *mut CUmemGenericAllocationHandle, address: *mut c_void) -> Result<(), CUresult> {
    // SAFETY: null or writable, by the contract.
    let target = unsafe { out(target) }?;
    let shim = shim()?;
    let state = VIRTUAL_MEMORY.lock();
    let (.., allocation) = state.mapped.find(address.addr() as u64).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    allocation.change(shim, |uses| uses.handles += 1)?;
    target.write(allocation.slot.handle as u64);
    Ok(())
}
