//! Allocates addresses of one device's memory, within what the worker has backed.
//!
//! Blocks are multiples of 256 bytes, like the driver's. Adjacent free blocks are joined when one is freed, unless they were
//! backed separately and that matters. A block is taken from the shortest free block that can hold it, so large ones last.
//!
//! A piece that was backed as a whole is returned as a whole. If a device's memory must be reclaimable piece by piece, large
//! blocks have their own pieces, and all others share pieces of [`GROWTH_GRANULE_BYTES`]. So no gap of a whole piece is ever
//! lost.
//!
//! Native `cuMemFree` waits for the GPU. Here a freed block waits instead, in quarantine, until its context has been
//! synchronized: earlier work may still use it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use thiserror::Error;

/// Growth comes in multiples of this, the driver's granularity. Blocks of at least this size start at a multiple of it.
pub const GROWTH_GRANULE_BYTES: u64 = 2 << 20;
/// With runs, blocks of at least this size have their own pieces: they outweigh the driver's cost of a piece. Other blocks grow
/// by this much at a time.
pub const LARGE_BLOCK_BYTES: u64 = 8 << 20;
/// Bytes that may be idle during further growth, besides a share of the highest use.
const MAX_IDLE_BYTES: u64 = 256 << 20;
/// Every block starts at a multiple of this, and its length is one.
const BLOCK_UNIT_BYTES: u64 = 256;
/// How many free blocks of about the right length are tried before one that fits any alignment.
const MAX_FIT_TRIES: usize = 32;

/// No block starts at the address, or it was freed already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("no block in use starts at {address:#x}")]
pub struct FreeError {
    /// Address that was to be freed.
    pub address: u64,
}

/// Best-fit allocator over the backed part of an arena.
#[derive(Debug)]
pub struct Suballocator {
    /// Ranges that are not backed: start to end.
    unbacked: BTreeMap<u64, u64>,
    /// Ranges as they were backed: start to end.
    grown: BTreeMap<u64, u64>,
    /// Free blocks, except whole runs.
    free: FreeList,
    /// The runs; `None` if blocks are taken from any free block.
    runs: Option<Runs>,
    /// Blocks in use: start to length.
    used: BTreeMap<u64, u64>,
    /// Blocks that wait for the GPU, by epoch.
    quarantine: BTreeMap<u64, Vec<(u64, u64)>>,
    used_bytes: u64,
    most_used_bytes: u64,
    quarantined_bytes: u64,
    backed_bytes: u64,
    /// Whether blocks must not cross the border of two ranges that were backed separately.
    is_of_parts: bool,
}

impl Suballocator {
    /// Makes an allocator for `arena`, which starts at a multiple of [`GROWTH_GRANULE_BYTES`]; nothing of it is backed yet.
    #[must_use]
    pub fn new(arena: Range<u64>) -> Self {
        Self {
            unbacked: BTreeMap::from([(arena.start, arena.end)]),
            grown: BTreeMap::new(),
            free: FreeList::default(),
            runs: None,
            used: BTreeMap::new(),
            quarantine: BTreeMap::new(),
            used_bytes: 0,
            most_used_bytes: 0,
            quarantined_bytes: 0,
            backed_bytes: 0,
            is_of_parts: false,
        }
    }

    /// Makes an allocator in which each backed part is separate memory to the driver. The driver accepts no range that crosses
    /// two parts.
    #[must_use]
    pub fn of_parts(arena: Range<u64>) -> Self {
        Self { is_of_parts: true, ..Self::new(arena) }
    }

    /// Makes an allocator whose gaps serve other blocks, wherever they are. Pieces of at least [`LARGE_BLOCK_BYTES`] bytes are
    /// runs, which blocks take and return as a whole. Runs of up to `cuttable` bytes in total may be used for smaller blocks.
    #[must_use]
    pub fn of_runs(arena: Range<u64>, cuttable: u64) -> Self {
        Self { runs: Some(Runs { cuttable, ..Runs::default() }), ..Self::new(arena) }
    }

