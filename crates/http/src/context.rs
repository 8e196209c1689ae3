//! What all connections share: limits, the handler, and the threads that make streamed answers.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::answer::{Answer, Request};

/// Limits for clients.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most connections at a time whose request has not come. A newcomer takes the slot of the oldest.
    pub pending_connections: usize,
    /// Most connections at a time with a request, until their clients have read the answers; further ones are answered with 503.
    /// They are never closed for others: a client must get the result of work that was done for it.
    pub answered_requests: usize,
    /// Most requests whose handlers run at a time; further ones wait.
    pub running_handlers: usize,
    /// Most requests at a time with an answer in lines; further ones are answered with 503.
    pub streamed_answers: usize,
    /// Most bytes of a request's head.
    pub head_bytes: usize,
    /// Most bytes of a request's body.
    pub body_bytes: usize,
    /// How long a client may take to send a whole request.
    pub request_timeout: Duration,
    /// How long a client may take to read the rest of an answer that is complete.
    pub answer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pending_connections: 64,
            answered_requests: 64,
            running_handlers: 4,
            streamed_answers: 8,
            head_bytes: 16 << 10,
            body_bytes: 64 << 10,
            request_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(10),
        }
    }
}

/// Answers a request.
pub(crate) type Handler = dyn Fn(&Request) -> Answer + Send + Sync;

/// What all connections share.
pub(crate) struct ConnectionContext {
    pub(crate) limits: Limits,
    pub(crate) handler: Box<Handler>,
    pub(crate) stream_threads: Arc<StreamThreads>,
    /// Permits for simultaneous answers, [`Limits::answered_requests`] in all.
    pub(crate) answers: Arc<Semaphore>,
}

impl ConnectionContext {
    pub(crate) fn new(limits: Limits, handler: Box<Handler>, stream_threads: Arc<StreamThreads>) -> Self {
        let answers = Arc::new(Semaphore::new(limits.answered_requests));
        Self { limits, handler, stream_threads, answers }
    }
}

/// Threads that make streamed answers.
pub(crate) struct StreamThreads {
    most: usize,
    /// Slots in use; once closed, none is free.
    in_use: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// More than all slots.
const CLOSED_SLOTS: usize = usize::MAX / 2;

/// The slot of a thread.
pub(crate) struct StreamSlot(Arc<StreamThreads>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::AcqRel);
    }
}

impl StreamThreads {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, in_use: AtomicUsize::new(0), threads: Mutex::default() }
    }

    pub(crate) fn take(self: &Arc<Self>) -> io::Result<StreamSlot> {
        let more = |in_use| (in_use < self.most).then_some(in_use + 1);
        let in_use = self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let in_use = in_use.map_err(|_| io::Error::other("as much is being done for others as can be at a time"));
        in_use.map(|_| StreamSlot(Arc::clone(self)))
    }

    pub(crate) fn note(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Starts no more work, and returns when all is done.
    pub(crate) fn close(&self) {
        self.in_use.fetch_add(CLOSED_SLOTS, Ordering::AcqRel);
        loop {
            let thread = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            // A panicked thread has sent its client nothing more; there is nothing left to do for it.
            let Some(_) = thread.map(JoinHandle::join) else { return };
        }
    }
}
