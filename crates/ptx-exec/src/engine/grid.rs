//! A launch in progress: blocks spread over threads, and their state between two runs.
//!
//! Blocks start in order of their index, so a block that waits for an earlier one (a chained scan) waits for a block that runs. A
//! thread runs its block, or the blocks of a cluster, to the end, and reuses its memory for the next one. Two kinds of block take
//! turns instead: those that seem to wait (atomics, volatile accesses, fences), and those that run for long. As many take turns
//! as a device holds at once, so blocks may wait for each other as on a GPU. A cooperative launch starts all blocks at once.
//!
//! The state between two runs is plain data, which `state` serializes: the blocks in the queue and the index of the next block.
//! It includes kernels that kernels have launched. They run when the grid that launched them is done. The grid as a whole ends
//! with the last of them. The first fault of any thread stops the others at their next slice, and so does a `Switch`.

use crate::api::{Launch, Progress, RunLimits};
use crate::control::special::RESERVED_SHARED_BYTES;
use crate::device_runtime::jobs::{DeferredWork, Level, Runtime};
use crate::device_runtime::{run_copy, run_fill};
use crate::engine::block::Block;
use crate::engine::fault::{Fault, FaultKind};
use crate::engine::machine::{Env, Machine, WORKSPACE_BYTES};
use crate::engine::order::{BlockOrder, MAX_CLUSTER_BLOCKS};
use crate::engine::pool;
use crate::engine::rounds::BlockProgress;
use crate::engine::switch::{Request, Switch};
use crate::host::{Host, Question};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Warp instructions between two checks for other work.
const GRID_SLICE_INSTRUCTIONS: u64 = 1 << 12;

/// Warp instructions between two checks for other work, during a race search.
const WATCHED_SLICE_INSTRUCTIONS: u64 = 256;

/// Warp instructions that a block may run while others are ready, unless it seems to wait for them.
const MAX_BUSY_BLOCK_INSTRUCTIONS: u64 = 1 << 17;

/// Blocks that a multiprocessor holds, if the host does not know.
const DEFAULT_RESIDENT_BLOCKS: u64 = 32;

/// Memory of all started blocks, in bytes, above which no block starts before another has ended.
const MAX_STARTED_BYTES: u64 = 1 << 30;

/// Largest memory of a block that a thread keeps for its next launch, in bytes.
const MAX_SPARE_BLOCK_BYTES: usize = 4 << 20;

/// Most blocks of a cooperative launch: what a large GPU holds at once.
const MAX_RESIDENT_BLOCKS: u64 = 132 * 32;

/// Most threads in a block.
pub const MAX_BLOCK_THREADS: u32 = 1024;

/// Most shared memory of a block in bytes, once a function has opted in.
pub const MAX_BLOCK_SHARED_BYTES: u32 = 227 * 1024;

/// A launch in progress.
#[derive(Debug)]
pub struct Grid {
    pub(crate) launch: Launch,
    /// Blocks that have started and not ended.
    pub(crate) started: VecDeque<Block>,
    /// Linear index of the next block to start.
    pub(crate) next: u64,
    /// Memory by which the blocks of a cooperative launch wait for each other; device code accesses it.
    pub(crate) workspace: Vec<AtomicU64>,
    /// Time that it has run, without pauses: the clock of device code.
    pub(crate) ran: Duration,
    /// Warp instructions run so far.
    pub(crate) executed: u64,
    /// Id that no other grid of this process has.
    pub(crate) id: u64,
    /// Its requests to the device runtime.
    pub(crate) runtime: Mutex<Runtime>,
    /// Remaining jobs of the grids that launched it, the latest ones at the end.
    pub(crate) levels: Vec<Level>,
}

/// Blocks that no thread runs.
#[derive(Debug, Default)]
struct Waiting {
    /// Blocks that have started.
    started: VecDeque<Block>,
    /// Blocks that have ended, whose memory is reused.
    done: Vec<Block>,
}

/// State that the threads of one run share.
struct Run<'a> {
    env: &'a Env<'a>,
    queue: Mutex<Waiting>,
    next: AtomicU64,
    /// Blocks that have ended.
    ended: AtomicU64,
    /// Most blocks that may have started and not ended.
    resident: u64,
    /// Clusters that have been taken from the queue.
    dequeued: AtomicUsize,
    executed: AtomicU64,
    fault: Mutex<Option<Fault>>,
    /// Set when any thread finds a fault.
    stop: AtomicBool,
    switch: &'a Switch,
    cooperative: bool,
    kernel: &'a str,
}

