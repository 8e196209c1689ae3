//! Virtual memory management: reserved addresses, and blocks mapped into them.
//!
//! A mapping is a range of the space like any other, without access until it is granted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_cuda_sys::{CUmemAccessDesc, CUresult, access_flags};
use katydid_driver_rules::memory::{self as rules, GRANULARITY_BYTES, is_host};

use crate::ffi::Outcome;
use crate::memory::pages::{self, Protection, Range};
use crate::memory::physical::{self, Block};
use crate::memory::space::{self, Access, RangeKind, Region};
use crate::process::device;
use crate::process::settings::MAX_SOFT_DEVICES;

/// A reservation and the blocks mapped into it, by address.
struct Reservation {
    /// Addresses that the reservation holds.
    range: Range,
    /// The block that backs each mapping, and the offset in the block of its first byte.
    mapped: BTreeMap<u64, (Arc<Block>, u64)>,
    /// Mappings of the host's memory that its processors may use.
    open: BTreeMap<u64, Access>,
}

/// Reserved address ranges, by their first address.
type Reservations = BTreeMap<u64, Reservation>;

/// The reservations of this process.
static RESERVATIONS: Mutex<Reservations> = Mutex::new(BTreeMap::new());

/// Locks the reservations: only one thread maps or unmaps at a time.
fn reservations() -> MutexGuard<'static, Reservations> {
    RESERVATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the reservation that holds all of `start..start + size`.
