//! The address space: every range that a device may touch, its owner, and the permitted accesses.
//!
//! Copies and kernels look every address up here, and nowhere else. Memory is removed in two steps: its range leaves the map,
//! then [`quiet`] waits until no operation uses the result of an earlier look-up. So an operation holds [`working`] while it
//! touches memory, and never while it waits for something else.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use katydid_cuda_sys::CUresult;

use crate::ffi::Outcome;
use crate::memory::heap::HEAP_GRANULE_BYTES;
use crate::memory::pages::{PAGE_BYTES, memory_file};
use crate::process::settings::MAX_SOFT_DEVICES;

/// Under unified addressing, copies and fills reach the memory of every device. Only kernels need peer access.
pub(crate) const ALL_PEERS: u32 = u32::MAX;

/// Permitted accesses to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Access {
    /// None: the range is mapped, but access has not been granted.
    None,
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// Kind of memory in a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeKind {
    /// Memory of `cuMemAlloc`, or a variable of a module.
    Device,
    /// Memory of another process, opened by a context of the device with this ordinal.
    Opened(i32),
    /// A heap of device code: kernels of its context reach it, the host API does not.
    Heap,
    /// Texels of an array: copies and the texture unit reach them, loads and stores of kernels do not.
    Array,
    /// A mapping of physical memory into reserved addresses, with each device's access.
    Mapped([Access; MAX_SOFT_DEVICES]),
    /// Page-locked memory of `cuMemHostAlloc`, with its flags.
    Pinned(u32),
    /// Registered memory of the program, with its flags.
    Registered(u32),
    /// Memory that host and devices share.
    Managed,
    /// Memory of a pool.
    Pooled {
        /// Handle of the pool.
        pool: usize,
        /// A bit for each device that may use it.
        devices: u32,
        /// Host and devices share it.
        managed: bool,
    },
}

/// A range of addresses that devices may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Address of the first byte.
    pub(crate) start: u64,
    /// Requested size in bytes.
    pub(crate) size: u64,
    /// Kind of memory in the range.
    pub(crate) kind: RangeKind,
    /// Ordinal of its device; for host memory, that of its context.
    pub(crate) device: i32,
    /// Handle of its context; 0 for mappings, which belong to none.
    pub(crate) context: usize,
    /// Id that no other range ever had.
    pub(crate) id: u64,
    /// Freed in a stream: calls do not find it any more, but earlier work still uses it.
    pub(crate) leaving: bool,
}

impl Region {
    /// Returns a range with a new id.
    pub(crate) fn new(start: u64, size: u64, kind: RangeKind, device: i32, context: usize) -> Self {
        static NEXT_REGION_ID: AtomicU64 = AtomicU64::new(1);
        Self { start, size, kind, device, context, id: NEXT_REGION_ID.fetch_add(1, Ordering::Relaxed), leaving: false }
    }

    /// One past the last address.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.size
    }

    /// Returns whether it is memory of the host.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, RangeKind::Pinned(_) | RangeKind::Registered(_))
    }

    /// Returns whether the program's processor may use it.
    pub(crate) fn is_for_host(&self) -> bool {
        self.is_host() || self.is_managed()
    }

    /// Returns whether host and devices share it.
    pub(crate) fn is_managed(&self) -> bool {
        matches!(self.kind, RangeKind::Managed | RangeKind::Pooled { managed: true, .. })
    }

    /// Returns the permitted accesses of `device`. Each bit of `peers` stands for a device whose memory it reaches.
    pub(crate) fn access(&self, device: i32, peers: u32) -> Access {
        match self.kind {
            RangeKind::Mapped(access) => access.get(device as usize).copied().unwrap_or(Access::None),
            RangeKind::Heap => Access::None,
            // The device that opened the handle gets access (`CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`).
            RangeKind::Opened(by) if by == device => Access::ReadWrite,
            RangeKind::Device | RangeKind::Opened(_) if self.device != device && peers & (1 << self.device) == 0 => {
                Access::None
            }
            RangeKind::Pooled { devices, .. } if devices & (1 << device) == 0 && peers != ALL_PEERS => Access::None,
            _ => Access::ReadWrite,
        }
    }

    /// Returns one past the last address that device code may touch. As on a GPU, the rest of the granule belongs to the range.
    pub(crate) fn reach(&self) -> u64 {
        match self.kind {
            RangeKind::Device | RangeKind::Opened(_) | RangeKind::Managed | RangeKind::Pooled { .. } => {
                self.end().next_multiple_of(HEAP_GRANULE_BYTES)
            }
            _ => self.end(),
        }
    }
}