impl Grid {
    /// Prepares a launch. Fails with `BadLaunch` if the launch is impossible.
    pub fn new(mut launch: Launch) -> Result<Self, Fault> {
        launch.cluster = launch.cluster.or(launch.kernel.required_cluster);
        let kernel = &launch.kernel;
        let threads = count_of(launch.block).unwrap_or(u64::MAX);
        let blocks = count_of(launch.grid);
        let shared = u64::from(kernel.static_shared) + u64::from(launch.dynamic_shared);
        let workspace_words = if launch.cooperative { WORKSPACE_BYTES / 8 } else { 0 };
        let workspace = std::iter::repeat_with(|| AtomicU64::new(0)).take(workspace_words as usize).collect();
        let fits = threads > 0
            && threads <= u64::from(kernel.max_threads.min(MAX_BLOCK_THREADS))
            && blocks.is_some_and(|blocks| blocks > 0 && (!launch.cooperative || blocks <= MAX_RESIDENT_BLOCKS))
            && shared <= u64::from(MAX_BLOCK_SHARED_BYTES)
            && kernel.required_block.is_none_or(|required| required == launch.block)
            && launch.clusters_fit()
            && launch.params.len() >= kernel.param_bytes as usize;
        if fits {
            Ok(Self {
                launch,
                started: VecDeque::new(),
                next: 0,
                workspace,
                ran: Duration::ZERO,
                executed: 0,
                id: next_id(),
                runtime: Mutex::default(),
                levels: Vec::new(),
            })
        } else {
            Err(launch_fault(&kernel.name, FaultKind::BadLaunch))
        }
    }

    /// Runs until the grid and all its launches are done. Pauses earlier if the budget is used up, a launched kernel is next, or
    /// `switch` asks for it. A fault ends the grid, which is unusable afterwards.
    pub fn run(&mut self, host: &dyn Host, limits: RunLimits, switch: &Switch) -> Result<Progress, Fault> {
        if self.run_launch(host, limits, switch)? == Progress::Paused {
            return Ok(Progress::Paused);
        }
        let left = self.runtime.get_mut().unwrap_or_else(PoisonError::into_inner).finish(host);
        self.levels.push(left);
        Ok(if self.start_next(host)? { Progress::Paused } else { Progress::Done })
    }

    /// Runs the remaining jobs up to the next launch, and makes that the current one. Returns whether there is one.
    fn start_next(&mut self, host: &dyn Host) -> Result<bool, Fault> {
        while let Some(level) = self.levels.last_mut() {
            let done = match level.next() {
                None => {
                    self.levels.pop();
                    Ok(())
                }
                Some(DeferredWork::Copy { to, from, extent }) => run_copy(host, to, from, extent),
                Some(DeferredWork::Fill { to, byte, extent }) => run_fill(host, to, byte, extent),
                Some(DeferredWork::Launch(child)) => {
                    let launch = child.launch(&self.launch.kernel);
                    let launch = launch.ok_or_else(|| launch_fault(&self.launch.kernel.name, FaultKind::BadLaunch))?;
                    let (levels, executed) = (std::mem::take(&mut self.levels), self.executed);
                    *self = Self { levels, executed, ..Self::new(launch)? };
                    return Ok(true);
                }
            };
            done.map_err(|kind| launch_fault(&self.launch.kernel.name, kind))?;
        }
        Ok(false)
    }

