//! What every address of the program's GPU memory belongs to.
//!
//! Copies choose their path by it, range checks use it, and pointer attributes come from it, without a message to the worker. A
//! region is as long as the program requested, so the byte after its end belongs to nothing, even where the block behind it is
//! longer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use katydid_arena::RangeMap;

/// The kind of memory in a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// Device memory from its arena.
    Device,
    /// A variable of a module. It lives as long as the module and cannot be freed.
    Global {
        /// The module's or library's handle.
        owner: usize,
    },
    /// Device memory that the program mapped into addresses it reserved.
    Mapped,
    /// Device memory from a pool.
    Pooled {
        /// Handle of the pool (`CUmemoryPool`).
        pool: usize,
    },
    /// Pinned host memory from a pool in the pinned arena.
    HostPooled {
        /// Handle of the pool (`CUmemoryPool`).
        pool: usize,
    },
    /// Memory that the program and the GPU share, from the pinned arena.
    Managed,
    /// Managed memory from a pool.
    ManagedPooled {
        /// Handle of the pool (`CUmemoryPool`).
        pool: usize,
    },
    /// A variable of a module in memory that the program and the GPU share, at the address that the worker's driver chose.
    Shared {
        /// The module's or library's handle.
        owner: usize,
    },
    /// Host memory that the program mapped into addresses it reserved, and made accessible to the host.
    HostMapped,
    /// Pinned host memory, from the pinned arena.
    Host {
        /// Flags given to `cuMemHostAlloc`, with the bits that the driver adds.
        flags: u32,
    },
    /// The program's own memory that it registered. It stays where it is.
    Registered {
        /// Flags given to `cuMemHostRegister`, with the bits that the driver adds.
        flags: u32,
    },
}

/// A contiguous range of the program's GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address of the region.
    pub start: u64,
    /// Bytes, as the program requested.
    pub size: u64,
    /// The kind of memory.
    pub kind: RegionKind,
    /// Ordinal of the device in the program.
    pub device: u32,
    /// Handle of the context that it was made in.
    pub context: usize,
    /// A number that no other region of the process has had.
    pub id: u64,
}

impl Region {
    /// Returns whether the program's processor can access it.
    pub fn is_host(&self) -> bool {
        self.is_managed() || self.is_pinned() || self.is_registered()
    }

    /// Returns whether it is host memory from the pinned arena.
    pub fn is_pinned(&self) -> bool {
        matches!(self.kind, RegionKind::Host { .. } | RegionKind::HostPooled { .. })
    }

    /// Returns the handle of its pool, if it came from one.
    pub fn pool(&self) -> Option<usize> {
        match self.kind {
            RegionKind::Pooled { pool } | RegionKind::HostPooled { pool } | RegionKind::ManagedPooled { pool } => {
                Some(pool)
            }
            _ => None,
        }
    }

    /// Returns whether program and GPU use it at one address without copies.
    pub fn is_managed(&self) -> bool {
        self.is_managed_block() || matches!(self.kind, RegionKind::Shared { .. } | RegionKind::HostMapped)
    }

    /// Returns whether it is such memory from the pinned arena.
    pub fn is_managed_block(&self) -> bool {
        matches!(self.kind, RegionKind::Managed | RegionKind::ManagedPooled { .. })
    }

    /// Returns whether it is a variable of this module or library.
    pub fn is_variable_of(&self, module: usize) -> bool {
        matches!(self.kind, RegionKind::Global { owner } | RegionKind::Shared { owner } if owner == module)
    }

    /// Returns whether it is the program's own memory.
    pub fn is_registered(&self) -> bool {
        matches!(self.kind, RegionKind::Registered { .. })
    }

    /// Returns whether `size` bytes from `address`, which lies in the region, stay inside it.
    pub fn holds(&self, address: u64, size: u64) -> bool {
        size <= self.size - (address - self.start)
    }
}

/// All regions of the process.
#[derive(Debug, Default)]
pub struct Regions {
    map: RwLock<RangeMap<Region>>,
    ids: AtomicU64,
}

