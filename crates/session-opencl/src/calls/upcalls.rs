//! Callbacks that are due: the lookout and the drivers' threads put them here, the program's upcall thread fetches them.
//!
//! Nothing waits for a callback to have run: OpenCL promises no more than that it will be called. Nothing here ends a
//! wait when the program dies: its worker exits, and every wait with it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use katydid_wire::frame::FrameHead;

/// A callback of the program that is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DueCallback {
    /// What the program registered it as.
    pub(crate) token: u64,
    /// State of an event; 0 for others.
    pub(crate) status: i32,
    /// What a context said of an error; empty for others.
    pub(crate) text: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<DueCallback>,
    /// Callbacks that the driver makes when it has destroyed what the program has released.
    awaited: Vec<u64>,
    /// The frame in which the program's upcall thread waits.
    waiting: Option<FrameHead>,
}

/// Callbacks in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    state: Mutex<State>,
    is_due: Condvar,
}

impl Upcalls {
    /// Adds one.
    pub(crate) fn push(&self, due: DueCallback) {
        let mut state = self.lock();
        state.awaited.retain(|token| *token != due.token);
        state.queue.push_back(due);
        drop(state);
        self.is_due.notify_one();
    }

    /// Notes those of an object that the program has released, in the order in which they will be due. Drivers let go of a
    /// command's objects after they have said that it has ended, so a session can come to rest before.
    pub(crate) fn expect(&self, tokens: impl IntoIterator<Item = u64>) {
        self.lock().awaited.extend(tokens);
    }

    /// Waits for the next; `head` is the frame that is answered with it.
    pub(crate) fn next(&self, head: &FrameHead) -> DueCallback {
        let mut state = self.lock();
        loop {
            if let Some(due) = state.queue.pop_front() {
                state.waiting = None;
                return due;
            }
            state.waiting = Some(*head);
            state = self.is_due.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The frame that is to be answered when the next callback is due, if the program has asked.
    pub(crate) fn waiting(&self) -> Option<FrameHead> {
        self.lock().waiting
    }

    /// What is due and was not fetched yet, which stays so. Of an object that no thread will have after a restore, what is awaited is due.
    pub(crate) fn due(&self) -> Vec<DueCallback> {
        let state = self.lock();
        let awaited = state.awaited.iter().map(|token| DueCallback { token: *token, status: 0, text: Vec::new() });
        state.queue.iter().cloned().chain(awaited).collect()
    }

    /// No holder of the lock panics, so a poisoned one is taken as it is.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: FrameHead = FrameHead { opcode: 1, wants_reply: true, thread: 2, context: 0, sequence: 3 };

    #[test]
    fn callbacks_come_out_in_order() {
        let upcalls = Upcalls::default();
        for token in 1..4 {
            upcalls.push(DueCallback { token, status: 0, text: Vec::new() });
        }
        assert_eq!([upcalls.next(&HEAD).token, upcalls.next(&HEAD).token, upcalls.next(&HEAD).token], [1, 2, 3]);
    }

    #[test]
    fn who_asks_first_waits() {
        let upcalls = Upcalls::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| upcalls.next(&HEAD));
            upcalls.push(DueCallback { token: 7, status: -1, text: b"x".to_vec() });
            assert_eq!(waiting.join().unwrap().token, 7);
        });
    }
}
