//! What a grid has asked of the device runtime: plain data.

use crate::host::{DeviceHeap, Host};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Something to do when the grid that asked for it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DeferredWork {
    /// Run another kernel of the program.
    Launch(Child),
    /// Copy memory between two areas.
    Copy {
        /// The area that is written.
        to: RowArea,
        /// The area that is read.
        from: RowArea,
        /// Bytes of a row, rows of a slice, slices.
        extent: [u64; 3],
    },
    /// Fill memory with a byte.
    Fill {
        /// The area that is filled.
        to: RowArea,
        /// The value of each byte.
        byte: u8,
        /// Bytes of a row, rows of a slice, slices.
        extent: [u64; 3],
    },
}

/// What a grid has asked of the runtime: plain data.
#[derive(Debug, Default)]
pub(crate) struct Runtime {
    /// Parameter buffers that have not been launched, by address, and the launches that they are for.
    pub(crate) buffers: BTreeMap<u64, Child>,
    /// Jobs in the order they were asked for.
    pub(crate) jobs: VecDeque<DeferredWork>,
    /// Jobs after those and all that follows from them.
    pub(crate) tails: VecDeque<DeferredWork>,
    /// Streams and events that exist.
    pub(crate) handles: BTreeSet<u64>,
    /// The last handle given.
    pub(crate) last_handle: u64,
    /// Where texts of errors are, by code, with the lowest bit for names.
    pub(crate) texts: BTreeMap<u32, u64>,
}

impl Runtime {
    /// Forgets everything but the jobs, and frees what device code cannot use any more.
    pub(crate) fn finish(&mut self, host: &dyn Host) -> Level {
        let mut old = std::mem::take(self);
        for address in old.buffers.keys().chain(old.texts.values()) {
            host.free(DeviceHeap::Runtime, *address);
        }
        Level { jobs: std::mem::take(&mut old.jobs), tails: std::mem::take(&mut old.tails) }
    }
}

/// Jobs that a finished grid has left behind.
#[derive(Debug, Default)]
pub(crate) struct Level {
    /// To be done first.
    pub(crate) jobs: VecDeque<DeferredWork>,
    /// To be done then.
    pub(crate) tails: VecDeque<DeferredWork>,
}

impl Level {
    /// The next job.
    pub(crate) fn next(&mut self) -> Option<DeferredWork> {
        self.jobs.pop_front().or_else(|| self.tails.pop_front())
    }
}

/// A launch of a kernel of the same program.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Child {
    /// Its function in the program.
    pub(crate) function: u32,
    /// Blocks in the grid.
    pub(crate) grid: [u32; 3],
    /// Threads in a block.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) dynamic_shared: u32,
    /// The bytes of its parameter buffer.
    pub(crate) params: Vec<u8>,
}

/// Rows of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RowArea {
    /// The first byte.
    pub(crate) address: u64,
    /// Bytes from row to row.
    pub(crate) pitch: u64,
    /// Bytes from slice to slice.
    pub(crate) slice: u64,
}
