//! One connection: one request, its answer, and the time that each may take.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Response, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::answer::{Answer, Lines, Request, problem};
use crate::body::AnswerBody;
use crate::context::ConnectionContext;
use crate::timeout::ConnectionTimeout;

/// Most lines that a client may be behind before further ones are left out.
const MAX_PENDING_LINES: usize = 1024;

/// Answers the one request of a connection.
pub(crate) async fn serve_connection<S>(stream: S, shared: Arc<ConnectionContext>, timeout: ConnectionTimeout)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.limits.clone();
    // Holds the permit until the connection ends.
    let slot = Arc::new(OnceLock::new());
    let service = service_fn(|request| {
        let (shared, timeout, slot) = (Arc::clone(&shared), timeout.clone(), Arc::clone(&slot));
        async move { Ok::<_, Infallible>(answer(request, shared, timeout, &slot).await) }
    });
    let mut builder = http1::Builder::new();
    // The time limit of the whole request bounds that of the head.
    builder.keep_alive(false).half_close(true).header_read_timeout(None).max_buf_size(limits.head_bytes);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // A client that has gone away, or breaks the protocol, affects only itself.
        _ = connection => {}
        () = timeout.over() => {}
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    shared: Arc<ConnectionContext>,
    timeout: ConnectionTimeout,
    slot: &OnceLock<OwnedSemaphorePermit>,
) -> Response<AnswerBody> {
    let answer = match read(request, shared.limits.body_bytes).await {
        Ok(request) => match Arc::clone(&shared.answers).try_acquire_owned() {
            Ok(permit) => {
                // A connection has one request.
                let _ = slot.set(permit);
                timeout.is_asked();
                let handler = Arc::clone(&shared);
                let handled = tokio::task::spawn_blocking(move || (handler.handler)(&request)).await;
                handled.unwrap_or_else(|_| Answer::problem(500, "internal error in Katydid; see its messages"))
            }
            Err(_) => Answer::problem(503, "busy: too many requests are being answered; ask again"),
        },
        Err(refusal) => refusal,
    };
    let (status, body) = match answer {
        Answer::Json(status, body) => (status, body),
        Answer::Lines(work) => match begin(work, &shared, &timeout) {
            Ok(lines) => return respond(200, "application/x-ndjson", lines),
            Err(error) => (503, problem(format_args!("busy: {error}; ask again"))),
        },
    };
    timeout.is_answered();
    respond(status, "application/json", body.into())
}

fn respond(status: u16, kind: &'static str, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    if let Ok(status) = status.try_into() {
        *response.status_mut() = status;
    }
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

/// Reads a request whose body has at most `most` bytes. A body that announces more is not read.
async fn read(request: hyper::Request<Incoming>, most: usize) -> Result<Request, Answer> {
    let too_large = || Answer::problem(413, format_args!("the request is too large; a body has at most {most} bytes"));
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let body = match Limited::new(body, most).collect().await {
        Ok(body) => body.to_bytes().to_vec(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => return Err(Answer::problem(400, format_args!("the request cannot be read: {error}"))),
    };
    let path = head.uri.path_and_query().map_or_else(String::new, ToString::to_string);
    Ok(Request { method: head.method.as_str().to_owned(), path, body })
}

/// Starts the work on a thread.
fn begin(
    work: Box<dyn FnOnce(&Lines) + Send>,
    shared: &Arc<ConnectionContext>,
    timeout: &ConnectionTimeout,
) -> io::Result<AnswerBody> {
    let permit = shared.stream_threads.take()?;
    let (sender, lines) = mpsc::channel(MAX_PENDING_LINES);
    let answer_lines = Lines::new(sender, timeout.clone());
    let thread = thread::Builder::new().name("request".into()).spawn(move || {
        work(&answer_lines);
        drop((answer_lines, permit));
    })?;
    shared.stream_threads.note(thread);
    Ok(AnswerBody::Lines(lines))
}
