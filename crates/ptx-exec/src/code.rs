//! A decoded program, and what every thread of a launch reads of it.

use crate::alu::video::Video;
use crate::api::{Host, KernelInfo};
use crate::device_runtime::Runtime;
use crate::engine::order::Order;
use crate::engine::races::Access;
use crate::engine::registers::Row;
use crate::inst::{Inst, Slot};
use crate::matrix::Matrix;
use crate::window;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// All functions of a program, decoded. Never changes after loading.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Instructions of all functions, one function after the other; program counters index it.
    pub(crate) insts: Vec<Inst>,
    /// Rows that slots with `CONSTANT` refer to.
    pub(crate) constants: Vec<Row>,
    /// Operand lists of vector instructions, jump tables, argument lists.
    pub(crate) lists: Vec<Slot>,
    /// What a call needs to know of each function.
    pub(crate) functions: Vec<FunctionCode>,
    /// Layouts of indirect calls.
    pub(crate) call_sites: Vec<CallSite>,
    /// Its kernels, in the order of the texts.
    pub(crate) kernels: Vec<Arc<KernelInfo>>,
    /// Whether addresses of shared memory say which block of the cluster they belong to.
    pub(crate) ranked: bool,
    /// Whether blocks need the shared memory that is reserved for the system.
    pub(crate) reserved: bool,
    /// A hash of the texts.
    pub(crate) source: u64,
    /// What matrix instructions do.
    pub(crate) matrices: Vec<Matrix>,
    /// What video instructions do.
    pub(crate) videos: Vec<Video>,
    /// What instructions do with memory, by program counter.
    pub(crate) accesses: Vec<(u32, Access)>,
}

impl Code {
    /// An entry of `lists`; instructions only refer to entries that exist.
    #[inline(always)]
    pub(crate) fn list(&self, index: u32) -> u32 {
        self.lists.get(index as usize).copied().unwrap_or(0)
    }
}

/// A function, kernel or not.
#[derive(Debug, Clone, Default)]
pub(crate) struct FunctionCode {
    /// Where it starts.
    pub(crate) entry: u32,
    /// Where the next one starts.
    pub(crate) end: u32,
    /// Rows of its frame.
    pub(crate) rows: u32,
    /// Bytes of local memory of its frame, a multiple of 16.
    pub(crate) local_bytes: u32,
    /// Parameters in that local memory. Kernels have none there.
    pub(crate) params: Vec<LocalArea>,
    /// Return values in that local memory.
    pub(crate) returns: Vec<LocalArea>,
}

/// A stretch of a frame's local memory, at a multiple of 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalArea {
    /// Bytes from the start of the frame.
    pub(crate) offset: u32,
    /// Its size.
    pub(crate) size: u32,
}

/// Where a call's arguments and results are in the frame of the caller.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallSite {
    /// Arguments in order.
    pub(crate) args: Vec<LocalArea>,
    /// Results in order.
    pub(crate) results: Vec<LocalArea>,
}

/// A launch as its threads see it.
pub(crate) struct Env<'a> {
    /// The program.
    pub(crate) code: &'a Code,
    /// Memory ranges and output.
    pub(crate) host: &'a dyn Host,
    /// The parameter buffer.
    pub(crate) params: &'a [u8],
    /// Blocks in the grid and in its clusters.
    pub(crate) order: Order,
    /// Whether the launch is one of clusters.
    pub(crate) clustered: bool,
    /// Threads in a block.
    pub(crate) block: [u32; 3],
    /// Offset of dynamic shared memory.
    pub(crate) dynamic_shared_at: u32,
    /// Size of dynamic shared memory.
    pub(crate) dynamic_shared: u32,
    /// Size of the shared memory of a block that its program asks for.
    pub(crate) shared_bytes: u32,
    /// Size of all, with what is reserved for the system behind it.
    pub(crate) all_shared_bytes: u32,
    /// When the threads started, for clocks.
    pub(crate) started: Instant,
    /// How long the grid had run before that.
    pub(crate) before: Duration,
    /// The kernel's function.
    pub(crate) function: u32,
    /// A number that no other grid has.
    pub(crate) grid_id: u64,
    /// What the grid has asked of the device runtime.
    pub(crate) runtime: &'a Mutex<Runtime>,
    /// Where in this process the words are that the blocks of a cooperative launch wait for each other with; 0 in any
    /// other launch. Device code knows them by their window.
    pub(crate) workspace: u64,
}

/// Bytes of the workspace of a cooperative launch.
pub(crate) const WORKSPACE_BYTES: u64 = 256;

impl Env<'_> {
    /// Address of the workspace, as device code sees it.
    pub(crate) fn workspace_address(&self) -> u64 {
        if self.workspace == 0 { 0 } else { window::WORKSPACE }
    }

    /// Where `size` bytes of the workspace are, if `address` lies in its window.
    pub(crate) fn workspace_at(&self, address: u64, size: u64) -> Option<u64> {
        let offset = window::offset_in(window::WORKSPACE, address)?;
        let fits = self.workspace != 0 && offset + size <= WORKSPACE_BYTES;
        fits.then_some(self.workspace + offset)
    }

    /// Threads in a block; `Grid::new` checked that it is at most 1024.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Warps in a block.
    pub(crate) fn warps(&self) -> u32 {
        self.threads().div_ceil(32)
    }
}
