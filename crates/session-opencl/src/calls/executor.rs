//! Executors: one thread for each program thread that ever made a call that may wait.
//!
//! The main loop must never wait for a device, so what may wait is prepared there and waited for here. A program thread
//! waits for its reply before it sends again; one that does not is refused, which bounds the queues.

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use katydid_opencl_sys::Code;
use katydid_wire::codec::Reply;
use katydid_wire::frame::FrameHead;

use crate::calls::fault::SessionError;
use crate::calls::shared::Shared;

/// Program threads of a session that may block at a time.
const MAX_EXECUTORS: usize = 4096;
/// Calls of one thread that may be queued; an honest one has one.
const QUEUE: usize = 2;

/// What an executor does: the call, and the reply. One that is never done is not dropped either: the driver may be using what it
/// holds.
pub(crate) type Task = ManuallyDrop<Box<dyn FnOnce(&Arc<Shared>) + Send>>;

/// What of a call may wait: run by an executor.
pub(crate) type Job<R> = Box<dyn FnOnce(&Arc<Shared>) -> Result<R, Code> + Send>;

/// A job with its answer, for an executor.
pub(crate) fn task<R: Reply + 'static>(head: FrameHead, job: Job<R>) -> Task {
    ManuallyDrop::new(Box::new(move |shared: &Arc<Shared>| {
        // A program that is gone needs no answer; the monitor ends the process.
        let _ = match job(shared) {
            Ok(reply) => shared.answer(&head, Code::SUCCESS, &reply, true),
            Err(code) => shared.answer(&head, code, &(), true),
        };
    }))
}

/// The executors of a session, by program thread.
#[derive(Default)]
pub(crate) struct Executors {
    seats: HashMap<u32, SyncSender<Task>>,
}

impl Executors {
    /// Has `task` run by the executor of `thread`.
    ///
    /// # Errors
    ///
    /// The program has too many threads, or one that does not wait for its replies; or the system has no thread left.
    pub(crate) fn run(&mut self, shared: &Arc<Shared>, thread: u32, task: Task) -> Result<(), SessionError> {
        if !self.seats.contains_key(&thread) {
            if self.seats.len() >= MAX_EXECUTORS {
                return Err(SessionError::TooManyThreads { most: MAX_EXECUTORS });
            }
            self.seats.insert(thread, seat(shared, format!("blocking {thread}"))?);
        }
        shared.calls.begin();
        match self.seats.get(&thread).map(|seat| seat.try_send(task)) {
            Some(Ok(())) => Ok(()),
            _ => Err(SessionError::Impatient { thread }),
        }
    }
}

/// A thread that runs tasks until the session is dropped.
fn seat(shared: &Arc<Shared>, name: String) -> Result<SyncSender<Task>, SessionError> {
    let (sender, receiver) = sync_channel::<Task>(QUEUE);
    let shared = Arc::clone(shared);
    begin(name, move || {
        receiver.iter().for_each(|task| {
            ManuallyDrop::into_inner(task)(&shared);
            shared.calls.end();
        });
    })?;
    Ok(sender)
}

/// Runs one task in a thread of its own: a build whose end is told by a callback.
pub(crate) fn apart(shared: &Arc<Shared>, task: Task) -> Result<(), SessionError> {
    let shared = Arc::clone(shared);
    shared.calls.begin();
    begin("build".to_owned(), move || {
        ManuallyDrop::into_inner(task)(&shared);
        shared.calls.end();
    })
}

/// Begins a thread of the session's.
pub(crate) fn begin(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), SessionError> {
    let begun = thread::Builder::new().name(name).spawn(work);
    begun.map(drop).map_err(|error| SessionError::System { what: "start a thread", reason: error.to_string() })
}
