//! Executors: one thread for each program thread that has made a call that may wait.
//!
//! The main loop must never wait for a device, so it decodes calls that may wait, and executors run them. A program thread
//! waits for its reply before it sends again; one that does not is refused, which bounds the queues.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

use katydid_transport::Spin;

use crate::calls::api::Api;
use crate::calls::error::SessionError;

/// Most program threads of a session that may block at a time.
const MAX_EXECUTORS: usize = 4096;
/// Most queued items of one thread: a correct one has one call, perhaps after a [`WorkItem::Rouse`].
const QUEUE_CAPACITY: usize = 2;

/// The task of an executor: the call, and the reply. A task that never runs is not dropped either: the driver may be copying
/// to memory that it owns.
pub type Task<A> = ManuallyDrop<Box<dyn FnOnce(&Arc<<A as Api>::SessionShared>) + Send>>;

/// An item for an executor.
enum WorkItem<A: Api> {
    Call(A::Context, Task<A>),
    /// No call: the executor spins for calls from now on.
    Rouse,
}

/// The executor sleeps until its next item.
const STATE_ASLEEP: u8 = 0;
/// A [`WorkItem::Rouse`] is queued, or about to be, whatever the executor does meanwhile.
const STATE_WAKING: u8 = 1;
/// The executor works, or spins for its next item.
const STATE_AWAKE: u8 = 2;

/// What an executor does, as far as the main loop knows. Only the [`WorkItem::Rouse`] itself ends [`STATE_WAKING`], so at most one
/// is on its way, and the queue has room for a call.
#[derive(Default)]
struct ExecutorState(AtomicU8);

impl ExecutorState {
    fn pass(&self, from: u8, to: u8) -> bool {
        self.0.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Called by the main loop: whether it is to queue a [`WorkItem::Rouse`].
    fn begin_rouse(&self) -> bool {
        self.pass(STATE_ASLEEP, STATE_WAKING)
    }

    /// Called when the executor has taken a [`WorkItem::Rouse`].
    fn note_rouse(&self) {
        self.0.store(STATE_AWAKE, Ordering::Relaxed);
    }

    /// Called when the executor has taken a call.
    fn note_call(&self) {
        self.pass(STATE_ASLEEP, STATE_AWAKE);
    }

    /// Called by the executor before it waits for an item. If a [`WorkItem::Rouse`] is on its way, that ends the wait.
    fn note_wait(&self) {
        self.pass(STATE_AWAKE, STATE_ASLEEP);
    }

    fn is_awake(&self) -> bool {
        self.0.load(Ordering::Relaxed) == STATE_AWAKE
    }
}

/// The main loop's side of an executor.
struct Executor<A: Api> {
    items: SyncSender<WorkItem<A>>,
    state: Arc<ExecutorState>,
}

/// The executors of a session, by program thread.
pub struct Executors<A: Api> {
    by_thread: HashMap<u32, Executor<A>>,
}

impl<A: Api> Default for Executors<A> {
    fn default() -> Self {
        Self { by_thread: HashMap::new() }
    }
}

impl<A: Api> Executors<A> {
    /// Has the executor of `thread` run `task` in `context`.
    ///
    /// # Errors
    ///
    /// The program has too many threads, or one that does not wait for its replies; or the system refuses a thread.
    pub fn run(
        &mut self,
        shared: &Arc<A::SessionShared>,
        thread: u32,
        context: A::Context,
        task: Task<A>,
    ) -> Result<(), SessionError> {
        if !self.by_thread.contains_key(&thread) {
            self.start(shared, thread)?;
        }
        A::calls(shared).begin();
        let sent = self.by_thread.get(&thread).map(|executor| executor.items.try_send(WorkItem::Call(context, task)));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(SessionError::Impatient { thread }),
        }
    }

    /// Returns whether the executor of `thread` would take a call at once. It may be about to sleep.
    #[must_use]
    pub fn is_awake(&self, thread: u32) -> bool {
        self.by_thread.get(&thread).is_some_and(|executor| executor.state.is_awake())
    }

