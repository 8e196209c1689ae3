//! A short busy poll before a wait: the main loop itself answers calls that a device finishes within microseconds, which
//! saves two thread switches.
//!
//! While it polls, the main loop executes nothing else. So it stops as soon as the link has something for it, and after
//! [`MAX_SPIN_TIME`]. The main loop makes the call itself only once a query has said that there is nothing left to wait for.
//! After any other answer, an executor makes the call and replies to the program.
//!
//! If a program waits again and again, its executor is woken, where executors spin for calls ([`Api::EXECUTORS_SPIN`]). An
//! awake executor has each call before the device is done and waits inside the driver, as the program would natively. It
//! neither polls the driver nor makes the call once more at the end.
//!
//! While an executor waits for a device, the main loop stays awake, since the program's next call comes as soon as the
//! device is done.

use std::hint::spin_loop;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use katydid_transport::{Spin, yield_unless_contended};

use crate::calls::api::Api;
use crate::calls::error::SessionError;
use crate::calls::executor::{Executors, Task, processors};
use crate::calls::in_flight::Calls;

/// Longest poll of a processor for one call: as long as a program stays awake for its answer. An empty kernel takes CUDA
/// five microseconds, a small graph some fifty; a read of four bytes takes NVIDIA's OpenCL 37.
const MAX_SPIN_TIME: Duration = Duration::from_micros(200);
/// Longest poll for one call if the processors are the device, which needs them. An empty kernel takes ten microseconds on
/// PoCL.
const MAX_CPU_DEVICE_SPIN_TIME: Duration = Duration::from_micros(30);
/// Waits of a program are back to back if the next one ends so soon after the last.
const BACK_TO_BACK_INTERVAL: Duration = Duration::from_micros(60);
/// Consecutive waits after which more are expected: waking an executor costs as much as some of them.
const MIN_CONSECUTIVE_WAITS: u32 = 8;

/// State of the work that a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    /// The work has completed.
    Done,
    /// The device is still working.
    Pending,
    /// The driver returned another code, which the call will return too.
    Unknown,
}

/// What a call waits for, if it can be polled.
pub trait WaitTarget<A: Api> {
    /// Asks the driver once, without blocking, whether the work has completed.
    fn query(&mut self, shared: &A::SessionShared) -> WaitStatus;

    /// Returns whether its device is the machine's processors.
    fn is_on_cpu(&self) -> bool {
        false
    }
}

/// A call that is polled before an executor gets it.
pub struct PendingWait<A: Api, T> {
    target: T,
    thread: u32,
    context: A::Context,
    task: Task<A>,
}

/// Detects waits that are back to back.
#[derive(Debug, Default)]
struct WaitPace {
    last: Option<Instant>,
    /// Number of consecutive waits that ended soon after the one before.
    consecutive: u32,
}

impl WaitPace {
    /// Notes that a wait has ended at `now`. Returns whether so many were back to back that more are likely to follow.
    fn ended(&mut self, now: Instant) -> bool {
        let is_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < BACK_TO_BACK_INTERVAL);
        self.consecutive = if is_soon { self.consecutive.saturating_add(1) } else { 0 };
        self.last = Some(now);
        self.consecutive >= MIN_CONSECUTIVE_WAITS
    }
}

/// Whether a session polls, and for what.
pub struct BusyPoll<A: Api, T> {
    /// Whether it polls at all: with few processors, the polling thread keeps others from working.
    pub is_enabled: bool,
    /// Whether main loop and executors may stay awake: the program and each of them then have a processor.
    pub may_spin: bool,
    /// Whether the current frame comes from the polling loop.
    pub is_on: bool,
    /// What the current frame waits for.
    pub target: Option<T>,
    /// The call to poll before the next frame.
    pub pending: Option<PendingWait<A, T>>,
    /// Whether the last call of an executor waits for a device other than the processors.
    pub is_device_separate: bool,
    /// Whether other threads run between polls, on two processors.
    pub yields: bool,
    pace: WaitPace,
    /// How long the main loop spins for calls that executors run.
    spin: Spin,
}

