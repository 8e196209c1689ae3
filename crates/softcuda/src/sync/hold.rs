//! Kernels that run, and those put aside in the middle.
//!
//! While everything is held, launches neither start nor go on: each puts its grid on the shelf and waits, and there it can
//! be taken down as bytes. Streams stand behind their kernels meanwhile, so nothing that was submitted later overtakes.
//! The lock here is taken by launches when they start, pause and end; running kernels look at their switch only.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};

use katydid_ptx_exec::{Fault, Grid, Host, Limits, Progress, Request, Switch};

/// Where a launch belongs, by the handles of its context and stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchOrigin {
    /// Handle of its context.
    pub(crate) context: usize,
    /// Handle of its stream, 0 for a node of a graph.
    pub(crate) stream: usize,
}

/// A grid that its launch and the shelf know; locked by the launch while it runs.
type SharedGrid = Arc<Mutex<Grid>>;

/// A launch that was put aside.
struct Aside {
    origin: LaunchOrigin,
    grid: SharedGrid,
    switch: Arc<Switch>,
}

/// All launches whose turn has come, by numbers that grow.
#[derive(Default)]
struct Shelf {
    held: bool,
    next: u64,
    /// Those that run, with what stops them.
    running: HashMap<u64, Arc<Switch>>,
    /// Those that were put aside.
    aside: BTreeMap<u64, Aside>,
}

static SHELF: LazyLock<Mutex<Shelf>> = LazyLock::new(Mutex::default);
/// Told when a launch stops running, when the hold ends, and when a switch was thrown.
static CHANGED: Condvar = Condvar::new();
/// Warp instructions of all launches.
static EXECUTED: AtomicU64 = AtomicU64::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a grid to its end, or to its fault; puts it aside whenever everything is held.
pub(crate) fn run(
    origin: LaunchOrigin,
    grid: Grid,
    host: &dyn Host,
    limits: Limits,
    switch: &Arc<Switch>,
) -> Result<(), Fault> {
    let number = {
        let mut shelf = lock(&SHELF);
        shelf.next += 1;
        shelf.next
    };
    let grid = Arc::new(Mutex::new(grid));
    loop {
        start(number, origin, &grid, switch);
        let mut running = lock(&grid);
        let before = running.executed();
        let outcome = running.run(host, limits, switch);
        EXECUTED.fetch_add(running.executed() - before, Ordering::Relaxed);
        drop(running);
        let paused = outcome == Ok(Progress::Paused);
        stop(number, paused.then(|| Aside { origin, grid: Arc::clone(&grid), switch: Arc::clone(switch) }));
        if outcome? == Progress::Done {
            return Ok(());
        }
    }
}

/// Takes a launch from those that run; one that goes on later is on the shelf at the same moment, so that a thread that holds
/// everything finds it there.
fn stop(number: u64, aside: Option<Aside>) {
    let mut shelf = lock(&SHELF);
    shelf.running.remove(&number);
    shelf.aside.extend(aside.map(|aside| (number, aside)));
    drop(shelf);
    CHANGED.notify_all();
}

/// Counts a launch as running; waits on the shelf before, as long as everything is held and the launch is not to end.
fn start(number: u64, origin: LaunchOrigin, grid: &SharedGrid, switch: &Arc<Switch>) {
    let mut shelf = lock(&SHELF);
    if shelf.held {
        shelf.aside.insert(number, Aside { origin, grid: Arc::clone(grid), switch: Arc::clone(switch) });
        let waits = |shelf: &mut Shelf| shelf.held && switch.request() != Request::Cancel;
        shelf = CHANGED.wait_while(shelf, waits).unwrap_or_else(PoisonError::into_inner);
    }
    shelf.aside.remove(&number);
    // A launch that ended just when it was asked to pause has left the request behind.
    switch.resume();
    shelf.running.insert(number, Arc::clone(switch));
}

/// Holds everything: returns when no kernel runs. That takes each thread `Switch::LATENCY` instructions at most.
pub(crate) fn hold() {
    let mut shelf = lock(&SHELF);
    shelf.held = true;
    shelf.running.values().for_each(|switch| switch.pause());
    drop(CHANGED.wait_while(shelf, |shelf| !shelf.running.is_empty()).unwrap_or_else(PoisonError::into_inner));
}

/// Lets everything go on.
pub(crate) fn release() {
    lock(&SHELF).held = false;
    CHANGED.notify_all();
}

/// Ends every launch whose turn has come, wherever it is.
pub(crate) fn cancel() {
    let shelf = lock(&SHELF);
    let aside = shelf.aside.values().map(|aside| &aside.switch);
    shelf.running.values().chain(aside).for_each(|switch| switch.cancel());
    drop(shelf);
    CHANGED.notify_all();
}

/// Launches on the shelf look at their switches again.
pub(crate) fn wake() {
    // A thread that looked at its switch before it was thrown is waiting once the lock is free.
    drop(lock(&SHELF));
    CHANGED.notify_all();
}

/// The state of every launch that was put aside, in the order in which their turns came.
pub(crate) fn states() -> Vec<(LaunchOrigin, Vec<u8>)> {
    let shelf = lock(&SHELF);
    shelf.aside.values().map(|aside| (aside.origin, lock(&aside.grid).to_bytes())).collect()
}

/// Warp instructions that kernels of this process have run.
pub(crate) fn executed() -> u64 {
    EXECUTED.load(Ordering::Relaxed)
}
