//! The device runtime (`__cudaCDP2*`): kernels that launch kernels, copy and fill memory, and ask about the device.
//!
//! What a grid asks for is kept until the grid is done, then done in the order in which it was asked for, and only then
//! what was asked for behind it (tail launches). So streams and events have nothing left to order: every wait is for
//! something asked for earlier. A grid that is launched does not begin before the one that launched it has ended; CUDA
//! promises no more, since parent and child may not rely on running at the same time.
//!
//! | module | functions |
//! |---|---|
//! | `launches` | parameter buffers and launches |
//! | `copies` | copies and fills |
//! | `streams` | streams and events |
//! | `queries` | devices, limits, kernels, occupancy, versions, memory |
//! | `errors` | last errors, their names and texts |

mod copies;
mod errors;
mod launches;
mod queries;
mod streams;

use crate::api::{Host, Pool};
use crate::engine::builtin::set_result;
use crate::engine::fault::FaultKind;
use crate::engine::machine::Machine;
use crate::engine::registers::{LANES, lanes_of};
use crate::inst::Flow;
use crate::inst::{Exec, Inst};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{MutexGuard, PoisonError};

pub(crate) use copies::{Area, run_copy, run_fill};
pub(crate) use launches::Child;

/// Codes of the runtime API (`cudaError_t`).
pub(crate) mod error {
    /// `cudaSuccess`
    pub(crate) const SUCCESS: u32 = 0;
    /// `cudaErrorInvalidValue`
    pub(crate) const INVALID_VALUE: u32 = 1;
    /// `cudaErrorMemoryAllocation`
    pub(crate) const MEMORY_ALLOCATION: u32 = 2;
    /// `cudaErrorInvalidConfiguration`
    pub(crate) const INVALID_CONFIGURATION: u32 = 9;
    /// `cudaErrorInvalidMemcpyDirection`
    pub(crate) const INVALID_MEMCPY_DIRECTION: u32 = 21;
    /// `cudaErrorLaunchPendingCountExceeded`
    pub(crate) const PENDING_COUNT_EXCEEDED: u32 = 69;
    /// `cudaErrorInvalidDeviceFunction`
    pub(crate) const INVALID_DEVICE_FUNCTION: u32 = 98;
    /// `cudaErrorInvalidDevice`
    pub(crate) const INVALID_DEVICE: u32 = 101;
    /// `cudaErrorInvalidResourceHandle`
    pub(crate) const INVALID_RESOURCE_HANDLE: u32 = 400;
    /// `cudaErrorUnsupportedLimit`
    pub(crate) const UNSUPPORTED_LIMIT: u32 = 215;
}

/// Something to do when the grid that asked for it is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Run another kernel of the program.
    Launch(Child),
    /// Copy memory.
    Copy {
        /// Where to.
        to: Area,
        /// Where from.
        from: Area,
        /// Bytes of a row, rows of a slice, slices.
        extent: [u64; 3],
    },
    /// Fill memory with a byte.
    Fill {
        /// Where.
        to: Area,
        /// What with.
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
    pub(crate) jobs: VecDeque<Job>,
    /// Jobs after those and all that follows from them.
    pub(crate) tails: VecDeque<Job>,
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
            host.free(Pool::Runtime, *address);
        }
        Level { jobs: std::mem::take(&mut old.jobs), tails: std::mem::take(&mut old.tails) }
    }
}

/// Jobs that a finished grid has left behind.
#[derive(Debug, Default)]
pub(crate) struct Level {
    /// To be done first.
    pub(crate) jobs: VecDeque<Job>,
    /// To be done then.
    pub(crate) tails: VecDeque<Job>,
}

impl Level {
    /// The next job.
    pub(crate) fn next(&mut self) -> Option<Job> {
        self.jobs.pop_front().or_else(|| self.tails.pop_front())
    }
}

impl Machine<'_> {
    /// What the grid has asked of the runtime so far, locked.
    fn runtime(&self) -> MutexGuard<'_, Runtime> {
        self.env.runtime.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the error of a lane until it is asked for.
    fn note_error(&mut self, lane: usize, code: u32) {
        if code != error::SUCCESS {
            self.warp.errors.resize(LANES, error::SUCCESS);
            if let Some(last) = self.warp.errors.get_mut(lane) {
                *last = code;
            }
        }
    }
}

/// Runs a function of the runtime for each lane; it returns an error code, which the lane gets and keeps.
fn for_each(
    machine: &mut Machine<'_>,
    inst: &Inst,
    function: impl Fn(&mut Machine<'_>, usize) -> Result<u32, FaultKind>,
) -> Flow {
    for lane in lanes_of(machine.mask) {
        let done = function(machine, lane).and_then(|code| {
            machine.note_error(lane, code);
            set_result(machine, inst, lane, code)
        });
        if let Err(kind) = done {
            return machine.fail(kind, lane);
        }
    }
    Flow::Next
}

/// The code that stands for a call of `name`, which may name the variant for per-thread default streams: with all
/// jobs in one order the two are the same.
pub(crate) fn find(name: &str) -> Option<Exec> {
    let name = name.strip_prefix("__cudaCDP2")?;
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    let found = launches::find(name).or_else(|| copies::find(name)).or_else(|| streams::find(name));
    found.or_else(|| queries::find(name)).or_else(|| errors::find(name))
}
