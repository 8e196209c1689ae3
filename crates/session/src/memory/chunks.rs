//! The backed address ranges of an arena, each with its backing.
//!
//! The program names ranges. No range is backed twice, and only whole backed ranges are removed. Addresses and sizes are in
//! bytes.

use std::collections::BTreeMap;

/// Backed ranges by their first address.
#[derive(Debug)]
pub(crate) struct Chunks<T> {
    ranges: BTreeMap<u64, (u64, T)>,
    total: u64,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new(), total: 0 }
    }
}

impl<T> Chunks<T> {
    /// Returns the total of backed bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns whether `size` bytes from `address` touch no backed range. An overflowing range is never free.
    pub(crate) fn is_free(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else { return false };
        match self.ranges.range(..end).next_back() {
            Some((base, (length, _))) => base + length <= address,
            None => true,
        }
    }

    /// Adds a backed range; returns `false`, and adds nothing, if it is empty or touches another one.
    pub(crate) fn insert(&mut self, address: u64, size: u64, backing: T) -> bool {
        let fits = size > 0 && self.is_free(address, size);
        if fits {
            self.ranges.insert(address, (size, backing));
            self.total += size;
        }
        fits
    }

    /// Removes the ranges that fill `address .. address + size` exactly; `None` if there are gaps or cut ranges.
    pub(crate) fn remove(&mut self, address: u64, size: u64) -> Option<Vec<(u64, u64, T)>> {
        let end = address.checked_add(size)?;
        let mut expected = address;
        for (base, (length, _)) in self.ranges.range(address..end) {
            if *base != expected {
                return None;
            }
            expected = base + length;
        }
        if expected != end || size == 0 {
            return None;
        }
        let bases: Vec<u64> = self.ranges.range(address..end).map(|(base, _)| *base).collect();
        self.total -= size;
        Some(
            bases
                .iter()
                .filter_map(|base| self.ranges.remove(base).map(|(length, backing)| (*base, length, backing)))
                .collect(),
        )
    }

    /// Returns whether the range is one that was added, as a whole.
    pub(crate) fn is_whole_allocation(&self, address: u64, size: u64) -> bool {
        self.ranges.get(&address).is_some_and(|(length, _)| *length == size)
    }

    /// Returns the backing of the range that begins at an address.
    pub(crate) fn at(&self, address: u64) -> Option<&T> {
        self.ranges.get(&address).map(|(_, backing)| backing)
    }

    /// Returns whether every byte of the range is backed.
    pub(crate) fn covers(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else { return false };
        let mut at = address;
        while at < end {
            match self.ranges.range(..=at).next_back() {
                Some((base, (length, _))) if base + length > at => at = base + length,
                _ => return false,
            }
        }
        true
    }

    /// Every range, lowest first: address, size, backing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64, &T)> {
        self.ranges.iter().map(|(base, (length, backing))| (*base, *length, backing))
    }

    /// Every range, lowest first, with a mutable backing.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u64, u64, &mut T)> {
        self.ranges.iter_mut().map(|(base, (length, backing))| (*base, *length, backing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> Chunks<char> {
        let mut chunks = Chunks::default();
        assert!(chunks.insert(100, 50, 'a'));
        assert!(chunks.insert(150, 50, 'b'));
        assert!(chunks.insert(300, 10, 'c'));
        chunks
    }

    #[test]
    fn no_range_is_backed_twice() {
        let mut chunks = filled();
        for (address, size) in [(100, 50), (99, 2), (149, 1), (120, 500), (0, 101), (309, 1), (u64::MAX, 2), (500, 0)] {
            assert!(!chunks.insert(address, size, 'x'), "{address} + {size}");
        }
        assert!(chunks.insert(200, 100, 'd'));
        assert_eq!(chunks.total(), 210);
    }

    #[test]
    fn only_whole_ranges_are_taken_away() {
        let mut chunks = filled();
        for (address, size) in [(100, 49), (101, 49), (100, 200), (150, 160), (200, 10), (100, 0), (u64::MAX, 2)] {
            assert_eq!(chunks.remove(address, size), None, "{address} + {size}");
        }
        assert_eq!(chunks.remove(100, 100), Some(vec![(100, 50, 'a'), (150, 50, 'b')]));
        assert_eq!(chunks.total(), 10);
        assert!(chunks.is_free(100, 200));
    }

    #[test]
    fn coverage_joins_neighbours_and_sees_gaps() {
        let mut chunks = filled();
        assert_eq!(chunks.iter_mut().count(), 3);
        assert!(chunks.covers(100, 100) && chunks.covers(149, 2) && chunks.covers(300, 10));
        assert!(!chunks.covers(199, 2) && !chunks.covers(99, 1) && !chunks.covers(u64::MAX, 2));
    }
}
