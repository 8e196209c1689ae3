//! Threads that run streams: one per busy stream, none without work.
//!
//! A thread without a stream waits a while for the next, then ends.

#![expect(unsafe_code, reason = "sets the signal mask of new threads")]

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use katydid_ptx_exec::prepare_threads;

use crate::ffi::report;
use crate::process::settings;

/// How long a thread waits for another stream.
const THREAD_LINGER: Duration = Duration::from_secs(5);

/// Runs on the threads of an executor.
pub(crate) trait Runnable: Send + Sync + 'static {
    /// Works until there is nothing to do.
    fn work(&self);
}

/// Streams that wait for a thread, and threads that wait for a stream. A forked child does not have these threads, so it refuses
/// all calls.
pub(crate) struct StreamExecutor<T> {
    pool: Mutex<ThreadPool<T>>,
    /// Signalled when a stream is queued while a thread is idle.
    arrived: Condvar,
}

struct ThreadPool<T> {
    /// Streams that are claimed, and not yet taken by a thread.
    streams: VecDeque<Arc<T>>,
    /// Threads in [`StreamExecutor::next`], including those just woken.
    idle: usize,
}

impl<T: Runnable> StreamExecutor<T> {
    /// Returns an executor without threads.
    pub(crate) const fn new() -> Self {
        Self { pool: Mutex::new(ThreadPool { streams: VecDeque::new(), idle: 0 }), arrived: Condvar::new() }
    }

    fn pool(&self) -> MutexGuard<'_, ThreadPool<T>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a claimed stream on a thread of the pool.
    pub(crate) fn run(&'static self, stream: Arc<T>) {
        let mut pool = self.pool();
        pool.streams.push_back(stream);
        if pool.idle >= pool.streams.len() {
            self.arrived.notify_one();
            return;
        }
        drop(pool);
        // If no thread can start, the stream waits for a running one. Without any, this thread does the work.
        if self.spawn().is_err() && self.run_oldest().is_none() {
            report("no thread to run a stream on; raise the limit of processes (ulimit -u)");
        }
    }

    /// Runs the oldest waiting stream on the calling thread.
    fn run_oldest(&self) -> Option<()> {
        let stream = self.pool().streams.pop_front()?;
        stream.work();
        Some(())
    }

    /// Starts a thread that blocks all signals. Before the first one, starts the threads that help with launches.
    fn spawn(&'static self) -> std::io::Result<()> {
        // SAFETY: both sets are locals; the mask of the calling thread is put back below, whatever comes of it.
        let old_mask = unsafe {
            let (mut all_signals, mut old_mask) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&mut all_signals);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all_signals, &mut old_mask);
            old_mask
        };
        prepare_threads(settings::cores().saturating_sub(1));
        let started = thread::Builder::new().name("softcuda".to_owned()).spawn(|| self.serve());
        // SAFETY: `before` was filled above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old_mask, std::ptr::null_mut()) };
        started.map(drop)
    }

    /// Runs streams until none comes for a while.
    fn serve(&self) {
        while let Some(stream) = self.next() {
            stream.work();
        }
    }

    /// Returns the next stream, or `None` when none came for a while.
    fn next(&self) -> Option<Arc<T>> {
        let mut pool = self.pool();
        pool.idle += 1;
        let waiting = self.arrived.wait_timeout_while(pool, THREAD_LINGER, |pool| pool.streams.is_empty());
        pool = waiting.unwrap_or_else(PoisonError::into_inner).0;
        pool.idle -= 1;
        pool.streams.pop_front()
    }
}
