//! The resource usage of a session, for `katydid ps`: the session writes it, the worker's monitor reads it.

use std::sync::atomic::{AtomicU64, Ordering};

/// Two counters and a limit. Each counter is exact; both together are from about the same moment.
#[derive(Debug, Default)]
pub struct Usage {
    memory: AtomicU64,
    calls: AtomicU64,
    /// Most bytes; none for no limit, or one that is kept elsewhere.
    limit: Option<u64>,
}

impl Usage {
    /// Makes empty usage with at most `limit` bytes; none for no limit, or one that is kept elsewhere.
    #[must_use]
    pub fn new(limit: Option<u64>) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Returns whether `bytes` more are allowed.
    #[must_use]
    pub fn allows(&self, bytes: u64) -> bool {
        self.limit.is_none_or(|limit| self.memory().checked_add(bytes).is_some_and(|all| all <= limit))
    }

    /// Returns the bytes of device memory that the program holds.
    #[must_use]
    pub fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }

    /// Returns the frames that the session has executed, including those before a restore.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the most bytes that are allowed; none for no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Continues the count of another worker.
    pub fn resume_calls(&self, calls: u64) {
        self.calls.store(calls, Ordering::Relaxed);
    }

    /// Counts an executed frame.
    pub fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the bytes that the program holds in all.
    pub fn set_memory(&self, bytes: u64) {
        self.memory.store(bytes, Ordering::Relaxed);
    }

    /// Adds `bytes` that the program holds.
    pub fn add_memory(&self, bytes: u64) {
        self.memory.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts `bytes` that the program no longer holds.
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
