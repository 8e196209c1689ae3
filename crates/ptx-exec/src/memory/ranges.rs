//! Cache of the host's memory ranges, since asking the host takes a lock and a search.
//!
//! Each instruction tends to stay in one allocation, so the range of its last access is tried first. It also tends to go on in
//! equal steps, which `predicted_address` makes use of. On a GPU, other warps hide the latency of memory; here the access has to
//! begin early.

use crate::host::{AddressRange, Host};

/// Number of cached ranges.
const CACHED_RANGES: usize = 16;

/// Number of places for what is known about instructions. Instructions whose numbers are this far apart share a place. That costs
/// time when they are in the same loop, and nothing else.
const CACHE_SLOTS: usize = 256;

/// Ranges that a thread has used in this launch.
#[derive(Debug)]
pub(crate) struct Ranges {
    entries: [AddressRange; CACHED_RANGES],
    /// For each instruction, the entry that it used last.
    hints: [u8; CACHE_SLOTS],
    /// For each instruction, its last address.
    steps: [u64; CACHE_SLOTS],
    /// Entry to replace next.
    next: usize,
}

impl Ranges {
    /// Makes an empty cache.
    pub(crate) fn new() -> Self {
        let entries = [AddressRange { start: 0, end: 0, writable: false }; CACHED_RANGES];
        Self { entries, hints: [0; CACHE_SLOTS], steps: [0; CACHE_SLOTS], next: 0 }
    }

    /// Returns the next address of instruction `pc`, if it takes the same step again from `address`.
    #[inline(always)]
    pub(crate) fn predicted_address(&mut self, pc: u32, address: u64) -> u64 {
        let last = &mut self.steps[pc as usize % CACHE_SLOTS];
        let step = address.wrapping_sub(*last);
        *last = address;
        address.wrapping_add(step)
    }

    /// Returns whether `bytes` bytes at `address` lie in one range that allows the access of instruction `pc`.
    #[inline(always)]
    pub(crate) fn allow(&mut self, host: &dyn Host, pc: u32, address: u64, bytes: u64, write: bool) -> bool {
        let hint = self.hints[pc as usize % CACHE_SLOTS];
        let entry = &self.entries[usize::from(hint) % CACHED_RANGES];
        contains(entry, address, bytes, write) || self.search(host, pc, address, bytes, write)
    }

    /// Returns start and end of the range that `allow` used last for instruction `pc`.
    #[inline(always)]
    pub(crate) fn around(&self, pc: u32) -> (u64, u64) {
        let hint = self.hints[pc as usize % CACHE_SLOTS];
        let entry = &self.entries[usize::from(hint) % CACHED_RANGES];
        (entry.start, entry.end)
    }

    /// Looks at all cached ranges after a wrong hint, then asks the host.
    #[inline(never)]
    fn search(&mut self, host: &dyn Host, pc: u32, address: u64, bytes: u64, write: bool) -> bool {
        let position = self.entries.iter().position(|entry| contains(entry, address, bytes, write));
        let index = match position {
            Some(index) => index,
            // The access is only partly in a known range, or the range is read-only: the host would answer the same again.
            None if self.entries.iter().any(|entry| contains(entry, address, 1, false)) => return false,
            None => match host.range_of(address) {
                Some(range) if contains(&range, address, 1, false) => self.remember(range),
                _ => return false,
            },
        };
        self.hints[pc as usize % CACHE_SLOTS] = index as u8;
        contains(&self.entries[index], address, bytes, write)
    }

    /// Replaces the oldest entry by a range.
    fn remember(&mut self, range: AddressRange) -> usize {
        let index = self.next;
        self.entries[index] = range;
        self.next = (index + 1) % CACHED_RANGES;
        index
    }
}

/// Returns whether an access lies wholly in a range that allows it.
#[inline(always)]
fn contains(range: &AddressRange, address: u64, bytes: u64, write: bool) -> bool {
    let fits = address >= range.start && address < range.end && range.end - address >= bytes;
    fits && (range.writable || !write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A host with one read-only and one writable range, and a count of questions.
    struct Two(AtomicUsize);

    impl Host for Two {
        fn range_of(&self, address: u64) -> Option<AddressRange> {
            self.0.fetch_add(1, Ordering::Relaxed);
            let start = address & !0xff;
            (0x100..0x300).contains(&address).then(|| AddressRange {
                start,
                end: start + 0x100,
                writable: start == 0x200,
            })
        }

        fn print(&self, _: &[u8]) {}

        fn assert_failed(&self, _: &str) {}
    }

    #[test]
    fn an_access_must_lie_in_one_range_that_allows_it() {
        let (host, mut ranges) = (Two(AtomicUsize::new(0)), Ranges::new());
        assert!(ranges.allow(&host, 0, 0x100, 0x100, false) && !ranges.allow(&host, 0, 0x100, 4, true));
        assert!(!ranges.allow(&host, 0, 0x1fe, 4, false), "the end of one and the start of the next");
        assert!(ranges.allow(&host, 1, 0x2fc, 4, true) && !ranges.allow(&host, 1, 0x2fd, 4, true));
        assert!(!ranges.allow(&host, 1, u64::MAX, 4, false) && !ranges.allow(&host, 1, 0, 1, false));
    }

    #[test]
    fn equal_steps_are_expected_to_go_on() {
        let mut ranges = Ranges::new();
        ranges.predicted_address(3, 0x1000);
        assert_eq!((ranges.predicted_address(3, 0x1200), ranges.predicted_address(4, 0x10)), (0x1400, 0x20));
        assert_eq!(ranges.predicted_address(3, 0x1100), 0x1000, "backwards too");
    }

    #[test]
    fn the_host_is_asked_once_for_a_range() {
        let (host, mut ranges) = (Two(AtomicUsize::new(0)), Ranges::new());
        for address in 0x100..0x1f0 {
            assert!(ranges.allow(&host, (address % 5) as u32, address, 1, false));
        }
        assert_eq!(host.0.load(Ordering::Relaxed), 1);
    }
}
