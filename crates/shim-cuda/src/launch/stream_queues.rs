//! Counts the work of each stream behind host functions of the program: no more than a driver's queue holds.
//!
//! Each stream has its own count, of all work queued since its first function that has not returned.

use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most work items of a stream behind a function. NVIDIA's driver has slots for a thousand and some.
const MAX_QUEUED_WORK: u64 = 1000;
/// How often a stream is asked whether it has passed functions that will not be called, as after a fault.
const QUERY_INTERVAL: Duration = Duration::from_millis(100);

/// A stream with queued functions.
#[derive(Default)]
struct QueuedWork {
    /// Work items queued since it has had functions.
    enqueued: u64,
    /// Tokens of the functions, with the count of work items before each.
    functions: VecDeque<(u64, u64)>,
}

impl QueuedWork {
    fn is_full(&self) -> bool {
        self.functions.front().is_some_and(|(_, before)| self.enqueued - before >= MAX_QUEUED_WORK)
    }
}

/// The queues of all streams, by the streams' keys.
#[derive(Default)]
pub(crate) struct StreamQueues {
    queues: Mutex<HashMap<u64, QueuedWork>>,
    /// Signals that a function has returned.
    ended: Condvar,
}

impl StreamQueues {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, QueuedWork>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a function that is about to be queued in a stream.
    pub(crate) fn begin(&self, stream: u64, token: u64) {
        let mut queues = self.lock();
        let queue = queues.entry(stream).or_default();
        queue.functions.push_back((token, queue.enqueued));
    }

    /// Notes that the function has returned, or was not queued.
    pub(crate) fn end(&self, token: u64) {
        self.lock().retain(|_, queue| {
            queue.functions.retain(|(other, _)| *other != token);
            !queue.functions.is_empty()
        });
        self.ended.notify_all();
    }

    /// Takes queue slots of a stream, if one is left; a stream without host functions always has one.
    pub(crate) fn take(&self, stream: u64, slots: u64) -> bool {
        let mut queues = self.lock();
        let Some(queue) = queues.get_mut(&stream) else { return true };
        let is_free = !queue.is_full();
        queue.enqueued += if is_free { slots } else { 0 };
        is_free
    }

    /// Waits for a queue slot, at most [`QUERY_INTERVAL`].
    pub(crate) fn wait(&self, stream: u64) {
        let is_full = |queues: &mut HashMap<u64, QueuedWork>| queues.get(&stream).is_some_and(QueuedWork::is_full);
        drop(self.ended.wait_timeout_while(self.lock(), QUERY_INTERVAL, is_full));
    }

    /// Forgets a stream that has passed all its functions.
    pub(crate) fn forget(&self, stream: u64) {
        self.lock().remove(&stream);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_full_behind_its_first_function() {
        let streams = StreamQueues::default();
        assert!((0..2 * MAX_QUEUED_WORK).all(|_| streams.take(7, 1)));
        streams.begin(7, 1);
        assert!((0..MAX_QUEUED_WORK / 2).all(|_| streams.take(7, 1)));
        streams.begin(7, 2);
        assert!((0..MAX_QUEUED_WORK / 2).all(|_| streams.take(7, 1)));
        assert!(!streams.take(7, 1) && streams.take(8, 1));
        streams.end(1);
        assert!((0..MAX_QUEUED_WORK / 2).all(|_| streams.take(7, 1)));
        assert!(!streams.take(7, 1));
        streams.end(2);
        assert!(streams.take(7, 1) && streams.lock().is_empty());
    }

    #[test]
    fn a_waiting_thread_resumes_when_a_host_function_returns_or_is_dropped() {
        let streams = StreamQueues::default();
        let end: [fn(&StreamQueues); 2] = [|streams| streams.end(1), |streams| streams.forget(7)];
        for end in end {
            streams.begin(7, 1);
            while streams.take(7, 1) {}
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    while !streams.take(7, 1) {
                        streams.wait(7);
                    }
                });
                assert!(!waiting.is_finished());
                end(&streams);
            });
        }
    }
}
