//! Client of a server's admin socket, or of a job's control socket: one HTTP request a connection, with a JSON answer.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use katydid_job::supervisor::registry;
use katydid_server::ServerView;
use katydid_transport::Address;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::server::address::admin_path;

/// How long an answer may take, on a busy machine too.
pub const ADMIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of an answer if many servers may have to be asked.
pub const SHORT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long of that the peer may do nothing. A stopped process does not answer, while one that waits for a processor is at work.
const PEER_IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between two checks of what the peer does.
const SERVER_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Bytes that one read takes.
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Largest answer that is accepted; the table of sessions is far smaller.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// No process listens, or the socket belongs to another user.
    #[error("cannot reach the server's admin socket: {path}: {}", why(source))]
    Unreachable {
        /// Path of the socket.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// No supervisor answers on a job's control socket.
    #[error("cannot reach the job's control socket: {path}: {source}; `katydid ps` lists the jobs that run")]
    NoSupervisor {
        /// Path of the socket.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The answer is not that of a server of this release.
    #[error("{path}: unexpected answer ({what}); is this a server of the same release?")]
    Unexpected {
        /// Path of the socket.
        path: PathBuf,
        /// What is unexpected about the answer, for the message.
        what: String,
    },
}

impl AdminError {
    /// Whether the peer exists, but does not answer.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(self, Self::Unreachable { source, .. } if is_silence(source))
    }
}

fn is_silence(source: &io::Error) -> bool {
    matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// The system's error, and what a user can do about it.
fn why(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied => format!("{source}; root and the user of the server may ask it"),
        _ if is_silence(source) => {
            "the server did not answer in time; it may be stopped (`kill -CONT` its process), or its machine busy"
                .to_owned()
        }
        _ => format!("{source}; is `katydid serve` running, by this user? (--server or --admin name another one)"),
    }
}

/// The admin socket of the server that listens on `address` on this machine: at the default path, or where the server's note
/// says.
pub fn of_address(address: &Address) -> PathBuf {
    find_among(address, admin_path(address), registry::servers)
}

/// The admin socket of `address`: the `usual` one, or one of the `candidates`. These are tried only if no server
/// answers at the usual one.
fn find_among(address: &Address, usual: PathBuf, candidates: impl FnOnce() -> Vec<PathBuf>) -> PathBuf {
    // Other users' servers may be made not to answer, however many there are.
    let deadline = Instant::now() + SHORT_TIMEOUT;
    let listens = |admin: &Path| {
        let limit = deadline.saturating_duration_since(Instant::now());
        let view: Result<ServerView, _> = get_within(admin, "/v1/server", limit);
        view.is_ok_and(|view| view.listen.iter().any(|text| text.parse().is_ok_and(|there| is_same(&there, address))))
    };
    if UnixStream::connect(&usual).is_ok() {
        return usual;
    }
    candidates().into_iter().find(|admin| listens(admin)).unwrap_or(usual)
}

/// Whether both are the same server of this machine. A port has several names.
fn is_same(known: &Address, meant: &Address) -> bool {
    use Address::{Tcp, Tls, Unix, Vsock};
    match (known, meant) {
        (Unix(known), Unix(meant)) => known == meant,
        (Tcp { port: known, .. } | Tls { port: known, .. }, Tcp { port: meant, .. } | Tls { port: meant, .. }) => {
            known == meant
        }
        (Vsock { port: known, .. }, Vsock { port: meant, .. }) => known == meant,
        _ => false,
    }
}

/// Gets a resource such as `/v1/sessions`.
pub fn get<T: DeserializeOwned>(path: &Path, resource: &str) -> Result<T, AdminError> {
    get_within(path, resource, ADMIN_ANSWER_TIMEOUT)
}

/// Gets a resource from a peer that may take as long as `limit` to answer.
pub fn get_within<T: DeserializeOwned>(path: &Path, resource: &str, limit: Duration) -> Result<T, AdminError> {
    get_by(connect(path), path, resource, limit)
}

