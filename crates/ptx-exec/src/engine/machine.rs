//! The machine: one interpreter thread, with its program and launch.
//!
//! Instruction, program and machine are one module because their types depend on each other. An instruction is a function over
//! the machine, the machine runs a launch of a program, and a program is a list of instructions. The modules above implement the
//! machine: `scheduler` runs a warp, `rounds` runs the warps of a block, and each family of instructions is a module.

use crate::alu::video::operation::Video;
use crate::code::{CallSite, FunctionCode, KernelInfo};
use crate::device_runtime::jobs::Runtime;
use crate::engine::block::Block;
use crate::engine::fault::FaultKind;
use crate::engine::order::BlockOrder;
use crate::engine::races::{RaceDetector, Watched};
use crate::engine::registers::{Registers, Row};
use crate::engine::warp::{Split, Wait, Warp};
use crate::host::Host;
use crate::matrix::operation::Matrix;
use crate::memory::ranges::Ranges;
use crate::slot::Slot;
use crate::texture::handle_cache::HandleCache;
use crate::window;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Result of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on with the next instruction.
    Next,
    /// The program counter or the set of running lanes was changed.
    Jump,
    /// The running lanes wait: the scheduler picks others.
    Wait,
    /// The instruction faulted; `Machine::fault` has the fault.
    Fault,
}

/// Runs one instruction for the lanes in `Machine::mask`.
///
/// Unsafe to call because some were compiled for CPU features beyond the baseline: only the decoder makes these pointers, and it
/// selects those that the CPU supports.
pub(crate) type Exec = unsafe fn(&mut Machine<'_>, &Inst) -> Flow;

/// A decoded instruction: its code, and the slots of its operands.
#[derive(Clone, Copy)]
pub(crate) struct Inst {
    /// The function that runs it.
    pub(crate) exec: Exec,
    /// Word slot of the guard predicate, perhaps with `NEGATED_BIT`; or `NO_SLOT`.
    pub(crate) guard: Slot,
    /// Slot of the destination.
    pub(crate) d: Slot,
    /// Slot of the first source.
    pub(crate) a: Slot,
    /// Slot of the second source.
    pub(crate) b: Slot,
    /// Slot of the third source.
    pub(crate) c: Slot,
    /// Second destination, index into `Code::lists`, or branch target, depending on `exec`.
    pub(crate) x: u32,
    /// Address offset or modifiers, depending on `exec`.
    pub(crate) imm: u64,
    /// Line in the PTX text.
    pub(crate) line: u32,
}

impl fmt::Debug for Inst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guard, d, a, b, c, x, imm, line, .. } = self;
        write!(f, "line {line}: guard {guard:#x} d {d:#x} a {a:#x} b {b:#x} c {c:#x} x {x:#x} imm {imm:#x}")
    }
}

/// All functions of a program, decoded. Never changes after loading.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Instructions of all functions, one function after the other; program counters index it.
    pub(crate) insts: Vec<Inst>,
    /// Rows for slots with `CONSTANT_BIT`.
    pub(crate) constants: Vec<Row>,
    /// Operand lists of vector instructions, jump tables, argument lists.
    pub(crate) lists: Vec<Slot>,
    /// Properties of each function for calls.
    pub(crate) functions: Vec<FunctionCode>,
    /// Layouts of indirect calls.
    pub(crate) call_sites: Vec<CallSite>,
    /// Its kernels, in the order of the texts.
    pub(crate) kernels: Vec<Arc<KernelInfo>>,
    /// Whether addresses of shared memory contain the rank of their block in the cluster.
    pub(crate) ranked: bool,
    /// Whether blocks need the system's reserved shared memory.
    pub(crate) reserved: bool,
    /// A hash of the texts.
    pub(crate) source: u64,
    /// Descriptions of matrix instructions.
    pub(crate) matrices: Vec<Matrix>,
    /// Descriptions of video instructions.
    pub(crate) videos: Vec<Video>,
    /// Effects of instructions on memory, by program counter.
    pub(crate) accesses: Vec<(u32, Watched)>,
}

impl Code {
    /// Returns an entry of `lists`. Instructions only refer to entries that exist.
    #[inline(always)]
    pub(crate) fn list(&self, index: u32) -> u32 {
        self.lists.get(index as usize).copied().unwrap_or(0)
    }

    /// Returns whether the function exists and accepts the parameters of the call site.
    pub(crate) fn accepts(&self, function: u32, site: u32) -> bool {
        let (Some(function), Some(site)) = (self.functions.get(function as usize), self.call_sites.get(site as usize))
        else {
            return false;
        };
        function.params.len() == site.args.len() && function.returns.len() >= site.results.len()
    }
}

/// Bytes of the workspace of a cooperative launch.
pub(crate) const WORKSPACE_BYTES: u64 = 256;

