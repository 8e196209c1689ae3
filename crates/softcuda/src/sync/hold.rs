//! Running kernels, and kernels paused in the middle.
//!
//! Under a hold, launches neither start nor go on. Each lists its grid as paused and waits, and a checkpoint can save the grid as
//! bytes. Streams wait behind their kernels, so no later work overtakes. Launches take the lock of this module when they start,
//! pause and end. Running kernels only check their switch.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_ptx_exec::{Fault, Grid, Host, Progress, Request, RunLimits, Switch};

/// Origin of a launch, by the handles of its context and stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchOrigin {
    /// Handle of its context.
    pub(crate) context: usize,
    /// Handle of its stream, 0 for a node of a graph.
    pub(crate) stream: usize,
}

/// A grid that its launch and the list of paused launches share. The launch locks it while it runs.
type SharedGrid = Arc<Mutex<Grid>>;

/// A launch that waits, at its start or in the middle.
struct PausedLaunch {
    origin: LaunchOrigin,
    grid: SharedGrid,
    switch: Arc<Switch>,
}

/// All started launches, by increasing numbers.
#[derive(Default)]
struct Launches {
    /// Whether no kernel may start or go on.
    held: bool,
    /// Number of the latest launch.
    last: u64,
    /// Running launches, with their switches.
    running: HashMap<u64, Arc<Switch>>,
    /// Launches that wait, by their numbers.
    paused: BTreeMap<u64, PausedLaunch>,
}

static RUNNING_LAUNCHES: LazyLock<Mutex<Launches>> = LazyLock::new(Mutex::default);
/// Signalled when a launch stops running, when the hold ends, and when a switch is thrown.
static LAUNCHES_CHANGED: Condvar = Condvar::new();
/// Warp instructions of all launches.
static EXECUTED_INSTRUCTIONS: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a grid to its end, or to its fault. Pauses it during a hold.
pub(crate) fn run(
    origin: LaunchOrigin,
    grid: Grid,
    host: &dyn Host,
    limits: RunLimits,
    switch: &Arc<Switch>,
) -> Result<(), Fault> {
    let number = {
        let mut launches = lock(&RUNNING_LAUNCHES);
        launches.last += 1;
        launches.last
    };
    let grid = Arc::new(Mutex::new(grid));
    loop {
        start(number, origin, &grid, switch);
        let mut running = lock(&grid);
        let executed = running.executed();
        let outcome = running.run(host, limits, switch);
        EXECUTED_INSTRUCTIONS.fetch_add(running.executed() - executed, Ordering::Relaxed);
        drop(running);
        let paused = outcome == Ok(Progress::Paused);
        stop(number, paused.then(|| PausedLaunch { origin, grid: Arc::clone(&grid), switch: Arc::clone(switch) }));
        if outcome? == Progress::Done {
            return Ok(());
        }
    }
}

/// Removes a launch from the running ones. One that goes on later becomes paused in the same step, so that a holding thread finds
/// it.
fn stop(number: u64, paused: Option<PausedLaunch>) {
    let mut launches = lock(&RUNNING_LAUNCHES);
    launches.running.remove(&number);
    launches.paused.extend(paused.map(|paused| (number, paused)));
    drop(launches);
    LAUNCHES_CHANGED.notify_all();
}

/// Counts a launch as running. First waits as paused during a hold, unless the launch shall end.
fn start(number: u64, origin: LaunchOrigin, grid: &SharedGrid, switch: &Arc<Switch>) {
    let mut launches = lock(&RUNNING_LAUNCHES);
    if launches.held {
        launches.paused.insert(number, PausedLaunch { origin, grid: Arc::clone(grid), switch: Arc::clone(switch) });
        let waits = |launches: &mut Launches| launches.held && switch.request() != Request::Cancel;
        launches = LAUNCHES_CHANGED.wait_while(launches, waits).unwrap_or_else(PoisonError::into_inner);
    }
    launches.paused.remove(&number);
    // A launch that ended just when it was asked to pause may have left the request behind.
    switch.resume();
    launches.running.insert(number, Arc::clone(switch));
}

/// Starts a hold, and returns when no kernel runs. Each thread runs at most `Switch::MAX_UNCHECKED_INSTRUCTIONS` more of its
/// warps' instructions.
pub(crate) fn hold() {
    let mut launches = lock(&RUNNING_LAUNCHES);
    launches.held = true;
    launches.running.values().for_each(|switch| switch.pause());
    drop(
        LAUNCHES_CHANGED
            .wait_while(launches, |launches| !launches.running.is_empty())
            .unwrap_or_else(PoisonError::into_inner),
    );
}

/// Ends a hold.
pub(crate) fn release() {
    lock(&RUNNING_LAUNCHES).held = false;
    LAUNCHES_CHANGED.notify_all();
}

/// Cancels every started launch, running or paused.
pub(crate) fn cancel() {
    let launches = lock(&RUNNING_LAUNCHES);
    let paused = launches.paused.values().map(|paused| &paused.switch);
    launches.running.values().chain(paused).for_each(|switch| switch.cancel());
    drop(launches);
    LAUNCHES_CHANGED.notify_all();
}

/// Wakes paused launches, so that they check their switches.
pub(crate) fn wake() {
    // A thread that checked its switch too early is waiting once this lock is free.
    drop(lock(&RUNNING_LAUNCHES));
    LAUNCHES_CHANGED.notify_all();
}

/// Returns the state of every paused launch, in the order of their starts.
pub(crate) fn states() -> Vec<(LaunchOrigin, Vec<u8>)> {
    let launches = lock(&RUNNING_LAUNCHES);
    launches.paused.values().map(|paused| (paused.origin, lock(&paused.grid).to_bytes())).collect()
}

/// Warp instructions that kernels of this process have run.
pub(crate) fn executed() -> u64 {
    EXECUTED_INSTRUCTIONS.load(Ordering::Relaxed)
}