/// Works as [`get_within`], on the control socket of a job of `owner`, who may have put any file there.
pub fn get_of_job<T: DeserializeOwned>(
    path: &Path,
    owner: u32,
    resource: &str,
    limit: Duration,
) -> Result<T, AdminError> {
    get_by(connect_to_job(path, owner, connect), path, resource, limit)
}

fn get_by<T: DeserializeOwned>(
    stream: io::Result<UnixStream>,
    path: &Path,
    resource: &str,
    limit: Duration,
) -> Result<T, AdminError> {
    let answer = stream
        .and_then(|stream| exchange(stream, resource, limit, is_at_work))
        .map_err(|source| AdminError::Unreachable { path: path.to_owned(), source })?;
    parse(&answer).map_err(|what| AdminError::Unexpected { path: path.to_owned(), what })
}

/// Posts a JSON object to a job's supervisor, and passes each line of the answer, a JSON object too, to the caller as it comes.
/// Ends when the caller says that a line is the last, or when the supervisor closes. The socket has to be the job's `owner`'s.
pub fn post_lines<T: DeserializeOwned>(
    (path, owner): (&Path, u32),
    resource: &str,
    body: &impl Serialize,
    mut is_last: impl FnMut(T) -> bool,
) -> Result<(), AdminError> {
    let unreachable = |source| AdminError::NoSupervisor { path: path.to_owned(), source };
    let unexpected = |what: String| AdminError::Unexpected { path: path.to_owned(), what };
    let body = serde_json::to_vec(body).map_err(|error| unexpected(error.to_string()))?;
    let mut stream = connect_to_job(path, owner, |path| UnixStream::connect(path)).map_err(unreachable)?;
    let head = format!("POST {resource} HTTP/1.0\r\nHost: katydid\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), &body].concat()).map_err(unreachable)?;
    let mut lines = BufReader::new(stream.take(MAX_ANSWER_BYTES as u64)).lines();
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

/// Sends the request, and reads until the server closes, or `is_at_work` says of its process for too long that it does nothing.
fn exchange(
    mut stream: UnixStream,
    resource: &str,
    limit: Duration,
    is_at_work: impl Fn(i32) -> bool,
) -> io::Result<Vec<u8>> {
    if limit.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(SERVER_POLL_INTERVAL))?;
    stream.set_write_timeout(Some(PEER_IDLE_TIMEOUT.min(limit)))?;
    // HTTP/1.0 makes the server close afterwards and send the body in one piece. The request is one write: if a server answered
    // and closed after the first part of it, the connection would be reset, and the answer lost.
    stream.write_all(format!("GET {resource} HTTP/1.0\r\nHost: katydid\r\n\r\n").as_bytes())?;
    let server = socket_peercred(&stream).ok().map(|peer| peer.pid.as_raw_nonzero().get());
    let (mut answer, mut piece) = (Vec::new(), vec![0; READ_BUFFER_BYTES]);
    let (began, mut looked, mut quiet) = (Instant::now(), Instant::now(), Duration::ZERO);
    while answer.len() < MAX_ANSWER_BYTES {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(read) => {
                answer.extend_from_slice(&piece[..read]);
                quiet = Duration::ZERO;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if !is_silence(&error) => return Err(error),
            Err(_) if server.is_some_and(&is_at_work) => {}
            Err(_) => quiet += looked.elapsed(),
        }
        looked = Instant::now();
        if quiet > PEER_IDLE_TIMEOUT || began.elapsed() > limit {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(answer)
}

/// Connects to the control socket of a job of `owner` by `connect`.
fn connect_to_job(
    path: &Path,
    owner: u32,
    connect: impl FnOnce(&Path) -> io::Result<UnixStream>,
) -> io::Result<UnixStream> {
    let socket = registry::open_socket(path, owner)?;
    connect(&registry::descriptor_path(socket.as_fd()))
}

/// Connects, unless the server's queue of waiting connections is full.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether a thread of a process runs, waits for a processor, or waits for a disk.
fn is_at_work(pid: i32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("stat")).ok()?;
        // The state follows the name, which may hold any characters.
        text.rsplit_once(") ")?.1.chars().next()
    });
    states.any(|state| matches!(state, 'R' | 'D'))
}

