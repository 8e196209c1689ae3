//! The state of a block: its warps, its shared memory and its barriers.

use crate::engine::warp::Warp;
use crate::memory::shared_memory::SharedMemory;

/// Number of barriers of a block.
pub(crate) const BARRIERS_PER_BLOCK: usize = 16;

/// The state of one of the barriers of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub(crate) arrived: u32,
    /// Expected threads; 0 for all threads of the block that have not exited.
    pub(crate) expected: u32,
    /// Number of them with a true predicate (`bar.red`).
    pub(crate) votes: u32,
}

/// A block: plain data, so that it can be suspended between any two instructions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Block {
    /// Its index in the grid.
    pub(crate) index: [u32; 3],
    /// The warps of the block, in order.
    pub(crate) warps: Vec<Warp>,
    /// Its shared memory.
    pub(crate) shared: SharedMemory,
    /// The barriers, by their numbers.
    pub(crate) barriers: [Barrier; BARRIERS_PER_BLOCK],
    /// The warp that runs next.
    pub(crate) next_warp: usize,
    /// Number of barriers so far; meaningless beyond a launch.
    pub(crate) epoch: u32,
}

impl Block {
    /// Returns its approximate memory, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let warps = self.warps.iter().map(|warp| warp.rows.capacity() * 128 + warp.local.capacity() * 256);
        self.shared.bytes() as usize + warps.sum::<usize>()
    }

    /// Returns the number of threads that have not exited.
    pub(crate) fn alive(&self) -> u32 {
        self.warps.iter().map(|warp| warp.alive.count_ones()).sum()
    }
}
