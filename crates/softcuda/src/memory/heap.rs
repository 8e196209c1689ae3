//! Allocations in a device's address range: first fit, lowest address first, coalescing.
//!
//! It only computes addresses and does not know the memory behind them. Lowest-first gives the same addresses in every run with
//! the same calls.

use std::collections::BTreeMap;

/// Allocations start and end at multiples of this, as those of `cuMemAlloc` in the real driver.
pub(crate) const HEAP_GRANULE_BYTES: u64 = 512;

/// Allocations of this size and above are aligned to 2 MiB.
const LARGE_ALLOCATION_BYTES: u64 = 2 << 20;

/// Free and used parts of one range.
#[derive(Debug)]
pub(crate) struct Heap {
    /// Free parts: start to end. Neighbours are always merged.
    free: BTreeMap<u64, u64>,
    /// Used parts: start to end.
    used: BTreeMap<u64, u64>,
    /// Parts start and end at multiples of this.
    granule: u64,
    /// Start and end of the whole range.
    range: (u64, u64),
}

impl Heap {
    /// Returns a heap over `start..end`, all free.
    pub(crate) fn new(start: u64, end: u64) -> Self {
        Self::with_granule(start, end, HEAP_GRANULE_BYTES)
    }

    /// Returns a heap over `start..end` whose allocations start at multiples of `granule`, a power of two.
    pub(crate) fn with_granule(start: u64, end: u64, granule: u64) -> Self {
        Self { free: BTreeMap::from([(start, end)]), used: BTreeMap::new(), granule, range: (start, end) }
    }

    /// Its start and end.
    pub(crate) fn range(&self) -> (u64, u64) {
        self.range
    }

    /// Returns the bytes that an allocation of `size` takes; `None` if an address cannot hold the number.
    pub(crate) fn cost(size: u64) -> Option<u64> {
        size.max(1).checked_next_multiple_of(HEAP_GRANULE_BYTES)
    }

    /// Returns whether an allocation touches `start..end`.
    pub(crate) fn uses(&self, start: u64, end: u64) -> bool {
        self.used.range(..end).next_back().is_some_and(|(_, &used)| used > start)
    }

    /// Allocates `size` bytes at the lowest multiple of [`HEAP_GRANULE_BYTES`], even for a large size.
    pub(crate) fn allocate_packed(&mut self, size: u64) -> Option<u64> {
        self.take(Self::cost(size)?, HEAP_GRANULE_BYTES)
    }

