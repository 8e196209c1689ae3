//! A handler's view of a request, and its answer.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use hyper::body::Bytes;
use serde::Serialize;
use tokio::sync::mpsc::Sender;

use crate::timeout::ConnectionTimeout;

/// An HTTP request with its whole body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Method, such as `GET`.
    pub method: String,
    /// The path, with the query if there is one.
    pub path: String,
    /// The body; empty if there is none.
    pub body: Vec<u8>,
}

/// Produces the lines of an answer.
type LinesHandler = Box<dyn FnOnce(&Lines) + Send>;

/// The answer to a request.
pub enum Answer {
    /// A status and a JSON document.
    Json(u16, Vec<u8>),
    /// Status 200, and JSON objects, one a line, while the work goes on. The work has a thread of its own, and runs to its end
    /// even if the client goes away.
    Lines(LinesHandler),
}

impl Answer {
    /// Answers with a JSON document. `value` must hold only numbers and text, which always encode.
    pub fn json(status: u16, value: &impl Serialize) -> Self {
        Self::Json(status, serde_json::to_vec(value).unwrap_or_default())
    }

    /// Answers with an object whose `error` says what failed and what to do.
    pub fn problem(status: u16, error: impl fmt::Display) -> Self {
        Self::Json(status, problem(error))
    }

    /// Answers with lines that `work` sends as it goes on.
    pub fn lines(work: impl FnOnce(&Lines) + Send + 'static) -> Self {
        Self::Lines(Box::new(work))
    }
}

/// Returns a JSON object whose `error` is this.
pub(crate) fn problem(error: impl fmt::Display) -> Vec<u8> {
    #[derive(Serialize)]
    struct Problem {
        error: String,
    }
    serde_json::to_vec(&Problem { error: error.to_string() }).unwrap_or_default()
}

impl fmt::Debug for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(status, body) => write!(out, "{status} {}", String::from_utf8_lossy(body)),
            Self::Lines(_) => out.write_str("lines"),
        }
    }
}

/// The lines of an answer, sent one by one.
pub struct Lines {
    /// None once the last line was sent.
    sender: Mutex<Option<Sender<Bytes>>>,
    timeout: ConnectionTimeout,
}

impl Lines {
    pub(crate) fn new(sender: Sender<Bytes>, timeout: ConnectionTimeout) -> Self {
        Self { sender: Mutex::new(Some(sender)), timeout }
    }

    /// Sends a line. It is left out if the client has gone away, or has not read the earlier lines: work never waits for a
    /// client.
    pub fn send(&self, value: &impl Serialize) {
        if let Some(sender) = &*self.sender.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = sender.try_send(line(value));
        }
    }

    /// Sends the last line. A client that has fallen behind has a bounded time to catch up.
    pub fn finish(&self, value: &impl Serialize) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.timeout.is_answered();
        if let Some(sender) = sender {
            // The connection ends in time, and this wait with it.
            let _ = sender.blocking_send(line(value));
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.timeout.is_answered();
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Lines")
    }
}

fn line(value: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
