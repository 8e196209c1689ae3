//! The admin API: HTTP/JSON on a unix socket of mode 0600.
//!
//! | request            | answer                                       |
//! |--------------------|----------------------------------------------|
//! | `GET /v1/server`   | [`crate::ServerView`]                        |
//! | `GET /v1/sessions` | [`crate::SessionsView`]                      |
//!
//! Any other request gets a JSON object whose `error` lists the valid ones. No request changes anything yet.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use katydid_http::{Answer, HttpServer, Limits, Request};

use crate::report::{LineKind, LineSource};
use crate::shared::ServerState;
use crate::view::{ServerView, SessionsView};

/// Starts to answer on the socket.
pub(crate) fn open(listener: UnixListener, shared: &Arc<ServerState>) -> io::Result<HttpServer> {
    let (route_state, problem_state) = (Arc::clone(shared), Arc::clone(shared));
    let problem = move |error: &io::Error| {
        let line = format_args!("admin socket: {error}; trying again");
        problem_state.reporter.problem_of(LineKind::System, LineSource::Server("admin"), line);
    };
    HttpServer::start(listener, "admin", Limits::default(), move |request| route(request, &route_state), problem)
}

fn route(request: &Request, shared: &ServerState) -> Answer {
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/v1/server") => Answer::json(200, &server_view(shared)),
        ("GET", "/v1/sessions") => Answer::json(200, &shared.sessions.view()),
        (_, "/v1/server" | "/v1/sessions") => Answer::problem(405, "only GET works here"),
        _ => Answer::problem(404, "no such resource; there are /v1/server and /v1/sessions"),
    }
}

fn server_view(shared: &ServerState) -> ServerView {
    let (workers, driver_found) = shared.pool.view();
    let SessionsView { sessions, reserved } = shared.sessions.view();
    ServerView {
        version: shared.build.release.clone(),
        pid: std::process::id(),
        started: shared.started,
        listen: shared.addresses.iter().map(ToString::to_string).collect(),
        driver: shared.driver.clone(),
        driver_found,
        workers,
        sessions: sessions.len(),
        reserved: reserved.len(),
        max_sessions: shared.sessions.most(),
        peer_sessions: Some(shared.sessions.most_of_peer()),
        session_memory: shared.session_memory,
    }
}
