//! Due functions of the program: drivers' threads queue them, the program's upcall thread fetches them.
//!
//! Nothing here ends a wait when the program dies: its worker exits, and every wait with it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use katydid_wire::frame::FrameHead;

/// The state under a queue's lock.
#[derive(Debug, Default)]
pub struct UpcallState<T, B> {
    /// Upcalls in the order in which they became due.
    pub queue: VecDeque<T>,
    /// The frame in which the program's upcall thread waits.
    pub waiting: Option<FrameHead>,
    /// Further state of the API.
    pub notes: B,
}

/// Joins drivers' threads and the program's upcall thread.
#[derive(Debug)]
pub struct UpcallQueue<T, B> {
    state: Mutex<UpcallState<T, B>>,
    is_due: Condvar,
}

impl<T, B: Default> Default for UpcallQueue<T, B> {
    fn default() -> Self {
        let state = UpcallState { queue: VecDeque::new(), waiting: None, notes: B::default() };
        Self { state: Mutex::new(state), is_due: Condvar::new() }
    }
}

impl<T, B> UpcallQueue<T, B> {
    /// Adds the result of `make`. The lock is still held on return, for a thread that waits until the upcall is done.
    pub fn push(&self, make: impl FnOnce(&mut B) -> T) -> MutexGuard<'_, UpcallState<T, B>> {
        let mut state = self.lock();
        let due = make(&mut state.notes);
        state.queue.push_back(due);
        self.is_due.notify_one();
        state
    }

    /// Waits for the next upcall; its reply answers the frame `head`. Calls `begin` at once, and `take` when there is one.
    pub fn next(&self, head: &FrameHead, begin: impl FnOnce(&mut B), take: impl FnOnce(&mut B, &T)) -> T {
        let mut state = self.lock();
        begin(&mut state.notes);
        loop {
            if let Some(due) = state.queue.pop_front() {
                take(&mut state.notes, &due);
                state.waiting = None;
                return due;
            }
            state.waiting = Some(*head);
            state = self.is_due.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the frame to answer when the next upcall is due, if the program has asked.
    pub fn waiting(&self) -> Option<FrameHead> {
        self.lock().waiting
    }

    /// Locks the queue. No holder of the lock panics, so a poisoned one is valid.
    pub fn lock(&self) -> MutexGuard<'_, UpcallState<T, B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