impl Regions {
    /// Adds a region. Returns false if it overlaps another one, which only a fault of Katydid could cause.
    pub fn insert(&self, start: u64, size: u64, kind: RegionKind, device: u32, context: usize) -> bool {
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let region = Region { start, size, kind, device, context, id };
        self.map.write().unwrap_or_else(PoisonError::into_inner).insert(start, size, region).is_ok()
    }

    /// Returns the region that contains an address.
    pub fn find(&self, address: u64) -> Option<Region> {
        self.map.read().unwrap_or_else(PoisonError::into_inner).find(address).map(|(.., region)| *region)
    }

    /// Returns whether adjacent mappings fill `size` bytes from `address`: the GPU treats them as one.
    pub fn is_mapped(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else { return false };
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut at = address;
        while at < end {
            match map.find(at) {
                Some((start, length, region)) if region.kind == RegionKind::Mapped => at = start + length,
                _ => return false,
            }
        }
        true
    }

    /// Removes the region that starts at exactly this address, if `is_match` returns true for it.
    pub fn remove(&self, start: u64, is_match: impl FnOnce(&Region) -> bool) -> Option<Region> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let (first, _, region) = map.find(start)?;
        if first != start || !is_match(region) {
            return None;
        }
        map.remove(start).map(|(_, region)| region)
    }

    /// Returns every region that `is_match` selects.
    pub fn matching(&self, is_match: impl Fn(&Region) -> bool) -> Vec<Region> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.iter().map(|(.., region)| *region).filter(|region| is_match(region)).collect()
    }

    /// Removes every region that `gone` selects. Returns them.
    pub fn remove_all(&self, gone: impl Fn(&Region) -> bool) -> Vec<Region> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let leaving: Vec<_> = map.iter().map(|(.., region)| *region).filter(|region| gone(region)).collect();
        for region in &leaving {
            map.remove(region.start);
        }
        leaving
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_ends_where_the_program_asked() {
        let regions = Regions::default();
        assert!(regions.insert(0x1000, 1000, RegionKind::Device, 0, 7));
        let region = regions.find(0x1000 + 999).unwrap();
        assert!(region.holds(0x1000, 1000) && !region.holds(0x1000, 1001) && !region.holds(0x1001, 1000));
        assert_eq!(regions.find(0x1000 + 1000), None);
        assert_eq!(regions.find(0xfff), None);
    }

    #[test]
    fn only_the_start_removes_and_only_when_wanted() {
        let regions = Regions::default();
        regions.insert(0x1000, 16, RegionKind::Host { flags: 3 }, 0, 7);
        assert!(regions.remove(0x1008, |_| true).is_none());
        assert!(regions.remove(0x1000, |region| !region.is_host()).is_none());
        assert!(regions.remove(0x1000, Region::is_host).is_some());
        assert!(regions.remove(0x1000, Region::is_host).is_none());
    }

    #[test]
    fn neighbouring_mappings_are_one() {
        let regions = Regions::default();
        regions.insert(0x1000, 0x1000, RegionKind::Mapped, 0, 0);
        regions.insert(0x2000, 0x1000, RegionKind::Mapped, 0, 0);
        regions.insert(0x3000, 0x1000, RegionKind::Device, 0, 7);
        assert!(regions.is_mapped(0x1800, 0x1800));
        assert!(!regions.is_mapped(0x1800, 0x1801) && !regions.is_mapped(0x800, 0x1000));
        assert!(!regions.is_mapped(u64::MAX, 2));
    }

    #[test]
    fn every_region_has_a_number_of_its_own() {
        let regions = Regions::default();
        regions.insert(0x1000, 16, RegionKind::Device, 0, 7);
        let first = regions.remove(0x1000, |_| true).unwrap().id;
        regions.insert(0x1000, 16, RegionKind::Device, 0, 7);
        assert_ne!(regions.find(0x1000).unwrap().id, first);
    }

    #[test]
    fn regions_of_one_owner_are_removed_together() {
        let regions = Regions::default();
        regions.insert(0x1000, 16, RegionKind::Global { owner: 1 }, 0, 7);
        regions.insert(0x2000, 16, RegionKind::Global { owner: 2 }, 0, 7);
        let gone = regions.remove_all(|region| region.kind == RegionKind::Global { owner: 1 });
        assert_eq!(gone.len(), 1);
        assert!(regions.find(0x2000).is_some());
    }
}
