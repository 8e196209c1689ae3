//! Slot allocation: registers whose intervals do not overlap share a slot.
//!
//! A frame has predicates first (32 to a row), then rows of words, then pairs of rows. The three never mix, so two operands of an
//! instruction overlap entirely or not at all, as the lane loops require.

use super::liveness::Interval;
use crate::engine::registers::WARP_LANES;
use crate::types::Width;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The slots of a function's registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RegisterSlots {
    /// Word offset in the frame, by register.
    pub(crate) slots: Vec<u32>,
    /// Rows of the frame.
    pub(crate) rows: u32,
    /// 32-bit registers that a thread needs at the same time.
    pub(crate) pressure: u32,
}

/// Slots of one width.
#[derive(Debug, Default)]
struct SlotPool {
    free: BinaryHeap<Reverse<u32>>,
    used: u32,
    /// End of the interval and slot of each register in use.
    active: BinaryHeap<Reverse<(u32, u32)>>,
}

impl SlotPool {
    /// Returns a slot for an interval. Intervals come in order of their start.
    fn take(&mut self, interval: Interval) -> u32 {
        while let Some(Reverse((end, slot))) = self.active.peek().copied() {
            if end >= interval.start {
                break;
            }
            self.active.pop();
            self.free.push(Reverse(slot));
        }
        let slot = self.free.pop().map_or_else(
            || {
                self.used += 1;
                self.used - 1
            },
            |Reverse(slot)| slot,
        );
        self.active.push(Reverse((interval.end, slot)));
        slot
    }
}

/// Allocates a slot for every register in use.
pub(crate) fn allocate(widths: &[Width], intervals: &[Interval]) -> RegisterSlots {
    let mut order: Vec<usize> = (0..widths.len()).filter(|register| !intervals[*register].is_empty()).collect();
    order.sort_by_key(|register| intervals[*register].start);
    let (mut predicates, mut words, mut doubles) = (SlotPool::default(), SlotPool::default(), SlotPool::default());
    let mut slots = vec![0; widths.len()];
    for register in order {
        let pool = match widths[register] {
            Width::Pred => &mut predicates,
            Width::Word => &mut words,
            Width::Double => &mut doubles,
        };
        slots[register] = pool.take(intervals[register]);
    }
    let lanes = WARP_LANES as u32;
    let first_word = predicates.used.div_ceil(lanes) * lanes;
    let first_double = first_word + words.used * lanes;
    for (slot, width) in slots.iter_mut().zip(widths) {
        *slot = match width {
            Width::Pred => *slot,
            Width::Word => first_word + *slot * lanes,
            Width::Double => first_double + *slot * 2 * lanes,
        };
    }
    let rows = (first_double + doubles.used * 2 * lanes) / lanes;
    RegisterSlots { slots, rows, pressure: words.used + 2 * doubles.used }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(start: u32, end: u32) -> Interval {
        Interval { start, end }
    }

    #[test]
    fn registers_that_are_not_alive_together_share_a_slot() {
        let widths = [Width::Word, Width::Word, Width::Word];
        let allocation = allocate(&widths, &[interval(1, 4), interval(3, 9), interval(5, 7)]);
        assert_eq!((allocation.slots, allocation.rows), (vec![0, 32, 0], 2));
    }

    #[test]
    fn widths_never_mix() {
        let widths = [Width::Double, Width::Pred, Width::Word, Width::Double];
        let allocation = allocate(&widths, &[interval(1, 2), interval(1, 2), interval(1, 2), interval(3, 4)]);
        assert_eq!((allocation.slots, allocation.rows, allocation.pressure), (vec![64, 0, 32, 64], 4, 3));
    }

    #[test]
    fn a_register_read_last_where_another_is_written_gives_it_its_slot() {
        let allocation = allocate(&[Width::Word, Width::Word], &[interval(1, 2), interval(3, 6)]);
        assert_eq!(allocation.slots, [0, 0]);
    }
}