/// A set of ranges that do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Space {
    regions: BTreeMap<u64, Region>,
    /// Addresses (start to end) that are reserved for mappings. Outside of regions, no access is allowed there.
    reserved: BTreeMap<u64, u64>,
    /// For the start of a range: a file that is open as long as the range exists. Other processes can see it.
    lifetime_files: BTreeMap<u64, OwnedFd>,
}

impl Space {
    /// Returns an empty space, at compile time.
    pub(crate) const fn new() -> Self {
        Self { regions: BTreeMap::new(), reserved: BTreeMap::new(), lifetime_files: BTreeMap::new() }
    }

    /// Notes that `start..end` is reserved.
    pub(crate) fn reserve(&mut self, start: u64, end: u64) {
        self.reserved.insert(start, end);
    }

    /// Removes a reservation of addresses.
    pub(crate) fn unreserve(&mut self, start: u64) {
        self.reserved.remove(&start);
    }

    /// Returns whether `start..start + size` touches neither a range nor a reservation: memory that only the program knows.
    pub(crate) fn is_foreign(&self, start: u64, size: u64) -> bool {
        let Some(end) = start.checked_add(size) else { return false };
        let claimed = self.reserved.range(..end).next_back().is_some_and(|(_, &reserved)| reserved > start);
        !claimed && !self.overlaps(start, size)
    }

    /// Adds a range. Returns false if it overlaps another.
    pub(crate) fn insert(&mut self, region: Region) -> bool {
        let free = !self.overlaps(region.start, region.size);
        if free {
            self.regions.insert(region.start, region);
        }
        free
    }

    /// Removes the range that starts at `start`.
    pub(crate) fn remove(&mut self, start: u64) -> Option<Region> {
        self.lifetime_files.remove(&start);
        self.regions.remove(&start)
    }

