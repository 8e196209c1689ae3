//! One client of the admin API: its bytes, and the hang-up after them.
//!
//! Shared by the fuzz target `http` and by the test of kept and damaged requests. Whatever the client sends, the connection
//! ends with at most one answer, and a handler sees no body beyond the limit.

use katydid_http::{Answer, Limits, fuzz_entry};

/// Answers the request in `bytes`, and returns whether a handler was called.
pub(crate) fn ask(bytes: &[u8]) -> bool {
    let answer = fuzz_entry::answer_to(bytes, |request| {
        assert!(request.body.len() <= Limits::default().body_bytes);
        match request.path.as_str() {
            // Like a job: the body is JSON, or the request is refused.
            "/v1/checkpoints" => match serde_json::from_slice::<serde_json::Value>(&request.body) {
                Ok(body) => Answer::lines(move |lines| {
                    lines.send(&body);
                    lines.finish(&"done");
                }),
                Err(error) => Answer::problem(400, error),
            },
            _ => Answer::json(200, &request.method),
        }
    });
    answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200")
}
