//! A short look before a wait: what the GPU finishes within microseconds is answered by the main loop itself, which saves
//! two changes of threads.
//!
//! While it looks, the main loop executes nothing else. So it looks only while no executor is at work, stops as soon as the
//! link has something for it, and stops after [`MAX_SPIN`]. The call itself is made here only once a query has said that there
//! is nothing left to wait for; whatever else the query says, an executor makes the call and tells the program.
//!
//! A program whose waits follow each other at once has its executor roused. One that is awake has each call before the GPU is
//! done, waits inside the driver as the program would natively, and neither asks the driver again and again nor makes the
//! call once more at the end.

#![expect(unsafe_code, reason = "asks the driver about handles of its own")]

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use katydid_cuda_sys::{CU_STREAM_LEGACY, CUevent, CUresult, CUstream};
use katydid_driver::Driver;
use katydid_transport::Spin;
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{cuCtxSynchronize, cuEventSynchronize, cuStreamSynchronize};

use crate::calls::executor::{self, Task, TaskContext};
use crate::calls::fault::SessionError;
use crate::state::Session;

/// A processor is kept busy no longer than this for one call: as long as a program stays awake for its answer. An empty kernel
/// takes five microseconds, a small graph some fifty.
const MAX_SPIN: Duration = Duration::from_micros(200);
/// Waits of a program follow each other at once, if the next one ends so soon after the last.
const BACK_TO_BACK: Duration = Duration::from_micros(60);
/// So many of them in a row are taken for the beginning of more: rousing an executor costs as much as some of them.
const MIN_CONSECUTIVE_WAITS: u32 = 8;
/// What flags of contexts say of waiting, and `CU_CTX_SCHED_BLOCKING_SYNC` of it.
const SCHEDULE_MASK: u32 = 7;
const SCHEDULE_BLOCKING_SYNC: u32 = 4;
/// A context with more streams than this is not looked at: each is asked about.
const MAX_QUERY_STREAMS: usize = 8;

/// What a call waits for, as far as it can be asked about.
#[derive(Debug)]
pub(crate) enum WaitTarget {
    /// Streams that have not been seen idle yet. No thread but the main loop gives them more to do.
    Streams(Vec<CUstream>),
    Event(CUevent),
}

impl WaitTarget {
    /// Success once there is nothing left to wait for, else what the driver said.
    fn query(&mut self, driver: &Driver) -> CUresult {
        match self {
            Self::Streams(left) => {
                while let Some(stream) = left.last() {
                    // SAFETY: the handle came from the driver, which refuses one that is gone.
                    match unsafe { driver.cuStreamQuery(*stream) } {
                        CUresult::SUCCESS => drop(left.pop()),
                        other => return other,
                    }
                }
                CUresult::SUCCESS
            }
            // SAFETY: as above.
            Self::Event(event) => unsafe { driver.cuEventQuery(*event) },
        }
    }
}

/// A call that is looked at before an executor gets it.
pub(crate) struct PendingWait {
    pub(crate) target: WaitTarget,
    pub(crate) thread: u32,
    pub(crate) place: TaskContext,
    pub(crate) task: Task,
}

/// Whether this session may look at all, and at what.
pub(crate) struct BusyPoll {
    /// With few processors, the thread that looks keeps the others from working.
    pub(crate) is_enabled: bool,
    /// Executors may look as well: the program, the main loop and the executor each have a processor then.
    pub(crate) may_wake_executor: bool,
    /// The frame at hand comes from the loop that looks.
    pub(crate) is_on: bool,
    /// What the frame at hand waits for.
    pub(crate) target: Option<WaitTarget>,
    /// What is to be looked at before the next frame.
    pub(crate) pending: Option<PendingWait>,
    pub(crate) pace: WaitPace,
    /// How long the main loop stays awake for calls that executors have.
    pub(crate) spin: Spin,
}

/// Whether waits follow each other.
#[derive(Debug, Default)]
pub(crate) struct WaitPace {
    last: Option<Instant>,
    /// How often one ended soon after the one before, without a break.
    consecutive: u32,
}

impl WaitPace {
    /// A wait has ended at `now`. Whether there have been so many at once that more are to be expected.
    fn ended(&mut self, now: Instant) -> bool {
        let is_soon = self.last.is_some_and(|last| now.saturating_duration_since(last) < BACK_TO_BACK);
        self.consecutive = if is_soon { self.consecutive.saturating_add(1) } else { 0 };
        self.last = Some(now);
        self.consecutive >= MIN_CONSECUTIVE_WAITS
    }
}

