//! Races: two threads access the same bytes, at least one of them writes, and nothing orders the accesses.
//!
//! The search runs only if the host requests it ([`crate::Host::race_seed`]), because it checks every access. Warps and blocks
//! then take turns after few instructions, in an order that the seed decides. So effects of the order show, and a run can be
//! repeated.
//!
//! | two accesses are in order | how that is known |
//! |---|---|
//! | of one thread | its number |
//! | of one warp, with an operation of the warp between (`bar.warp.sync`, `shfl`, `vote` ...) | `Warp::epoch` |
//! | of one block, with a barrier between | `Block::epoch` |
//! | when the first thread's warp has published something since, and the second one's has looked since | `clock` |
//!
//! Atomics, volatile and ordered accesses, fences, and barriers in memory or of a cluster publish and look. That is coarser than
//! the memory model: a race may go unseen, but every reported race is real. Atomics and volatile accesses do not race with each
//! other. Neither do stores of one instruction: threads that all set the same flag are common. Accesses are stored by words of 4
//! bytes, with the last store and the last two loads of each.
//!
//! A copy (`cp.async`) may write at any time until its thread has waited for its group. Until then it is not in order with
//! accesses of other threads or of its own, whatever lies in between. The wait counts as the time of the write. A row of a matrix
//! (`ldmatrix`, `stmatrix`) counts as accessed by the lane with its address.

use crate::types::{Space, Width};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;

/// Effect of an instruction on memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccessKind {
    /// It only reads.
    Load,
    /// It only writes.
    Store,
    /// It reads and writes at once.
    Atomic,
    /// It writes at some later time.
    Copy,
}

impl AccessKind {
    /// Returns its word in a report.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Store => "store",
            Self::Atomic => "atomic",
            Self::Copy => "copy",
        }
    }
}

/// Relevance of an instruction for races, as the decoder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// An access at the address in `Inst::a` plus `Inst::imm`.
    Memory(Access),
    /// `cp.async`, with its two addresses as in `memory::async_copy`.
    Copy {
        /// Bytes per lane.
        bytes: u32,
        /// Whether the register of the destination has 32 bits.
        narrow: bool,
    },
    /// `cp.async.commit_group`
    Commit,
    /// `cp.async.wait_group`: waits for all groups but the last ones of this number. `None` is `cp.async.wait_all`, or an arrival
    /// that marks the end of all copies.
    Wait(Option<u32>),
    /// `ldmatrix` and `stmatrix`.
    Tiles(AccessKind),
}

/// An access as the decoder knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub(super) kind: AccessKind,
    /// Whether it is atomic, volatile, or ordered.
    pub(super) strong: bool,
    pub(super) space: Space,
    /// Whether the address register has 32 bits.
    pub(super) narrow: bool,
    /// Bytes per lane.
    pub(super) bytes: u32,
}

impl Access {
    /// Returns an access of `bytes` bytes per lane, at an address in a register of this width.
    pub(crate) fn new(kind: AccessKind, strong: bool, space: Space, pointer: Width, bytes: u32) -> Self {
        Self { kind, strong, space, narrow: pointer == Width::Word, bytes }
    }
}

/// One of the two accesses of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RaceSide {
    /// Line of the PTX text.
    pub line: u32,
    /// Kind of the access: `load`, `store`, `atomic` or `copy`.
    pub kind: &'static str,
    /// Index of the block.
    pub block: [u32; 3],
    /// The thread in its block.
    pub thread: [u32; 3],
}

/// Two accesses without an order. `Display` is one line for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Race {
    /// Name of the kernel.
    pub kernel: String,
    /// Whether it is shared memory, where `address` counts from the start of the block's memory.
    pub shared: bool,
    /// The first byte that both access.
    pub address: u64,
    /// The earlier access.
    pub first: RaceSide,
    /// The later access.
    pub second: RaceSide,
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, shared, address, first, second } = self;
        let space = if *shared { "shared" } else { "global" };
        write!(f, "race in {kernel}: {space} memory at {address:#x}: ")?;
        let side = |side: &RaceSide| {
            let ([x, y, z], [a, b, c]) = (side.thread, side.block);
            format!("{} at PTX line {} by thread ({x},{y},{z}) of block ({a},{b},{c})", side.kind, side.line)
        };
        write!(f, "{} and {} are not ordered", side(first), side(second))
    }
}

