//! The control socket of a job: HTTP/JSON on a unix socket of mode 0600.
//!
//! | request                | answer                                                                       |
//! |------------------------|------------------------------------------------------------------------------|
//! | `GET /v1/job`          | [`JobView`](crate::supervisor::view::JobView)                                            |
//! | `POST /v1/checkpoints` | takes a [`Request`]; [`StageProgress`]s, one JSON object a line, the last one the end |
//! | `POST /v1/migrations`  | takes a [`Migration`]; the same                                              |
//!
//! Any other request is answered with a JSON object whose `error` says what exists. A client that goes away, or reads nothing,
//! neither ends nor delays the checkpoint that it asked for. `docs/reference/admin-api.md` is the manual.

use std::io;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};

use katydid_http::{Answer, HttpServer, Limits, Lines};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::supervisor::state::JobState;
use crate::supervisor::view::{Migration, Request, StageProgress};

/// Starts to answer requests for the job.
pub(crate) fn open(listener: UnixListener, job: &Arc<JobState>) -> io::Result<HttpServer> {
    let job = Arc::downgrade(job);
    // An error of the system may be temporary, and no process would read a message about it.
    HttpServer::start(listener, "control", Limits::default(), move |request| route(request, &job), |_| {})
}

fn route(request: &katydid_http::Request, job: &Weak<JobState>) -> Answer {
    let Some(job) = job.upgrade() else { return Answer::problem(503, "the job is over") };
    match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/v1/job") => Answer::json(200, &job.view()),
        ("POST", "/v1/checkpoints") => stepwise(&request.body, move |checkpoint: &Request, lines| {
            // The outcome is the last line.
            drop(job.checkpoint(checkpoint, &|stage| send_stage(lines, stage)));
        }),
        ("POST", "/v1/migrations") => stepwise(&request.body, move |migration: &Migration, lines| {
            drop(job.migrate(migration, &|stage| send_stage(lines, stage)));
        }),
        (_, "/v1/job") => Answer::problem(405, "only GET works here"),
        (_, "/v1/checkpoints" | "/v1/migrations") => Answer::problem(405, "only POST works here"),
        _ => Answer::problem(404, "no such resource; there are /v1/job, /v1/checkpoints and /v1/migrations"),
    }
}

/// Parses the body, and does the work that it requests.
fn stepwise<T>(body: &[u8], work: impl FnOnce(&T, &Lines) + Send + 'static) -> Answer
where
    T: DeserializeOwned + Send + 'static,
{
    // A structure would also be read from an array, whose elements have no names.
    let parsed = serde_json::from_slice::<serde_json::Map<String, Value>>(body);
    match parsed.and_then(|object| serde_json::from_value(Value::Object(object))) {
        Ok(request) => Answer::lines(move |lines| work(&request, lines)),
        Err(error) => Answer::problem(400, format_args!("invalid request: {error}; see docs/reference/admin-api.md")),
    }
}

fn send_stage(lines: &Lines, stage: &StageProgress) {
    if stage.is_last() { lines.finish(stage) } else { lines.send(stage) }
}
