//! Requests of a grid to the device runtime, as plain data.

use crate::host::{DeviceHeap, Host};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Work for the end of the grid that requested it.
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

/// Requests of a grid to the runtime, as plain data.
#[derive(Debug, Default)]
pub(crate) struct Runtime {
    /// Parameter buffers that have not been launched, by address, with their launches.
    pub(crate) buffers: BTreeMap<u64, Child>,
    /// Jobs, in the order of their requests.
    pub(crate) jobs: VecDeque<DeferredWork>,
    /// Jobs that run after all others and their children.
    pub(crate) tails: VecDeque<DeferredWork>,
    /// Live streams and events.
    pub(crate) handles: BTreeSet<u64>,
    /// The last handle.
    pub(crate) last_handle: u64,
    /// Addresses of error texts, by code; the lowest bit marks names.
    pub(crate) texts: BTreeMap<u32, u64>,
}

impl Runtime {
    /// Drops everything but the jobs, and frees memory that device code cannot use any more.
    pub(crate) fn finish(&mut self, host: &dyn Host) -> Level {
        let mut old = std::mem::take(self);
        for address in old.buffers.keys().chain(old.texts.values()) {
            host.free(DeviceHeap::Runtime, *address);
        }
        Level { jobs: std::mem::take(&mut old.jobs), tails: std::mem::take(&mut old.tails) }
    }
}

/// Jobs that a finished grid has left.
#[derive(Debug, Default)]
pub(crate) struct Level {
    /// Jobs to run first.
    pub(crate) jobs: VecDeque<DeferredWork>,
    /// Jobs to run after those.
    pub(crate) tails: VecDeque<DeferredWork>,
}

impl Level {
    /// Returns the next job.
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