    /// Allocates a block of `size` bytes (rounded up to 256) at a multiple of `align`, a power of two. From 2 MiB on, the block
    /// starts at a multiple of 2 MiB. `None`: the arena must grow first, see [`Suballocator::growth_for`].
    pub fn allocate(&mut self, size: u64, align: u64) -> Option<u64> {
        let (length, align) = shape(size, align)?;
        let address = self.allocate_run(length, align)?;
        self.used.insert(address, length);
        self.used_bytes += length;
        self.most_used_bytes = self.most_used_bytes.max(self.used_bytes);
        Some(address)
    }

    /// Takes a free block: a run of its size, a gap between others, or a part of a longer run.
    fn allocate_run(&mut self, length: u64, align: u64) -> Option<u64> {
        let Some(runs) = self.runs.as_mut().filter(|_| length >= LARGE_BLOCK_BYTES) else {
            return self.free.take(length, align);
        };
        if let Some(address) = runs.take(length, align, &mut self.free) {
            return Some(address);
        }
        if let Some(address) = self.free.take(length, align) {
            return Some(address);
        }
        let (start, end) = runs.cut(length, align)?;
        self.free.put(start, end - start);
        self.free.take(length, align)
    }

    /// Returns the range whose backing would make room for such a block, in whole [`GROWTH_GRANULE_BYTES`]; `None` if the arena
    /// ends first. It is at least `at_least` bytes long if there is room: growing by more saves later round trips.
    #[must_use]
    pub fn growth_for(&self, size: u64, align: u64, at_least: u64) -> Option<Range<u64>> {
        let (length, align) = shape(size, align)?;
        let is_alone = self.runs.is_some() && length >= LARGE_BLOCK_BYTES;
        self.unbacked.iter().find_map(|(&start, &end)| {
            if is_alone {
                let from = start.checked_next_multiple_of(align)?;
                let to = from.checked_add(length)?.checked_next_multiple_of(GROWTH_GRANULE_BYTES)?;
                return (to <= end).then_some(from..to);
            }
            // A free block directly before counts towards the new one.
            let from = self.free.ending_at(start).filter(|_| !self.is_of_parts).unwrap_or(start);
            let block_end = from.checked_next_multiple_of(align)?.checked_add(length)?;
            let enough = block_end
                .max(start + 1)
                .checked_next_multiple_of(GROWTH_GRANULE_BYTES)
                .filter(|enough| *enough <= end)?;
            let requested =
                start.saturating_add(at_least).checked_next_multiple_of(GROWTH_GRANULE_BYTES).unwrap_or(end);
            Some(start..enough.max(requested.min(end)))
        })
    }

    /// Returns the pieces in which to back a growth for such a block, each for [`Suballocator::grow`]. The end of a large block
    /// that fills no whole [`GROWTH_GRANULE_BYTES`] is a separate piece, as other blocks will follow it.
    #[must_use]
    pub fn pieces(&self, growth: Range<u64>, size: u64) -> Vec<Range<u64>> {
        if self.runs.is_none() {
            return vec![growth];
        }
        let length = size.next_multiple_of(BLOCK_UNIT_BYTES);
        let tail_start =
            growth.start + if length >= LARGE_BLOCK_BYTES { length - length % GROWTH_GRANULE_BYTES } else { 0 };
        let run = (tail_start > growth.start).then_some(growth.start..tail_start);
        let shared = (tail_start..growth.end)
            .step_by(GROWTH_GRANULE_BYTES as usize)
            .map(|start| start..start + GROWTH_GRANULE_BYTES);
        run.into_iter().chain(shared).collect()
    }

    /// Adds a range that the worker has backed as free. Parts that were backed before stay as they are.
    pub fn grow(&mut self, range: Range<u64>) {
        let holes: Vec<(u64, u64)> = self.unbacked.range(..range.end).map(|(start, end)| (*start, *end)).collect();
        for (start, end) in holes {
            let (from, to) = (start.max(range.start), end.min(range.end));
            if from >= to {
                continue;
            }
            self.unbacked.remove(&start);
            [(start, from), (to, end)].into_iter().filter(|(start, end)| start < end).for_each(|(start, end)| {
                self.unbacked.insert(start, end);
            });
            self.grown.insert(from, to);
            self.backed_bytes += to - from;
            if self.is_of_parts {
                self.free.seams.insert(from);
            }
            self.put(from, to - from);
        }
    }