/// Parses the answer; of the header, only the status matters.
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
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Answers one request after the other, as a server that listens on `listen`.
    fn server(admin: &Path, listen: &str) {
        let (listener, view) =
            (UnixListener::bind(admin).unwrap(), ServerView { listen: vec![listen.to_owned()], ..view() });
        let body = serde_json::to_string(&view).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{body}").as_bytes());
            }
        });
    }

    fn view() -> ServerView {
        let text = r#"{"version": "1", "pid": 1, "started": 1, "listen": [], "driver": "soft", "driver_found": null,
            "workers": {"ready": 0, "warming": 0, "last_failure": null}, "sessions": 0, "max_sessions": 1,
            "session_memory": null}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn an_admin_socket_elsewhere_is_found_by_its_note() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, usual] = ["one", "other", "k.admin"].map(|name| folder.path().join(name));
        server(&one, "unix:/run/other.sock");
        server(&other, "unix:/run/k.sock");
        let address = "unix:/run/k.sock".parse().unwrap();
        let find = || find_among(&address, usual.clone(), || vec![one.clone(), other.clone()]);
        assert_eq!(find(), other);
        server(&usual, "unix:/run/k.sock");
        assert_eq!(find(), usual);
        let absent = folder.path().join("absent");
        assert_eq!(find_among(&"unix:/x".parse().unwrap(), absent.clone(), || vec![one.clone()]), absent);
    }

    #[test]
    fn a_job_is_asked_only_by_its_owners_socket() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, link] = ["control", "link"].map(|name| folder.path().join(name));
        server(&socket, "unix:/run/k.sock");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        let us = rustix::process::geteuid().as_raw();
        let get = |path: &Path, owner: u32| get_of_job::<ServerView>(path, owner, "/v1/server", SHORT_TIMEOUT);
        assert!(get(&socket, us).is_ok());
        for (path, owner) in [(&link, us), (&socket, us + 1)] {
            let error = get(path, owner).unwrap_err().to_string();
            assert!(error.contains(&format!("no socket of user {owner}")), "{error}");
            let posted = post_lines((path, owner), "/v1/checkpoints", &(), |_: ServerView| true);
            assert!(matches!(posted, Err(AdminError::NoSupervisor { .. })), "{posted:?}");
        }
    }

    #[test]
    fn a_server_that_is_stopped_is_not_waited_for_long() {
        let folder = tempfile::tempdir().unwrap();
        let admin = folder.path().join("k.admin");
        let _listener = UnixListener::bind(&admin).unwrap();
        let ask = |limit, is_at_work: fn(i32) -> bool| {
            let began = Instant::now();
            let source = exchange(connect(&admin).unwrap(), "/v1/server", limit, is_at_work).unwrap_err();
            (AdminError::Unreachable { path: admin.clone(), source }, began.elapsed())
        };
        let (stopped, took) = ask(Duration::MAX, |_| false);
        let (late, _) = ask(Duration::ZERO, |_| true);
        assert!(late.is_silence(), "{late}");
        assert!(stopped.is_silence() && stopped.to_string().contains("kill -CONT"), "{stopped}");
        assert!(took >= PEER_IDLE_TIMEOUT);
        // The client waits for a busy server until the limit.
        let (busy, took) = ask(PEER_IDLE_TIMEOUT * 2, |_| true);
        assert!(busy.is_silence() && took >= PEER_IDLE_TIMEOUT * 2, "{busy}");
        assert!(!get::<ServerView>(&folder.path().join("none"), "/v1/server").unwrap_err().is_silence());
        assert!(is_at_work(rustix::process::getpid().as_raw_nonzero().get()));
    }

    #[test]
    fn a_port_of_this_machine_has_several_names() {
        let same = |one: &str, other: &str| is_same(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(same("tcp://0.0.0.0:1", "tcp://localhost:1") && same("tls://127.0.0.1:1", "tls://[::1]:1?certs=/c"));
        assert!(!same("tcp://127.0.0.1:1", "tcp://127.0.0.1:2") && !same("unix:/a", "unix:/b"));
        assert!(!same("unix:/a", "tcp://127.0.0.1:1"));
    }

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
