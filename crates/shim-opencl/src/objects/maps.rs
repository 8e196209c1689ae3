//! What a program has mapped of a memory object, and the memory that was lent to it for that.
#![expect(unsafe_code, reason = "maps and unmaps pages")]

use std::collections::HashMap;
use std::ptr;

use katydid_opencl_sys::Code;
use katydid_wire::opencl::extent::Extent;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::host::pending_reads::PENDING_READS;
use crate::host::rows::Rows;

/// Memory lent to the program: pages of their own, aligned as any element wants.
#[derive(Debug)]
pub(crate) struct MappedPages {
    pub(crate) start: usize,
    length: usize,
}

impl MappedPages {
    /// So many bytes of zeros.
    pub(crate) fn new(length: usize) -> Result<Self, Code> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags) };
        let start = start.map_err(|_| Code::MAP_FAILURE)?.expose_provenance();
        Ok(Self { start, length })
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        PENDING_READS.abandon_all(self.start, self.length);
        // SAFETY: mapped by `new`; the program has unmapped it, or its object is gone.
        let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.start), self.length) };
    }
}

/// What an unmap does.
#[derive(Debug)]
pub(crate) enum UnmapAction {
    /// Nothing, of a map for reading.
    Nothing,
    /// The form and the extent are written from the region.
    Written(u32, Extent),
    /// The worker does what there is to be done for a region of memory that it has too, which may have been written.
    Shared(Extent, bool),
}

/// One region that is mapped.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) back: UnmapAction,
    pub(crate) region: Rows,
    /// The number of the read that fills it ([`crate::host::pending_reads`]), if no thread has waited for that; else 0.
    pub(crate) landing: u64,
    /// Kept until it is unmapped; none where the memory is the whole object's or the program's own.
    pub(crate) _pages: Option<MappedPages>,
}

/// What is mapped of an object.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// By address; a region may be mapped again.
    regions: HashMap<usize, Vec<Map>>,
    /// The whole buffer's memory, so that maps of one byte agree about it.
    whole: Option<MappedPages>,
}

impl Maps {
    /// Regions that are mapped.
    pub(crate) fn count(&self) -> u32 {
        self.regions.values().map(|maps| maps.len() as u32).sum()
    }

    /// The address of the whole buffer's memory.
    pub(crate) fn whole(&mut self, size: u64) -> Result<usize, Code> {
        if self.whole.is_none() {
            self.whole = Some(MappedPages::new(size as usize)?);
        }
        Ok(self.whole.as_ref().map_or(0, |pages| pages.start))
    }

    /// Notes a region that was mapped.
    pub(crate) fn add(&mut self, map: Map) {
        self.regions.entry(map.region.start).or_default().push(map);
    }

    /// The region at an address that was mapped last, which is mapped no more.
    pub(crate) fn take(&mut self, address: usize) -> Option<Map> {
        let maps = self.regions.get_mut(&address)?;
        let map = maps.pop();
        if maps.is_empty() {
            self.regions.remove(&address);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_counted_until_each_is_unmapped() {
        let mut maps = Maps::default();
        let whole = maps.whole(100).unwrap();
        assert_eq!(maps.whole(100), Ok(whole));
        for _ in 0..2 {
            maps.add(Map { back: UnmapAction::Nothing, region: Rows::run(whole, 100), landing: 0, _pages: None });
        }
        assert_eq!(maps.count(), 2);
        assert!(maps.take(whole).is_some() && maps.take(whole).is_some() && maps.take(whole).is_none());
        assert_eq!(maps.count(), 0);
    }
}
