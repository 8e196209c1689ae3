//! The control socket of a job: HTTP/JSON on a unix socket of mode 0600, one thread a request.
//!
//! | request                | answer                                                                       |
//! |------------------------|------------------------------------------------------------------------------|
//! | `GET /v1/job`          | [`JobView`](crate::view::JobView)                                            |
//! | `POST /v1/checkpoints` | takes a [`Request`]; [`Step`]s, one JSON object a line, the last one the end |
//! | `POST /v1/migrations`  | takes a [`Migration`]; the same                                              |
//!
//! Anything else is answered with a JSON object whose `error` says what exists. A client that goes away does not end the
//! checkpoint that it asked for. `docs/admin-api.md` is the manual.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, JoinHandle};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tiny_http::{HTTPVersion, Header, Method, Response, Server};

use crate::job::{Inner, lock};
use crate::view::{Migration, Request, Step};

/// Largest request that is read.
const MAX_REQUEST: u64 = 64 << 10;

/// The socket and those who answer it.
pub(crate) struct Control {
    server: Arc<Server>,
    answering: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Control {
    /// Answers requests for the job from now on.
    pub(crate) fn open(listener: UnixListener, job: &Arc<Inner>) -> io::Result<Self> {
        let server = Arc::new(Server::from_listener(listener, None).map_err(io::Error::other)?);
        let answering = Arc::new(Mutex::new(Vec::new()));
        let (ours, theirs, job) = (Arc::clone(&server), Arc::clone(&answering), Arc::downgrade(job));
        thread::Builder::new().name("control".into()).spawn(move || {
            while let Ok(request) = ours.recv() {
                let job = Weak::clone(&job);
                let thread = thread::Builder::new().name("request".into()).spawn(move || answer(request, &job));
                let mut threads = lock(&theirs);
                threads.retain(|thread: &JoinHandle<()>| !thread.is_finished());
                threads.extend(thread);
            }
        })?;
        Ok(Self { server, answering })
    }

    /// Takes no more requests, and returns when those at hand are answered.
    pub(crate) fn close(self) {
        self.server.unblock();
        for thread in lock(&self.answering).drain(..) {
            // A thread that panicked has answered nobody; there is nothing left to do for it.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Control")
    }
}

#[derive(Serialize)]
struct Problem {
    error: String,
}

fn answer(request: tiny_http::Request, job: &Weak<Inner>) {
    let Some(job) = job.upgrade() else { return };
    match (request.method(), request.url()) {
        (Method::Get, "/v1/job") => respond(request, 200, &job.view()),
        (Method::Post, "/v1/checkpoints") => {
            // How it ended is the last line.
            stepwise(request, |wanted: &Request, tell| drop(job.checkpoint(wanted, tell)));
        }
        (Method::Post, "/v1/migrations") => {
            stepwise(request, |wanted: &Migration, tell| drop(job.migrate(wanted, tell)));
        }
        (_, "/v1/job") => problem(request, 405, "only GET works here"),
        (_, "/v1/checkpoints" | "/v1/migrations") => problem(request, 405, "only POST works here"),
        _ => problem(request, 404, "no such resource; there are /v1/job, /v1/checkpoints and /v1/migrations"),
    }
}

fn problem(request: tiny_http::Request, status: u16, error: &str) {
    respond(request, status, &Problem { error: error.to_owned() });
}

/// These types hold only numbers and text, which always become JSON.
fn respond(request: tiny_http::Request, status: u16, body: &impl Serialize) {
    let body = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::from_data(body).with_status_code(status);
    if let Ok(header) = Header::from_bytes("Content-Type", "application/json") {
        response.add_header(header);
    }
    // Whoever asked has gone away.
    let _ = request.respond(response);
}

/// Does what the request wants, and tells each step as it begins.
fn stepwise<T: DeserializeOwned>(mut request: tiny_http::Request, work: impl FnOnce(&T, &(dyn Fn(&Step) + Sync))) {
    let mut body = Vec::new();
    if let Err(error) = request.as_reader().take(MAX_REQUEST).read_to_end(&mut body) {
        return problem(request, 400, &format!("the request cannot be read: {error}"));
    }
    let wanted: T = match serde_json::from_slice(&body) {
        Ok(wanted) => wanted,
        Err(error) => return problem(request, 400, &format!("the request is none: {error}")),
    };
    let in_chunks = *request.http_version() >= HTTPVersion(1, 1);
    let lines = Lines { out: Mutex::new(request.into_writer()), in_chunks };
    lines.begin();
    work(&wanted, &|step| lines.tell(step));
    lines.end();
}

/// An answer that grows. What cannot be sent is lost, because whoever asked has gone away.
struct Lines {
    out: Mutex<Box<dyn Write + Send + 'static>>,
    /// As HTTP/1.1 wants it; before that the end of the connection is the end of the answer.
    in_chunks: bool,
}

impl Lines {
    fn begin(&self) {
        let how = if self.in_chunks { "Transfer-Encoding: chunked" } else { "Connection: close" };
        self.send(format!("HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\n{how}\r\n\r\n").as_bytes());
    }

    fn tell(&self, step: &Step) {
        let mut line = serde_json::to_vec(step).unwrap_or_default();
        line.push(b'\n');
        if self.in_chunks {
            line = [format!("{:x}\r\n", line.len()).as_bytes(), &line, b"\r\n"].concat();
        }
        self.send(&line);
    }

    fn end(&self) {
        if self.in_chunks {
            self.send(b"0\r\n\r\n");
        }
    }

    fn send(&self, bytes: &[u8]) {
        let mut out = lock(&self.out);
        let _ = out.write_all(bytes).and_then(|()| out.flush());
    }
}
