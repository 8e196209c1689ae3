//! A short look before a wait: what a device finishes within microseconds is answered by the main loop itself, which saves two
//! changes of threads.
//!
//! While it looks, the main loop executes nothing else. So it stops as soon as the link has something for it, and after
//! [`MOST`]. The call itself is made here only once every event that it waits for has ended; else an executor makes it.

use std::time::{Duration, Instant};

use katydid_wire::frame::FrameHead;

use crate::data::HeldEvent;
use crate::executor::Task;
use crate::fault::SessionError;
use crate::session::Session;

/// A processor is kept busy no longer than this for one call. An empty kernel takes ten microseconds on PoCL.
const MOST: Duration = Duration::from_micros(30);
/// More events than this are not looked at: each is asked about.
const MOST_EVENTS: usize = 8;

/// A call that is looked at before an executor gets it.
pub(crate) struct Look {
    events: Vec<HeldEvent>,
    thread: u32,
    task: Task,
}

/// Whether this session may look at all, and at what.
pub(crate) struct Looking {
    /// With few processors, whoever looks keeps the others from working.
    pub(crate) is_worth_it: bool,
    /// The frame at hand comes from the loop that looks.
    pub(crate) is_on: bool,
    /// What the frame at hand waits for.
    events: Vec<HeldEvent>,
    /// What is to be looked at before the next frame.
    next: Option<Look>,
}

impl Default for Looking {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { is_worth_it: processors > 2, is_on: false, events: Vec::new(), next: None }
    }
}

impl Session {
    /// Whether what the frame at hand waits for is to be told to [`Session::look_at`], though it may take a while.
    pub(crate) fn may_look(&self) -> bool {
        self.may_glance() && self.looking.is_worth_it
    }

    /// The same of what may have ended by now, which costs one question.
    pub(crate) fn may_glance(&self) -> bool {
        self.looking.is_on && !self.replay.is_on
    }

    /// The frame at hand waits for these events, and nothing else.
    pub(crate) fn look_at(&mut self, events: Vec<HeldEvent>) {
        if events.len() <= MOST_EVENTS {
            self.looking.events = events;
        }
    }

    /// Keeps a call to be looked at, if it waits for something that can be; gives it back if not.
    pub(crate) fn put_off(&mut self, head: &FrameHead, task: Task) -> Option<Task> {
        let events = std::mem::take(&mut self.looking.events);
        if events.is_empty() {
            return Some(task);
        }
        self.looking.next = Some(Look { events, thread: head.thread, task });
        None
    }

    /// Finishes the call that waits to be looked at, here or by its executor. `has_news` tells whether the link has
    /// something for the main loop.
    ///
    /// # Errors
    ///
    /// As when the call is given to an executor.
    pub(crate) fn look(&mut self, mut has_news: impl FnMut() -> bool) -> Result<(), SessionError> {
        self.looking.is_on = false;
        // Events of a call that failed before it came to wait.
        self.looking.events.clear();
        let Some(mut look) = self.looking.next.take() else { return Ok(()) };
        let (begun, most) = (Instant::now(), if self.looking.is_worth_it { MOST } else { Duration::ZERO });
        // The last that is still awaited is asked about; those that have ended are not asked about again.
        while let Some(event) = look.events.last() {
            match event.status() {
                Ok(status) if status <= 0 => drop(look.events.pop()),
                Ok(_) if begun.elapsed() < most && !has_news() => std::hint::spin_loop(),
                _ => return self.executors.run(&self.shared, look.thread, look.task),
            }
        }
        (look.task)(&self.shared);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};

    use katydid_opencl_sys::{Dispatch, cl_event, void};

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
        // SAFETY: every entry of a table of zeros is `None`.
        #[expect(unsafe_code, reason = "an empty table")]
        let mut api: Dispatch = unsafe { std::mem::zeroed() };
        api.clGetEventInfo = Some(info);
        HeldEvent::own(cl_event::NULL, Box::leak(Box::new(api)))
    }

    /// The name of the thread that made the call.
    fn looked(events: Vec<HeldEvent>, has_news: bool) -> Option<String> {
        looked_with(true, events, has_news)
    }

    fn looked_with(is_worth_it: bool, events: Vec<HeldEvent>, has_news: bool) -> Option<String> {
        let (mut session, _) = session();
        session.looking = Looking { is_worth_it, is_on: true, ..Looking::default() };
        assert!(session.may_look() == is_worth_it && session.may_glance());
        session.look_at(events);
        let (tell, told) = mpsc::channel();
        let task: Task = Box::new(move |_: &Arc<_>| {
            let _ = tell.send(std::thread::current().name().map(str::to_owned));
        });
        let head = FrameHead { opcode: 1, wants_reply: true, thread: 7, context: 0, sequence: 1 };
        match session.put_off(&head, task) {
            Some(_) => assert!(session.looking.next.is_none()),
            None => session.look(|| has_news).unwrap(),
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
        assert_eq!(looked((0..=MOST_EVENTS).map(|_| event()).collect(), false), None);
    }
}