/// An access to a word, and its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct AccessMark {
    pub(super) pc: u32,
    pub(super) kind: AccessKind,
    pub(super) strong: bool,
    /// A bit for each byte of the word.
    pub(super) bytes: u8,
    pub(super) block: u64,
    pub(super) warp: u32,
    pub(super) lane: u32,
    /// `Block::epoch` and `Warp::epoch` at that time.
    pub(super) epochs: (u32, u32),
    /// The clock at that time.
    pub(super) time: u64,
    /// For a copy, the number of its group in its thread.
    pub(super) group: u32,
}

/// Effect of a wait for copies.
#[derive(Debug, Clone, Copy)]
struct CopyWait {
    /// Groups below this one have written.
    below: u32,
    epochs: (u32, u32),
    time: u64,
}

/// The groups of a thread's copies.
#[derive(Debug, Default)]
struct CopyGroups {
    /// Number of committed groups, and so the number of the open one.
    committed: u32,
    /// The last waits, the oldest first.
    waits: VecDeque<CopyWait>,
    /// Groups below this one were waited for before those waits.
    forgotten: u32,
}

/// Most stored waits of a thread.
const MAX_KEPT_WAITS: usize = 8;

impl CopyGroups {
    fn wait(&mut self, wait: CopyWait) {
        if self.waits.back().is_some_and(|last| last.below >= wait.below) {
            return;
        }
        if self.waits.len() == MAX_KEPT_WAITS
            && let Some(oldest) = self.waits.pop_front()
        {
            self.forgotten = oldest.below;
        }
        self.waits.push_back(wait);
    }

    /// Returns a copy as of its thread's wait; `None` before that. A copy whose wait is forgotten counts as of its start.
    fn landed(&self, copy: &AccessMark) -> Option<AccessMark> {
        if copy.group < self.forgotten {
            return Some(*copy);
        }
        let wait = self.waits.iter().find(|wait| copy.group < wait.below)?;
        Some(AccessMark { epochs: wait.epochs, time: wait.time, ..*copy })
    }
}

/// The last accesses of a word.
#[derive(Debug, Default, Clone, Copy)]
struct ShadowWord {
    store: Option<AccessMark>,
    loads: [Option<AccessMark>; 2],
}

/// The recorded accesses of a launch.
#[derive(Debug)]
pub(crate) struct RaceDetector {
    /// Accesses by space (the owner of shared memory, or `None`) and address, divided by 4.
    words: HashMap<(Option<u64>, u64), ShadowWord>,
    /// Time at which each warp, by block and warp, last published or looked.
    clocks: HashMap<(u64, u32), u64>,
    /// Groups of copies, by block, warp and lane.
    copies: HashMap<(u64, u32, u32), CopyGroups>,
    /// Number of publications of all warps.
    pub(super) time: u64,
    /// Reported pairs of instructions.
    reported: HashSet<(u32, u32)>,
    /// State of the random lengths of turns.
    random: u64,
}

/// Most instructions of a warp's turn.
const MAX_TURN_INSTRUCTIONS: u64 = 24;