    /// Frees a block: it waits in quarantine until [`Suballocator::release_until`] reports that the GPU has passed `epoch`.
    /// Returns its size.
    ///
    /// # Errors
    /// [`FreeError`].
    pub fn free(&mut self, address: u64, epoch: u64) -> Result<u64, FreeError> {
        let length = self.used.remove(&address).ok_or(FreeError { address })?;
        self.quarantine.entry(epoch).or_default().push((address, length));
        self.used_bytes -= length;
        self.quarantined_bytes += length;
        Ok(length)
    }

    /// Makes blocks usable again that were freed at `epoch` or earlier; returns how many bytes.
    pub fn release_until(&mut self, epoch: u64) -> u64 {
        let quarantined_before = self.quarantined_bytes;
        while let Some(first) = self.quarantine.first_entry().filter(|first| *first.key() <= epoch) {
            for (address, length) in first.remove() {
                self.quarantined_bytes -= length;
                self.put(address, length);
            }
        }
        quarantined_before - self.quarantined_bytes
    }

    /// Makes a range free, and restores each run without a byte in use.
    fn put(&mut self, address: u64, length: u64) {
        self.free.put(address, length);
        let Some(runs) = &mut self.runs else { return };
        let last_first = self.grown.range(..address + length).rev().take_while(|(_, end)| **end > address);
        for (&start, &end) in last_first.filter(|(start, end)| *end - *start >= LARGE_BLOCK_BYTES) {
            if self.free.holds(start, end) {
                self.free.cut(start, end);
                runs.make_whole(start, end);
            }
        }
    }

    /// Returns start and size of the block in use that contains `address`.
    #[must_use]
    pub fn block_of(&self, address: u64) -> Option<(u64, u64)> {
        let (&start, &length) = self.used.range(..=address).next_back()?;
        (address - start < length).then_some((start, length))
    }

    /// Removes the pieces that are wholly free and returns them, each as it was given to [`Suballocator::grow`], so that their
    /// memory can serve others. The worker cannot return a part of a piece. A returned range can grow again after
    /// [`Suballocator::mark_unbacked`].
    pub fn trim(&mut self) -> Vec<Range<u64>> {
        let mut pieces: Vec<Range<u64>> = self.runs.as_mut().map_or(Vec::new(), Runs::take_all);
        let whole = |(start, end): (&u64, &u64)| self.free.holds(*start, *end).then_some(*start..*end);
        let free_growths: Vec<Range<u64>> = self.grown.iter().filter_map(whole).collect();
        for piece in &free_growths {
            self.free.seams.remove(&piece.start);
            self.free.cut(piece.start, piece.end);
        }
        pieces.extend(free_growths);
        for piece in &pieces {
            self.grown.remove(&piece.start);
            self.backed_bytes -= piece.end - piece.start;
        }
        pieces
    }

    /// Returns whether so much is idle that it should be trimmed before further growth. Otherwise blocks of ever new sizes would
    /// use up the device, run by run.
    #[must_use]
    pub fn should_trim(&self) -> bool {
        let idle = self.runs.as_ref().map_or(0, |runs| runs.whole_bytes);
        idle > 0 && self.backed_bytes > self.most_used_bytes + self.most_used_bytes / 4 + MAX_IDLE_BYTES
    }

    /// Returns every piece that is backed.
    pub fn backed(&self) -> impl Iterator<Item = Range<u64>> {
        self.grown.iter().map(|(start, end)| *start..*end)
    }

    /// Returns the number of backed bytes that are free.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.backed_bytes - self.used_bytes - self.quarantined_bytes
    }

    /// Returns the bytes of blocks in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the bytes of blocks that wait for the GPU.
    #[must_use]
    pub fn quarantined_bytes(&self) -> u64 {
        self.quarantined_bytes
    }

    /// Returns the bytes that the worker has backed.
    #[must_use]
    pub fn backed_bytes(&self) -> u64 {
        self.backed_bytes
    }

    /// Notes that the worker has returned a trimmed piece.
    pub fn mark_unbacked(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some(after) = self.unbacked.remove(&end) {
            end = after;
        }
        if let Some((&preceding, _)) = self.unbacked.range(..start).next_back().filter(|(_, end)| **end == start) {
            start = preceding;
        }
        self.unbacked.insert(start, end);
    }
}

