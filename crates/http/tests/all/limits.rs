//! Limits of a client of a socket that answers HTTP, whatever it sends or does not read.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use katydid_http::{Answer, HttpServer, Limits, Request};
use katydid_tests::deadline::hang::hang_limit;
use tempfile::TempDir;

/// A socket in a folder of its own.
struct Bench {
    server: Option<HttpServer>,
    folder: TempDir,
}

impl Bench {
    fn new(limits: Limits, handler: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let server = HttpServer::start(listener, "test", limits, handler, |error| panic!("{error}")).unwrap();
        Self { server: Some(server), folder }
    }

    /// Creates a socket that answers with the request.
    fn echo(limits: Limits) -> Self {
        Self::new(limits, |request| {
            let body = String::from_utf8_lossy(&request.body);
            Answer::json(200, &format!("{} {} {body}", request.method, request.path))
        })
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(hang_limit())).unwrap();
        stream
    }

    /// Returns everything that comes back, to the end of the connection.
    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may have answered, and hung up, before it has read everything.
        let _ = stream.write_all(request);
        read_answer(&mut stream)
    }
}

fn read_answer(stream: &mut UnixStream) -> String {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&answer)),
    }
    String::from_utf8(answer).unwrap()
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn requests_are_answered_in_both_versions() {
    let bench = Bench::echo(Limits::default());
    for version in ["1.0", "1.1"] {
        let request = format!("POST /v1/x?y HTTP/{version}\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
        let answer = bench.ask(request.as_bytes());
        assert_eq!(status(&answer), "200", "{answer}");
        assert!(answer.ends_with("\r\n\r\n\"POST /v1/x?y abc\""), "{answer}");
        assert!(answer.to_lowercase().contains("content-type: application/json"), "{answer}");
    }
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    assert!(bench.ask(chunked.as_bytes()).ends_with("\"POST / abc\""));
}

#[test]
fn no_announced_length_is_believed() {
    let bench = Bench::echo(Limits::default());
    for length in ["65537", "99999999999", "9223372036854775807"] {
        for method in ["GET", "POST"] {
            let head = format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
            let answer = bench.ask(head.as_bytes());
            assert_eq!(status(&answer), "413", "{method} {length}: {answer}");
            assert!(answer.contains("\"error\":"), "{answer}");
        }
    }
    for length in ["-1", "18446744073709551616"] {
        let answer = bench.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n").as_bytes());
        assert_eq!(status(&answer), "400", "{length}: {answer}");
    }
    for (length, expected) in [(u64::MAX - 2, "413"), (u64::MAX - 1, "431"), (u64::MAX, "431")] {
        let answer = bench.ask(format!("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n").as_bytes());
        assert_eq!(status(&answer), expected, "docs/reference/admin-api.md says so of {length}: {answer}");
    }
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n";
    assert_eq!(status(&bench.ask(format!("{head}{}", "x".repeat(0x20000)).as_bytes())), "413");
    assert_eq!(status(&bench.ask(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")), "200");
}

#[test]
fn heads_are_bounded() {
    let bench = Bench::echo(Limits::default());
    let long = format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(status(&bench.ask(long.as_bytes())), "431");
    let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(1000));
    assert_eq!(status(&bench.ask(many.as_bytes())), "431");
    assert_eq!(status(&bench.ask(b"\x16\x03\x01 something else\r\n\r\n")), "400");
}

#[test]
fn slow_request_is_disconnected_at_the_timeout() {
    let bench = Bench::echo(Limits { request_timeout: Duration::from_millis(300), ..Limits::default() });
    for request_start in
        ["", "GET / HTTP/1.1\r\nHost: h\r\n", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n\r\nab"]
    {
        let mut stream = bench.connect();
        stream.write_all(request_start.as_bytes()).unwrap();
        // Occasional bytes do not extend the time limit.
        let mut drip = stream.try_clone().unwrap();
        let dripping = thread::spawn(move || {
            while drip.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        assert_eq!(read_answer(&mut stream), "", "after {request_start:?}");
        dripping.join().unwrap();
    }
}

#[test]
fn silent_connections_make_room_for_others() {
    let bench = Bench::echo(Limits { pending_connections: 4, request_timeout: hang_limit(), ..Limits::default() });
    let mut silent: Vec<UnixStream> = (0..100).map(|_| bench.connect()).collect();
    assert_eq!(status(&bench.ask(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")), "200");
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0, "the oldest goes");
    silent[99].set_nonblocking(true).unwrap();
    assert_eq!(silent[99].read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "the newest stays");
}

/// Bytes of an answer that no socket buffers.
const LARGE_ANSWER_BYTES: usize = 8 << 20;

#[test]
fn an_answer_is_read_to_its_end_under_a_flood_of_connections() {
    let limits = Limits {
        pending_connections: 4,
        answered_requests: 2,
        request_timeout: hang_limit(),
        answer_timeout: hang_limit(),
        ..Limits::default()
    };
    let bench = Bench::new(limits, |_| Answer::json(200, &"x".repeat(LARGE_ANSWER_BYTES)));
    let mut readers: Vec<UnixStream> = (0..2).map(|_| bench.connect()).collect();
    for reader in &mut readers {
        reader.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        reader.read_exact(&mut [0; 16]).unwrap();
    }
    let _flood: Vec<UnixStream> = (0..100).map(|_| bench.connect()).collect();
    assert_eq!(status(&bench.ask(b"GET / HTTP/1.0\r\n\r\n")), "503", "both places are taken");
    for reader in &mut readers {
        assert!(read_answer(reader).len() > LARGE_ANSWER_BYTES, "the answer was cut off");
    }
    until_answered(&bench);
}

#[test]
fn work_goes_on_for_its_client_under_a_flood_of_connections() {
    let (begin, begin_signal) = mpsc::channel();
    let begin_signal = Mutex::new(begin_signal);
    let limits =
        Limits { pending_connections: 4, answered_requests: 1, request_timeout: hang_limit(), ..Limits::default() };
    let bench = Bench::new(limits, move |request| {
        if request.method == "POST" {
            begin_signal.lock().unwrap().recv().unwrap();
        }
        Answer::json(200, &"done")
    });
    let mut asker = bench.connect();
    asker.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
    let _flood: Vec<UnixStream> = (0..100).map(|_| bench.connect()).collect();
    while status(&bench.ask(b"GET / HTTP/1.0\r\n\r\n")) != "503" {}
    begin.send(()).unwrap();
    assert!(read_answer(&mut asker).ends_with("\"done\""));
}

/// A slot is free again once its client has read the answer.
fn until_answered(bench: &Bench) {
    while status(&bench.ask(b"GET / HTTP/1.0\r\n\r\n")) != "200" {
        thread::sleep(Duration::from_millis(1));
    }
}

/// More lines than a socket and a connection buffer.
const LINE_COUNT: usize = 20_000;

#[test]
fn slow_reader_does_not_block_the_work_and_gets_the_last_line() {
    let (done, is_done) = mpsc::channel();
    let done = Mutex::new(done);
    let limits = Limits { answer_timeout: hang_limit(), ..Limits::default() };
    let bench = Bench::new(limits, move |_| {
        let done = done.lock().unwrap().clone();
        Answer::lines(move |lines| {
            (0..LINE_COUNT).for_each(|_| lines.send(&"x".repeat(100)));
            done.send(()).unwrap();
            lines.finish(&"the end");
        })
    });
    let mut stream = bench.connect();
    stream.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
    is_done.recv_timeout(hang_limit()).expect("the work waits for its client");
    let answer = read_answer(&mut stream);
    assert!(answer.ends_with("\n\"the end\"\n"), "{}", &answer[answer.len() - 200..]);
    assert!(answer.lines().count() < LINE_COUNT, "nothing was left out: the test shows nothing");
}

#[test]
fn client_that_never_reads_is_dropped() {
    let limits = Limits { answer_timeout: Duration::from_millis(200), ..Limits::default() };
    let mut bench = Bench::new(limits, |_| {
        Answer::lines(|lines| {
            (0..LINE_COUNT).for_each(|_| lines.send(&"x".repeat(100)));
            lines.finish(&"the end");
        })
    });
    let mut stream = bench.connect();
    stream.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
    assert!(stream.read(&mut [0; 16]).unwrap() > 0);
    // Returns when no thread works for it, or waits for it, any more.
    bench.server.take().unwrap().close();
}

/// Reads to the end of a line.
fn line(stream: &mut UnixStream) -> String {
    let (mut seen, mut byte) = (Vec::new(), [0]);
    while !seen.ends_with(b"\"\n") {
        stream.read_exact(&mut byte).unwrap();
        seen.extend(byte);
    }
    String::from_utf8(seen).unwrap()
}

#[test]
fn work_beyond_the_limit_is_refused_and_others_are_answered_meanwhile() {
    let goes_on = Arc::new(AtomicBool::new(true));
    let flag = Arc::clone(&goes_on);
    let mut bench = Bench::new(Limits { streamed_answers: 2, ..Limits::default() }, move |request| {
        let flag = Arc::clone(&flag);
        match request.method.as_str() {
            "GET" => Answer::json(200, &"here"),
            _ => Answer::lines(move |lines| {
                lines.send(&"begun");
                while flag.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(5));
                }
                lines.finish(&"done");
            }),
        }
    });
    let mut working: Vec<UnixStream> = (0..2).map(|_| bench.connect()).collect();
    for stream in &mut working {
        stream.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
        assert!(line(stream).ends_with("\"begun\"\n"));
    }
    let refused = bench.ask(b"POST / HTTP/1.0\r\n\r\n");
    assert_eq!(status(&refused), "503", "{refused}");
    assert_eq!(status(&bench.ask(b"GET / HTTP/1.0\r\n\r\n")), "200");
    // Closing the socket lets the current request finish.
    let closing = bench.server.take().unwrap();
    let closed = thread::spawn(move || closing.close());
    goes_on.store(false, Ordering::Release);
    closed.join().unwrap();
    for mut stream in working {
        assert_eq!(read_answer(&mut stream), "\"done\"\n");
    }
    assert!(UnixStream::connect(bench.folder.path().join("socket")).is_err());
}

#[test]
fn a_handler_that_panics_ends_one_request() {
    let bench = Bench::new(Limits::default(), |request| match request.path.as_str() {
        "/panic" => panic!("as asked"),
        _ => Answer::json(200, &1),
    });
    assert_eq!(status(&bench.ask(b"GET /panic HTTP/1.0\r\n\r\n")), "500");
    assert_eq!(status(&bench.ask(b"GET / HTTP/1.0\r\n\r\n")), "200");
}
