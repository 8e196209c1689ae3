//! The socket, its connections, and the handlers' threads.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle as Task, yield_now};
use tokio::time::{sleep, timeout};

use crate::answer::{Answer, Request};
use crate::connection::serve_connection;
use crate::context::{ConnectionContext, Limits, StreamThreads};
use crate::timeout::ConnectionTimeout;

/// Pause before the socket accepts again, after the system refused.
const HTTP_ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a handler's thread waits for the next request.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(1);

/// A socket that answers HTTP. Dropping it closes it without waiting for answers; [`HttpServer::close`] does wait.
pub struct HttpServer {
    stream_threads: Arc<StreamThreads>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts to answer requests, on a thread with this name. Calls `problem` with each error of the system.
    ///
    /// # Errors
    ///
    /// The system refuses a thread, or descriptors for its event loop.
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
        let stream_threads = Arc::new(StreamThreads::new(limits.streamed_answers));
        let shared = Arc::new(ConnectionContext::new(limits, Box::new(handler), Arc::clone(&stream_threads)));
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(serve(listener, shared, stopped, problem));
            // Does not wait for handlers that are still running.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stream_threads, stop: Some(stop), thread: Some(thread) })
    }

    /// Accepts no more requests, and returns when the current ones are answered. Does not wait longer than
    /// [`Limits::answer_timeout`] for a client that does not read its answer.
    pub fn close(mut self) {
        self.stream_threads.close();
        if let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) {
            let _ = stop.send(());
            // A panicked thread has ended too.
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
    builder.max_blocking_threads(limits.running_handlers).build()
}

/// Open connections, oldest first.
#[derive(Default)]
struct Connections(VecDeque<(Task<()>, ConnectionTimeout)>);

impl Connections {
    /// Makes room for another connection without a request. Connections with one stay: they have slots of their own.
    fn drop_oldest(&mut self, most: usize) {
        self.0.retain(|(task, _)| !task.is_finished());
        let mut asking =
            self.0.iter().enumerate().filter(|(_, (_, connection_timeout))| connection_timeout.is_asking());
        let oldest = asking.next().map(|(at, _)| at);
        if asking.count() + 1 >= most
            && let Some((task, _)) = oldest.and_then(|oldest| self.0.remove(oldest))
        {
            task.abort();
        }
    }

    /// Waits for answers that are being made or read.
    async fn end(self, limit: Duration) {
        for (task, _) in self.0 {
            let abort = task.abort_handle();
            if timeout(limit, task).await.is_err() {
                abort.abort();
            }
        }
    }
}

/// Accepts connections until the server stops.
async fn serve(
    listener: tokio::net::UnixListener,
    shared: Arc<ConnectionContext>,
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
                    connections.end(shared.limits.answer_timeout).await;
                }
                return;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                connections.drop_oldest(shared.limits.pending_connections);
                let connection_timeout =
                    ConnectionTimeout::new(shared.limits.request_timeout, shared.limits.answer_timeout);
                let task = tokio::spawn(serve_connection(stream, Arc::clone(&shared), connection_timeout.clone()));
                connections.0.push_back((task, connection_timeout));
                // A request that has arrived is read before the next connection is accepted.
                yield_now().await;
            }
            Err(error) => {
                problem(&error);
                sleep(HTTP_ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}
