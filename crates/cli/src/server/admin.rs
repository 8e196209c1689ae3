//! Asks a server's admin socket, or a job's control socket: one HTTP request a connection, JSON back.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long an answer may take, on a busy machine too.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer that is read; the table of sessions stays far below.
const MAX_ANSWER: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    /// No process listens, or the socket belongs to another user.
    #[error(
        "cannot reach the server's admin socket: {path}: {source}; is `katydid serve` running, by this user? (--server or --admin name another one)"
    )]
    Unreachable { path: PathBuf, source: io::Error },
    /// What came back is not what a server says.
    #[error("{path}: unexpected answer ({what}); is this a server of the same release?")]
    Unexpected { path: PathBuf, what: String },
}

/// Gets a resource such as `/v1/sessions`.
pub(crate) fn get<T: DeserializeOwned>(path: &Path, resource: &str) -> Result<T, AdminError> {
    get_within(path, resource, ANSWER_TIMEOUT)
}

/// The same from a peer that may take so long.
pub(crate) fn get_within<T: DeserializeOwned>(path: &Path, resource: &str, limit: Duration) -> Result<T, AdminError> {
    let answer =
        exchange(path, resource, limit).map_err(|source| AdminError::Unreachable { path: path.to_owned(), source })?;
    parse(&answer).map_err(|what| AdminError::Unexpected { path: path.to_owned(), what })
}

/// Posts a JSON object, and hands over each line of the answer, a JSON object too, as it comes, until one is said to be
/// the last or the server closes.
pub(crate) fn post_lines<T: DeserializeOwned>(
    path: &Path,
    resource: &str,
    body: &impl Serialize,
    mut is_last: impl FnMut(T) -> bool,
) -> Result<(), AdminError> {
    let unreachable = |source| AdminError::Unreachable { path: path.to_owned(), source };
    let unexpected = |what: String| AdminError::Unexpected { path: path.to_owned(), what };
    let body = serde_json::to_vec(body).map_err(|error| unexpected(error.to_string()))?;
    let mut stream = UnixStream::connect(path).map_err(unreachable)?;
    let head = format!("POST {resource} HTTP/1.0\r\nHost: katydid\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), &body].concat()).map_err(unreachable)?;
    let mut lines = BufReader::new(stream.take(MAX_ANSWER)).lines();
    let mut next = || lines.next().transpose().map_err(unreachable);
    let status = next()?.unwrap_or_default();
    while next()?.is_some_and(|line| !line.is_empty()) {}
    while let Some(line) = next()? {
        if status.split(' ').nth(1) != Some("200") {
            return Err(unexpected(line));
        }
        if is_last(serde_json::from_str(&line).map_err(|error| unexpected(error.to_string()))?) {
            break;
        }
    }
    Ok(())
}

/// Sends the request and reads until the server closes.
fn exchange(path: &Path, resource: &str, limit: Duration) -> io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    // HTTP/1.0 makes the server close afterwards and leave the body in one piece.
    write!(stream, "GET {resource} HTTP/1.0\r\nHost: katydid\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    Ok(answer)
}

/// Header and body apart; only the status of the header is looked at.
fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, String> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or("no HTTP header")?;
    let status = answer.split(|&byte| byte == b' ').nth(1).ok_or("no HTTP status")?;
    if status != b"200" {
        return Err(format!("HTTP status {}", String::from_utf8_lossy(status)));
    }
    serde_json::from_slice(&answer[end + 4..]).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_of_a_good_answer_is_read() {
        let answer = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n[1,2]";
        assert_eq!(parse(answer), Ok(vec![1, 2]));
    }

    #[test]
    fn other_answers_are_described() {
        assert_eq!(parse::<u8>(b"HTTP/1.0 404 Not Found\r\n\r\n{}"), Err("HTTP status 404".into()));
        assert_eq!(parse::<u8>(b"SSH-2.0"), Err("no HTTP header".into()));
        assert!(parse::<u8>(b"HTTP/1.0 200 OK\r\n\r\nhello").is_err());
    }
}
