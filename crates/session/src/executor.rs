//! Executors: one thread for each program thread that ever made a blocking call.
//!
//! The main loop must never wait for the GPU, so what may wait is decoded there and run here. A program thread waits
//! for its reply before it sends again; one that does not is refused, which bounds the queues.

#![expect(unsafe_code, reason = "makes a context current on the executor's thread")]

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use katydid_cuda_sys::CUcontext;

use crate::fault::SessionError;
use crate::shared::Shared;

/// Program threads of a session that may block at a time.
const MOST: usize = 4096;
/// Calls of one thread that may be queued; an honest one has one.
const QUEUE: usize = 2;

/// The context a task runs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// The driver's handle; null: whatever is current.
    pub(crate) context: CUcontext,
    /// Number of the session's last change of contexts: a new context may have an old one's handle.
    pub(crate) epoch: u64,
}

impl Place {
    /// For what calls no driver.
    pub(crate) const ANYWHERE: Self = Self { context: CUcontext::NULL, epoch: 0 };
}

/// How long an executor looks for its next task before it sleeps: waking it would cost a loop of launch and
/// synchronise as much as the launch itself.
const AWAKE: Duration = Duration::from_micros(30);
/// Looks between two readings of the clock.
const LOOKS: u32 = 16;

/// What an executor does: the call, and the reply.
pub(crate) type Task = Box<dyn FnOnce(&Shared) + Send>;

/// The executors of a session, by program thread.
#[derive(Default)]
pub(crate) struct Executors {
    seats: HashMap<u32, SyncSender<(Place, Task)>>,
}

impl Executors {
    /// Has `task` run in `place` by the executor of `thread`.
    ///
    /// # Errors
    ///
    /// The program has too many threads, or one that does not wait for its replies; or the system has no thread left.
    pub(crate) fn run(
        &mut self,
        shared: &Arc<Shared>,
        thread: u32,
        place: Place,
        task: Task,
    ) -> Result<(), SessionError> {
        if !self.seats.contains_key(&thread) {
            self.seat(shared, thread)?;
        }
        shared.calls.begin();
        let sent = self.seats.get(&thread).map(|seat| seat.try_send((place, task)));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(SessionError::Impatient { thread }),
        }
    }

    fn seat(&mut self, shared: &Arc<Shared>, thread: u32) -> Result<(), SessionError> {
        if self.seats.len() >= MOST {
            return Err(SessionError::TooManyThreads { most: MOST });
        }
        let (sender, receiver) = sync_channel(QUEUE);
        let shared = Arc::clone(shared);
        thread::Builder::new()
            .name(format!("blocking {thread}"))
            .spawn(move || work(&shared, &receiver))
            .map_err(|error| SessionError::System { what: "start a thread", reason: error.to_string() })?;
        self.seats.insert(thread, sender);
        Ok(())
    }
}

/// Runs tasks until the session is dropped.
fn work(shared: &Shared, tasks: &Receiver<(Place, Task)>) {
    let mut current = Place::ANYWHERE;
    while let Some((place, task)) = next(tasks) {
        if place != current && !place.context.is_null() {
            // SAFETY: the handle came from the driver. One that was destroyed since is refused by the driver, and so
            // is the call that follows.
            let _ = unsafe { shared.driver.cuCtxSetCurrent(place.context) };
            current = place;
        }
        task(shared);
        shared.calls.end();
    }
}

/// The next of a queue, looked for awake and then asleep; none once the other end is gone.
pub(crate) fn next<T>(queue: &Receiver<T>) -> Option<T> {
    let begun = Instant::now();
    while processors() > 2 && begun.elapsed() < AWAKE {
        for _ in 0..LOOKS {
            if let Ok(item) = queue.try_recv() {
                return Some(item);
            }
            std::hint::spin_loop();
        }
    }
    queue.recv().ok()
}

/// With few processors, whoever looks keeps the other from running.
pub(crate) fn processors() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, NonZero::get))
}