impl<A: Api, T: WaitTarget<A>> BusyPoll<A, T> {
    /// Polls on machines with at least `min_processors` processors. `is_device_separate`: whether the API's devices are
    /// assumed not to be processors until more is known.
    #[must_use]
    pub fn new(min_processors: usize, is_device_separate: bool) -> Self {
        Self {
            is_enabled: processors() >= min_processors,
            may_spin: processors() > 3,
            is_on: false,
            target: None,
            pending: None,
            is_device_separate,
            yields: processors() <= 2,
            pace: WaitPace::default(),
            spin: Spin::for_work(),
        }
    }

    /// Disables polling and spinning: the program wants to wait asleep.
    pub fn disable(&mut self) {
        (self.is_enabled, self.may_spin) = (false, false);
    }

    /// Keeps a call to be polled, if the current frame waits for something that can be polled; returns it otherwise.
    pub fn put_off(&mut self, thread: u32, context: A::Context, task: Task<A>) -> Option<Task<A>> {
        let Some(target) = self.target.take() else { return Some(task) };
        self.pending = Some(PendingWait { target, thread, context, task });
        None
    }

    /// Finishes the pending call, here or on its executor. `has_pending` tells whether the link has
    /// something for the main loop.
    ///
    /// # Errors
    ///
    /// As when the call is given to an executor.
    pub fn poll_pending_wait(
        &mut self,
        shared: &Arc<A::SessionShared>,
        executors: &mut Executors<A>,
        mut has_pending: impl FnMut() -> bool,
    ) -> Result<(), SessionError> {
        // Left by a call that failed before it waited.
        self.target = None;
        let Some(mut wait) = self.pending.take() else { return Ok(()) };
        self.is_device_separate = !wait.target.is_on_cpu();
        let (start, longest) = (Instant::now(), self.longest());
        loop {
            match wait.target.query(shared) {
                WaitStatus::Done => {
                    ManuallyDrop::into_inner(wait.task)(shared);
                    return self.wake_if_more_follow(shared, executors, wait.thread);
                }
                WaitStatus::Pending if !has_pending() && start.elapsed() < longest && self.pauses() => {}
                _ => return executors.run(shared, wait.thread, wait.context, wait.task),
            }
        }
    }

    /// Pauses between two polls. Returns false if polling should end because other threads need the processors.
    fn pauses(&self) -> bool {
        if self.yields {
            return yield_unless_contended();
        }
        spin_loop();
        true
    }

    fn longest(&self) -> Duration {
        match (self.is_enabled, self.is_device_separate) {
            (false, _) => Duration::ZERO,
            (true, false) => MAX_CPU_DEVICE_SPIN_TIME,
            (true, true) => MAX_SPIN_TIME,
        }
    }

    /// Wakes the executor if more waits are likely. The program has its answer already, so this only delays its next call.
    fn wake_if_more_follow(
        &mut self,
        shared: &Arc<A::SessionShared>,
        executors: &mut Executors<A>,
        thread: u32,
    ) -> Result<(), SessionError> {
        if A::EXECUTORS_SPIN && self.pace.ended(Instant::now()) && self.may_spin {
            return executors.wake(shared, thread);
        }
        Ok(())
    }

    /// Spins until executors have finished their waits, or the link has something for the main loop. `others` of them wait
    /// for no device.
    pub fn spin_for_executor(
        &self,
        calls: &Calls,
        others: impl FnOnce() -> u64,
        mut has_pending: impl FnMut() -> bool,
    ) {
        if self.may_spin && self.is_device_separate && calls.in_flight() > 0 {
            let others = others();
            self.spin.until(|| (has_pending() || calls.in_flight() <= others).then_some(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_each_other_until_there_is_a_break() {
        let (start, step) = (Instant::now(), BACK_TO_BACK_INTERVAL / 2);
        let mut pace = WaitPace::default();
        let mut ended = |steps: u32| pace.ended(start + step * steps);
        assert!((0..MIN_CONSECUTIVE_WAITS).all(|number| !ended(number)));
        assert!(ended(MIN_CONSECUTIVE_WAITS) && ended(MIN_CONSECUTIVE_WAITS + 1));
        assert!(!ended(MIN_CONSECUTIVE_WAITS + 3), "that one came late");
        assert!(
            (1..MIN_CONSECUTIVE_WAITS).all(|number| !ended(MIN_CONSECUTIVE_WAITS + 3 + number))
                && ended(2 * MIN_CONSECUTIVE_WAITS + 3)
        );
    }
}
