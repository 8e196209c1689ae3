//! A connection that could not be accepted, because all descriptors are in use, does not stop the server.
//!
//! A binary of its own: the test takes every descriptor that the process may have.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc;

use katydid_http::{Answer, HttpServer, Limits};
use katydid_tests::deadline::hang::hang_limit;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_connection_that_could_not_be_taken_is_not_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (problem, problems) = mpsc::channel();
    let on_problem = move |error: &std::io::Error| problem.send(error.raw_os_error()).unwrap_or(());
    let _server =
        HttpServer::start(listener, "test", Limits::default(), |_| Answer::json(200, &1), on_problem).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..before }).unwrap();
    let mut all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // Room for the client's end, and for no other.
    all.pop().unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let refused = Some(rustix::io::Errno::MFILE.raw_os_error());
    assert_eq!(problems.recv_timeout(hang_limit()).unwrap(), refused);
    drop(all);
    stream.set_read_timeout(Some(hang_limit())).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("200 OK"), "{answer}");
}
