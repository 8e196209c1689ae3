//! What a session uses, for `katydid ps`: written by the session, read by the worker's monitor.

use std::sync::atomic::{AtomicU64, Ordering};

/// Two counters; each is exact, the two together are of about the same moment. And the most that is allowed.
#[derive(Debug, Default)]
pub struct Usage {
    memory: AtomicU64,
    calls: AtomicU64,
    /// Bytes; none: no limit, or one that is kept elsewhere.
    limit: Option<u64>,
}

impl Usage {
    /// Nothing used yet, of at most `limit` bytes; none: no limit, or one that is kept elsewhere.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether `bytes` more are allowed.
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        self.limit.is_none_or(|limit| self.memory().checked_add(bytes).is_some_and(|all| all <= limit))
    }

    /// Bytes of devices that the program holds.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Frames that the session has executed, those before a restore included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The most bytes that are allowed; none: no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Goes on counting where another worker stopped.
    pub fn resume_calls(&self, calls: u64) {
        self.calls.store(calls, Ordering::Relaxed);
    }

    /// A frame is executed.
    pub fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The program holds `bytes` in all.
    pub fn set_memory(&self, bytes: u64) {
        self.memory.store(bytes, Ordering::Relaxed);
    }

    /// The program holds `bytes` more.
    pub fn add_memory(&self, bytes: u64) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The program holds `bytes` less.
    pub fn sub_memory(&self, bytes: u64) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_counts_what_is_held() {
        let usage = Usage::new(Some(10));
        assert!(usage.allows(10) && !usage.allows(11) && Usage::new(None).allows(u64::MAX));
        usage.add_memory(6);
        assert!(usage.allows(4) && !usage.allows(5) && !usage.allows(u64::MAX));
        usage.sub_memory(6);
        assert!(usage.allows(10));
    }
}
