//! Callbacks of events that have not fired yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A callback that waits for an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Callback {
    /// The id of the event.
    pub(crate) event: u32,
    /// State that the event has to reach: 3 (queued) to 0 (complete).
    pub(crate) state: i32,
    /// Token under which the program registered the callback.
    pub(crate) token: u64,
}

/// Callbacks that have not fired: by token, the event and the state.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    waiting: Mutex<BTreeMap<u64, (u32, i32)>>,
}

impl Callbacks {
    /// Adds a callback, before it can fire.
    pub(crate) fn expect(&self, token: u64, event: u32, state: i32) {
        self.lock().insert(token, (event, state));
    }

    /// Removes the callback with this token: the driver has reported it.
    pub(crate) fn complete(&self, token: u64) {
        self.lock().remove(&token);
    }

    /// Returns the callbacks that have not fired.
    pub(crate) fn waiting(&self) -> Vec<Callback> {
        self.lock()
            .iter()
            .map(|(token, (event, state))| Callback { event: *event, state: *state, token: *token })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (u32, i32)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
