//! Knowledge about the driver of a session, which is valid as long as the session keeps its worker.

use std::sync::atomic::{AtomicU64, Ordering};

/// One word of knowledge about one worker; nothing is known of others.
#[derive(Debug, Default)]
pub(crate) struct PerWorker(AtomicU64);

impl PerWorker {
    /// Returns what is known of a worker, by its number; 0: nothing.
    pub(crate) fn get(&self, worker: u32) -> u32 {
        Self::of(worker, self.0.load(Ordering::Relaxed))
    }

    /// Extracts what a word says of a worker.
    fn of(worker: u32, word: u64) -> u32 {
        if (word >> 32) as u32 == worker { word as u32 } else { 0 }
    }

    /// Updates what is known of a worker.
    pub(crate) fn learn(&self, worker: u32, new: impl Fn(u32) -> u32) {
        let next = |word| Some(u64::from(worker) << 32 | u64::from(new(Self::of(worker, word))));
        // The closure always returns a value.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_one_worker_do_not_apply_to_another() {
        let bits_of = PerWorker::default();
        assert_eq!(bits_of.get(0), 0);
        bits_of.learn(0, |bits| bits | 2);
        bits_of.learn(0, |bits| bits | 5);
        assert_eq!((bits_of.get(0), bits_of.get(1)), (7, 0));
        bits_of.learn(1, |bits| bits | 8);
        assert_eq!((bits_of.get(0), bits_of.get(1)), (0, 8));
    }
}
