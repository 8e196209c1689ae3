//! The pool of warm workers. Their driver has started, so a program need not wait for it.
//!
//! One thread of the pool starts workers (and lives as long as the server: see `workers/spawn.rs`). One thread for each worker
//! supervises it from start to end (`workers/supervisor.rs`). A worker that dies before it is ready counts as a failure. The next
//! start then waits, longer each time, so that a machine without a working driver is not kept busy. A program that comes in the
//! meantime causes one attempt at once and gets its outcome.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use katydid_wire::handshake::{SOFTCUDA_DRIVER, SessionKind};

use crate::view::WorkersView;
use crate::workers::handle::{DriverFound, WorkerHandle, WorkerNeeds};

/// Pause after the first failure. It doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_millis(500);
/// How often a waiting thread checks whether its wait is given up.
const GIVEN_UP_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest pause between attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Why no worker was available.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum PoolError {
    /// A worker was started for the program and died.
    #[error("no worker could be started: {0}")]
    Failed(String),
    /// No worker started in time.
    #[error("no worker was started within {} s; see the server's messages", .0.as_secs())]
    Slow(Duration),
    /// The server is stopping.
    #[error("the server is stopping; connect again when it is back")]
    Stopping,
}

/// Workers that serve no program yet.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    target: usize,
    state: Mutex<WorkerPoolState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WorkerPoolState {
    /// Increases when the pool starts over. Workers of an earlier epoch are discarded.
    epoch: u64,
    ready: VecDeque<WorkerHandle>,
    /// The needs of workers whose drivers have not started yet.
    warming: Vec<WorkerNeeds>,
    /// Programs that wait for a worker. Each raises the number of workers wanted.
    waiting: usize,
    /// Peers that wait to learn the driver. One worker is enough for all of them.
    inquiring: usize,
    failures: u64,
    failures_in_a_row: u32,
    last_failure: Option<String>,
    /// No worker starts before this time, unless a program waits.
    backoff_until: Option<Instant>,
    driver: Option<DriverFound>,
    /// Whether the last program used OpenCL, so that the next one may.
    loads_opencl: bool,
    /// Whether a worker ended that was to load drivers of OpenCL.
    loads_no_more: bool,
    stopping: bool,
}

impl WorkerPoolState {
    fn wants_another(&self, target: usize) -> bool {
        let inquiring = self.inquiring.min(1);
        let all = self.ready.len() + self.warming.len();
        let is_short = all < target.max(inquiring) + self.waiting || all - self.loading() < inquiring + self.waiting;
        is_short && self.backoff().is_none()
    }

    /// Returns the next worker's purpose. One in reserve loads drivers of OpenCL where they may be useful; one that a program or
    /// peer waits for does not. Only workers with softcuda load them.
    fn need(&self) -> WorkerNeeds {
        let is_soft = self.driver.as_ref().is_some_and(|driver| driver.name == SOFTCUDA_DRIVER);
        let loads_opencl = self.loads_opencl && !self.loads_no_more && !self.is_waited_for() && is_soft;
        WorkerNeeds { epoch: self.epoch, loads_opencl }
    }

    fn is_waited_for(&self) -> bool {
        self.waiting + self.inquiring > 0
    }

    /// Returns how many warming workers load drivers of OpenCL. No program or peer waits for them.
    fn loading(&self) -> usize {
        self.warming.iter().filter(|need| need.loads_opencl).count()
    }

    /// Notes that a worker with this need is no longer warming.
    fn end_warming(&mut self, need: WorkerNeeds) {
        if let Some(index) = self.warming.iter().position(|known| *known == need) {
            self.warming.swap_remove(index);
        }
    }

    /// Returns how long the next start must still wait.
    fn backoff(&self) -> Option<Duration> {
        self.backoff_until?.checked_duration_since(Instant::now()).filter(|backoff| !backoff.is_zero())
    }
}

