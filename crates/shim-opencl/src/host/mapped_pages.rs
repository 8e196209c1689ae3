//! Pages that the program gets for regions that it maps.
//!
//! Fresh pages cost more than the copies that fill them. So some pages that the program has unmapped are kept for later maps.
//! They still show the old region: a map of the same box with unchanged contents finds its bytes in them.
#![expect(unsafe_code, reason = "maps and unmaps pages")]

use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::Code;
use katydid_wire::PAGE_BYTES;
use katydid_wire::opencl::transfer_extent::TransferExtent;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::host::contents::ContentsVersion;
use crate::host::pending_reads::PENDING_READS;

/// Most bytes that are kept, in total and per region.
const MAX_KEPT_BYTES: usize = 64 << 20;
const MAX_KEPT_REGION_BYTES: usize = 16 << 20;
/// Number of regions with known contents from which on one of them is reused for another map.
const MAX_SHOWING_REGIONS: usize = 16;

/// What pages show: a part of an object, by number, in a version of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) object: u64,
    pub(crate) version: ContentsVersion,
    pub(crate) extent: TransferExtent,
}

/// Memory for the program: separate pages, whose alignment suits any element.
#[derive(Debug)]
pub(crate) struct MappedPages {
    pub(crate) start: usize,
    /// Whole pages, at most twice as many bytes as needed.
    length: usize,
    /// What they show when they are returned, if that is known.
    pub(crate) shown: Option<Shown>,
}

/// Pages that the program has returned.
pub(crate) static RETURNED_PAGES: ReturnedPages = ReturnedPages { regions: Mutex::new(Vec::new()) };

/// Regions without a map, the oldest first.
pub(crate) struct ReturnedPages {
    regions: Mutex<Vec<ReturnedRegion>>,
}

/// Returned pages, and what they show.
#[derive(Debug, PartialEq, Eq)]
struct ReturnedRegion {
    start: usize,
    length: usize,
    shown: Option<Shown>,
}

impl ReturnedPages {
    fn lock(&self) -> MutexGuard<'_, Vec<ReturnedRegion>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the region that shows exactly this.
    fn take_showing(&self, shown: &Shown) -> Option<ReturnedRegion> {
        let mut regions = self.lock();
        let at = regions.iter().rposition(|region| region.shown.as_ref() == Some(shown))?;
        Some(regions.remove(at))
    }

    /// Takes a region that holds `length` bytes and is at most twice as large. It prefers the newest one that shows nothing.
    /// Otherwise it takes the oldest, if enough regions show something.
    fn take(&self, length: usize) -> Option<ReturnedRegion> {
        let mut regions = self.lock();
        let fits = |region: &ReturnedRegion| (length..=length.saturating_mul(2)).contains(&region.length);
        let are_many = || regions.iter().filter(|region| region.shown.is_some()).count() >= MAX_SHOWING_REGIONS;
        let free = regions.iter().rposition(|region| region.shown.is_none() && fits(region));
        let at = free.or_else(|| if are_many() { regions.iter().position(fits) } else { None })?;
        Some(regions.remove(at))
    }

    /// Keeps a region, and frees the oldest ones beyond the limit.
    fn put(&self, region: ReturnedRegion) {
        if region.length > MAX_KEPT_REGION_BYTES {
            return unmap(&region);
        }
        let mut regions = self.lock();
        regions.push(region);
        let mut total: usize = regions.iter().map(|region| region.length).sum();
        while total > MAX_KEPT_BYTES {
            let oldest = regions.remove(0);
            total -= oldest.length;
            unmap(&oldest);
        }
    }

    /// Forgets what pages show of an object that is gone: no map will ask for it.
    pub(crate) fn forget(&self, object: u64) {
        for region in self.lock().iter_mut() {
            region.shown.take_if(|shown| shown.object == object);
        }
    }

    /// Returns all regions to the system, which keeps them out of the program's dump. Does nothing while another thread uses the
    /// list: this thread never waits for it.
    pub(crate) fn trim(&self) {
        if let Ok(mut regions) = self.regions.try_lock() {
            regions.drain(..).for_each(|region| unmap(&region));
        }
    }
}

