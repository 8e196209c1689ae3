//! Compares the suballocator with a model that only remembers every block.

#![expect(clippy::unwrap_used, reason = "a failing step is a failing test")]

#[path = "../../../fuzz/bodies/random.rs"]
mod random;

use std::ops::Range;

use katydid_arena::{GROWTH_GRANULE_BYTES, Suballocator};
use random::Random;

const BASE: u64 = 0x2000_0000_0000;
const ARENA: u64 = 1 << 32;

#[derive(Default)]
struct Model {
    used: Vec<(u64, u64)>,
    quarantined: Vec<(u64, u64, u64)>,
    backed: Vec<(u64, u64)>,
}

impl Model {
    fn backed_bytes(&self) -> u64 {
        self.backed.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns whether every byte of the range is backed.
    fn is_backed(&self, mut start: u64, end: u64) -> bool {
        while let Some((_, to)) = self.backed.iter().find(|(from, to)| *from <= start && start < *to) {
            if *to >= end {
                return true;
            }
            start = *to;
        }
        false
    }

    /// Checks that a new block is backed and aligned, and overlaps no block in use or in quarantine.
    fn check_new(&self, address: u64, size: u64, align: u64) -> u64 {
        let length = size.next_multiple_of(256);
        let other_blocks =
            self.used.iter().copied().chain(self.quarantined.iter().map(|(start, length, _)| (*start, *length)));
        for (start, other) in other_blocks {
            assert!(address + length <= start || start + other <= address, "{address:#x} overlaps {start:#x}");
        }
        assert!(self.is_backed(address, address + length));
        assert!(
            address.is_multiple_of(align.max(256))
                && (length < GROWTH_GRANULE_BYTES || address.is_multiple_of(GROWTH_GRANULE_BYTES))
        );
        length
    }

    fn check_sums(&self, allocator: &Suballocator) {
        let used: u64 = self.used.iter().map(|(_, length)| length).sum();
        let quarantined: u64 = self.quarantined.iter().map(|(_, length, _)| length).sum();
        let sums = (allocator.used_bytes(), allocator.quarantined_bytes(), allocator.free_bytes());
        assert_eq!(sums, (used, quarantined, self.backed_bytes() - used - quarantined));
    }
}

fn allocate(allocator: &mut Suballocator, model: &mut Model, random: &mut Random) {
    let scale = 1 << random.below(26);
    let size = 1 + random.below(scale);
    let align = 1 << random.below(18);
    if let Some(address) = allocator.allocate(size, align) {
        let length = model.check_new(address, size, align);
        assert_eq!(allocator.block_of(address + size - 1), Some((address, length)));
        model.used.push((address, length));
    } else if let Some(growth) = allocator.growth_for(size, align, random.below(3) * GROWTH_GRANULE_BYTES) {
        for piece in allocator.pieces(growth, size) {
            model.backed.push((piece.start, piece.end));
            allocator.grow(piece);
        }
        let address = allocator.allocate(size, align).unwrap();
        let length = model.check_new(address, size, align);
        model.used.push((address, length));
    }
}

fn step(allocator: &mut Suballocator, model: &mut Model, random: &mut Random, epoch: u64) {
    match random.below(100) {
        0..50 => allocate(allocator, model, random),
        50..95 if !model.used.is_empty() => {
            let at = random.below(model.used.len() as u64) as usize;
            let (address, length) = model.used.swap_remove(at);
            assert_eq!(allocator.free(address, epoch), Ok(length));
            model.quarantined.push((address, length, epoch));
        }
        95..99 => {
            let until = epoch.saturating_sub(random.below(50));
            allocator.release_until(until);
            model.quarantined.retain(|(.., epoch)| *epoch > until);
        }
        _ => {
            for range in allocator.trim() {
                let at = model.backed.iter().position(|backed| *backed == (range.start, range.end));
                model.backed.swap_remove(at.unwrap());
                allocator.mark_unbacked(range);
            }
        }
    }
    model.check_sums(allocator);
}

#[test]
fn random_use_of_runs_never_overlaps_either() {
    for cuttable in [0, 64 << 20, u64::MAX] {
        random_use(|arena| Suballocator::of_runs(arena, cuttable));
    }
}

#[test]
fn random_use_never_overlaps_and_every_byte_is_accounted_for() {
    random_use(Suballocator::new);
}

fn random_use(make: impl Fn(Range<u64>) -> Suballocator) {
    for seed in 1..=20 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15 + seed);
        let mut allocator = make(BASE..BASE + ARENA);
        let mut model = Model::default();
        for epoch in 0..3000 {
            step(&mut allocator, &mut model, &mut random, epoch);
        }
        model.used.iter().for_each(|(address, length)| assert_eq!(allocator.free(*address, 5000), Ok(*length)));
        allocator.release_until(5000);
        let mut ranges: Vec<_> = allocator.trim().into_iter().map(|range| (range.start, range.end)).collect();
        model.backed.sort_unstable();
        ranges.sort_unstable();
        assert_eq!(ranges, model.backed, "all was joined again, and all came back");
        assert_eq!((allocator.backed_bytes(), allocator.free_bytes()), (0, 0));
    }
}