    /// Runs the current launch.
    fn run_launch(&mut self, host: &dyn Host, limits: RunLimits, switch: &Switch) -> Result<Progress, Fault> {
        let blocks = self.blocks();
        let Self { launch, started, next, workspace, ran, executed, runtime, id, levels: _ } = self;
        let workspace = if launch.cooperative { workspace.as_ptr().expose_provenance() as u64 } else { 0 };
        let env = environment(launch, host, workspace, *ran, (*id, runtime));
        while launch.cooperative && *next < blocks {
            let mut block = Block::default();
            block.reset(env.order.index(*next), &env);
            started.push_back(block);
            *next += 1;
        }
        let ended = next.saturating_sub(started.len() as u64);
        let run = Run {
            env: &env,
            queue: Mutex::new(Waiting { started: std::mem::take(started), done: Vec::new() }),
            next: AtomicU64::new(*next),
            ended: AtomicU64::new(ended),
            resident: resident_blocks(launch, host, limits.threads),
            dequeued: AtomicUsize::new(0),
            executed: AtomicU64::new(0),
            fault: Mutex::new(None),
            stop: AtomicBool::new(false),
            switch,
            cooperative: launch.cooperative,
            kernel: &launch.kernel.name,
        };
        // A race search uses a single order, which can be repeated.
        let threads = if host.race_seed().is_some() { 1 } else { limits.threads };
        run.all_threads(RunLimits { threads, ..limits }, blocks);
        *started = run.queue.into_inner().unwrap_or_else(PoisonError::into_inner).started;
        *next = run.next.into_inner().min(blocks);
        *ran += env.started.elapsed();
        *executed += run.executed.into_inner();
        match run.fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(fault) => Err(fault),
            None if started.is_empty() && *next == blocks => Ok(Progress::Done),
            None if switch.request() == Request::Cancel => Err(launch_fault(&launch.kernel.name, FaultKind::Cancelled)),
            None => Ok(Progress::Paused),
        }
    }

    /// Returns the warp instructions that it has run.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Returns the number of its blocks.
    pub(crate) fn blocks(&self) -> u64 {
        count_of(self.launch.grid).unwrap_or(0)
    }
}

impl Launch {
    /// Returns the offset of dynamic shared memory.
    fn dynamic_at(&self) -> u32 {
        self.kernel.static_shared.next_multiple_of(self.kernel.dynamic_align)
    }

    /// Returns the bytes of shared memory of a block, including the system's reserved ones.
    pub(crate) fn shared_bytes(&self) -> u32 {
        let own = self.dynamic_at() + self.dynamic_shared;
        if self.kernel.code.reserved { own.next_multiple_of(16) + RESERVED_SHARED_BYTES } else { own }
    }

    /// Returns the order in which its blocks start.
    pub(crate) fn order(&self) -> BlockOrder {
        BlockOrder { grid: self.grid, cluster: self.cluster.unwrap_or([1; 3]) }
    }

    /// Returns whether its clusters satisfy the kernel and divide the grid.
    fn clusters_fit(&self) -> bool {
        let Some(cluster) = self.cluster else { return !self.kernel.needs_cluster };
        let size = count_of(cluster).unwrap_or(u64::MAX);
        let most = self.kernel.max_cluster.unwrap_or(MAX_CLUSTER_BLOCKS).min(MAX_CLUSTER_BLOCKS);
        (1..=u64::from(most)).contains(&size)
            && self.kernel.required_cluster.is_none_or(|required| required == cluster)
            && self.grid.iter().zip(cluster).all(|(grid, cluster)| grid % cluster == 0)
    }
}

/// Returns the data that the threads of a launch read.
fn environment<'a>(
    launch: &'a Launch,
    host: &'a dyn Host,
    workspace: u64,
    time_before: Duration,
    (grid_id, runtime): (u64, &'a Mutex<Runtime>),
) -> Env<'a> {
    let kernel = &launch.kernel;
    Env {
        code: &kernel.code,
        host,
        params: &launch.params,
        order: launch.order(),
        clustered: launch.cluster.is_some(),
        block: launch.block,
        dynamic_shared_at: launch.dynamic_at(),
        dynamic_shared: launch.dynamic_shared,
        shared_bytes: launch.dynamic_at() + launch.dynamic_shared,
        all_shared_bytes: launch.shared_bytes(),
        started: Instant::now(),
        time_before,
        function: kernel.function,
        grid_id,
        runtime,
        workspace,
    }
}

/// Returns the number of blocks of a launch that a device of `multiprocessors` holds at once, at least one per thread.
fn resident_blocks(launch: &Launch, host: &dyn Host, multiprocessors: usize) -> u64 {
    let threads = count_of(launch.block).and_then(|threads| u32::try_from(threads).ok()).unwrap_or(1);
    let each = host.answer(Question::Occupancy {
        registers: launch.kernel.registers,
        max_threads: launch.kernel.max_threads,
        static_shared: launch.kernel.static_shared,
        threads,
        dynamic_shared: launch.dynamic_shared.into(),
    });
    let least = u64::from(launch.order().size()).max(1);
    each.unwrap_or(DEFAULT_RESIDENT_BLOCKS).max(least).saturating_mul(multiprocessors.max(1) as u64)
}

