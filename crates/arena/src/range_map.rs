//! Finds the range that contains an address.

use std::collections::BTreeMap;

use thiserror::Error;

/// The new range overlaps another one, is empty, or exceeds the address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{length} bytes at {start:#x} overlap a known range, or are empty")]
pub struct Overlap {
    /// First address of the range.
    pub start: u64,
    /// Length of the range in bytes.
    pub length: u64,
}

/// Disjoint ranges of addresses, each with a value.
#[derive(Debug, Clone)]
pub struct RangeMap<T> {
    ranges: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        Self { ranges: BTreeMap::new() }
    }
}

impl<T> RangeMap<T> {
    /// Creates a map without ranges.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a range.
    ///
    /// # Errors
    /// [`Overlap`]: the range would overlap another one, or has no bytes.
    pub fn insert(&mut self, start: u64, length: u64, value: T) -> Result<(), Overlap> {
        let free = start.checked_add(length).is_some_and(|end| {
            length > 0
                && self.ranges.range(..end).next_back().is_none_or(|(before, (bytes, _))| before + bytes <= start)
        });
        if !free {
            return Err(Overlap { start, length });
        }
        self.ranges.insert(start, (length, value));
        Ok(())
    }

    /// Removes the range that starts at exactly this address; returns its length and value.
    pub fn remove(&mut self, start: u64) -> Option<(u64, T)> {
        self.ranges.remove(&start)
    }

    /// Returns the range that contains `address`: start, length, value.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<(u64, u64, &T)> {
        let (start, (length, value)) = self.ranges.range(..=address).next_back()?;
        (address - start < *length).then_some((*start, *length, value))
    }

    /// Works like [`RangeMap::find`], with a mutable value.
    pub fn find_mut(&mut self, address: u64) -> Option<(u64, u64, &mut T)> {
        let (start, (length, value)) = self.ranges.range_mut(..=address).next_back()?;
        (address - start < *length).then_some((*start, *length, value))
    }

    /// Returns the range that contains all of `length` bytes at `address`; for zero bytes only the address counts.
    #[must_use]
    pub fn find_span(&self, address: u64, length: u64) -> Option<(u64, u64, &T)> {
        let entry = self.find(address)?;
        (length <= entry.1 - (address - entry.0)).then_some(entry)
    }

    /// Returns the ranges that share at least one byte with `start..end`, in order of address.
    pub fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64, &T)> {
        let first = self.find(start).map_or(start, |(first, ..)| first);
        self.ranges.range(first..end.max(first)).map(|(start, (length, value))| (*start, *length, value))
    }

    /// Returns all ranges in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &T)> {
        self.ranges.iter().map(|(start, (length, value))| (*start, *length, value))
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether there are no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> RangeMap<char> {
        let mut map = RangeMap::new();
        map.insert(0x1000, 0x100, 'a').unwrap();
        map.insert(0x1100, 0x10, 'b').unwrap();
        map.insert(0x2000, 0x1000, 'c').unwrap();
        map
    }

    #[test]
    fn an_address_finds_its_range_and_no_other() {
        assert_eq!(map().find(0x10ff), Some((0x1000, 0x100, &'a')));
        assert_eq!(map().find(0x1100), Some((0x1100, 0x10, &'b')));
        assert_eq!(map().find(0x1110), None);
        assert_eq!(map().find(0xfff), None);
        assert_eq!(map().find(u64::MAX), None);
    }

    #[test]
    fn a_span_must_lie_in_one_range() {
        assert_eq!(map().find_span(0x2800, 0x800), Some((0x2000, 0x1000, &'c')));
        assert_eq!(map().find_span(0x2800, 0x801), None);
        assert_eq!(map().find_span(0x10ff, 2), None);
        assert_eq!(map().find_span(0x2800, u64::MAX), None);
        assert!(map().find_span(0x2fff, 0).is_some());
    }

    #[test]
    fn overlaps_are_refused() {
        for (start, length) in [(0x1000, 1), (0xfff, 2), (0x10ff, 1), (0x1fff, 0x2000), (0x5000, 0), (u64::MAX, 2)] {
            assert_eq!(map().insert(start, length, 'x'), Err(Overlap { start, length }));
        }
        assert_eq!(map().insert(0x1110, 0xef0, 'x'), Ok(()));
    }

    #[test]
    fn overlapping_ranges_come_in_order() {
        let overlapping = |start, end| map().overlapping(start, end).map(|(.., value)| *value).collect::<String>();
        assert_eq!(overlapping(0x10ff, 0x2001), "abc");
        assert_eq!(overlapping(0x1110, 0x2000), "");
        assert_eq!(overlapping(0x1105, 0x1106), "b");
        assert_eq!(overlapping(0x3000, 0x1000), "");
        assert_eq!(overlapping(0, u64::MAX), "abc");
    }

    #[test]
    fn a_range_is_removed_by_its_start_only() {
        let mut map = map();
        assert_eq!(map.remove(0x1001), None);
        assert_eq!(map.remove(0x1000), Some((0x100, 'a')));
        assert_eq!((map.len(), map.find(0x1000)), (2, None));
    }
}
