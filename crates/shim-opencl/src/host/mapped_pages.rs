//! Pages that are lent to the program for what it maps.
//!
//! Fresh pages cost more than the copies that fill them. So some that the program has given back are kept for other maps.
#![expect(unsafe_code, reason = "maps and unmaps pages")]

use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use katydid_opencl_sys::Code;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::host::pending_reads::PENDING_READS;

/// Unit of lengths, bytes.
const PAGE_BYTES: usize = 4096;
/// Most bytes that are kept in all, and of one region.
const MAX_KEPT_BYTES: usize = 64 << 20;
const MAX_KEPT_REGION_BYTES: usize = 16 << 20;

/// Memory lent to the program: pages of their own, aligned as any element wants.
#[derive(Debug)]
pub(crate) struct MappedPages {
    pub(crate) start: usize,
    /// Whole pages, at most twice as many bytes as are needed.
    length: usize,
}

/// What the program has given back.
pub(crate) static KEPT_PAGES: KeptPages = KeptPages { regions: Mutex::new(Vec::new()) };

/// Regions that no map has, the oldest first: start and length.
pub(crate) struct KeptPages {
    regions: Mutex<Vec<(usize, usize)>>,
}

impl KeptPages {
    fn lock(&self) -> MutexGuard<'_, Vec<(usize, usize)>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The region given back last that has room for so many bytes, and is not much larger.
    fn take(&self, length: usize) -> Option<(usize, usize)> {
        let mut regions = self.lock();
        let fits = |region: &(usize, usize)| (length..=length.saturating_mul(2)).contains(&region.1);
        let at = regions.iter().rposition(fits)?;
        Some(regions.remove(at))
    }

    /// Keeps a region, and lets go of the oldest ones beyond the bound.
    fn put(&self, region: (usize, usize)) {
        if region.1 > MAX_KEPT_REGION_BYTES {
            return unmap(region);
        }
        let mut regions = self.lock();
        regions.push(region);
        let mut all: usize = regions.iter().map(|region| region.1).sum();
        while all > MAX_KEPT_BYTES {
            let oldest = regions.remove(0);
            all -= oldest.1;
            unmap(oldest);
        }
    }

    /// Gives all of it back to the system: it need not be in the program's dump. Not while another thread is at work with it, for
    /// which no thread waits here.
    pub(crate) fn trim(&self) {
        if let Ok(mut regions) = self.regions.try_lock() {
            regions.drain(..).for_each(unmap);
        }
    }
}

fn unmap((start, length): (usize, usize)) {
    // SAFETY: mapped by `MappedPages::new`; the program has unmapped it, or its object is gone.
    let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(start), length) };
}

impl MappedPages {
    /// So many bytes of zeros, or of what was mapped before.
    pub(crate) fn new(length: usize) -> Result<Self, Code> {
        let length = length.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or(Code::MAP_FAILURE)?;
        if let Some((start, length)) = KEPT_PAGES.take(length) {
            return Ok(Self { start, length });
        }
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
        KEPT_PAGES.put((self.start, self.length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_for_maps_of_about_their_size_up_to_a_bound() {
        let kept = KeptPages { regions: Mutex::new(Vec::new()) };
        let region = |length: usize| {
            let pages = std::mem::ManuallyDrop::new(MappedPages::new(length).unwrap());
            (pages.start, pages.length)
        };
        let (small, large) = (region(3 * PAGE_BYTES - 5), region(MAX_KEPT_REGION_BYTES));
        assert_eq!(small.1, 3 * PAGE_BYTES);
        kept.put(small);
        kept.put(large);
        assert_eq!([4, 1].map(|pages| kept.take(pages * PAGE_BYTES)), [None, None]);
        assert_eq!((kept.take(2 * PAGE_BYTES), kept.take(2 * PAGE_BYTES)), (Some(small), None));
        kept.put(region(MAX_KEPT_REGION_BYTES + 1));
        assert_eq!(kept.lock().len(), 1, "one was too large");
        let others: Vec<_> = (0..4).map(|_| region(MAX_KEPT_REGION_BYTES)).collect();
        others.iter().for_each(|other| kept.put(*other));
        assert_eq!(*kept.lock(), others, "the oldest is gone");
        kept.trim();
        assert!(kept.lock().is_empty());
    }
}
