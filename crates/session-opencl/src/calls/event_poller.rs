//! Acts when a command reaches a state: frees the bytes that its driver has read, and notifies the program.
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

/// The pause between two polls is the time since the last change divided by this, within bounds. It is at least the duration of a
/// poll, times this.
const PAUSE_DIVISOR: u32 = 8;
const MIN_EVENT_POLL_PAUSE: Duration = Duration::from_micros(50);
const MAX_EVENT_POLL_PAUSE: Duration = Duration::from_millis(10);
/// During pauses from this length on, new events wake the thread. That costs the sending thread time.
const DEEP_SLEEP_PAUSE: Duration = Duration::from_millis(1);

/// Receives the state that the command reached; a negative one means failure.
type OnStatus = Box<dyn FnOnce(i32) + Send>;

/// What to do when an event has reached a state or gone beyond it.
struct AwaitedEvent {
    event: HeldEvent,
    state: i32,
    then: OnStatus,
}

/// An awaited event on its way to the thread. An event that never arrives is not dropped. `None` asks for a poll now.
type QueuedEvent = Option<ManuallyDrop<AwaitedEvent>>;

/// Handle of the polling thread. The thread starts with the first event, and ends when this value is dropped and no event is
/// awaited.
#[derive(Default)]
pub(crate) struct EventPoller {
    thread: Option<Sender<QueuedEvent>>,
}

impl EventPoller {
    /// Calls `then` on another thread as soon as `event` reaches `state` or fails.
    ///
    /// # Errors
    ///
    /// Fails if the system has no thread left. `then` is neither called nor dropped: the driver may still use what it holds.
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
        // The thread receives for as long as this sender lives.
        let _ = self.thread.as_ref().map(|thread| thread.send(Some(awaited)));
        Ok(())
    }

    /// Asks for a poll soon, for a thread that waits until everything due is done.
    pub(crate) fn poll_now(&self) {
        let _ = self.thread.as_ref().map(|thread| thread.send(None));
    }

    /// Keeps `bytes` until the command of `event` has ended.
    ///
    /// # Errors
    ///
    /// As for [`Self::when`].
    pub(crate) fn keep_until(&mut self, event: HeldEvent, bytes: impl Send + 'static) -> Result<(), SessionError> {
        self.when(event, COMPLETE.cast_signed(), move |_| drop(bytes))
    }
}

fn begin() -> Result<Sender<QueuedEvent>, SessionError> {
    let (sender, receiver) = channel();
    start_thread("event-poller".to_owned(), move || poll_events(&receiver))?;
    Ok(sender)
}

fn poll_events(coming: &Receiver<QueuedEvent>) {
    let (mut awaited, mut changed, mut took) = (Vec::new(), Instant::now(), Duration::ZERO);
    loop {
        // Pauses leave the driver alone most of the time, however many events are awaited.
        let long = (changed.elapsed() / PAUSE_DIVISOR)
            .clamp(MIN_EVENT_POLL_PAUSE, MAX_EVENT_POLL_PAUSE)
            .max(took * PAUSE_DIVISOR);
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

/// Returns the states of all events. It queries the last one first: if events end in order, no event is seen as ended before an
/// earlier one.
fn states_of(awaited: &[AwaitedEvent]) -> Vec<Result<i32, Code>> {
    let mut states: Vec<_> = awaited.iter().rev().map(|one| one.event.status()).collect();
    states.reverse();
    states
}

/// Runs everything that is due, in the order of arrival, and returns whether anything was.
fn run_ready_callbacks(awaited: &mut Vec<AwaitedEvent>, states: Vec<Result<i32, Code>>) -> bool {
    let count_before = awaited.len();
    for (awaited_event, state) in mem::take(awaited).into_iter().zip(states) {
        match state {
            Ok(state) if state > awaited_event.state => awaited.push(awaited_event),
            Ok(failed @ ..0) => (awaited_event.then)(failed),
            Ok(_) => (awaited_event.then)(awaited_event.state),
            // If the driver reports no state, only a wait shows the end. If the wait fails too, what the callback holds stays.
            Err(_) => match awaited_event.event.wait() {
                Ok(()) => (awaited_event.then)(awaited_event.state),
                Err(_) => mem::forget(awaited_event.then),
            },
        }
    }
    awaited.len() < count_before
}

/// Sleeps for `long`. A new event ends a long pause; without awaited events only a new event does.
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

    /// The states of the events that exist.
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
        let (mut event_poller, (sender, receiver)) = (EventPoller::default(), mpsc::channel());
        event_poller.poll_now();
        for (number, state, name) in
            [(1, 0, "ended"), (2, 2, "submitted"), (2, 1, "runs"), (2, 0, "ended"), (3, 0, "failed")]
        {
            let sender = sender.clone();
            event_poller.when(event(number), state, move |state| sender.send((number, state, name)).unwrap()).unwrap();
        }
        let set = |number: usize, state| STATES[number - 1].store(state, Ordering::Relaxed);
        assert!(receiver.try_recv().is_err(), "nothing has begun");
        event_poller.poll_now();
        set(2, 1);
        assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [(2, 2, "submitted"), (2, 1, "runs")]);
        set(3, -5);
        assert_eq!(receiver.recv().unwrap(), (3, -5, "failed"));
        // The pause is so long that the next poll is far off: new events end it.
        thread::sleep(Duration::from_millis(100));
        set(1, 0);
        let other = sender.clone();
        event_poller.when(event(1), 0, move |state| other.send((1, state, "new")).unwrap()).unwrap();
        assert_eq!([receiver.recv().unwrap(), receiver.recv().unwrap()], [(1, 0, "ended"), (1, 0, "new")]);
        // Awaited events still reach their end although no new one can come.
        drop((event_poller, sender));
        set(2, 0);
        assert_eq!(receiver.recv().unwrap(), (2, 0, "ended"));
        assert!(receiver.recv().is_err(), "the thread has ended");
    }
}