fn holding(reservations: &mut Reservations, start: u64, size: u64) -> Outcome<&mut Reservation> {
    let end = start.checked_add(size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let last_before = reservations.range_mut(..=start).next_back().map(|(_, reservation)| reservation);
    let inside = last_before.filter(|it| end <= it.range.start() + it.range.size());
    inside.ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// `cuMemAddressReserve`: at `address` if that is free (0: no request), else anywhere.
pub(crate) fn reserve(size: u64, align: u64, address: u64) -> Outcome<u64> {
    let align = rules::reservation(size, align, address, 0)?;
    let is_inside = (address != 0 && address.is_multiple_of(align))
        .then(|| Range::at(address, size, Protection::None).ok())
        .flatten();
    let range = match is_inside {
        Some(range) => range,
        None => Range::anywhere(size, align, Protection::None).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?,
    };
    let start = range.start();
    space::write().reserve(start, start + size);
    reservations().insert(start, Reservation { range, mapped: BTreeMap::new(), open: BTreeMap::new() });
    Ok(start)
}

/// `cuMemAddressFree` of a whole reservation without mappings.
pub(crate) fn unreserve(start: u64, size: u64) -> Outcome {
    let mut reserved = reservations();
    let reservation = reserved.get(&start).filter(|it| it.range.size() == size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    if !reservation.mapped.is_empty() {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    space::write().unreserve(start);
    reserved.remove(&start);
    Ok(())
}

/// `cuMemMap`: maps `size` bytes of a block from `offset` on. Tile pools have no addresses (seen on an H200, driver 580).
pub(crate) fn map(start: u64, size: u64, offset: u64, handle: u64) -> Outcome {
    let block = physical::get(handle)?;
    if block.is_tiles {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    rules::check_mapping(size, offset, block.size)?;
    if [start, size, offset].iter().any(|number| !number.is_multiple_of(GRANULARITY_BYTES)) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let mut reserved = reservations();
    let reservation = holding(&mut reserved, start, size)?;
    if space::read().overlaps(start, size) {
        return Err(CUresult::ERROR_INVALID_VALUE);
    }
    let (file, base) = block.file()?;
    reservation.range.attach(start, size, file, base + offset).map_err(|_| CUresult::ERROR_OUT_OF_MEMORY)?;
    let kind = RangeKind::Mapped([Access::None; MAX_SOFT_DEVICES]);
    space::write().insert(Region::new(start, size, kind, block.device.ordinal, 0));
    reservation.mapped.insert(start, (block, offset));
    Ok(())
}

/// `cuMemUnmap` of whole mappings. Waits for operations that are touching memory.
pub(crate) fn unmap(start: u64, size: u64) -> Outcome {
    let mut reserved = reservations();
    let reservation = holding(&mut reserved, start, size)?;
    let tiles = space::read().tiles(start, size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    for tile in &tiles {
        space::write().remove(tile.start);
    }
    space::quiet();
    reservation.range.detach(start, size).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
    for tile in &tiles {
        reservation.mapped.remove(&tile.start);
        reservation.open.remove(&tile.start);
    }
    Ok(())
}

/// `cuMemSetAccess` over whole mappings.
pub(crate) fn set_access(start: u64, size: u64, grants: &[CUmemAccessDesc]) -> Outcome {
    let grants = grants.iter().map(grant).collect::<Outcome<Vec<_>>>()?;
    let mut all = reservations();
    let reservation = holding(&mut all, start, size)?;
    let tiles = space::read().tiles(start, size).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let names_host = grants.iter().any(|(location, _)| location.is_none());
    let is_hosts = |tile: &Region| {
        let mapped = reservation.mapped.get(&tile.start);
        mapped.is_some_and(|(block, _)| is_host(block.location))
    };
    if names_host && !tiles.iter().all(is_hosts) {
        return Err(CUresult::ERROR_NOT_SUPPORTED);
    }
    for tile in tiles {
        let RangeKind::Mapped(before) = tile.kind else { return Err(CUresult::ERROR_INVALID_VALUE) };
        let (mut after, host_before) = (before, reservation.open.get(&tile.start).copied().unwrap_or(Access::None));
        let mut host = host_before;
        grants.iter().for_each(|(location, granted)| match location {
            Some(device) => after[*device] = *granted,
            None => host = *granted,
        });
        reservation.open.insert(tile.start, host);
        let protect = || reservation.range.protect(tile.start, tile.size, protection(widest(&after).max(host)));
        // Pages become accessible before the map lists them, and inaccessible only after all readers of the map are done.
        if widest(&after).max(host) >= widest(&before).max(host_before) {
            protect().map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
            space::write().set_kind(tile.start, RangeKind::Mapped(after));
        } else {
            space::write().set_kind(tile.start, RangeKind::Mapped(after));
            space::quiet();
            protect().map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
        }
    }
    Ok(())
}

/// Returns the widest access of any device.
fn widest(access: &[Access]) -> Access {
    access.iter().copied().max().unwrap_or(Access::None)
}

/// Returns the page protection for the widest access of any device.
fn protection(access: Access) -> Protection {
    match access {
        Access::None => Protection::None,
        Access::Read => Protection::Read,
        Access::ReadWrite => Protection::ReadWrite,
    }
}

/// Returns a grant as the device (`None` for the host) and its access.
fn grant(description: &CUmemAccessDesc) -> Outcome<(Option<usize>, Access)> {
    let (location, device) = physical::located(description.location)?;
    let access = match description.flags {
        access_flags::NONE => Access::None,
        access_flags::READ => Access::Read,
        access_flags::READ_WRITE => Access::ReadWrite,
        _ => return Err(CUresult::ERROR_INVALID_VALUE),
    };
    Ok(((!is_host(location)).then_some(device.ordinal as usize), access))
}

/// `cuMemGetAccess` of the host.
pub(crate) fn host_access(address: u64) -> Outcome<u32> {
    let region = space::find(address).filter(|region| matches!(region.kind, RangeKind::Mapped(_)));
    let region = region.ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let mut all = reservations();
    let reservation = holding(&mut all, region.start, region.size)?;
    Ok(flags_of(reservation.open.get(&region.start).copied().unwrap_or(Access::None)))
}

/// Returns the flags of `cuMemGetAccess`.
fn flags_of(access: Access) -> u32 {
    match access {
        Access::None => access_flags::NONE,
        Access::Read => access_flags::READ,
        Access::ReadWrite => access_flags::READ_WRITE,
    }
}

/// `cuMemGetAccess`: returns the access of `device` to `address`.
pub(crate) fn access(address: u64, device: i32) -> Outcome<u32> {
    let device = device::get(device)?;
    match space::find(address).map(|region| region.kind) {
        Some(RangeKind::Mapped(access)) => Ok(flags_of(access[device.ordinal as usize])),
        _ => Err(CUresult::ERROR_INVALID_VALUE),
    }
}

/// Returns the block mapped at `address`.
pub(crate) fn block_at(address: u64) -> Outcome<Arc<Block>> {
    let region = space::find(address).ok_or(CUresult::ERROR_INVALID_VALUE)?;
    let mut all = reservations();
    let reservation = holding(&mut all, region.start, region.size)?;
    reservation.mapped.get(&region.start).map(|(block, _)| Arc::clone(block)).ok_or(CUresult::ERROR_INVALID_VALUE)
}

/// Returns how many of the `size` bytes from `address` on were never written. Such bytes are zeroes that take no memory, as long
/// as no thread reads them. Returns 0 if unknown.
pub(crate) fn untouched(address: u64, size: u64) -> u64 {
    let Some(region) = space::find(address).filter(|region| matches!(region.kind, RangeKind::Mapped(_))) else {
        return 0;
    };
    let mut all = reservations();
    let mapped = holding(&mut all, region.start, region.size).map(|reservation| reservation.mapped.get(&region.start));
    let Ok(Some((block, offset))) = mapped else { return 0 };
    let (size, before) = (size.min(region.end() - address), address - region.start);
    let hole = block.file().map(|(file, base)| pages::hole(file, base + offset + before));
    hole.map_or(0, |hole| hole.min(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    use katydid_cuda_sys::{CUmemAllocationProp, CUmemLocation, allocation_type, location_type};

    fn on_device_0() -> CUmemLocation {
        CUmemLocation { type_: location_type::DEVICE, id: 0 }
    }

    fn block() -> u64 {
        let properties =
            CUmemAllocationProp { type_: allocation_type::PINNED, location: on_device_0(), ..Default::default() };
        physical::create(GRANULARITY_BYTES, &properties).unwrap().handle as u64
    }

    #[test]
    fn a_fixed_address_is_honoured_and_a_taken_one_is_not() {
        let address = 0x2300_0000_0000;
        assert_eq!(reserve(1 << 40, 0, address), Ok(address));
        let other = reserve(GRANULARITY_BYTES, 0, address).unwrap();
        assert_ne!(other, address);
        assert_eq!(unreserve(address, GRANULARITY_BYTES), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!((unreserve(address, 1 << 40), unreserve(other, GRANULARITY_BYTES)), (Ok(()), Ok(())));
    }

    #[test]
    fn a_mapping_is_closed_until_access_is_granted_and_gone_once_unmapped() {
        let start = reserve(2 * GRANULARITY_BYTES, 0, 0).unwrap();
        let handle = block();
        assert_eq!(map(start, GRANULARITY_BYTES, 0, handle), Ok(()));
        assert_eq!(map(start, GRANULARITY_BYTES, 0, handle), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(access(start, 0), Ok(access_flags::NONE));
        assert!(!space::read().allows(start, 1, Access::Read, 0, 0));
        let grants = [CUmemAccessDesc { location: on_device_0(), flags: access_flags::READ_WRITE }];
        assert_eq!(set_access(start, GRANULARITY_BYTES, &grants), Ok(()));
        assert!(space::read().allows(start, GRANULARITY_BYTES, Access::ReadWrite, 0, 0));
        assert_eq!(set_access(start, 2 * GRANULARITY_BYTES, &grants), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(physical::release(handle), Ok(()));
        assert_eq!(unreserve(start, 2 * GRANULARITY_BYTES), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(unmap(start, GRANULARITY_BYTES), Ok(()));
        assert_eq!(unmap(start, GRANULARITY_BYTES), Err(CUresult::ERROR_INVALID_VALUE));
        assert_eq!(unreserve(start, 2 * GRANULARITY_BYTES), Ok(()));
    }

    #[test]
    fn untouched_bytes_of_a_mapping_are_counted() {
        let (start, handle) = (reserve(4 * GRANULARITY_BYTES, 0, 0).unwrap(), block());
        assert_eq!((untouched(start, 8), map(start, GRANULARITY_BYTES, 0, handle)), (0, Ok(())));
        let grants = [CUmemAccessDesc { location: on_device_0(), flags: access_flags::READ_WRITE }];
        assert_eq!(set_access(start, GRANULARITY_BYTES, &grants), Ok(()));
        assert_eq!((untouched(start, 4 * GRANULARITY_BYTES), untouched(start + 5, 100)), (GRANULARITY_BYTES, 100));
        let block = block_at(start).unwrap();
        let (file, base) = block.file().unwrap();
        std::fs::File::from(file.try_clone().unwrap()).write_all_at(&[1], base + 10_000).unwrap();
        assert_eq!((untouched(start, GRANULARITY_BYTES), untouched(start + 8192, 100)), (8192, 0));
        assert_eq!(untouched(start + 12_288, GRANULARITY_BYTES), GRANULARITY_BYTES - 12_288);
        drop(block);
        assert_eq!((physical::release(handle), unmap(start, GRANULARITY_BYTES)), (Ok(()), Ok(())));
        assert_eq!(unreserve(start, 4 * GRANULARITY_BYTES), Ok(()));
    }
}
