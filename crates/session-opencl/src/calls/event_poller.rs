//! Acts when a command reaches a state: frees the bytes that its driver read, and tells the program.
//!
//! Drivers offer callbacks, but NVIDIA's driver sometimes deadlocks once one is set (580.159, on an H100, natively too).
//! The thread that would call back waits for a lock of the context. Another call holds that lock while it waits for the
//! device, and the device waits for the thread. So one thread of the worker polls the states; it polls less often the
//! longer nothing has changed.

use std::mem::{self, ManuallyDrop};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use katydid_opencl_sys::Code;
use katydid_opencl_sys::constant::COMPLETE;
use katydid_session_core::start_thread;

use crate::calls::fault::SessionError;
use crate::objects::held_events::HeldEvent;

/// The time since something changed, divided by this, passes between two polls, within bounds. So does the time of a poll, times this.
const PAUSE_DIVISOR: u32 = 8;
const MIN_PAUSE: Duration = Duration::from_micros(50);
const MAX_EVENT_POLL_PAUSE: Duration = Duration::from_millis(10);
/// From here on the thread is woken for what comes new, which costs the thread that brings it.
const DEEP_SLEEP_PAUSE: Duration = Duration::from_millis(1);

/// Is given the state that the command came to; below 0, it failed.
type OnStatus = Box<dyn FnOnce(i32) + Send>;

/// What is due when an event has come to a state, or beyond it.
struct AwaitedEvent {
    event: HeldEvent,
    state: i32,
    then: OnStatus,
}

/// An awaited event on its way to the thread; what never comes there is not dropped. None: the thread is to look now.
type QueuedEvent = Option<ManuallyDrop<AwaitedEvent>>;

/// The thread that looks; it begins with the first event, and ends with this value once nothing is awaited any more.
#[derive(Default)]
pub(crate) struct EventPoller {
    thread: Option<Sender<QueuedEvent>>,
}

impl EventPoller {
    /// Has `then` called from another thread as soon as `event` has come to `state`, or failed.
    ///
    /// # Errors
    ///
    /// The system has no thread left. `then` is neither called nor dropped: the driver may still use what it keeps.
    pub(crate) fn when(
        &mut self,
        event: HeldEvent,
        state: i32,
        then: impl FnOnce(i32) + Send + 'static,
    ) -> Result<(), SessionError> {
        let awaited = ManuallyDrop::new(AwaitedEvent { event, state, then: Box::new(then) });
        if self.thread.is_none() {
            self.thread = Some(begin()?);
        }
        // It takes what comes for as long as this side is there.
        let _ = self.thread.as_ref().map(|thread| thread.send(Some(awaited)));
        Ok(())
    }

    /// Has it look soon, for a thread that waits until what is due is done.
    pub(crate) fn poll_now(&self) {
        let _ = self.thread.as_ref().map(|thread| thread.send(None));
    }

    /// Keeps `bytes` until the command of `event` has ended.
    ///
    /// # Errors
    ///
    /// As above.
    pub(crate) fn keep_until(&mut self, event: HeldEvent, bytes: impl Send + 'static) -> Result<(), SessionError> {
        self.when(event, COMPLETE.cast_signed(), move |_| drop(bytes))
    }
}

fn begin() -> Result<Sender<QueuedEvent>, SessionError> {
    let (sender, receiver) = channel();
    start_thread("event-poller".to_owned(), move || look(&receiver))?;
    Ok(sender)
}

fn look(coming: &Receiver<QueuedEvent>) {
    let (mut awaited, mut changed, mut took) = (Vec::new(), Instant::now(), Duration::ZERO);
    loop {
        // However much is awaited, the driver is left alone most of the time.
        let long = (changed.elapsed() / PAUSE_DIVISOR).clamp(MIN_PAUSE, MAX_EVENT_POLL_PAUSE).max(took * PAUSE_DIVISOR);
        let first = match pause(coming, long, awaited.is_empty()) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) if awaited.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(long);
                None
            }
        };
        let before = awaited.len();
        awaited.extend(first.into_iter().chain(coming.try_iter().flatten()).map(ManuallyDrop::into_inner));
        let (has_grown, start) = (awaited.len() > before, Instant::now());
        let states = states_of(&awaited);
        took = start.elapsed();
        if run_ready_callbacks(&mut awaited, states) || has_grown {
            changed = Instant::now();
        }
    }
}