impl WorkerPool {
    /// Creates a pool that keeps `target` workers ready.
    pub(crate) fn new(target: usize) -> Self {
        Self { target, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until a worker should be started, and counts it as warming; none when the server stops.
    pub(crate) fn wait_for_need(&self) -> Option<WorkerNeeds> {
        let mut state = self.lock();
        loop {
            if state.stopping {
                return None;
            }
            if state.wants_another(self.target) {
                let need = state.need();
                state.warming.push(need);
                return Some(need);
            }
            state = self.wait(state, state_rest);
        }
    }

    /// Adds a worker whose driver has started; dismisses one of an earlier epoch. Returns whether the driver differs from that of
    /// the worker before.
    pub(crate) fn ready(&self, worker: &WorkerHandle, driver: &DriverFound) -> bool {
        let mut state = self.lock();
        state.end_warming(worker.need());
        state.failures_in_a_row = 0;
        (state.last_failure, state.backoff_until) = (None, None);
        let previous_driver = state.driver.replace(driver.clone());
        match worker.need().epoch == state.epoch {
            true => state.ready.push_back(worker.clone()),
            false => worker.dismiss(),
        }
        self.changed.notify_all();
        previous_driver.as_ref() != Some(driver)
    }

    /// Begins an epoch: all workers that serve no program are replaced.
    pub(crate) fn renew(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        state.ready.drain(..).for_each(|worker| worker.dismiss());
        self.changed.notify_all();
    }

    /// Notes that a worker with this need died, or could not be started, before it was ready. Returns how long the next start
    /// will wait.
    pub(crate) fn failed(&self, reason: &str, need: WorkerNeeds) -> Duration {
        let mut state = self.lock();
        state.end_warming(need);
        state.last_failure = Some(reason.to_owned());
        if need.loads_opencl && state.is_waited_for() {
            // The awaited worker is another one.
            self.changed.notify_all();
            return Duration::ZERO;
        }
        state.failures += 1;
        let backoff = MAX_BACKOFF.min(FIRST_BACKOFF * 2u32.saturating_pow(state.failures_in_a_row.min(16)));
        state.failures_in_a_row += 1;
        state.backoff_until = Some(Instant::now() + backoff);
        self.changed.notify_all();
        backoff
    }

    /// Keeps further workers from loading drivers of OpenCL in advance, since one that was to has ended. Returns whether that is
    /// new.
    pub(crate) fn stop_loading_opencl(&self) -> bool {
        !std::mem::replace(&mut self.lock().loads_no_more, true)
    }

    /// Removes a ready worker that died unused.
    pub(crate) fn lost(&self, worker: &WorkerHandle) {
        let mut state = self.lock();
        state.ready.retain(|ready| ready.pid() != worker.pid());
        self.changed.notify_all();
    }

    /// Takes a ready worker for a program, or waits for one, unless the wait `is_given_up`.
    pub(crate) fn take(
        &self,
        session: SessionKind,
        timeout: Duration,
        is_given_up: &dyn Fn() -> bool,
    ) -> Result<WorkerHandle, PoolError> {
        self.lock().loads_opencl = session == SessionKind::OPENCL;
        self.wait_for_worker(timeout, is_given_up, |state| &mut state.waiting, |ready| ready.pop_front())
    }

    /// Returns a worker that was taken and not used to the pool.
    pub(crate) fn put_back(&self, worker: WorkerHandle) {
        let mut state = self.lock();
        match worker.need().epoch == state.epoch && !state.stopping {
            true => state.ready.push_front(worker),
            false => worker.dismiss(),
        }
        self.changed.notify_all();
    }

    /// Returns the driver of a ready worker, which stays, or of the next one, unless the wait `is_given_up`.
    pub(crate) fn driver(&self, timeout: Duration, is_given_up: &dyn Fn() -> bool) -> Result<DriverFound, PoolError> {
        let pick = |ready: &mut VecDeque<WorkerHandle>| ready.front()?.driver().cloned();
        self.wait_for_worker(timeout, is_given_up, |state| &mut state.inquiring, pick)
    }

    /// Waits for a worker from which `pick` takes something, as one of the waiters that `count` counts. `timeout` limits the time
    /// in which no worker starts. A starting worker gets ready, or fails, or its supervisor ends it.
    fn wait_for_worker<T>(
        &self,
        timeout: Duration,
        is_given_up: &dyn Fn() -> bool,
        count: impl Fn(&mut WorkerPoolState) -> &mut usize,
        pick: impl Fn(&mut VecDeque<WorkerHandle>) -> Option<T>,
    ) -> Result<T, PoolError> {
        let mut idle_since = Instant::now();
        let mut state = self.lock();
        *count(&mut state) += 1;
        state.backoff_until = None;
        let failures = state.failures;
        self.changed.notify_all();
        let outcome = loop {
            if let Some(outcome) = outcome(&mut state, failures, &pick) {
                break outcome;
            }
            if is_given_up() {
                break Err(PoolError::Stopping);
            }
            if !state.warming.is_empty() {
                idle_since = Instant::now();
            }
            let left = timeout.saturating_sub(idle_since.elapsed());
            if left.is_zero() {
                break Err(PoolError::Slow(timeout));
            }
            state = self.wait(state, |_| Some(left.min(GIVEN_UP_POLL_INTERVAL)));
        };
        *count(&mut state) -= 1;
        self.changed.notify_all();
        outcome
    }

    /// Stops the pool: returns the ready workers and wakes every waiting thread.
    pub(crate) fn stop(&self) -> Vec<WorkerHandle> {
        let mut state = self.lock();
        state.stopping = true;
        self.changed.notify_all();
        state.ready.drain(..).collect()
    }

    /// Returns whether the server stops. Workers that die then are no failures.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Returns the state for the admin API, and the last known driver.
    pub(crate) fn view(&self) -> (WorkersView, Option<String>) {
        let state = self.lock();
        let last_failure = state.last_failure.clone();
        let driver = state.driver.as_ref().map(|driver| driver.name.clone());
        (WorkersView { ready: state.ready.len(), warming: state.warming.len(), last_failure }, driver)
    }

    /// Waits for a change, at most for `limit`.
    fn wait<'a>(
        &self,
        state: MutexGuard<'a, WorkerPoolState>,
        limit: impl Fn(&WorkerPoolState) -> Option<Duration>,
    ) -> MutexGuard<'a, WorkerPoolState> {
        match limit(&state) {
            Some(limit) => self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Locks the state. Each change of the counters is one statement, so a panic elsewhere leaves them consistent.
    fn lock(&self) -> MutexGuard<'_, WorkerPoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn state_rest(state: &WorkerPoolState) -> Option<Duration> {
    state.backoff()
}

/// Returns the outcome for a waiting program, if there is one. `failures` is the count when it began to wait.
fn outcome<T>(
    state: &mut WorkerPoolState,
    failures: u64,
    pick: impl Fn(&mut VecDeque<WorkerHandle>) -> Option<T>,
) -> Option<Result<T, PoolError>> {
    if state.stopping {
        return Some(Err(PoolError::Stopping));
    }
    if let Some(picked) = pick(&mut state.ready) {
        return Some(Ok(picked));
    }
    let reason = state.last_failure.as_ref().filter(|_| state.failures > failures)?;
    Some(Err(PoolError::Failed(reason.clone())))
}

#[cfg(test)]
mod tests {
    use katydid_tests::deadline::hang::{hang_limit, until};

    use super::*;

    #[test]
    fn as_many_workers_are_started_as_are_wanted() {
        let pool = WorkerPool::new(2);
        assert!(pool.wait_for_need().is_some() && pool.wait_for_need().is_some());
        assert!(!pool.lock().wants_another(2));
        pool.lock().waiting = 1;
        assert!(pool.lock().wants_another(2));
    }

    const PLAIN: WorkerNeeds = WorkerNeeds { epoch: 0, loads_opencl: false };
    const LOADER: WorkerNeeds = WorkerNeeds { epoch: 0, loads_opencl: true };

    /// A pool of `target` warm workers with this driver, whose last program used OpenCL.
    fn after_opencl(target: usize, driver: &str) -> WorkerPool {
        let pool = WorkerPool::new(target);
        pool.lock().driver = Some(DriverFound { name: driver.to_owned(), gpu_error: None });
        assert!(pool.take(SessionKind::OPENCL, Duration::ZERO, &|| true).is_err());
        pool
    }

    #[test]
    fn a_worker_in_reserve_loads_opencl_where_the_last_program_used_it() {
        let pool = after_opencl(1, SOFTCUDA_DRIVER);
        assert_eq!(pool.wait_for_need(), Some(LOADER));
        assert!(pool.take(SessionKind::CUDA, Duration::ZERO, &|| true).is_err());
        assert!(!pool.lock().need().loads_opencl);
        assert!(!after_opencl(1, "NVIDIA 580.159.04").lock().need().loads_opencl, "beside a GPU's driver");
    }

    #[test]
    fn a_worker_that_is_waited_for_loads_none() {
        let pool = after_opencl(1, SOFTCUDA_DRIVER);
        assert_eq!(pool.wait_for_need(), Some(LOADER));
        pool.lock().inquiring = 1;
        assert_eq!(pool.wait_for_need(), Some(PLAIN));
        assert!(!pool.lock().wants_another(1));
        (pool.lock().inquiring, pool.lock().waiting) = (0, 2);
        assert_eq!(pool.wait_for_need(), Some(PLAIN));
        assert!(!pool.lock().wants_another(1));
    }

    #[test]
    fn a_program_learns_nothing_of_a_worker_that_fails_to_load_opencl() {
        let pool = after_opencl(1, SOFTCUDA_DRIVER);
        let loader = pool.wait_for_need().unwrap();
        std::thread::scope(|scope| {
            let program = scope.spawn(|| pool.take(SessionKind::OPENCL, hang_limit(), &|| false).map(|_| ()));
            let own = pool.wait_for_need().unwrap();
            assert_eq!((loader, own), (LOADER, PLAIN));
            assert!(pool.stop_loading_opencl() && !pool.stop_loading_opencl());
            assert_eq!(pool.failed("a broken library", loader), Duration::ZERO);
            assert_eq!(pool.wait_for_need(), Some(PLAIN));
            pool.failed("no driver", own);
            assert_eq!(program.join().unwrap(), Err(PoolError::Failed("no driver".into())));
        });
    }

    #[test]
    fn a_worker_that_fails_to_load_opencl_is_the_last_that_does() {
        let pool = after_opencl(1, SOFTCUDA_DRIVER);
        let loader = pool.wait_for_need().unwrap();
        assert!(pool.stop_loading_opencl());
        assert_eq!(pool.failed("a broken library", loader), FIRST_BACKOFF);
        assert!(!pool.lock().wants_another(1), "it rests");
        assert!(pool.take(SessionKind::OPENCL, Duration::ZERO, &|| true).is_err());
        assert_eq!((pool.wait_for_need(), pool.lock().loading()), (Some(PLAIN), 0));
    }

    #[test]
    fn a_failure_makes_the_next_start_wait_longer_each_time() {
        let pool = WorkerPool::new(1);
        let rests: Vec<_> = (0..8)
            .map(|_| {
                pool.lock().warming.push(PLAIN);
                pool.failed("no driver", PLAIN).as_millis()
            })
            .collect();
        assert_eq!(rests, [500, 1000, 2000, 4000, 8000, 16000, 30000, 30000]);
        assert!(!pool.lock().wants_another(1));
        assert_eq!(pool.view().0.last_failure.as_deref(), Some("no driver"));
    }

    #[test]
    fn a_program_that_waits_learns_of_the_failure_of_its_own_attempt() {
        let pool = WorkerPool::new(0);
        std::thread::scope(|scope| {
            let program = scope.spawn(|| pool.take(SessionKind::CUDA, hang_limit(), &|| false).map(|_| ()));
            assert!(pool.wait_for_need().is_some());
            pool.failed("no driver", PLAIN);
            assert_eq!(program.join().unwrap(), Err(PoolError::Failed("no driver".into())));
        });
    }

    #[test]
    fn a_worker_that_starts_is_waited_for_however_long_that_takes() {
        let pool = WorkerPool::new(0);
        let (timeout, starts) = (Duration::from_millis(1), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(pool.wait_for_need().is_some());
                starts.wait();
                until("a peer waits", || pool.lock().inquiring == 2);
                std::thread::sleep(timeout * 50);
                pool.failed("no driver", PLAIN);
            });
            pool.lock().inquiring = 1;
            pool.changed.notify_all();
            starts.wait();
            let outcome = pool.driver(timeout, &|| false);
            assert_eq!(outcome, Err(PoolError::Failed("no driver".into())));
            assert_eq!(pool.driver(timeout, &|| false), Err(PoolError::Slow(timeout)), "none starts");
        });
    }

    #[test]
    fn a_wait_that_is_given_up_ends() {
        let pool = WorkerPool::new(0);
        assert_eq!(pool.driver(hang_limit(), &|| true), Err(PoolError::Stopping));
    }

    #[test]
    fn peers_that_ask_for_the_driver_have_one_worker_started_among_them() {
        let pool = WorkerPool::new(0);
        pool.lock().inquiring = 3;
        assert!(pool.wait_for_need().is_some());
        assert!(!pool.lock().wants_another(0));
        pool.lock().waiting = 1;
        assert!(pool.lock().wants_another(0));
    }

    #[test]
    fn stopping_wakes_all_threads_that_wait() {
        let pool = WorkerPool::new(0);
        std::thread::scope(|scope| {
            let program = scope.spawn(|| pool.take(SessionKind::CUDA, hang_limit(), &|| false).map(|_| ()));
            assert!(pool.wait_for_need().is_some());
            pool.stop();
            assert_eq!(program.join().unwrap(), Err(PoolError::Stopping));
            assert!(pool.wait_for_need().is_none());
        });
    }
}
