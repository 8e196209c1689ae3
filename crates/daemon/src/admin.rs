//! The admin API: HTTP/JSON on a unix socket of mode 0600.
//!
//! | request            | answer                                       |
//! |--------------------|----------------------------------------------|
//! | `GET /v1/server`   | [`crate::ServerView`]                        |
//! | `GET /v1/sessions` | [`crate::SessionsView`]                      |
//!
//! Anything else is answered with a JSON object whose `error` says what exists. Nothing here changes anything yet.

use std::fmt;
use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::server::Shared;
use crate::view::{ServerView, SessionsView};

/// Before the socket is listened on again.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// The admin socket and the threads of the HTTP library behind it.
#[derive(Clone)]
pub(crate) struct AdminServer {
    listener: Arc<UnixListener>,
    /// Another one after each failure.
    library: Arc<Mutex<Arc<Server>>>,
}

impl AdminServer {
    /// Takes connections from now on; they are answered by [`AdminServer::serve`].
    pub(crate) fn open(listener: UnixListener) -> io::Result<Self> {
        let library = Arc::new(Mutex::new(listen(&listener)?));
        Ok(Self { listener: Arc::new(listener), library })
    }

    /// Answers until [`AdminServer::unblock`] is called while the server stops.
    pub(crate) fn serve(&self, shared: &Shared) {
        while !shared.pool.is_stopping() {
            let library = Arc::clone(&self.library());
            match library.recv() {
                Ok(request) => answer(request, shared),
                Err(_) if shared.pool.is_stopping() => return,
                Err(error) => {
                    shared.reporter.problem(format_args!("admin socket: {error}; listening again"));
                    self.listen_again(shared);
                }
            }
        }
    }

    /// The library gives a socket up after one connection that could not be taken, as where all descriptors are in use.
    fn listen_again(&self, shared: &Shared) {
        while !shared.pool.is_stopping() {
            // The end of the pause, or the server's stop; an interrupted pause is a short one.
            let _ = poll(&mut [PollFd::new(&shared.stop, PollFlags::IN)], Some(&PAUSE));
            if let Ok(library) = listen(&self.listener) {
                *self.library() = library;
                return;
            }
        }
    }

    /// Makes [`AdminServer::serve`] look whether the server stops.
    pub(crate) fn unblock(&self) {
        self.library().unblock();
    }

    fn library(&self) -> MutexGuard<'_, Arc<Server>> {
        // One value is there as long as the lock is.
        self.library.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the library.
fn listen(listener: &UnixListener) -> io::Result<Arc<Server>> {
    Server::from_listener(listener.try_clone()?, None).map(Arc::new).map_err(io::Error::other)
}

impl fmt::Debug for AdminServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("AdminServer")
    }
}

fn answer(request: Request, shared: &Shared) {
    let (status, body) = route(request.method(), request.url(), shared);
    let mut response = Response::from_data(body).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", "application/json") {
        response.add_header(header);
    }
    // Whoever asked has gone away.
    let _ = request.respond(response);
}

fn route(method: &Method, url: &str, shared: &Shared) -> (u16, Vec<u8>) {
    match (method, url) {
        (Method::Get, "/v1/server") => (200, json(&server_view(shared))),
        (Method::Get, "/v1/sessions") => (200, json(&SessionsView { sessions: shared.sessions.list() })),
        (_, "/v1/server" | "/v1/sessions") => (405, json(&Problem { error: "only GET works here" })),
        _ => (404, json(&Problem { error: "no such resource; there are /v1/server and /v1/sessions" })),
    }
}

#[derive(Serialize)]
struct Problem {
    error: &'static str,
}

/// These types hold only numbers and text, which always become JSON.
fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

fn server_view(shared: &Shared) -> ServerView {
    let (workers, driver_found) = shared.pool.view();
    ServerView {
        version: shared.build.release.clone(),
        pid: std::process::id(),
        started: shared.started,
        listen: shared.addresses.iter().map(ToString::to_string).collect(),
        driver: shared.driver.clone(),
        driver_found,
        workers,
        sessions: shared.sessions.list().len(),
        max_sessions: shared.sessions.most(),
        session_memory: shared.session_memory,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use std::thread;
    use std::time::{Duration, Instant};

    use katydid_wire::handshake::Build;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::pool::Pool;
    use crate::report::{Reporter, Verbosity};
    use crate::sessions::Sessions;
    use crate::spawn::WorkerCommand;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A server that has no workers.
    fn shared() -> Shared {
        let worker = WorkerCommand { program: "/".into(), ..WorkerCommand::default() };
        Shared {
            pool: Pool::new(0),
            sessions: Sessions::new(1),
            reporter: Reporter::new(Verbosity::Private),
            build: Build::current([7; 32]),
            hello_patience: PATIENCE,
            session_memory: None,
            cpu_opencl: false,
            driver: "none".to_owned(),
            addresses: vec![],
            started: 0,
            worker,
            is_warned: AtomicBool::new(false),
            stop: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
        }
    }

    fn ask(path: &Path) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /v1/server HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_connection_that_could_not_be_taken_is_not_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin");
        let listener = UnixListener::bind(&path).unwrap();
        let ours = listener.try_clone().unwrap();
        // Nobody can be taken: it fails at once, as without descriptors.
        ours.set_nonblocking(true).unwrap();
        let (admin, shared) = (AdminServer::open(listener).unwrap(), shared());
        let first = Arc::clone(&admin.library());
        thread::scope(|scope| {
            scope.spawn(|| admin.serve(&shared));
            let begun = Instant::now();
            while Arc::ptr_eq(&first, &admin.library()) && begun.elapsed() < PATIENCE {
                thread::sleep(Duration::from_millis(5));
            }
            ours.set_nonblocking(false).unwrap();
            let answer = ask(&path);
            shared.pool.stop();
            admin.unblock();
            assert!(answer.contains("200 OK"), "{answer}");
        });
    }
}
