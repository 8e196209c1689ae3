//! Callbacks that are due: the drivers' threads put them here, the program's upcall thread fetches them.
//!
//! Nothing waits for a callback to have run: OpenCL promises no more than that it will be called. Nothing here ends a
//! wait when the program dies: its worker exits, and every wait with it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

/// A callback of the program that is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Due {
    /// What the program registered it as.
    pub(crate) token: u64,
    /// State of an event; 0 for others.
    pub(crate) status: i32,
    /// What a context said of an error; empty for others.
    pub(crate) text: Vec<u8>,
}

/// Callbacks in the order in which the drivers called.
#[derive(Debug, Default)]
pub(crate) struct Upcalls {
    queue: Mutex<VecDeque<Due>>,
    due: Condvar,
}

impl Upcalls {
    /// Adds one.
    pub(crate) fn push(&self, due: Due) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(due);
        self.due.notify_one();
    }

    /// Waits for the next.
    pub(crate) fn next(&self) -> Due {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(due) = queue.pop_front() {
                return due;
            }
            queue = self.due.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_come_out_in_order() {
        let upcalls = Upcalls::default();
        for token in 1..4 {
            upcalls.push(Due { token, status: 0, text: Vec::new() });
        }
        assert_eq!([upcalls.next().token, upcalls.next().token, upcalls.next().token], [1, 2, 3]);
    }

    #[test]
    fn who_asks_first_waits() {
        let upcalls = Upcalls::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| upcalls.next());
            upcalls.push(Due { token: 7, status: -1, text: b"x".to_vec() });
            assert_eq!(waiting.join().unwrap().token, 7);
        });
    }
}
