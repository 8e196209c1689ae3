//! Executes the frames of an OpenCL session, and names what their calls wait for.
//!
//! Frames are executed in order by one thread, which never waits for a device (`katydid_session_core::execute_frames`).

use std::ptr;
use std::sync::Arc;

use katydid_opencl_sys::constant::DEVICE_TYPE_CPU;
use katydid_session_core::{FrameHandler, execute_frames};
use katydid_transport::WorkerLink;
use katydid_wire::frame::FrameHead;

use crate::calls::busy_poll::{AwaitedEvents, MainLoop};
use crate::calls::dispatch::dispatch;
use crate::calls::executor::task;
use crate::calls::fault::{Fault, SessionError};
use crate::calls::session_shared::{OpenCl, OpenclSessionShared};
use crate::handlers::next_upcall;
use crate::objects::held_events::HeldEvent;
use crate::state::Session;

impl FrameHandler for Session {
    type Api = OpenCl;
    type Target = AwaitedEvents;
    type Fault = Fault;

    fn parts(&mut self) -> (&Arc<OpenclSessionShared>, &mut MainLoop) {
        (&self.shared, &mut self.main_loop)
    }

    fn dispatch(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), Fault> {
        dispatch(self, head, payload)
    }

    fn discard(&mut self, head: &FrameHead) {
        self.journal.forget_attachment();
        // The parts that were uploaded for this call are useless now.
        self.uploads.discard(head.thread);
    }

    fn waiting_upcalls(shared: &OpenclSessionShared) -> u64 {
        u64::from(shared.upcalls.waiting().is_some())
    }
}

impl Session {
    /// Executes frames until the program closes its end.
    ///
    /// # Errors
    ///
    /// A violation of the protocol by the program, or the reason why the worker cannot go on.
    pub fn serve(&mut self, link: &mut dyn WorkerLink) -> Result<(), SessionError> {
        if let Some(head) = self.main_loop.waiting_upcall.take() {
            self.main_loop.executors.run(&self.shared, head.thread, (), task(head, next_upcall(head)))?;
        }
        execute_frames(self, link).map(drop)
    }

    #[cfg(test)]
    pub(crate) fn execute(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), SessionError> {
        katydid_session_core::execute(self, head, payload)
    }

    /// Returns whether [`Session::set_awaited_events`] is to poll the current frame's events, though they may take a while.
    pub(crate) fn may_poll(&self) -> bool {
        self.may_query() && self.main_loop.busy_poll.is_enabled
    }

    /// Returns whether [`Session::set_awaited_events`] is to learn of the current frame's events if they may have ended already.
    /// That costs one query.
    pub(crate) fn may_query(&self) -> bool {
        self.main_loop.busy_poll.is_on && !self.replay.is_on
    }

    /// Notes that the current frame waits for these events, and nothing else.
    pub(crate) fn set_awaited_events(&mut self, events: Vec<HeldEvent>) {
        self.main_loop.busy_poll.target = AwaitedEvents::new(events, |events| self.are_on_cpu(events));
    }

