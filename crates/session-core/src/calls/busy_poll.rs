//! A short look before a wait: what a device finishes within microseconds is answered by the main loop itself, which saves
//! two changes of threads.
//!
//! While it looks, the main loop executes nothing else. So it stops as soon as the link has something for it, and after
//! [`MAX_SPIN_TIME`]. The call itself is made here only once a query has said that there is nothing left to wait for; whatever
//! else the query says, an executor makes the call and tells the program.
//!
//! A program whose waits follow each other at once has its executor roused, where executors look for calls
//! ([`Api::EXECUTORS_SPIN`]). One that is awake has each call before the device is done, waits inside the driver as the
//! program would natively, and neither asks the driver again and again nor makes the call once more at the end.
//!
//! While an executor waits for a device the main loop stays awake, since the program's next call comes as soon as that is
//! done.

use std::hint::spin_loop;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use katydid_transport::{Spin, yield_unless_contended};

use crate::calls::api::Api;
use crate::calls::error::SessionError;
use crate::calls::executor::{Executors, Task, processors};
use crate::calls::in_flight::Calls;

/// A processor is kept busy no longer than this for one call: as long as a program stays awake for its answer. An empty kernel
/// takes CUDA five microseconds, a small graph some fifty; a read of four bytes takes NVIDIA's OpenCL 37.
const MAX_SPIN_TIME: Duration = Duration::from_micros(200);
/// How long a processor is kept busy for one call where processors are the device, which needs them. An empty kernel takes
/// ten microseconds on PoCL.
const MAX_CPU_DEVICE_SPIN_TIME: Duration = Duration::from_micros(30);
/// Waits of a program follow each other at once, if the next one ends so soon after the last.
const BACK_TO_BACK_INTERVAL: Duration = Duration::from_micros(60);
/// Waits in a row that are taken for the beginning of more: rousing an executor costs as much as some of them.
const MIN_CONSECUTIVE_WAITS: u32 = 8;

/// State of the work that a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitStatus {
    /// The work has completed.
    Done,
    /// The device is at work.
    Pending,
    /// The driver says something else, which the call will find out.
    Unknown,
}

/// What a call waits for, as far as it can be asked about.
pub trait WaitTarget<A: Api> {
    /// Asks the driver once, without blocking, whether the work has completed.
    fn query(&mut self, shared: &A::SessionShared) -> WaitStatus;

    /// Whether the device that does it is the machine's processors.
    fn is_on_cpu(&self) -> bool {
        false
    }
}

/// A call that is looked at before an executor gets it.
pub struct PendingWait<A: Api, T> {
    target: T,
    thread: u32,
    context: A::Context,
    task: Task<A>,
}

/// Whether waits follow each other.
#[derive(Debug, Default)]
struct WaitPace {
    last: Option<Instant>,
    /// How often one ended soon after the one before, without a break.
    consecutive: u32,
}

impl WaitPace {
    /// A wait has ended at `now`. Whether so many ended at once that more are likely to follow.
    fn ended(&mut self, now: Instant) -> bool {
        let is_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < BACK_TO_BACK_INTERVAL);
        self.consecutive = if is_soon { self.consecutive.saturating_add(1) } else { 0 };
        self.last = Some(now);
        self.consecutive >= MIN_CONSECUTIVE_WAITS
    }
}

/// Whether a session may look at all, and at what.
pub struct BusyPoll<A: Api, T> {
    /// With few processors, the thread that looks keeps the others from working.
    pub is_enabled: bool,
    /// Main loop and executors may stay awake: the program and each of them have a processor then.
    pub may_spin: bool,
    /// The current frame comes from the polling loop.
    pub is_on: bool,
    /// What the current frame waits for.
    pub target: Option<T>,
    /// What is to be looked at before the next frame.
    pub pending: Option<PendingWait<A, T>>,
    /// What an executor was given last waits for a device that is no processor.
    pub is_device_separate: bool,
    /// With two processors, others run between looks.
    pub yields: bool,
    pace: WaitPace,
    /// How long the main loop stays awake for calls that executors have.
    spin: Spin,
}

impl<A: Api, T: WaitTarget<A>> BusyPoll<A, T> {
    /// For machines with so many processors at least. `is_device_separate`: of an API whose devices are no processors, as long as
    /// nothing else is known.
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

    /// The program wants to wait asleep, so no thread looks at anything.
    pub fn disable(&mut self) {
        (self.is_enabled, self.may_spin) = (false, false);
    }

    /// Keeps a call to be polled, if the current frame waits for something that can be polled; gives it back if not.
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

    /// Between two looks. False if there is to be no other one, since others want the processors.
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

    /// The program has its answer, and this costs it nothing but a later start of its next call.
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

    /// Stays awake until executors have done what they wait for, or the link has something for the main loop. `others` of
    /// them wait for no device.
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