/// Returns length and alignment of a block; `None` if it is larger than any arena.
fn shape(size: u64, align: u64) -> Option<(u64, u64)> {
    let length = size.max(1).checked_next_multiple_of(BLOCK_UNIT_BYTES)?;
    let least = if length >= GROWTH_GRANULE_BYTES { GROWTH_GRANULE_BYTES } else { BLOCK_UNIT_BYTES };
    Some((length, align.max(least).checked_next_power_of_two()?))
}

/// Large pieces that blocks take and return as a whole.
#[derive(Debug, Default)]
struct Runs {
    /// Large pieces without a byte in use: length and start.
    whole: BTreeSet<(u64, u64)>,
    whole_bytes: u64,
    /// Starts of runs that were taken for smaller blocks; the rest of each is an ordinary gap.
    cut: BTreeSet<u64>,
    cut_bytes: u64,
    /// Limit of `cut_bytes`.
    cuttable: u64,
}

impl Runs {
    /// Takes a run of exactly a block's whole granules; the block's rest must be free after it.
    fn take(&mut self, length: u64, align: u64, free: &mut FreeList) -> Option<u64> {
        let run = length - length % GROWTH_GRANULE_BYTES;
        let fits =
            |start: u64| start.is_multiple_of(align) && (run == length || free.holds(start + run, start + length));
        let same = self.whole.range((run, 0)..=(run, u64::MAX)).take(MAX_FIT_TRIES);
        let start = same.map(|(_, start)| *start).find(|start| fits(*start))?;
        self.whole.remove(&(run, start));
        self.whole_bytes -= run;
        if run < length {
            free.cut(start + run, start + length);
        }
        Some(start)
    }

    /// Takes the shortest run that can hold a block anywhere in it.
    fn cut(&mut self, length: u64, align: u64) -> Option<(u64, u64)> {
        let holds = |run: u64, start: u64| start.next_multiple_of(align) - start + length <= run;
        let &(run, start) = self.whole.range((length, 0)..).find(|(run, start)| holds(*run, *start))?;
        if self.cut_bytes + run > self.cuttable {
            return None;
        }
        self.whole.remove(&(run, start));
        self.whole_bytes -= run;
        self.cut.insert(start);
        self.cut_bytes += run;
        Some((start, start + run))
    }

    fn make_whole(&mut self, start: u64, end: u64) {
        if self.cut.remove(&start) {
            self.cut_bytes -= end - start;
        }
        self.whole.insert((end - start, start));
        self.whole_bytes += end - start;
    }

    fn take_all(&mut self) -> Vec<Range<u64>> {
        self.whole_bytes = 0;
        std::mem::take(&mut self.whole).into_iter().map(|(length, start)| start..start + length).collect()
    }
}

/// Free blocks. Two of them touch only at a seam.
#[derive(Debug, Default)]
struct FreeList {
    /// Length of each free block, by its start.
    by_start: BTreeMap<u64, u64>,
    /// Lengths and starts of the free blocks, shortest first.
    by_length: BTreeSet<(u64, u64)>,
    /// Addresses at which blocks must end.
    seams: BTreeSet<u64>,
}

impl FreeList {
    /// Adds a block, joined with its neighbors.
    fn put(&mut self, address: u64, length: u64) {
        let (mut start, mut end) = (address, address + length);
        if let Some(&after) = self.by_start.get(&end).filter(|_| !self.seams.contains(&end)) {
            self.remove(end, after);
            end += after;
        }
        if let Some(preceding) = self.ending_at(start).filter(|_| !self.seams.contains(&start)) {
            self.remove(preceding, start - preceding);
            start = preceding;
        }
        self.insert(start, end - start);
    }