fn unmap(region: &ReturnedRegion) {
    // SAFETY: mapped by `MappedPages::new`; the program has unmapped it, or its object is gone.
    let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(region.start), region.length) };
}

impl MappedPages {
    /// Returns pages of `length` bytes: zeros, or an earlier region's bytes.
    pub(crate) fn new(length: usize) -> Result<Self, Code> {
        let length = length.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(Code::MAP_FAILURE)?;
        if let Some(ReturnedRegion { start, length, .. }) = RETURNED_PAGES.take(length) {
            return Ok(Self { start, length, shown: None });
        }
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags) };
        let start = start.map_err(|_| Code::MAP_FAILURE)?.expose_provenance();
        Ok(Self { start, length, shown: None })
    }

    /// Returns the pages that show exactly this, if they are kept.
    pub(crate) fn showing(shown: &Shown) -> Option<Self> {
        let ReturnedRegion { start, length, .. } = RETURNED_PAGES.take_showing(shown)?;
        Some(Self { start, length, shown: None })
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        PENDING_READS.abandon_all(self.start, self.length);
        RETURNED_PAGES.put(ReturnedRegion { start: self.start, length: self.length, shown: self.shown.take() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::contents::Contents;

    fn region(length: usize, shown: Option<Shown>) -> ReturnedRegion {
        let pages = std::mem::ManuallyDrop::new(MappedPages::new(length).unwrap());
        ReturnedRegion { start: pages.start, length: pages.length, shown }
    }

    #[test]
    fn pages_are_kept_for_maps_of_about_their_size_up_to_a_bound() {
        let returned = ReturnedPages { regions: Mutex::new(Vec::new()) };
        let (small, large) = (region(3 * PAGE_BYTES - 5, None), region(MAX_KEPT_REGION_BYTES, None));
        let start = small.start;
        assert_eq!(small.length, 3 * PAGE_BYTES);
        returned.put(small);
        returned.put(large);
        assert_eq!([4, 1].map(|pages| returned.take(pages * PAGE_BYTES)), [None, None]);
        assert_eq!(returned.take(2 * PAGE_BYTES).map(|region| region.start), Some(start));
        assert_eq!(returned.take(2 * PAGE_BYTES), None);
        returned.put(region(MAX_KEPT_REGION_BYTES + 1, None));
        assert_eq!(returned.lock().len(), 1, "one was too large");
        let regions: Vec<_> = (0..4).map(|_| region(MAX_KEPT_REGION_BYTES, None)).collect();
        let starts: Vec<_> = regions.iter().map(|other| other.start).collect();
        regions.into_iter().for_each(|other| returned.put(other));
        assert_eq!(returned.lock().iter().map(|region| region.start).collect::<Vec<_>>(), starts, "the oldest is gone");
        returned.trim();
        assert!(returned.lock().is_empty());
    }

    #[test]
    fn pages_that_show_something_are_found_by_it_and_taken_for_others_last() {
        let returned = ReturnedPages { regions: Mutex::new(Vec::new()) };
        let version = Contents::new(true).version(0).unwrap();
        let shown = |object: u64| Shown { object, version, extent: TransferExtent::run(0, 5) };
        let starts: Vec<_> = (1..=MAX_SHOWING_REGIONS as u64)
            .map(|object| {
                assert_eq!(returned.take(PAGE_BYTES), None, "{object}: there are few");
                let region = region(PAGE_BYTES, Some(shown(object)));
                let start = region.start;
                returned.put(region);
                start
            })
            .collect();
        let other = Shown { version: version.after_write(), ..shown(3) };
        assert_eq!((returned.take_showing(&other), returned.take_showing(&shown(0))), (None, None));
        returned.put(returned.take_showing(&shown(3)).unwrap());
        assert_eq!(returned.take(PAGE_BYTES).unwrap().start, starts[0], "the oldest of many");
        returned.forget(2);
        assert_eq!(returned.take(PAGE_BYTES).unwrap().start, starts[1], "its object is gone");
        returned.trim();
    }
}