    /// Returns whether processors are among the devices of these events.
    fn are_on_cpu(&self, events: &[HeldEvent]) -> bool {
        let mut platforms = self.platforms.iter().filter(|of| events.iter().any(|event| ptr::eq(of.api, event.api())));
        platforms.any(|of| of.devices.iter().any(|(_, kind)| kind & DEVICE_TYPE_CPU != 0))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::ManuallyDrop;
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::sync::mpsc;

    use katydid_opencl_sys::{cl_event, void};

    use super::*;
    use crate::calls::executor::ExecutorTask;
    use crate::tests::session;

    /// The state of the only event, and how often it was queried.
    static STATE: AtomicI32 = AtomicI32::new(0);
    static QUERY_COUNT: AtomicUsize = AtomicUsize::new(0);

    #[expect(unsafe_code, reason = "a driver's function")]
    unsafe extern "C" fn info(_: cl_event, _: u32, _: usize, value: *mut void, _: *mut usize) -> i32 {
        QUERY_COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: asked for a state, which has four bytes.
        unsafe { value.cast::<i32>().write(STATE.load(Ordering::Relaxed)) };
        0
    }

    fn event() -> HeldEvent {
        crate::tests::event(cl_event::NULL, info)
    }

    /// Returns the name of the thread that made the call.
    fn poll_thread(events: Vec<HeldEvent>, has_pending: bool) -> Option<String> {
        poll_thread_with(true, events, has_pending)
    }

    fn poll_thread_with(is_enabled: bool, events: Vec<HeldEvent>, has_pending: bool) -> Option<String> {
        let (mut session, _) = session();
        (session.main_loop.busy_poll.is_enabled, session.main_loop.busy_poll.is_on) = (is_enabled, true);
        assert!(session.may_poll() == is_enabled && session.may_query());
        session.set_awaited_events(events);
        let (sender, receiver) = mpsc::channel();
        let task: ExecutorTask = ManuallyDrop::new(Box::new(move |_: &Arc<_>| {
            let _ = sender.send(std::thread::current().name().map(str::to_owned));
        }));
        let (shared, main_loop) = session.parts();
        match main_loop.busy_poll.put_off(7, (), task) {
            Some(task) => {
                assert!(main_loop.busy_poll.pending.is_none());
                drop(ManuallyDrop::into_inner(task));
            }
            None => {
                main_loop.busy_poll.poll_pending_wait(shared, &mut main_loop.executors, || has_pending).unwrap();
            }
        }
        receiver.recv().ok().flatten()
    }

    #[test]
    fn complete_events_are_answered_inline_and_pending_ones_by_an_executor() {
        let here = std::thread::current().name().map(str::to_owned);
        let executor = Some("blocking 7".to_owned());
        assert_eq!(poll_thread(vec![event(), event()], true), here);
        assert_eq!(poll_thread_with(false, vec![event()], false), here, "has ended");
        STATE.store(1, Ordering::Relaxed);
        QUERY_COUNT.store(0, Ordering::Relaxed);
        assert_eq!(poll_thread(vec![event()], true), executor);
        assert_eq!(QUERY_COUNT.load(Ordering::Relaxed), 1);
        assert_eq!(poll_thread(vec![event()], false), executor);
        QUERY_COUNT.store(0, Ordering::Relaxed);
        assert_eq!(poll_thread_with(false, vec![event()], false), executor);
        assert_eq!(QUERY_COUNT.load(Ordering::Relaxed), 1, "with few processors, there is one look");
        STATE.store(-5, Ordering::Relaxed);
        assert_eq!(poll_thread(vec![event()], false), here, "a command that failed has ended");
        assert_eq!(poll_thread(Vec::new(), false), None, "nothing was put off");
        assert_eq!(poll_thread((0..9).map(|_| event()).collect(), false), None);
    }

    #[test]
    fn the_main_loop_stays_awake_no_longer_than_an_executor_waits_for_what_is_no_processor() {
        let (mut session, _) = session();
        session.main_loop.busy_poll.may_spin = true;
        let looks = |session: &Session| {
            let mut looks = 0;
            let is_pending = || {
                looks += 1;
                if looks == 3 {
                    session.shared.calls.end();
                }
                false
            };
            session.main_loop.busy_poll.spin_for_executor(&session.shared.calls, || 0, is_pending);
            looks
        };
        let event = HeldEvent::alone(cl_event::NULL, session.platforms[0].api);
        for (kind, is_cpu) in [(DEVICE_TYPE_CPU, true), (4, false)] {
            session.platforms[0].devices[0].1 = kind;
            assert_eq!(session.are_on_cpu(std::slice::from_ref(&event)), is_cpu);
        }
        std::mem::forget(event);
        session.shared.calls.begin();
        assert_eq!(looks(&session), 0, "processors are needed");
        session.main_loop.busy_poll.is_device_separate = true;
        // On a single processor no thread polls twice.
        let several = std::thread::available_parallelism().is_ok_and(|count| count.get() > 1);
        assert_eq!(looks(&session), if several { 3 } else { 1 });
        assert_eq!(looks(&session), 0, "no thread waits any more");
    }
}