/// A launch, as its threads see it.
pub(crate) struct Env<'a> {
    /// The program that is launched.
    pub(crate) code: &'a Code,
    /// Memory ranges and output.
    pub(crate) host: &'a dyn Host,
    /// The parameter buffer.
    pub(crate) params: &'a [u8],
    /// Blocks in the grid and in its clusters.
    pub(crate) order: BlockOrder,
    /// Whether the launch has clusters.
    pub(crate) clustered: bool,
    /// Threads in a block.
    pub(crate) block: [u32; 3],
    /// Offset of dynamic shared memory.
    pub(crate) dynamic_shared_at: u32,
    /// Size of dynamic shared memory.
    pub(crate) dynamic_shared: u32,
    /// Bytes of shared memory of a block that its program requests.
    pub(crate) shared_bytes: u32,
    /// Bytes of all shared memory of a block, with the system's reserved part at the end.
    pub(crate) all_shared_bytes: u32,
    /// When the threads started, for clocks.
    pub(crate) started: Instant,
    /// Time that the grid had run before.
    pub(crate) time_before: Duration,
    /// The kernel's function.
    pub(crate) function: u32,
    /// Id that no other grid has.
    pub(crate) grid_id: u64,
    /// The grid's requests to the device runtime.
    pub(crate) runtime: &'a Mutex<Runtime>,
    /// Address in this process of the words by which the blocks of a cooperative launch wait for each other; 0 in any other
    /// launch. Device code accesses them through their window.
    pub(crate) workspace: u64,
}

impl Env<'_> {
    /// Returns the address of the workspace for device code.
    pub(crate) fn workspace_address(&self) -> u64 {
        if self.workspace == 0 { 0 } else { window::WORKSPACE_ADDRESS }
    }

    /// Returns the address of `size` bytes of the workspace, if `address` is in its window.
    pub(crate) fn workspace_at(&self, address: u64, size: u64) -> Option<u64> {
        let offset = window::offset_in(window::WORKSPACE_ADDRESS, address)?;
        let fits = self.workspace != 0 && offset + size <= WORKSPACE_BYTES;
        fits.then_some(self.workspace + offset)
    }

    /// Returns the threads of a block; `Grid::new` checked that there are at most 1024.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Returns the warps of a block.
    pub(crate) fn warps(&self) -> u32 {
        self.threads().div_ceil(32)
    }
}

/// One interpreter thread with the block and the warp that it runs.
pub(crate) struct Machine<'a> {
    /// Registers of the running frame.
    pub(crate) registers: Registers,
    /// Lanes that execute the current instruction.
    pub(crate) mask: u32,
    /// The current instruction.
    pub(crate) pc: u32,
    /// Lanes of the running split.
    pub(crate) lanes: u32,
    /// Frame of the running split.
    pub(crate) frame: u32,
    /// Program counter at which the running split meets another one.
    pub(crate) join_at: u32,
    /// What the running split waits for, if an instruction returned `Flow::Wait`.
    pub(crate) wait: Wait,
    /// Whether the running split may be waiting for other lanes: it uses atomics or volatile loads.
    pub(crate) spinning: bool,
    /// Whether any code since the last check may be waiting for others, so that the block may be waiting for another one.
    pub(crate) waited: bool,
    /// Number of the cluster whose turn it is.
    pub(crate) cluster_turn: usize,
    /// The race detector, during a race search.
    pub(crate) races: Option<Box<RaceDetector>>,
    /// The running launch.
    pub(crate) env: &'a Env<'a>,
    /// The running warp; its slot in `block` is empty meanwhile.
    pub(crate) warp: Warp,
    /// The block of that warp.
    pub(crate) block: Block,
    /// All other blocks of its cluster, with an empty slot for the running one; empty in a launch without clusters.
    pub(crate) cluster: Vec<Block>,
    /// Memory ranges in use.
    pub(crate) ranges: Ranges,
    /// Textures and surfaces in use.
    pub(crate) handles: HandleCache,
    /// The fault and its lane, if an instruction returned `Flow::Fault`.
    pub(crate) fault: Option<(FaultKind, usize)>,
}

impl<'a> Machine<'a> {
    /// Returns a machine with an empty block.
    pub(crate) fn new(env: &'a Env<'a>) -> Self {
        Self {
            registers: Registers::none(),
            mask: 0,
            pc: 0,
            lanes: 0,
            frame: 0,
            join_at: u32::MAX,
            wait: Wait::Ready,
            spinning: false,
            waited: false,
            cluster_turn: 0,
            races: env.host.race_seed().map(|seed| Box::new(RaceDetector::new(seed))),
            env,
            warp: Warp::default(),
            block: Block::default(),
            cluster: Vec::new(),
            ranges: Ranges::new(),
            handles: HandleCache::default(),
            fault: None,
        }
    }

    /// Records a fault of the current instruction.
    pub(crate) fn fail(&mut self, kind: FaultKind, lane: usize) -> Flow {
        self.fault = Some((kind, lane));
        Flow::Fault
    }

    /// Maps the registers of the running frame; necessary after any change of frames.
    #[inline]
    pub(crate) fn map_frame(&mut self) {
        let code = self.env.code;
        self.registers = Registers::new(self.warp.rows_of(self.frame, &code.functions), &code.constants);
    }

    /// Finds where the running split meets another one.
    #[inline]
    pub(crate) fn find_join(&mut self) {
        self.join_at = if self.warp.splits.is_empty() { u32::MAX } else { self.warp.next_join(self.frame, self.pc) };
    }

    /// Parks the lanes with a false guard after the current instruction.
    pub(crate) fn park_masked_lanes(&mut self) {
        let masked_out = self.lanes & !self.mask;
        if masked_out != 0 {
            self.park(self.pc + 1, masked_out);
            self.lanes = self.mask;
        }
    }

    /// Parks lanes of the running split at `pc`.
    pub(crate) fn park(&mut self, pc: u32, lanes: u32) {
        let (frame, last_slice) = (self.frame, self.warp.slices);
        self.warp.splits.push(Split { pc, frame, lanes, wait: Wait::Ready, last_slice });
    }
}
