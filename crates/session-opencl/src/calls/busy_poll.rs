//! A short look before a wait: what a device finishes within microseconds is answered by the main loop itself, which saves two
//! changes of threads.
//!
//! While it looks, the main loop executes nothing else. So it stops as soon as the link has something for it, and after
//! [`MAX_SPIN`]. The call itself is made here only once every event that it waits for has ended; else an executor makes it.
//!
//! While an executor waits for a device the main loop stays awake, since the program's next call comes as soon as that is done:
//! a program that computes in rounds waits for one launch after the other, and reads what came of it.

use std::mem::ManuallyDrop;
use std::ptr;
use std::time::{Duration, Instant};

use katydid_opencl_sys::constant::DEVICE_TYPE_CPU;
use katydid_transport::Spin;
use katydid_wire::frame::FrameHead;

use crate::calls::executor::Task;
use crate::calls::fault::SessionError;
use crate::objects::held_events::HeldEvent;
use crate::state::Session;

/// A processor is kept busy no longer than this for one call: as long as a program stays awake for its answer. A read of four bytes
/// takes NVIDIA's driver 37 microseconds.
const MAX_SPIN: Duration = Duration::from_micros(200);
/// The same where processors are the device, which needs them. An empty kernel takes ten microseconds on PoCL.
const MAX_SPIN_ON_CPU: Duration = Duration::from_micros(30);
/// More events than this are not looked at: each is asked about.
const MAX_EVENT_QUERIES: usize = 8;

/// A call that is looked at before an executor gets it.
pub(crate) struct PendingWait {
    events: Vec<HeldEvent>,
    thread: u32,
    task: Task,
}

/// Whether this session may look at all, and at what.
pub(crate) struct BusyPoll {
    /// With a single processor, a thread that looks keeps the others from working.
    pub(crate) is_enabled: bool,
    /// With two, others run between looks.
    yields: bool,
    /// The program, the main loop and the executor each have a processor.
    may_spin: bool,
    /// What an executor was given last waits for a device that is no processor.
    is_device_separate: bool,
    /// How long the main loop stays awake for calls that executors have.
    spin_for_executor: Spin,
    /// The frame at hand comes from the loop that looks.
    pub(crate) is_on: bool,
    /// What the frame at hand waits for.
    events: Vec<HeldEvent>,
    /// What is to be looked at before the next frame.
    next: Option<PendingWait>,
}

impl Default for BusyPoll {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            is_enabled: processors > 1,
            yields: processors <= 2,
            may_spin: processors > 3,
            is_device_separate: false,
            spin_for_executor: Spin::for_work(),
            is_on: false,
            events: Vec::new(),
            next: None,
        }
    }
}

impl Session {
    /// Whether what the frame at hand waits for is to be told to [`Session::look_at`], though it may take a while.
    pub(crate) fn may_look(&self) -> bool {
        self.may_glance() && self.busy_poll.is_enabled
    }

    /// The same of what may have ended by now, which costs one question.
    pub(crate) fn may_glance(&self) -> bool {
        self.busy_poll.is_on && !self.replay.is_on
    }

    /// The frame at hand waits for these events, and nothing else.
    pub(crate) fn look_at(&mut self, events: Vec<HeldEvent>) {
        if events.len() <= MAX_EVENT_QUERIES {
            self.busy_poll.events = events;
        }
    }

    /// Keeps a call to be looked at, if it waits for something that can be; gives it back if not.
    pub(crate) fn put_off(&mut self, head: &FrameHead, task: Task) -> Option<Task> {
        let events = std::mem::take(&mut self.busy_poll.events);
        if events.is_empty() {
            return Some(task);
        }
        self.busy_poll.next = Some(PendingWait { events, thread: head.thread, task });
        None
    }

    /// Finishes the call that waits to be looked at, here or by its executor. `has_pending` tells whether the link has
    /// something for the main loop.
    ///
    /// # Errors
    ///
    /// As when the call is given to an executor.
    pub(crate) fn poll_pending_wait(&mut self, mut has_pending: impl FnMut() -> bool) -> Result<(), SessionError> {
        self.busy_poll.is_on = false;
        // Events of a call that failed before it came to wait.
        self.busy_poll.events.clear();
        let Some(mut poll_pending_wait) = self.busy_poll.next.take() else { return Ok(()) };
        self.busy_poll.is_device_separate = self.leave_processors(&poll_pending_wait.events);
        let longest = if self.busy_poll.is_device_separate { MAX_SPIN } else { MAX_SPIN_ON_CPU };
        let (begun, most) = (Instant::now(), if self.busy_poll.is_enabled { longest } else { Duration::ZERO });
        // The last that is still awaited is asked about; those that have ended are not asked about again.
        while let Some(event) = poll_pending_wait.events.last() {
            match event.status() {
                Ok(status) if status <= 0 => drop(poll_pending_wait.events.pop()),
                Ok(_) if begun.elapsed() < most && !has_pending() => match self.busy_poll.yields {
                    true => std::thread::yield_now(),
                    false => std::hint::spin_loop(),
                },
                _ => return self.executors.run(&self.shared, poll_pending_wait.thread, poll_pending_wait.task),
            }
        }
        ManuallyDrop::into_inner(poll_pending_wait.task)(&self.shared);
        Ok(())
    }