    /// Has the executor of `thread` spin for calls for a while.
    ///
    /// # Errors
    ///
    /// The program has too many threads; or the system refuses a thread.
    pub fn wake(&mut self, shared: &Arc<A::SessionShared>, thread: u32) -> Result<(), SessionError> {
        if !self.by_thread.contains_key(&thread) {
            self.start(shared, thread)?;
        }
        let Some(executor) = self.by_thread.get(&thread) else { return Ok(()) };
        if executor.state.begin_rouse() {
            // A full queue is that of a program that does not wait for its replies.
            let _ = executor.items.try_send(WorkItem::Rouse);
        }
        Ok(())
    }

    fn start(&mut self, shared: &Arc<A::SessionShared>, thread: u32) -> Result<(), SessionError> {
        if self.by_thread.len() >= MAX_EXECUTORS {
            return Err(SessionError::TooManyThreads { most: MAX_EXECUTORS });
        }
        let (items, queue) = sync_channel(QUEUE_CAPACITY);
        let state = Arc::<ExecutorState>::default();
        let (shared, own_state) = (Arc::clone(shared), Arc::clone(&state));
        start_thread(format!("blocking {thread}"), move || work::<A>(&shared, &queue, &own_state))?;
        self.by_thread.insert(thread, Executor { items, state });
        Ok(())
    }
}

/// Runs the queued items until the session is dropped.
fn work<A: Api>(shared: &Arc<A::SessionShared>, items: &Receiver<WorkItem<A>>, state: &ExecutorState) {
    let (mut current, spin) = (A::NO_CONTEXT, Spin::for_word());
    let next = || {
        let soon = if A::EXECUTORS_SPIN { spin_for_next(items, &spin) } else { None };
        soon.or_else(|| items.try_recv().ok()).or_else(|| {
            state.note_wait();
            items.recv().ok()
        })
    };
    while let Some(item) = next() {
        let WorkItem::Call(context, task) = item else {
            state.note_rouse();
            continue;
        };
        state.note_call();
        if context != current && context != A::NO_CONTEXT {
            A::enter(shared, context);
            current = context;
        }
        ManuallyDrop::into_inner(task)(shared);
        A::calls(shared).end();
    }
}

/// Runs one task in a separate thread, which belongs to no thread of the program.
///
/// # Errors
///
/// The system refuses a thread.
pub fn run_apart<A: Api>(name: &str, shared: &Arc<A::SessionShared>, task: Task<A>) -> Result<(), SessionError> {
    let shared = Arc::clone(shared);
    A::calls(&shared).begin();
    start_thread(name.to_owned(), move || {
        ManuallyDrop::into_inner(task)(&shared);
        A::calls(&shared).end();
    })
}

/// Starts a thread of the session.
///
/// # Errors
///
/// The system refuses a thread.
pub fn start_thread(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), SessionError> {
    let started = thread::Builder::new().name(name).spawn(work);
    started.map(drop).map_err(|error| SessionError::System { what: "start a thread", reason: error.to_string() })
}

/// Takes the next item of a queue, after a spin and then a sleep; none once the other side is gone.
pub fn next<T>(queue: &Receiver<T>, spin: &Spin) -> Option<T> {
    spin_for_next(queue, spin).or_else(|| queue.recv().ok())
}

/// Takes the next item of a queue if it comes soon: waking a sleeping thread would cost a loop of launch and synchronize as
/// much as the launch itself.
fn spin_for_next<T>(queue: &Receiver<T>, spin: &Spin) -> Option<T> {
    if processors() > 2 { spin.until(|| queue.try_recv().ok()) } else { None }
}

/// Returns the number of processors: with few, a spinning thread keeps the other from running.
#[must_use]
pub fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The executor takes a call, runs it and sleeps again, between the main loop's decision and its item.
    #[test]
    fn an_executor_is_roused_once_however_late_the_item_comes() {
        let state = ExecutorState::default();
        assert!(!state.is_awake() && state.begin_rouse());
        state.note_call();
        state.note_wait();
        assert!(!state.begin_rouse(), "another item would take the place of a call");
        state.note_rouse();
        assert!(state.is_awake() && !state.begin_rouse());
        state.note_wait();
        assert!(state.begin_rouse());
    }

    #[test]
    fn an_executor_with_a_call_is_awake_until_it_waits() {
        let state = ExecutorState::default();
        state.note_call();
        assert!(state.is_awake() && !state.begin_rouse());
        state.note_wait();
        assert!(!state.is_awake() && state.begin_rouse());
    }
}