    /// Allocates `size` bytes at a multiple of `align` (a power of two).
    pub(crate) fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        let size = size.max(1).checked_next_multiple_of(self.granule)?;
        let large = size >= LARGE_ALLOCATION_BYTES && self.granule == HEAP_GRANULE_BYTES;
        self.take(size, align.max(if large { LARGE_ALLOCATION_BYTES } else { self.granule }))
    }

    /// Takes the first free part of exactly `size` bytes, whole granules, at a multiple of `align`.
    fn take(&mut self, size: u64, align: u64) -> Option<u64> {
        let (start, end, at) = self.free.iter().find_map(|(&start, &end)| {
            let at = start.checked_next_multiple_of(align)?;
            (at.checked_add(size)? <= end).then_some((start, end, at))
        })?;
        self.free.remove(&start);
        for (start, end) in [(start, at), (at + size, end)] {
            if start < end {
                self.free.insert(start, end);
            }
        }
        self.used.insert(at, at + size);
        Some(at)
    }

    /// Allocates the last `size` bytes that are free, at a multiple of the granule.
    pub(crate) fn allocate_last(&mut self, size: u64) -> Option<u64> {
        let size = size.max(1).checked_next_multiple_of(self.granule)?;
        let last = self.free.iter().rev().find(|&(&start, &end)| end - start >= size);
        let at = last.map(|(_, &end)| end - size)?;
        self.claim(at, at + size).then_some(at)
    }

    /// Allocates the first `size` free bytes after the middle of the range, or the first of all.
    pub(crate) fn allocate_amid(&mut self, size: u64) -> Option<u64> {
        let whole = size.max(1).checked_next_multiple_of(self.granule)?;
        let middle = (self.range.0 + (self.range.1 - self.range.0) / 2).next_multiple_of(self.granule);
        let later = self.free.iter().map(|(&start, &end)| (start.max(middle), end));
        let range =
            later.filter(|(start, _)| *start >= middle).find(|&(start, end)| start < end && end - start >= whole);
        match range {
            Some((at, _)) => self.claim(at, at + whole).then_some(at),
            None => self.allocate(size, 1),
        }
    }

    /// Allocates exactly `start..end`. Returns false if some of it is used, or if it does not fit this heap.
    pub(crate) fn claim(&mut self, start: u64, end: u64) -> bool {
        let around = self.free.range(..=start).next_back().map(|(&free, &limit)| (free, limit));
        let is_whole = start.is_multiple_of(self.granule) && end.is_multiple_of(self.granule) && start < end;
        let Some((free, limit)) = around.filter(|(_, limit)| is_whole && end <= *limit) else { return false };
        self.free.remove(&free);
        for (start, end) in [(free, start), (end, limit)] {
            if start < end {
                self.free.insert(start, end);
            }
        }
        self.used.insert(start, end);
        true
    }

    /// Returns start and end of the allocations, lowest first.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u64, u64)> {
        self.used.iter().map(|(start, end)| (*start, *end))
    }

    /// Frees the allocation that starts at `at`, and returns its size.
    pub(crate) fn free(&mut self, at: u64) -> Option<u64> {
        let end = self.used.remove(&at)?;
        let mut hole = (at, end);
        if let Some((&start, &preceding)) = self.free.range(..at).next_back()
            && preceding == at
        {
            self.free.remove(&start);
            hole.0 = start;
        }
        if let Some(after) = self.free.remove(&end) {
            hole.1 = after;
        }
        self.free.insert(hole.0, hole.1);
        Some(end - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_behind_the_middle_leave_the_others_where_they_are() {
        let mut heap = Heap::new(LARGE_ALLOCATION_BYTES, 2 * LARGE_ALLOCATION_BYTES);
        let middle = LARGE_ALLOCATION_BYTES + LARGE_ALLOCATION_BYTES / 2;
        assert_eq!((heap.allocate_amid(1000), heap.allocate(1, 1)), (Some(middle), Some(LARGE_ALLOCATION_BYTES)));
        assert_eq!((heap.allocate_amid(1), heap.free(middle)), (Some(middle + 1024), Some(1024)));
        assert_eq!(heap.allocate_amid(1024), Some(middle));
        assert_eq!(heap.allocate_amid(LARGE_ALLOCATION_BYTES / 2), None);
        assert_eq!(heap.allocate_amid(LARGE_ALLOCATION_BYTES / 2 - 1536), Some(middle + 1536));
        assert_eq!(heap.allocate_amid(512), Some(LARGE_ALLOCATION_BYTES + 512), "where the half is full");
    }

    #[test]
    fn places_are_given_lowest_first_and_merged_when_freed() {
        let mut heap = Heap::new(LARGE_ALLOCATION_BYTES, 3 * LARGE_ALLOCATION_BYTES);
        let (a, b) = (heap.allocate(1, 1).unwrap(), heap.allocate(513, 1).unwrap());
        assert_eq!((a, b), (LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES + 512));
        assert_eq!(heap.free(a), Some(512));
        assert_eq!(heap.allocate(100, 1), Some(a));
        assert_eq!((heap.free(b), heap.free(a)), (Some(1024), Some(512)));
        assert_eq!(heap.free.len(), 1);
        assert_eq!(heap.allocate(2 * LARGE_ALLOCATION_BYTES, 1), Some(LARGE_ALLOCATION_BYTES));
        assert_eq!(heap.allocate(1, 1), None);
    }

    #[test]
    fn a_finer_heap_wastes_less() {
        let mut heap = Heap::with_granule(LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES + 64, 16);
        let addresses = [1, 17, 1, 1].map(|size| heap.allocate(size, 16));
        assert_eq!(
            addresses,
            [Some(LARGE_ALLOCATION_BYTES), Some(LARGE_ALLOCATION_BYTES + 16), Some(LARGE_ALLOCATION_BYTES + 48), None]
        );
    }

    #[test]
    fn a_place_can_be_named_and_the_last_one_taken() {
        let mut heap = Heap::new(LARGE_ALLOCATION_BYTES, 2 * LARGE_ALLOCATION_BYTES);
        assert_eq!(heap.allocate_last(1000), Some(2 * LARGE_ALLOCATION_BYTES - 1024));
        assert!(
            heap.claim(LARGE_ALLOCATION_BYTES + 512, LARGE_ALLOCATION_BYTES + 1024)
                && !heap.claim(LARGE_ALLOCATION_BYTES + 512, LARGE_ALLOCATION_BYTES + 1024)
        );
        for (start, end) in [
            (LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES),
            (LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES + 1),
            (LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES + 1024),
            (0, 512),
            (LARGE_ALLOCATION_BYTES, u64::MAX),
        ] {
            assert!(!heap.claim(start, end), "{start:#x}..{end:#x}");
        }
        let used = [
            (LARGE_ALLOCATION_BYTES + 512, LARGE_ALLOCATION_BYTES + 1024),
            (2 * LARGE_ALLOCATION_BYTES - 1024, 2 * LARGE_ALLOCATION_BYTES),
        ];
        assert_eq!(
            (heap.used().collect::<Vec<_>>(), heap.allocate(512, 1)),
            (used.to_vec(), Some(LARGE_ALLOCATION_BYTES))
        );
    }

    #[test]
    fn packed_places_follow_each_other_and_show_where_the_heap_is_used() {
        let mut heap = Heap::new(LARGE_ALLOCATION_BYTES, 8 * LARGE_ALLOCATION_BYTES);
        let first = heap.allocate_packed(1000);
        assert_eq!(
            (first, heap.allocate_packed(2 * LARGE_ALLOCATION_BYTES)),
            (Some(LARGE_ALLOCATION_BYTES), Some(LARGE_ALLOCATION_BYTES + 1024))
        );
        assert!(
            heap.uses(LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES + 1)
                && heap.uses(3 * LARGE_ALLOCATION_BYTES, 4 * LARGE_ALLOCATION_BYTES)
                && !heap.uses(4 * LARGE_ALLOCATION_BYTES, 8 * LARGE_ALLOCATION_BYTES)
        );
        assert_eq!(heap.free(LARGE_ALLOCATION_BYTES), Some(1024));
        assert!(!heap.uses(LARGE_ALLOCATION_BYTES, LARGE_ALLOCATION_BYTES + 1024));
    }

    #[test]
    fn large_places_are_aligned_and_freeing_twice_finds_nothing() {
        let mut heap = Heap::new(LARGE_ALLOCATION_BYTES, 8 * LARGE_ALLOCATION_BYTES);
        heap.allocate(1, 1).unwrap();
        assert_eq!(heap.allocate(LARGE_ALLOCATION_BYTES, 1), Some(2 * LARGE_ALLOCATION_BYTES));
        assert_eq!(heap.free(2 * LARGE_ALLOCATION_BYTES), Some(LARGE_ALLOCATION_BYTES));
        assert_eq!(heap.free(2 * LARGE_ALLOCATION_BYTES), None);
        assert_eq!(heap.allocate(u64::MAX, 1), None);
    }
}