/// The states of all. The last is asked for first: of what ends in the order in which it came, none is found ended before another
/// that came earlier.
fn states_of(awaited: &[AwaitedEvent]) -> Vec<Result<i32, Code>> {
    let mut states: Vec<_> = awaited.iter().rev().map(|one| one.event.status()).collect();
    states.reverse();
    states
}

/// Does what is due, in the order in which it came; whether anything was.
fn run_ready_callbacks(awaited: &mut Vec<AwaitedEvent>, states: Vec<Result<i32, Code>>) -> bool {
    let count_before = awaited.len();
    for (awaited_event, state) in mem::take(awaited).into_iter().zip(states) {
        match state {
            Ok(state) if state > awaited_event.state => awaited.push(awaited_event),
            Ok(failed @ ..0) => (awaited_event.then)(failed),
            Ok(_) => (awaited_event.then)(awaited_event.state),
            // Only a wait shows the end of what the driver tells no state of; without one, what is kept stays.
            Err(_) => match awaited_event.event.wait() {
                Ok(()) => (awaited_event.then)(awaited_event.state),
                Err(_) => mem::forget(awaited_event.then),
            },
        }
    }
    awaited.len() < count_before
}

/// Lets time pass. What comes new ends a long pause, and nothing else does if nothing is awaited.
fn pause(coming: &Receiver<QueuedEvent>, long: Duration, is_idle: bool) -> Result<QueuedEvent, RecvTimeoutError> {
    if long < DEEP_SLEEP_PAUSE {
        thread::sleep(long);
        return Err(RecvTimeoutError::Timeout);
    }
    if is_idle { Ok(coming.recv()?) } else { coming.recv_timeout(long) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI32, Ordering};
    use std::sync::mpsc;

    use katydid_opencl_sys::{cl_event, void};

    use super::*;

    /// The states of the events that there are.
    static STATES: [AtomicI32; 3] = [const { AtomicI32::new(3) }; 3];

    #[expect(unsafe_code, reason = "a driver's function")]
    unsafe extern "C" fn info(event: cl_event, _: u32, _: usize, value: *mut void, _: *mut usize) -> i32 {
        // SAFETY: asked for a state, which has four bytes.
        unsafe { value.cast::<i32>().write(STATES[event.0.addr() - 1].load(Ordering::Relaxed)) };
        0
    }

    fn event(number: usize) -> HeldEvent {
        crate::tests::event(cl_event(std::ptr::without_provenance_mut(number)), info)
    }

    #[test]
    fn event_callbacks_run_in_order_at_their_state_or_failure() {
        let (mut event_poller, (tell, receiver)) = (EventPoller::default(), mpsc::channel());
        event_poller.poll_now();
        for (number, state, name) in
            [(1, 0, "ended"), (2, 2, "submitted"), (2, 1, "runs"), (2, 0, "ended"), (3, 0, "failed")]
        {
            let tell = tell.clone();
            event_poller.when(event(number), state, move |state| tell.send((number, state, name)).unwrap()).unwrap();
        }
        let set = |number: usize, state| STATES[number - 1].store(state, Ordering::Relaxed);
        assert!(receiver.try_recv().is_err(), "nothing has begun");
        event_poller.poll_now();
        set(2, 1);
        assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [(2, 2, "submitted"), (2, 1, "runs")]);
        set(3, -5);
        assert_eq!(receiver.recv().unwrap(), (3, -5, "failed"));
        // So long that the next poll is far off: new events come first.
        thread::sleep(Duration::from_millis(100));
        set(1, 0);
        let sender = tell.clone();
        event_poller.when(event(1), 0, move |state| sender.send((1, state, "new")).unwrap()).unwrap();
        assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [(1, 0, "ended"), (1, 0, "new")]);
        // What is still awaited comes to its end although nothing new can come.
        drop((event_poller, tell));
        set(2, 0);
        assert_eq!(receiver.recv().unwrap(), (2, 0, "ended"));
        assert!(receiver.recv().is_err(), "the thread has ended");
    }
}