/// Returns an id that no grid had before.
fn next_id() -> u64 {
    static NEXT_GRID_ID: AtomicU64 = AtomicU64::new(1);
    NEXT_GRID_ID.fetch_add(1, Ordering::Relaxed)
}

/// Returns the number of blocks of a grid (or threads of a block), unless it overflows.
fn count_of(grid: [u32; 3]) -> Option<u64> {
    let [x, y, z] = grid.map(u64::from);
    (x * y).checked_mul(z)
}

thread_local! {
    /// The last block of this thread, whose memory the next launch reuses.
    static LAST_BLOCK: Cell<Option<Block>> = const { Cell::new(None) };
}

/// Returns the fault of a launch as a whole.
fn launch_fault(kernel: &str, kind: FaultKind) -> Fault {
    Fault { kind, kernel: kernel.to_owned(), line: 0, block: [0; 3], thread: [0; 3] }
}

impl Run<'_> {
    /// Runs on as many threads as there is work for, including this one.
    fn all_threads(&self, limits: RunLimits, blocks: u64) {
        let queued = self.lock_queue().started.len() as u64;
        let left = queued + blocks.saturating_sub(self.next.load(Ordering::Relaxed));
        let threads = (limits.threads.max(1) as u64).min(left.max(1));
        pool::together(threads as usize, &|| self.one_thread(limits.budget, blocks));
    }

    /// Locks the queue, even if a thread panicked with the lock.
    fn lock_queue(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes blocks and runs them until there are none, or the budget is used up.
    fn one_thread(&self, limit: u64, blocks: u64) {
        let mut budget = limit;
        let mut machine = Machine::new(self.env);
        machine.block = LAST_BLOCK.take().unwrap_or_default();
        self.blocks(&mut machine, &mut budget, blocks);
        self.executed.fetch_add(limit - budget, Ordering::Relaxed);
        if machine.block.memory() <= MAX_SPARE_BLOCK_BYTES {
            LAST_BLOCK.set(Some(machine.block));
        }
    }

    /// Takes blocks and runs them on this machine until there are none, or the budget is used up.
    fn blocks(&self, machine: &mut Machine<'_>, budget: &mut u64, blocks: u64) {
        let mut new = false;
        while *budget > 0 && self.goes_on() && self.take_block(machine, blocks, new) {
            match self.run_block(machine, budget, blocks) {
                Ok(BlockProgress::Done) => {
                    new = false;
                    self.ended.fetch_add(u64::from(self.env.order.size()), Ordering::Relaxed);
                }
                Ok(BlockProgress::Paused) => {
                    new = self.has_capacity(machine, blocks);
                    self.requeue(machine);
                }
                Err(kind) => return self.report(machine, kind),
            }
        }
    }

    /// Returns whether this thread may start another slice: there is no fault, and the switch allows it.
    fn goes_on(&self) -> bool {
        self.switch.request() == Request::Run && !self.stop.load(Ordering::Relaxed)
    }

    /// Returns whether there is an unstarted block, and room for it besides the machine's own.
    fn has_capacity(&self, machine: &Machine<'_>, blocks: u64) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        if next >= blocks {
            return false;
        }
        let held = machine.cluster.iter().map(Block::memory).sum::<usize>() + machine.block.memory();
        let each = (held as u64 / u64::from(self.env.order.size()).max(1)).max(1);
        next.saturating_sub(self.ended.load(Ordering::Relaxed)) < self.resident.min(MAX_STARTED_BYTES / each)
    }

    /// Puts the next block, or cluster, into the machine, and reuses the memory of a finished one. Prefers a started one, unless
    /// a `new` one is requested.
    fn take_block(&self, machine: &mut Machine<'_>, blocks: u64, new: bool) -> bool {
        if self.env.clustered {
            return self.take_cluster(machine, blocks, new);
        }
        if !new && self.take_started(machine) {
            return true;
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        if next >= blocks {
            // Another thread may have queued a block meanwhile.
            return self.take_started(machine);
        }
        if machine.block.warps.is_empty()
            && let Some(done) = self.lock_queue().done.pop()
        {
            machine.block = done;
        }
        machine.block.reset(self.env.order.index(next), self.env);
        true
    }

    /// Puts the block that has waited longest into the machine, whose old block is done.
    fn take_started(&self, machine: &mut Machine<'_>) -> bool {
        let mut queue = self.lock_queue();
        let Some(block) = queue.started.pop_front() else { return false };
        let done = std::mem::replace(&mut machine.block, block);
        if !done.warps.is_empty() && done.memory() <= MAX_SPARE_BLOCK_BYTES {
            queue.done.push(done);
        }
        true
    }

    /// Puts a cluster into the machine. The blocks of a cluster are adjacent in the queue, and start together.
    fn take_cluster(&self, machine: &mut Machine<'_>, blocks: u64, new: bool) -> bool {
        let size = self.env.order.size();
        machine.cluster_turn = self.dequeued.fetch_add(1, Ordering::Relaxed);
        if !new && self.take_started_cluster(machine) {
            return true;
        }
        let next = self.next.fetch_add(u64::from(size), Ordering::Relaxed);
        if next >= blocks {
            return self.take_started_cluster(machine);
        }
        machine.cluster.resize(size as usize, Block::default());
        for (number, block) in (next..).zip(&mut machine.cluster) {
            block.reset(self.env.order.index(number), self.env);
        }
        true
    }

    /// Puts the cluster that has waited longest into the machine.
    fn take_started_cluster(&self, machine: &mut Machine<'_>) -> bool {
        let mut queue = self.lock_queue();
        let count = queue.started.len().min(self.env.order.size() as usize);
        if count > 0 {
            machine.cluster.clear();
            machine.cluster.extend(queue.started.drain(..count));
        }
        count > 0
    }

    /// Puts the machine's block or cluster back into the queue.
    fn requeue(&self, machine: &mut Machine<'_>) {
        if self.env.clustered {
            self.lock_queue().started.extend(machine.cluster.drain(..));
        } else {
            self.lock_queue().started.push_back(std::mem::take(&mut machine.block));
        }
    }

    /// Runs a block to its end, or until others are due.
    fn run_block(&self, machine: &mut Machine<'_>, budget: &mut u64, blocks: u64) -> Result<BlockProgress, FaultKind> {
        let longest_run =
            if self.cooperative { Switch::MAX_UNCHECKED_INSTRUCTIONS } else { MAX_BUSY_BLOCK_INSTRUCTIONS };
        let mut ran = 0;
        machine.waited = false;
        loop {
            let slice =
                if machine.races.is_some() { WATCHED_SLICE_INSTRUCTIONS } else { GRID_SLICE_INSTRUCTIONS }.min(*budget);
            let mut left = slice;
            let progress =
                if self.env.clustered { machine.run_cluster(&mut left)? } else { machine.run_block(&mut left)? };
            *budget -= slice - left;
            ran += slice - left;
            if progress == BlockProgress::Done || *budget == 0 || !self.goes_on() {
                return Ok(progress);
            }
            if std::mem::take(&mut machine.waited) || machine.races.is_some() || ran >= longest_run {
                if self.has_capacity(machine, blocks) || !self.lock_queue().started.is_empty() {
                    return Ok(BlockProgress::Paused);
                }
                ran = 0;
            }
        }
    }

    /// Stores the first fault and stops the other threads.
    fn report(&self, machine: &Machine<'_>, kind: FaultKind) {
        let fault = Fault {
            kind,
            kernel: self.kernel.to_owned(),
            line: machine.line(),
            block: machine.block.index,
            thread: machine.faulting_thread(),
        };
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Runs a launch to its end on `threads` threads. Ignores requests of `switch` for a pause.
pub fn run(launch: &Launch, host: &dyn Host, threads: usize, switch: &Switch) -> Result<(), Fault> {
    let mut grid = Grid::new(launch.clone())?;
    while grid.run(host, RunLimits { threads, budget: u64::MAX }, switch)? == Progress::Paused {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_too_large_to_count_is_refused() {
        assert_eq!(count_of([u32::MAX, u32::MAX, u32::MAX]), None);
        assert_eq!(count_of([2, 3, 4]), Some(24));
    }
}