impl RaceDetector {
    /// Returns a detector without accesses; `seed` decides the order of turns.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            words: HashMap::new(),
            clocks: HashMap::new(),
            copies: HashMap::new(),
            time: 0,
            reported: HashSet::new(),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// Draws the number of instructions in the next time slice of a warp.
    pub(crate) fn draw_slice(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % MAX_TURN_INSTRUCTIONS + 1) as u32
    }

    /// Notes that a warp publishes its accesses, and looks at those of others.
    pub(super) fn publish(&mut self, block: u64, warp: u32) {
        self.time += 1;
        self.clocks.insert((block, warp), self.time);
    }

    /// Returns the group of a thread's next copy.
    pub(super) fn open_group(&self, thread: (u64, u32, u32)) -> u32 {
        self.copies.get(&thread).map_or(0, |groups| groups.committed)
    }

    /// Ends a group of a thread's copies.
    pub(super) fn commit(&mut self, thread: (u64, u32, u32)) {
        self.copies.entry(thread).or_default().committed += 1;
    }

    /// Notes that a thread waits for all its copies, or for all groups but the last `pending` ones.
    pub(super) fn wait(&mut self, thread: (u64, u32, u32), pending: Option<u32>, epochs: (u32, u32)) {
        let time = self.time;
        let groups = self.copies.entry(thread).or_default();
        let below = pending.map_or(groups.committed + 1, |pending| groups.committed.saturating_sub(pending));
        groups.wait(CopyWait { below, epochs, time });
    }

    /// Returns an access once it is over; `None` for a copy that may still write.
    fn landed(&self, mark: &AccessMark) -> Option<AccessMark> {
        if mark.kind != AccessKind::Copy {
            return Some(*mark);
        }
        self.copies.get(&(mark.block, mark.warp, mark.lane))?.landed(mark)
    }

    /// Returns whether something orders an earlier access before a later one.
    fn in_order(&self, first: &AccessMark, second: &AccessMark) -> bool {
        let Some(first) = self.landed(first) else { return false };
        if first.block == second.block {
            let one_warp = first.warp == second.warp;
            let apart = first.epochs.0 != second.epochs.0 || (one_warp && first.epochs.1 != second.epochs.1);
            if apart || (one_warp && first.lane == second.lane) {
                return true;
            }
        }
        let clock = |mark: &AccessMark| self.clocks.get(&(mark.block, mark.warp)).copied().unwrap_or(0);
        clock(&first) > first.time && clock(second) > first.time
    }

    /// Notes an access of a word, and returns the earlier one that it races with.
    pub(super) fn touch(&mut self, word_id: (Option<u64>, u64), mark: AccessMark) -> Option<AccessMark> {
        let word = self.words.get(&word_id).copied().unwrap_or_default();
        let writes = mark.kind != AccessKind::Load;
        let loads = word.loads.iter().filter(|_| writes);
        let earlier = word.store.iter().chain(loads.flatten());
        let races = |first: &&AccessMark| {
            let both_strong = first.strong && mark.strong;
            let same_store = first.pc == mark.pc && matches!(first.kind, AccessKind::Store | AccessKind::Copy);
            first.bytes & mark.bytes != 0 && !both_strong && !same_store && !self.in_order(first, &mark)
        };
        let race = earlier.copied().find(|first| races(&first));
        let word = self.words.entry(word_id).or_default();
        if writes {
            // Earlier loads have been checked. From here on, the store stands for them.
            *word = ShadowWord { store: Some(mark), loads: [None; 2] };
        } else if word.loads[0]
            .is_none_or(|last| (last.block, last.warp, last.lane) == (mark.block, mark.warp, mark.lane))
        {
            word.loads[0] = Some(mark);
        } else {
            word.loads = [Some(mark), word.loads[0]];
        }
        race.filter(|first| self.reported.insert((first.pc, mark.pc)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(pc: u32, kind: AccessKind, warp: u32, lane: u32) -> AccessMark {
        AccessMark { pc, kind, strong: false, bytes: 0xf, block: 0, warp, lane, epochs: (0, 0), time: 0, group: 0 }
    }

    fn races_at(races: &mut RaceDetector, mark: AccessMark) -> Option<u32> {
        races.touch((None, 1), mark).map(|first| first.pc)
    }

    #[test]
    fn accesses_of_two_threads_race_unless_something_orders_them() {
        let mut races = RaceDetector::new(1);
        assert_eq!(races_at(&mut races, mark(1, AccessKind::Store, 0, 0)), None);
        assert_eq!(races_at(&mut races, mark(2, AccessKind::Load, 0, 0)), None, "its own");
        assert_eq!(
            races_at(&mut races, AccessMark { bytes: 0, ..mark(2, AccessKind::Load, 1, 0) }),
            None,
            "other bytes"
        );
        assert_eq!(races_at(&mut races, mark(1, AccessKind::Store, 1, 0)), Some(2), "read by another one");
        assert_eq!(
            races_at(&mut races, AccessMark { epochs: (1, 0), ..mark(3, AccessKind::Load, 2, 0) }),
            None,
            "a barrier"
        );
        assert_eq!(
            races_at(&mut races, AccessMark { epochs: (0, 1), ..mark(4, AccessKind::Load, 1, 5) }),
            None,
            "of the warp"
        );
        assert_eq!(races_at(&mut races, mark(4, AccessKind::Load, 2, 5)), Some(1));
        assert_eq!(races_at(&mut races, mark(4, AccessKind::Load, 3, 5)), None, "once for each pair");
    }

    #[test]
    fn an_observed_publication_orders_accesses() {
        let mut races = RaceDetector::new(1);
        let of =
            |races: &RaceDetector, block: u64, pc, kind| AccessMark { block, time: races.time, ..mark(pc, kind, 0, 0) };
        let store = of(&races, 0, 1, AccessKind::Store);
        assert_eq!(races_at(&mut races, store), None);
        races.publish(0, 0);
        races.publish(1, 0);
        let load = of(&races, 1, 2, AccessKind::Load);
        assert_eq!(races_at(&mut races, load), None);
        let late = of(&races, 2, 3, AccessKind::Load);
        assert_eq!(races_at(&mut races, late), Some(1), "who has not looked");
    }

    #[test]
    fn strong_accesses_and_stores_of_one_instruction_do_not_race() {
        let mut races = RaceDetector::new(1);
        let strong = |mark: AccessMark| AccessMark { strong: true, ..mark };
        assert_eq!(races_at(&mut races, strong(mark(1, AccessKind::Atomic, 0, 0))), None);
        assert_eq!(races_at(&mut races, strong(mark(1, AccessKind::Atomic, 1, 0))), None);
        assert_eq!(races_at(&mut races, mark(2, AccessKind::Store, 2, 0)), Some(1));
        assert_eq!(races_at(&mut races, mark(2, AccessKind::Store, 3, 0)), None);
    }

    #[test]
    fn a_copy_is_over_when_its_thread_has_waited_for_its_group() {
        let mut races = RaceDetector::new(1);
        let thread = (0, 0, 0);
        let load = |pc, warp, epoch| AccessMark { epochs: (epoch, 0), ..mark(pc, AccessKind::Load, warp, 0) };
        let copy = AccessMark { group: races.open_group(thread), ..mark(1, AccessKind::Copy, 0, 0) };
        assert_eq!(races_at(&mut races, copy), None);
        races.commit(thread);
        races.commit(thread);
        races.wait(thread, Some(2), (1, 0));
        assert_eq!(races_at(&mut races, load(2, 0, 2)), Some(1), "its own thread, behind a barrier");
        races.wait(thread, Some(1), (3, 0));
        assert_eq!(races_at(&mut races, load(3, 1, 3)), Some(1), "a barrier before the wait");
        races.wait(thread, None, (4, 0));
        assert_eq!(races_at(&mut races, load(4, 1, 4)), None, "the first wait counts");
    }

    #[test]
    fn what_is_known_of_copies_is_bounded() {
        let mut groups = CopyGroups::default();
        let copy = AccessMark { group: 3, epochs: (0, 0), ..mark(1, AccessKind::Copy, 0, 0) };
        for group in 1..=3 {
            groups.wait(CopyWait { below: group, epochs: (group, 0), time: 0 });
        }
        assert!(groups.landed(&copy).is_none());
        for group in 4..100 {
            groups.wait(CopyWait { below: group, epochs: (group, 0), time: 0 });
        }
        assert_eq!((groups.waits.len(), groups.landed(&copy).map(|mark| mark.epochs)), (MAX_KEPT_WAITS, Some((0, 0))));
        let recent = AccessMark { group: 98, ..copy };
        assert_eq!(groups.landed(&recent).map(|mark| mark.epochs), Some((99, 0)));
    }

    #[test]
    fn a_report_names_everything() {
        let side = |line, kind| RaceSide { line, kind, block: [1, 0, 0], thread: [line, 0, 0] };
        let race =
            Race { kernel: "k".into(), shared: true, address: 16, first: side(3, "store"), second: side(9, "load") };
        assert_eq!(
            race.to_string(),
            "race in k: shared memory at 0x10: store at PTX line 3 by thread (3,0,0) of block (1,0,0) and \
             load at PTX line 9 by thread (9,0,0) of block (1,0,0) are not ordered"
        );
    }
}
