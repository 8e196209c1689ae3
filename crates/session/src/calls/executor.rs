//! Executors: one thread for each program thread that ever made a blocking call.
//!
//! The main loop must never wait for the GPU, so what may wait is decoded there and run here. A program thread waits
//! for its reply before it sends again; one that does not is refused, which bounds the queues.

#![expect(unsafe_code, reason = "makes a context current on the executor's thread")]

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use katydid_cuda_sys::{CUcontext, CUresult};
use katydid_driver::Driver;
use katydid_transport::Spin;
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;

use crate::calls::fault::SessionError;
use crate::calls::shared::Shared;
use crate::transfer::reply_pool;

/// Program threads of a session that may block at a time.
const MAX_EXECUTORS: usize = 4096;
/// Items of one thread that may be queued; an honest one has one call, and there may be a [`WorkItem::Rouse`] before that.
const QUEUE: usize = 2;

/// The context a task runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskContext {
    /// The driver's handle; null: whatever is current.
    pub(crate) context: CUcontext,
    /// Number of the session's last change of contexts: a new context may have an old one's handle.
    pub(crate) epoch: u64,
}

impl TaskContext {
    /// For what calls no driver.
    pub(crate) const NO_CONTEXT: Self = Self { context: CUcontext::NULL, epoch: 0 };
}

/// What an executor does: the call, and the reply. One that is never done is not dropped either: the driver may be copying to
/// what it holds.
pub(crate) type Task = ManuallyDrop<Box<dyn FnOnce(&Shared) + Send>>;

/// A call for an executor, and its answer.
pub(crate) type Job<R> = Box<dyn FnOnce(&Driver) -> (CUresult, R) + Send>;

/// A job with its answer, for an executor.
pub(crate) fn task<R: Reply + 'static>(head: FrameHead, job: Job<R>) -> Task {
    ManuallyDrop::new(Box::new(move |shared: &Shared| {
        let (status, reply) = job(&shared.driver);
        let mut payload = Vec::new();
        reply.encode(&mut payload);
        // A program that is gone needs no answer; the monitor ends the process.
        let _ = shared.answer(&head, status, [&payload, reply.tail()], true);
        reply_pool::keep(reply.into_tail());
    }))
}

/// What an executor is given.
enum WorkItem {
    Call(TaskContext, Task),
    /// Nothing to do, so that it looks for calls from now on.
    Rouse,
}

/// An executor waits for its next item without looking.
const STATE_ASLEEP: u8 = 0;
/// The same, but there is an item that will wake it.
const STATE_WAKING: u8 = 1;
/// It works, or looks for its next item.
const STATE_AWAKE: u8 = 2;

/// The main loop's end of an executor.
struct Executor {
    items: SyncSender<WorkItem>,
    state: Arc<AtomicU8>,
}

/// The executors of a session, by program thread.
#[derive(Default)]
pub(crate) struct Executors {
    seats: HashMap<u32, Executor>,
}

impl Executors {
    /// Has `task` run in `place` by the executor of `thread`.
    ///
    /// # Errors
    ///
    /// The program has too many threads, or one that does not wait for its replies; or the system has no thread left.
    pub(crate) fn run(
        &mut self,
        shared: &Arc<Shared>,
        thread: u32,
        place: TaskContext,
        task: Task,
    ) -> Result<(), SessionError> {
        if !self.seats.contains_key(&thread) {
            self.seat(shared, thread)?;
        }
        shared.calls.begin();
        let sent = self.seats.get(&thread).map(|seat| seat.items.try_send(WorkItem::Call(place, task)));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(SessionError::Impatient { thread }),
        }
    }

    /// Whether the executor of `thread` would have a call at once. It may be about to sleep.
    pub(crate) fn is_awake(&self, thread: u32) -> bool {
        self.seats.get(&thread).is_some_and(|seat| seat.state.load(Ordering::Relaxed) == STATE_AWAKE)
    }

    /// Has the executor of `thread` look for calls for a while.
    ///
    /// # Errors
    ///
    /// The program has too many threads; or the system has no thread left.
    pub(crate) fn wake(&mut self, shared: &Arc<Shared>, thread: u32) -> Result<(), SessionError> {
        if !self.seats.contains_key(&thread) {
            self.seat(shared, thread)?;
        }
        let Some(seat) = self.seats.get(&thread) else { return Ok(()) };
        // One is enough, and leaves room for a call.
        if seat.state.compare_exchange(STATE_ASLEEP, STATE_WAKING, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let _ = seat.items.try_send(WorkItem::Rouse);
        }
        Ok(())
    }

    fn seat(&mut self, shared: &Arc<Shared>, thread: u32) -> Result<(), SessionError> {
        if self.seats.len() >= MAX_EXECUTORS {
            return Err(SessionError::TooManyThreads { most: MAX_EXECUTORS });
        }
        let (items, queue) = sync_channel(QUEUE);
        let state = Arc::new(AtomicU8::new(STATE_ASLEEP));
        let (shared, own_state) = (Arc::clone(shared), Arc::clone(&state));
        thread::Builder::new()
            .name(format!("blocking {thread}"))
            .spawn(move || work(&shared, &queue, &own_state))
            .map_err(|error| SessionError::System { what: "start a thread", reason: error.to_string() })?;
        self.seats.insert(thread, Executor { items, state });
        Ok(())
    }
}

/// Does what it is given until the session is dropped.
fn work(shared: &Shared, items: &Receiver<WorkItem>, state: &AtomicU8) {
    let (mut current, spin) = (TaskContext::NO_CONTEXT, Spin::for_word());
    let next = || {
        // Asleep only with an empty queue: each time that it is found so, an item to wake it is queued.
        look(items, &spin).or_else(|| items.try_recv().ok()).or_else(|| {
            state.store(STATE_ASLEEP, Ordering::Relaxed);
            items.recv().ok()
        })
    };
    while let Some(item) = next() {
        state.store(STATE_AWAKE, Ordering::Relaxed);
        let WorkItem::Call(place, task) = item else { continue };
        if place != current && !place.context.is_null() {
            // SAFETY: the handle came from the driver. One that was destroyed since is refused by the driver, and so
            // is the call that follows.
            let _ = unsafe { shared.driver.cuCtxSetCurrent(place.context) };
            current = place;
        }
        ManuallyDrop::into_inner(task)(shared);
        shared.calls.end();
    }
}

/// The next of a queue, looked for awake and then asleep; none once the other end is gone.
pub(crate) fn next<T>(queue: &Receiver<T>, spin: &Spin) -> Option<T> {
    look(queue, spin).or_else(|| queue.recv().ok())
}

/// The next of a queue, if it comes soon: waking a sleeper would cost a loop of launch and synchronise as much as the launch
/// itself.
fn look<T>(queue: &Receiver<T>, spin: &Spin) -> Option<T> {
    if processors() > 2 { spin.until(|| queue.try_recv().ok()) } else { None }
}

/// With few processors, the thread that looks keeps the other from running.
pub(crate) fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}
