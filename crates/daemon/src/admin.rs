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
use std::sync::Arc;

use serde::Serialize;
use tiny_http::{Header, Method, Request, Response, Server};

use crate::server::Shared;
use crate::view::{ServerView, SessionsView};

/// The admin socket and the threads of the HTTP library behind it.
#[derive(Clone)]
pub(crate) struct AdminServer(Arc<Server>);

impl AdminServer {
    /// Takes connections from now on; they are answered by [`AdminServer::serve`].
    pub(crate) fn open(listener: UnixListener) -> io::Result<Self> {
        let server = Server::from_listener(listener, None).map_err(io::Error::other)?;
        Ok(Self(Arc::new(server)))
    }

    /// Answers until [`AdminServer::unblock`] is called while the server stops.
    pub(crate) fn serve(&self, shared: &Shared) {
        while !shared.pool.is_stopping() {
            match self.0.recv() {
                Ok(request) => answer(request, shared),
                Err(_) if shared.pool.is_stopping() => return,
                Err(error) => return shared.reporter.problem(format_args!("admin socket: {error}")),
            }
        }
    }

    /// Makes [`AdminServer::serve`] look whether the server stops.
    pub(crate) fn unblock(&self) {
        self.0.unblock();
    }
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
