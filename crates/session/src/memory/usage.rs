//! What a session uses, for `katydid ps`: written by the session, read by the worker's monitor.

use std::sync::atomic::{AtomicU64, Ordering};

/// Two counters; each is exact, the two together are of about the same moment.
#[derive(Debug, Default)]
pub struct Usage {
    device_memory: AtomicU64,
    calls: AtomicU64,
}

impl Usage {
    /// Bytes of device memory mapped for the program.
    pub fn device_memory(&self) -> u64 {
        self.device_memory.load(Ordering::Relaxed)
    }

    /// Frames executed.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn resume_calls(&self, calls: u64) {
        self.calls.store(calls, Ordering::Relaxed);
    }

    pub(crate) fn set_device_memory(&self, bytes: u64) {
        self.device_memory.store(bytes, Ordering::Relaxed);
    }
}