    /// Takes `length` bytes at a multiple of `align`.
    fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        let fit = |&(free, start): &(u64, u64)| {
            let address = start.next_multiple_of(align);
            (address - start + length <= free).then_some(address)
        };
        let close = self.by_length.range((length, 0)..).take(MAX_FIT_TRIES).find_map(fit);
        // A block that is longer by the alignment always fits; those in between are tried last.
        let sure = || self.by_length.range((length.saturating_add(align), 0)..).find_map(fit);
        let address = close.or_else(sure).or_else(|| self.by_length.range((length, 0)..).find_map(fit))?;
        self.cut(address, address + length);
        Some(address)
    }

    /// Removes a part that lies in one free block.
    fn cut(&mut self, start: u64, end: u64) {
        let Some((&from, &length)) = self.by_start.range(..=start).next_back() else { return };
        self.remove(from, length);
        for (from, to) in [(from, start), (end, from + length)] {
            if from < to {
                self.insert(from, to - from);
            }
        }
    }

    /// Returns the start of the free block that ends at this address.
    fn ending_at(&self, end: u64) -> Option<u64> {
        let (&start, &length) = self.by_start.range(..end).next_back()?;
        (start + length == end).then_some(start)
    }

    /// Returns whether the whole range is free.
    fn holds(&self, start: u64, end: u64) -> bool {
        self.by_start.range(..=start).next_back().is_some_and(|(from, length)| from + length >= end)
    }

    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x2000_0000_0000;
    const MEBIBYTE: u64 = 1 << 20;

    fn grown(mebibytes: u64) -> Suballocator {
        let mut allocator = Suballocator::new(BASE..BASE + (1 << 40));
        allocator.grow(BASE..BASE + mebibytes * MEBIBYTE);
        allocator
    }

    #[test]
    fn nothing_is_handed_out_before_it_is_backed() {
        let mut allocator = Suballocator::new(BASE..BASE + (1 << 40));
        assert_eq!(allocator.allocate(1, 1), None);
        assert_eq!(allocator.growth_for(1, 1, 0), Some(BASE..BASE + GROWTH_GRANULE_BYTES));
        assert_eq!(allocator.growth_for(1, 1, 32 * MEBIBYTE), Some(BASE..BASE + 32 * MEBIBYTE));
        allocator.grow(BASE..BASE + GROWTH_GRANULE_BYTES);
        assert_eq!(allocator.allocate(1, 1), Some(BASE));
        assert_eq!((allocator.used_bytes(), allocator.free_bytes()), (256, GROWTH_GRANULE_BYTES - 256));
    }

    #[test]
    fn small_blocks_are_packed_and_large_ones_aligned() {
        let mut allocator = grown(32);
        assert_eq!(allocator.allocate(100, 1), Some(BASE));
        assert_eq!(allocator.allocate(257, 1), Some(BASE + 256));
        assert_eq!(allocator.allocate(GROWTH_GRANULE_BYTES, 1), Some(BASE + GROWTH_GRANULE_BYTES));
        assert_eq!(allocator.allocate(1, 1), Some(BASE + 768));
        assert_eq!(allocator.allocate(1, 64 * 1024), Some(BASE + 64 * 1024));
    }

    #[test]
    fn a_freed_block_waits_for_the_gpu() {
        let mut allocator = grown(2);
        let block = allocator.allocate(GROWTH_GRANULE_BYTES, 1).unwrap();
        assert_eq!(allocator.free(block, 7), Ok(GROWTH_GRANULE_BYTES));
        assert_eq!((allocator.allocate(1, 1), allocator.quarantined_bytes()), (None, GROWTH_GRANULE_BYTES));
        assert_eq!(allocator.release_until(6), 0);
        assert_eq!(allocator.release_until(7), GROWTH_GRANULE_BYTES);
        assert_eq!(allocator.allocate(GROWTH_GRANULE_BYTES, 1), Some(block));
    }

    #[test]
    fn addresses_that_are_not_a_block_cannot_be_freed() {
        let mut allocator = grown(2);
        let block = allocator.allocate(512, 1).unwrap();
        assert_eq!(allocator.free(block + 256, 0), Err(FreeError { address: block + 256 }));
        allocator.free(block, 0).unwrap();
        assert_eq!(allocator.free(block, 0), Err(FreeError { address: block }));
    }

    #[test]
    fn addresses_inside_a_block_find_it() {
        let mut allocator = grown(2);
        let block = allocator.allocate(1000, 1).unwrap();
        assert_eq!(allocator.block_of(block + 1023), Some((block, 1024)));
        assert_eq!((allocator.block_of(block + 1024), allocator.block_of(block - 1)), (None, None));
    }

    #[test]
    fn growth_counts_on_the_free_block_before_it() {
        let mut allocator = grown(4);
        allocator.allocate(MEBIBYTE, 1).unwrap();
        assert_eq!(allocator.growth_for(4 * MEBIBYTE, 1, 0), Some(BASE + 4 * MEBIBYTE..BASE + 6 * MEBIBYTE));
    }

    #[test]
    fn a_block_lies_in_one_part_where_that_matters() {
        let mut allocator = Suballocator::of_parts(BASE..BASE + (1 << 40));
        let part = |at: u64| BASE + at * GROWTH_GRANULE_BYTES..BASE + (at + 1) * GROWTH_GRANULE_BYTES;
        allocator.grow(part(0));
        assert_eq!(allocator.growth_for(GROWTH_GRANULE_BYTES + 1, 1, 0), Some(part(1).start..part(2).end));
        allocator.grow(part(1));
        assert_eq!(allocator.allocate(GROWTH_GRANULE_BYTES + 1, 1), None);
        let blocks = [(); 2].map(|()| allocator.allocate(GROWTH_GRANULE_BYTES, 1).unwrap());
        for block in blocks {
            allocator.free(block, 0).unwrap();
        }
        allocator.release_until(0);
        assert_eq!(allocator.allocate(GROWTH_GRANULE_BYTES + 1, 1), None, "nor after they came free");
        assert_eq!(allocator.trim(), [part(0), part(1)]);
        [part(0), part(1)].into_iter().for_each(|part| allocator.mark_unbacked(part));
        allocator.grow(BASE..BASE + 2 * GROWTH_GRANULE_BYTES);
        assert_eq!(allocator.allocate(GROWTH_GRANULE_BYTES + 1, 1), Some(BASE), "a part of that size holds it");
    }

    #[test]
    fn impossible_sizes_are_refused_without_overflow() {
        let mut allocator = grown(2);
        for (size, align) in [(u64::MAX, 1), (u64::MAX - 300, 1), (1 << 41, 1), (1, 1 << 63), (1, u64::MAX)] {
            assert_eq!((allocator.allocate(size, align), allocator.growth_for(size, align, 0)), (None, None), "{size}");
        }
    }

    #[test]
    fn growth_ends_with_the_arena() {
        let mut allocator = Suballocator::new(BASE..BASE + 6 * MEBIBYTE);
        assert_eq!(allocator.growth_for(1, 1, 32 * MEBIBYTE), Some(BASE..BASE + 6 * MEBIBYTE));
        allocator.grow(BASE..BASE + 6 * MEBIBYTE);
        assert_eq!(allocator.growth_for(1, 1, 0), None);
    }

    #[test]
    fn only_whole_grown_ranges_are_trimmed_and_can_grow_again() {
        let mut allocator = grown(4);
        allocator.grow(BASE + 4 * MEBIBYTE..BASE + 8 * MEBIBYTE);
        let block = allocator.allocate(5 * MEBIBYTE, 1).unwrap();
        assert_eq!(allocator.trim(), []);
        allocator.free(block, 0).unwrap();
        allocator.release_until(0);
        let small = allocator.allocate(1, 1).unwrap();
        assert_eq!(allocator.trim(), vec![BASE + 4 * MEBIBYTE..BASE + 8 * MEBIBYTE]);
        assert_eq!(allocator.backed_bytes(), 4 * MEBIBYTE);
        assert_eq!(
            allocator.growth_for(8 * MEBIBYTE, 1, 0),
            Some(BASE + 8 * MEBIBYTE..BASE + 16 * MEBIBYTE),
            "what was trimmed is out of use until it was given back"
        );
        allocator.mark_unbacked(BASE + 4 * MEBIBYTE..BASE + 8 * MEBIBYTE);
        assert_eq!(allocator.growth_for(8 * MEBIBYTE, 1, 0), Some(BASE + 4 * MEBIBYTE..BASE + 10 * MEBIBYTE));
        allocator.grow(BASE + 4 * MEBIBYTE..BASE + 10 * MEBIBYTE);
        assert_eq!(allocator.allocate(8 * MEBIBYTE, 1), Some(BASE + 2 * MEBIBYTE));
        assert_eq!(allocator.block_of(small), Some((small, 256)));
    }

    #[test]
    fn growing_over_a_backed_part_changes_only_the_rest() {
        let mut allocator = grown(4);
        let block = allocator.allocate(4 * MEBIBYTE, 1).unwrap();
        allocator.grow(BASE..BASE + 6 * MEBIBYTE);
        assert_eq!((allocator.backed_bytes(), allocator.free_bytes()), (6 * MEBIBYTE, 2 * MEBIBYTE));
        assert_eq!(allocator.block_of(block), Some((block, 4 * MEBIBYTE)));
    }

    /// Allocates as a client does whose growth is never refused.
    fn take(allocator: &mut Suballocator, size: u64) -> u64 {
        if let Some(address) = allocator.allocate(size, 1) {
            return address;
        }
        let growth = allocator.growth_for(size, 1, LARGE_BLOCK_BYTES).unwrap();
        allocator.pieces(growth, size).into_iter().for_each(|piece| allocator.grow(piece));
        allocator.allocate(size, 1).unwrap()
    }

    fn give(allocator: &mut Suballocator, blocks: &[u64]) {
        for block in blocks {
            allocator.free(*block, 0).unwrap();
        }
        allocator.release_until(0);
    }

    fn of_runs(cuttable: u64) -> Suballocator {
        Suballocator::of_runs(BASE..BASE + (1 << 40), cuttable * MEBIBYTE)
    }

    #[test]
    fn a_large_block_has_a_run_and_others_lie_behind_its_end() {
        let mut allocator = of_runs(0);
        let large = take(&mut allocator, 21 * MEBIBYTE);
        let small = take(&mut allocator, MEBIBYTE);
        assert_eq!((large, small), (BASE, BASE + 21 * MEBIBYTE));
        give(&mut allocator, &[large]);
        assert_eq!(allocator.trim(), vec![BASE..BASE + 20 * MEBIBYTE]);
        assert_eq!(allocator.backed_bytes(), 2 * MEBIBYTE);
    }

    #[test]
    fn a_run_is_used_again_for_a_block_of_its_size_and_no_other() {
        let mut allocator = of_runs(0);
        let sizes = [58, 20, 9].map(|mebibytes| mebibytes * MEBIBYTE);
        let blocks = sizes.map(|size| take(&mut allocator, size));
        give(&mut allocator, &blocks);
        assert_eq!(allocator.allocate(30 * MEBIBYTE, 1), None);
        let again = sizes.map(|size| allocator.allocate(size, 1));
        assert_eq!(again, blocks.map(Some));
    }

    #[test]
    fn runs_are_cut_within_a_bound_until_they_are_free_again() {
        let mut allocator = of_runs(60);
        let blocks = [(); 2].map(|()| take(&mut allocator, 58 * MEBIBYTE));
        give(&mut allocator, &blocks);
        let parts = [(); 2].map(|()| allocator.allocate(20 * MEBIBYTE, 1).unwrap());
        assert_eq!(allocator.allocate(20 * MEBIBYTE, 1), None, "the other run is whole");
        give(&mut allocator, &parts[..1]);
        assert_eq!(allocator.trim(), vec![blocks[1]..blocks[1] + 58 * MEBIBYTE]);
        give(&mut allocator, &parts[1..]);
        assert_eq!(allocator.trim(), vec![blocks[0]..blocks[0] + 58 * MEBIBYTE]);
    }

    #[test]
    fn gaps_of_whole_granules_between_small_blocks_are_given_back() {
        let mut allocator = of_runs(0);
        let blocks: Vec<u64> = (0..32).map(|_| take(&mut allocator, GROWTH_GRANULE_BYTES)).collect();
        let (odd, even): (Vec<u64>, Vec<u64>) =
            blocks.iter().partition(|block| *block % (2 * GROWTH_GRANULE_BYTES) != 0);
        give(&mut allocator, &odd);
        assert_eq!(allocator.trim().len(), 16);
        assert_eq!(allocator.backed_bytes(), even.len() as u64 * GROWTH_GRANULE_BYTES);
    }

    #[test]
    fn sizes_that_never_come_again_are_hoarded_only_so_far() {
        let mut allocator = of_runs(0);
        for granules in 4..32 {
            let block = take(&mut allocator, granules * GROWTH_GRANULE_BYTES);
            give(&mut allocator, &[block]);
            if allocator.should_trim() {
                assert!(allocator.backed_bytes() < 2 * MAX_IDLE_BYTES);
                return;
            }
        }
        panic!("{} bytes lie idle", allocator.backed_bytes());
    }
}
