//! Which callbacks of events have not come.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A callback that waits for an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Callback {
    /// The id of the event.
    pub(crate) event: u32,
    /// The state that the event has to come to: 3 queued to 0 complete.
    pub(crate) state: i32,
    /// What the program registered the callback as.
    pub(crate) token: u64,
}

/// Callbacks of events that have not come: by token, which event and which state.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    waiting: Mutex<BTreeMap<u64, (u32, i32)>>,
}

impl Callbacks {
    /// Notes one, before it can come.
    pub(crate) fn expect(&self, token: u64, event: u32, state: i32) {
        self.lock().insert(token, (event, state));
    }

    /// The driver has told of the callback with this token.
    pub(crate) fn complete(&self, token: u64) {
        self.lock().remove(&token);
    }

    /// Callbacks that have not come.
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
