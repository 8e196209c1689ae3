//! The socket, its connections, and the work that goes on for some of them.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle as Task;
use tokio::time::{sleep, timeout};

use crate::answer::{Answer, Request};
use crate::connection::{ConnectionTimeout, attend};

/// Before the socket is accepted from again, after the system refused.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a handler's thread waits for the next request.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// What clients may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at a time. When all are taken, the oldest that waits for its client is closed.
    pub connections: usize,
    /// Requests whose handlers run at a time; further ones wait.
    pub handlers: usize,
    /// Requests at a time whose answers grow; further ones are answered with 503.
    pub works: usize,
    /// Bytes of a request's head.
    pub head: usize,
    /// Bytes of a request's body.
    pub body: usize,
    /// How long a client may take to send a whole request.
    pub request: Duration,
    /// How long it may take to read what is left of an answer when that is complete.
    pub answer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            handlers: 4,
            works: 8,
            head: 16 << 10,
            body: 64 << 10,
            request: Duration::from_secs(10),
            answer: Duration::from_secs(10),
        }
    }
}

/// What answers a request.
type Handler = dyn Fn(&Request) -> Answer + Send + Sync;

/// What all connections use.
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) handler: Box<Handler>,
    pub(crate) works: Arc<WorkerThreads>,
}

/// Threads that work for clients.
pub(crate) struct WorkerThreads {
    most: usize,
    /// None taken any more when it is closed.
    taken: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// More than all places.
const CLOSED: usize = usize::MAX / 2;

/// The place of a thread.
pub(crate) struct WorkerSlot(Arc<WorkerThreads>);

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

impl WorkerThreads {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: AtomicUsize::new(0), threads: Mutex::default() }
    }

    pub(crate) fn take(self: &Arc<Self>) -> io::Result<WorkerSlot> {
        let more = |taken| (taken < self.most).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        let taken = taken.map_err(|_| io::Error::other("as much is being done for others as can be at a time"));
        taken.map(|_| WorkerSlot(Arc::clone(self)))
    }

    pub(crate) fn note(&self, thread: JoinHandle<()>) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Begins nothing more, and returns when all is done.
    fn close(&self) {
        self.taken.fetch_add(CLOSED, Ordering::AcqRel);
        loop {
            let thread = self.threads.lock().unwrap_or_else(PoisonError::into_inner).pop();
            // A thread that panicked has told its client nothing more; there is nothing left to do for it.
            let Some(_) = thread.map(JoinHandle::join) else { return };
        }
    }
}

/// A socket that answers HTTP. Dropping it closes it without waiting for answers; [`HttpServer::close`] does wait.
pub struct HttpServer {
    works: Arc<WorkerThreads>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Answers requests from now on, on a thread with this name. `problem` is told what the system refuses.
    ///
    /// # Errors
    ///
    /// The system gives no thread, or no descriptors for its event loop.
    pub fn start(
        listener: UnixListener,
        name: &str,
        limits: Limits,
        handler: impl Fn(&Request) -> Answer + Send + Sync + 'static,
        problem: impl Fn(&io::Error) + Send + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let runtime = runtime(&limits)?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::UnixListener::from_std(listener)?
        };
        let works = Arc::new(WorkerThreads::new(limits.works));
        let shared = Arc::new(Shared { limits, handler: Box::new(handler), works: Arc::clone(&works) });
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listener, shared, stopped, problem));
            // A handler that is not done yet is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { works, stop: Some(stop), thread: Some(thread) })
    }

    /// Takes no more requests, and returns when those at hand are answered. A client that does not read its answer is not
    /// waited for beyond [`Limits::answer`].
    pub fn close(mut self) {
        self.works.close();
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            let _ = stop.send(());
            // If it panicked, it has ended too.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for HttpServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("HttpServer")
    }
}

pub(crate) fn runtime(limits: &Limits) -> io::Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_io().enable_time().thread_name("http").thread_keep_alive(IDLE_THREAD_TIMEOUT);
    builder.max_blocking_threads(limits.handlers).build()
}

/// Connections that are being attended to, oldest first.
#[derive(Default)]
struct Connections(VecDeque<(Task<()>, ConnectionTimeout)>);

impl Connections {
    /// Makes room for one more; whether there is some.
    fn make_room(&mut self, most: usize) -> bool {
        self.0.retain(|(task, _)| !task.is_finished());
        if self.0.len() < most {
            return true;
        }
        let Some(oldest) = self.0.iter().position(|(_, patience)| patience.is_waiting()) else { return false };
        if let Some((task, _)) = self.0.remove(oldest) {
            task.abort();
        }
        true
    }

    /// Waits for the answers that are being made or read.
    async fn end(self, patience: Duration) {
        for (task, _) in self.0 {
            let abort = task.abort_handle();
            if timeout(patience, task).await.is_err() {
                abort.abort();
            }
        }
    }
}

/// Accepts until it is told to stop.
async fn serve(
    listener: tokio::net::UnixListener,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
    problem: impl Fn(&io::Error),
) {
    let mut connections = Connections::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            told = &mut stopped => {
                if told.is_ok() {
                    drop(listener);
                    connections.end(shared.limits.answer).await;
                }
                return;
            }
        };
        match accepted {
            Ok((stream, _)) if connections.make_room(shared.limits.connections) => {
                let patience = ConnectionTimeout::new(shared.limits.request, shared.limits.answer);
                let task = tokio::spawn(attend(stream, Arc::clone(&shared), patience.clone()));
                connections.0.push_back((task, patience));
            }
            Ok((stream, _)) => turn_away(&stream),
            Err(error) => {
                problem(&error);
                sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

/// Tells a client that there is no place, as well as that can be done without waiting.
fn turn_away(stream: &UnixStream) {
    const ANSWER: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n\
                          {\"error\":\"busy: too many connections; ask again\"}";
    let _ = stream.try_write(ANSWER.as_bytes());
}
