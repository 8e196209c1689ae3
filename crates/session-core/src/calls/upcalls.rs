//! Functions of the program that are due: drivers' threads put them here, the program's upcall thread fetches them.
//!
//! Nothing here ends a wait when the program dies: its worker exits, and every wait with it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use katydid_wire::frame::FrameHead;

/// What the lock of a queue guards.
#[derive(Debug, Default)]
pub struct UpcallState<T, B> {
    /// Upcalls in the order in which they became due.
    pub queue: VecDeque<T>,
    /// The frame in which the program's upcall thread waits.
    pub waiting: Option<FrameHead>,
    /// What the API notes beside them.
    pub notes: B,
}

/// The meeting point of drivers' threads and the program's upcall thread.
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
    /// Adds what `make` gives. The lock is still held, for a thread that waits until it is done.
    pub fn push(&self, make: impl FnOnce(&mut B) -> T) -> MutexGuard<'_, UpcallState<T, B>> {
        let mut state = self.lock();
        let due = make(&mut state.notes);
        state.queue.push_back(due);
        self.is_due.notify_one();
        state
    }

    /// Waits for the next; `head` is the frame that is answered with it. `begin` is called at once, and `take` when it is there.
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

    /// The frame that is to be answered when the next one is due, if the program has asked.
    pub fn waiting(&self) -> Option<FrameHead> {
        self.lock().waiting
    }

    /// No holder of the lock panics, so a poisoned one is taken as it is.
    pub fn lock(&self) -> MutexGuard<'_, UpcallState<T, B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