    /// Stays awake until executors have done what they wait for, or the link has something for the main loop.
    pub(crate) fn spin_for_executor(&self, mut has_pending: impl FnMut() -> bool) {
        if !self.busy_poll.may_spin || !self.busy_poll.is_device_separate {
            return;
        }
        // Who waits for a callback to be due waits for no device.
        let others = u64::from(self.shared.upcalls.waiting().is_some());
        self.busy_poll
            .spin_for_executor
            .until(|| (has_pending() || self.shared.calls.in_flight() <= others).then_some(()));
    }

    /// Whether the devices of these events are no processors.
    fn leave_processors(&self, events: &[HeldEvent]) -> bool {
        let mut platforms = self.platforms.iter().filter(|of| events.iter().any(|event| ptr::eq(of.api, event.api())));
        platforms.all(|of| of.devices.iter().all(|(_, kind)| kind & DEVICE_TYPE_CPU == 0))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use katydid_opencl_sys::{cl_event, void};

    use super::*;
    use crate::tests::session;

    /// The state of the only event that there is, and how often it is asked for before it counts down.
    static STATE: AtomicI32 = AtomicI32::new(0);
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    #[expect(unsafe_code, reason = "a driver's function")]
    unsafe extern "C" fn info(_: cl_event, _: u32, _: usize, value: *mut void, _: *mut usize) -> i32 {
        ASKED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: asked for a state, which has four bytes.
        unsafe { value.cast::<i32>().write(STATE.load(Ordering::Relaxed)) };
        0
    }

    fn event() -> HeldEvent {
        crate::tests::event(cl_event::NULL, info)
    }

    /// The name of the thread that made the call.
    fn looked(events: Vec<HeldEvent>, has_pending: bool) -> Option<String> {
        looked_with(true, events, has_pending)
    }

    fn looked_with(is_enabled: bool, events: Vec<HeldEvent>, has_pending: bool) -> Option<String> {
        let (mut session, _) = session();
        session.busy_poll = BusyPoll { is_enabled, is_on: true, ..BusyPoll::default() };
        assert!(session.may_look() == is_enabled && session.may_glance());
        session.look_at(events);
        let (tell, told) = mpsc::channel();
        let task: Task = ManuallyDrop::new(Box::new(move |_: &Arc<_>| {
            let _ = tell.send(std::thread::current().name().map(str::to_owned));
        }));
        let head = FrameHead { opcode: 1, wants_reply: true, thread: 7, context: 0, sequence: 1 };
        match session.put_off(&head, task) {
            Some(task) => {
                assert!(session.busy_poll.next.is_none());
                drop(ManuallyDrop::into_inner(task));
            }
            None => session.poll_pending_wait(|| has_pending).unwrap(),
        }
        told.recv().ok().flatten()
    }

    #[test]
    fn what_has_ended_is_answered_here_and_what_goes_on_by_an_executor() {
        let here = std::thread::current().name().map(str::to_owned);
        let executor = Some("blocking 7".to_owned());
        assert_eq!(looked(vec![event(), event()], true), here);
        assert_eq!(looked_with(false, vec![event()], false), here, "has ended");
        STATE.store(1, Ordering::Relaxed);
        ASKED.store(0, Ordering::Relaxed);
        assert_eq!(looked(vec![event()], true), executor);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
        assert_eq!(looked(vec![event()], false), executor);
        ASKED.store(0, Ordering::Relaxed);
        assert_eq!(looked_with(false, vec![event()], false), executor);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1, "with few processors, there is one look");
        STATE.store(-5, Ordering::Relaxed);
        assert_eq!(looked(vec![event()], false), here, "a command that failed has ended");
        assert_eq!(looked(Vec::new(), false), None, "nothing was put off");
        assert_eq!(looked((0..=MAX_EVENT_QUERIES).map(|_| event()).collect(), false), None);
    }

    #[test]
    fn the_main_loop_stays_awake_no_longer_than_an_executor_waits_for_what_is_no_processor() {
        let (mut session, _) = session();
        session.busy_poll.may_spin = true;
        let looks = |session: &Session| {
            let mut looks = 0;
            session.spin_for_executor(|| {
                looks += 1;
                if looks == 3 {
                    session.shared.calls.end();
                }
                false
            });
            looks
        };
        let event = HeldEvent::alone(cl_event::NULL, session.platforms[0].api);
        for (kind, leaves) in [(DEVICE_TYPE_CPU, false), (4, true)] {
            session.platforms[0].devices[0].1 = kind;
            assert_eq!(session.leave_processors(std::slice::from_ref(&event)), leaves);
        }
        std::mem::forget(event);
        session.shared.calls.begin();
        assert_eq!(looks(&session), 0, "processors are needed");
        session.busy_poll.is_device_separate = true;
        // On a single processor no thread looks twice.
        let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        assert_eq!(looks(&session), if several { 3 } else { 1 });
        assert_eq!(looks(&session), 1, "no thread waits any more");
    }
}