impl BusyPoll {
    /// A context with these flags is made. Of a program that wants to wait asleep no thread looks at anything.
    pub(crate) fn note_schedule_flags(&mut self, flags: u32) {
        if flags & SCHEDULE_MASK == SCHEDULE_BLOCKING_SYNC {
            (self.is_enabled, self.may_wake_executor) = (false, false);
        }
    }
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self {
            is_enabled: executor::processors() > 2,
            may_wake_executor: executor::processors() > 3,
            is_on: false,
            target: None,
            pending: None,
            pace: WaitPace::default(),
            spin: Spin::for_work(),
        }
    }
}

impl Session {
    /// What the frame waits for, if that can be looked at here. The frame's context is current.
    pub(crate) fn target(&mut self, head: &FrameHead, payload: &[u8]) -> Option<WaitTarget> {
        let may_look = self.busy_poll.is_on && self.busy_poll.is_enabled && !self.replay.is_on;
        // An executor could give a stream more to do between the query and the call.
        if !may_look || self.executors.is_awake(head.thread) || self.shared.calls.in_flight() > 0 {
            return None;
        }
        match head.opcode {
            cuStreamSynchronize::OPCODE => {
                let message = cuStreamSynchronize::decode(payload).ok()?;
                self.handle(head, message.hStream).ok().map(|stream| WaitTarget::Streams(vec![stream]))
            }
            cuEventSynchronize::OPCODE => {
                let message = cuEventSynchronize::decode(payload).ok()?;
                self.handle(head, message.hEvent).ok().map(WaitTarget::Event)
            }
            cuCtxSynchronize::OPCODE => self.streams_to_query().map(WaitTarget::Streams),
            _ => None,
        }
    }

    /// All streams of the current context, if they are few. A primary context is waited for with its green ones.
    fn streams_to_query(&self) -> Option<Vec<CUstream>> {
        let owner = |context: &u32| self.greens.get(context).map(|green| green.owner);
        let is_meant = |context: &u32| *context == self.entered || owner(context) == Some(self.entered);
        let made = self.tables.streams.all().filter(|(_, _, context)| is_meant(context));
        let of_threads = self.thread_streams.iter().filter(|((_, context), _)| is_meant(context));
        let others = made.map(|(_, stream, _)| stream).chain(of_threads.map(|(_, stream)| *stream));
        let all: Vec<CUstream> = [CU_STREAM_LEGACY].into_iter().chain(others).take(MAX_QUERY_STREAMS + 1).collect();
        (all.len() <= MAX_QUERY_STREAMS).then_some(all)
    }

    /// Finishes the call that waits to be looked at, here or by its executor. `has_pending` tells whether the link has
    /// something for the main loop.
    ///
    /// # Errors
    ///
    /// As when the call is given to an executor.
    pub(crate) fn poll_pending_wait(&mut self, mut has_pending: impl FnMut() -> bool) -> Result<(), SessionError> {
        let Some(mut wait) = self.busy_poll.pending.take() else { return Ok(()) };
        let begun = Instant::now();
        loop {
            match wait.target.query(self.driver()) {
                CUresult::SUCCESS => {
                    ManuallyDrop::into_inner(wait.task)(&self.shared);
                    // The program has its answer, and this costs it nothing but a later start of its next call.
                    let follows = self.busy_poll.pace.ended(Instant::now());
                    return if follows && self.busy_poll.may_wake_executor {
                        self.executors.wake(&self.shared, wait.thread)
                    } else {
                        Ok(())
                    };
                }
                CUresult::ERROR_NOT_READY if !has_pending() && begun.elapsed() < MAX_SPIN => {}
                _ => break,
            }
        }
        self.executors.run(&self.shared, wait.thread, wait.place, wait.task)
    }

    /// While an executor waits for the GPU the main loop stays awake, since the program's next call comes as soon as that is
    /// done: until then, or until the link has something for it.
    pub(crate) fn spin_for_executor(&self, mut has_pending: impl FnMut() -> bool) {
        if self.busy_poll.may_wake_executor && self.shared.calls.in_flight() > 0 {
            self.busy_poll.spin.until(|| (has_pending() || self.shared.calls.in_flight() == 0).then_some(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_follow_each_other_until_there_is_a_break() {
        let (start, step) = (Instant::now(), BACK_TO_BACK / 2);
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
