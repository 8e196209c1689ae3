//! Counts the calls of the program that are executed outside the main loop.

use std::sync::atomic::{AtomicU64, Ordering};

/// Calls given to executors, and how many of them have ended.
#[derive(Debug, Default)]
pub struct Calls {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Calls {
    /// Counts a call that is given to an executor.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a call that an executor has answered.
    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls that executors have not answered yet.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        // In this order, so that a call which ends meanwhile counts as not ended.
        let ended = self.ended.load(Ordering::Acquire);
        self.begun.load(Ordering::Acquire).saturating_sub(ended)
    }
}