    /// Returns the file that is open as long as the range at `start` exists.
    pub(crate) fn lifetime_file(&mut self, start: u64) -> Outcome<&OwnedFd> {
        if !self.regions.contains_key(&start) {
            return Err(CUresult::ERROR_INVALID_VALUE);
        }
        match self.lifetime_files.entry(start) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(free) => {
                let file = memory_file(PAGE_BYTES).map_err(|_| CUresult::ERROR_OPERATING_SYSTEM)?;
                Ok(free.insert(file))
            }
        }
    }

    /// Returns the range that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.end()).then_some(region)
    }

    /// Returns the range whose granules hold `address`, for device code.
    pub(crate) fn find_reach(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.reach()).then_some(region)
    }

    /// Returns whether any range touches `start..start + size`.
    pub(crate) fn overlaps(&self, start: u64, size: u64) -> bool {
        self.overlapping(start, size).next().is_some()
    }

    /// Returns the ranges that touch `start..start + size`, the last one first.
    pub(crate) fn overlapping(&self, start: u64, size: u64) -> impl Iterator<Item = &Region> {
        let end = start.saturating_add(size);
        self.regions.range(..end).rev().map(|(_, region)| region).take_while(move |region| region.end() > start)
    }

    /// Returns the ranges that tile `start..start + size` exactly, or `None`.
    pub(crate) fn tiles(&self, start: u64, size: u64) -> Option<Vec<Region>> {
        let end = start.checked_add(size)?;
        let tiles: Vec<Region> = self.regions.range(start..end).map(|(_, region)| *region).collect();
        let mut at = start;
        for tile in &tiles {
            if tile.start != at {
                return None;
            }
            at = tile.end();
        }
        (at == end && size > 0).then_some(tiles)
    }

    /// Notes that the range at `start` was freed in a stream.
    pub(crate) fn leave(&mut self, start: u64) {
        if let Some(region) = self.regions.get_mut(&start) {
            region.leaving = true;
        }
    }

    /// Removes the range that starts at `start`, if it still has this id.
    pub(crate) fn remove_same(&mut self, start: u64, id: u64) -> Option<Region> {
        self.regions.get(&start).is_some_and(|region| region.id == id).then(|| self.remove(start)).flatten()
    }

    /// Replaces the range with the same start, which is leaving.
    pub(crate) fn replace(&mut self, region: Region) {
        self.regions.insert(region.start, region);
    }

    /// Sets which devices may use the memory of a pool.
    pub(crate) fn set_pool_access(&mut self, handle: usize, granted: u32) {
        for region in self.regions.values_mut() {
            if let RangeKind::Pooled { pool, devices, .. } = &mut region.kind
                && *pool == handle
            {
                *devices = granted;
            }
        }
    }

    /// Replaces the kind of the range that starts at `start`.
    pub(crate) fn set_kind(&mut self, start: u64, kind: RangeKind) {
        if let Some(region) = self.regions.get_mut(&start) {
            region.kind = kind;
        }
    }

    /// Returns all ranges that belong to a context.
    pub(crate) fn of_context(&self, context: usize) -> Vec<Region> {
        self.regions.values().filter(|region| region.context == context).copied().collect()
    }

    /// Returns whether a call can access all of `start..start + size`. Adjacent mappings count as one.
    pub(crate) fn allows(&self, start: u64, size: u64, access: Access, device: i32, peers: u32) -> bool {
        let end = start.saturating_add(size);
        self.spans(start, size, |at| {
            let region = self.find(at).filter(|region| !region.leaving && region.access(device, peers) >= access)?;
            let is_whole = end <= region.end() || matches!(region.kind, RangeKind::Mapped(_));
            is_whole.then_some(region.end())
        })
    }

    /// Returns whether submitted work can access the range at execution. Memory that is leaving is there until then, and reused
    /// memory counts up to its granule.
    pub(crate) fn still_allows(&self, start: u64, size: u64, access: Access, device: i32, peers: u32) -> bool {
        self.spans(start, size, |at| {
            let region = self.find_reach(at).filter(|region| region.access(device, peers) >= access)?;
            Some(region.reach())
        })
    }

    /// Returns how many of `bytes` bytes from `start` on code of `device` may read. Adjacent ranges count as one.
    pub(crate) fn readable(&self, start: u64, bytes: u64, device: i32, peers: u32) -> u64 {
        let end = start.saturating_add(bytes);
        let mut at = start;
        while at < end {
            let next = self.find_reach(at).filter(|region| region.access(device, peers) != Access::None);
            let Some(region) = next else { break };
            at = region.reach().min(end);
        }
        at - start
    }

    /// Returns whether adjacent ranges cover `start..start + size`. `next` returns the end of the range at an address.
    fn spans(&self, start: u64, size: u64, next: impl Fn(u64) -> Option<u64>) -> bool {
        let Some(end) = start.checked_add(size) else { return false };
        let mut at = start;
        while at < end {
            let Some(after) = next(at) else { return false };
            at = after;
        }
        true
    }
}

/// The address space of this process.
static ADDRESS_SPACE: RwLock<Space> = RwLock::new(Space::new());
/// Read by threads that touch memory, written by a thread that has removed a range. No thread may read it twice at a time: a
/// writer may be waiting in between.
static MEMORY_IN_USE: RwLock<()> = RwLock::new(());

/// Locks the map for reading.
pub(crate) fn read() -> RwLockReadGuard<'static, Space> {
    ADDRESS_SPACE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks the map for changes.
pub(crate) fn write() -> RwLockWriteGuard<'static, Space> {
    ADDRESS_SPACE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by an operation while it touches memory that it has looked up.
pub(crate) fn working() -> RwLockReadGuard<'static, ()> {
    MEMORY_IN_USE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a thread that moves memory to other pages: no operation touches memory meanwhile.
pub(crate) fn still() -> RwLockWriteGuard<'static, ()> {
    MEMORY_IN_USE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until every operation is done that may still use a removed range.
pub(crate) fn quiet() {
    drop(MEMORY_IN_USE.write().unwrap_or_else(PoisonError::into_inner));
}

/// Copies the range that holds `address`. A freed range does not count, whatever its stream has reached.
pub(crate) fn find(address: u64) -> Option<Region> {
    read().find(address).filter(|region| !region.leaving).copied()
}

/// Returns the range that starts at `start`; `INVALID_VALUE` if there is none.
pub(crate) fn starting_at(start: u64) -> Outcome<Region> {
    find(start).filter(|region| region.start == start).ok_or(CUresult::ERROR_INVALID_VALUE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(start: u64, size: u64, kind: RangeKind) -> Region {
        Region::new(start, size, kind, 0, 0)
    }

    fn granted(access: Access) -> RangeKind {
        let mut accesses = [Access::None; MAX_SOFT_DEVICES];
        accesses[0] = access;
        RangeKind::Mapped(accesses)
    }

    #[test]
    fn ranges_do_not_overlap_and_end_before_one_past() {
        let mut space = Space::new();
        assert!(space.insert(region(0x1000, 0x1000, RangeKind::Device)));
        assert!(!space.insert(region(0x1fff, 1, RangeKind::Device)));
        assert!(!space.insert(region(0x800, 0x801, RangeKind::Device)));
        assert!(space.insert(region(0x2000, 1, RangeKind::Pinned(0))));
        assert_eq!(space.find(0x1fff).map(|it| it.start), Some(0x1000));
        assert_eq!(space.find(0x2001), None);
        assert_eq!(space.remove(0x1000).map(|it| it.size), Some(0x1000));
        assert_eq!(space.find(0x1000), None);
    }

    #[test]
    fn access_spans_neighbours_but_not_holes_nor_what_was_not_granted() {
        let mut space = Space::new();
        space.insert(region(0x1000, 0x1000, granted(Access::ReadWrite)));
        space.insert(region(0x2000, 0x1000, granted(Access::Read)));
        space.insert(region(0x3000, 0x1000, granted(Access::None)));
        assert!(space.allows(0x1800, 0x1000, Access::Read, 0, 0));
        assert!(!space.allows(0x1800, 0x1000, Access::ReadWrite, 0, 0));
        assert!(!space.allows(0x2800, 0x1000, Access::Read, 0, 0));
        assert!(!space.allows(0x1000, 0x10, Access::Read, 1, 0));
        assert!(!space.allows(0x5000, 1, Access::Read, 0, 0));
        assert_eq!([0x2000, 0x1800, 0x1801].map(|bytes| space.readable(0x1800, bytes, 0, 0)), [0x1800, 0x1800, 0x1800]);
        assert_eq!([0x800, 0x900].map(|bytes| space.readable(0x1800, bytes, 0, 0)), [0x800, 0x900]);
        assert_eq!((space.readable(0x1800, 0x100, 1, 0), space.readable(0x5000, 1, 0, 0)), (0, 0));
    }

    #[test]
    fn memory_of_another_device_needs_peer_access() {
        let other = Region::new(0x1000, 0x100, RangeKind::Device, 1, 0);
        assert_eq!(other.access(0, 0), Access::None);
        assert_eq!(other.access(0, 1 << 1), Access::ReadWrite);
        assert_eq!(other.reach(), 0x1200);
    }

    #[test]
    fn memory_of_the_program_is_what_neither_range_nor_reservation_touches() {
        let mut space = Space::new();
        space.insert(region(0x1000, 0x1000, RangeKind::Device));
        space.reserve(0x8000, 0x9000);
        assert!(space.is_foreign(0x2000, 0x6000));
        assert!(!space.is_foreign(0x2000, 0x6001) && !space.is_foreign(0x1fff, 1) && !space.is_foreign(1, u64::MAX));
        space.unreserve(0x8000);
        assert!(space.is_foreign(0x8000, 0x1000));
    }

    #[test]
    fn tiles_must_fill_a_range_exactly() {
        let mut space = Space::new();
        space.insert(region(0x1000, 0x1000, RangeKind::Device));
        space.insert(region(0x2000, 0x1000, RangeKind::Device));
        assert_eq!(space.tiles(0x1000, 0x2000).map(|tiles| tiles.len()), Some(2));
        assert_eq!(space.tiles(0x1000, 0x1800), None);
        assert_eq!(space.tiles(0x1800, 0x800), None);
        assert_eq!(space.tiles(0x1000, 0), None);
    }
}
