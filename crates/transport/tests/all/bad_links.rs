//! Networks that stop, lose bytes or die: a call ends with an error or with its whole reply, never with a part of it, and the
//! server continues to serve others.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "memory for data to land in")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{ADD, ECHO, EXIT, Path, SUM, Server, answer, answer_in_parts, build, hello, work};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{LinkControl, LinkError, ProgramLink, ReplyBuffer, WorkerLink};
use katydid_wire::frame::HEAD_BYTES;
use katydid_wire::handshake::LinkKind;

/// Bytes of a bulk reply's message, the length in front included.
const BULK_BYTES: usize = 700_004;

/// A link over a network of its own, and the worker's end of it.
fn link_over(server: &Server) -> (Proxy, Box<dyn ProgramLink>, Box<dyn WorkerLink>) {
    let proxy = Proxy::to(&server.address);
    let (link, worker) = thread::scope(|scope| {
        let worker = scope.spawn(|| server.serve());
        let connection = connect(&proxy.address, &hello(LinkKind::STREAM), &build(), hang_limit()).unwrap();
        (connection.link, worker.join().unwrap())
    });
    (proxy, link, worker)
}

/// Requests a bulk reply that echoes `sent`. Returns all of it, or the error.
fn bulk(link: &dyn ProgramLink, sent: &[u8]) -> Result<Vec<u8>, LinkError> {
    let mut data = vec![0; sent.len() - 4];
    // SAFETY: the vector's own bytes, which no other thread knows until the call is over.
    let target = unsafe { ReplyBuffer::new(data.as_mut_ptr(), data.len(), 4) };
    let (_, landed) = link.call_into(ECHO, 0, &[sent], &mut Vec::new(), target)?;
    assert!(landed, "a reply came that is not the one that was asked for");
    Ok(data)
}

/// A worker that echoes for as long as its link holds: it notices the end while it answers, or when it wants the next frame.
fn echo(mut worker: Box<dyn WorkerLink>) {
    let replier = worker.replier();
    while let Ok(Some(frame)) = worker.next().map(|event| event.frame()) {
        let (thread, sequence, payload) = (frame.head.thread, frame.head.sequence, frame.payload.to_vec());
        let _ = answer_in_parts(&replier, thread, sequence, payload.split_at(payload.len().min(4)));
    }
}

/// Checks that the server serves another program.
fn goes_on(server: &Server) {
    let (_proxy, link, worker) = link_over(server);
    thread::scope(|scope| {
        scope.spawn(move || work(worker));
        link.call(ECHO, 0, &[b"still there"], &mut Vec::new()).unwrap();
        drop(link);
    });
}

#[test]
fn a_link_that_dies_within_a_bulk_reply_is_an_error_wherever_it_dies() {
    let server = Server::new(Path::Tcp);
    let sent: Vec<u8> = (0..BULK_BYTES).map(|at| (at % 253) as u8).collect();
    for bytes in [
        0,
        1,
        HEAD_BYTES - 1,
        HEAD_BYTES,
        HEAD_BYTES + 3,
        HEAD_BYTES + 4,
        HEAD_BYTES + 70_000,
        HEAD_BYTES + BULK_BYTES - 1,
    ] {
        let (proxy, link, worker) = link_over(&server);
        thread::scope(|scope| {
            scope.spawn(move || echo(worker));
            assert_eq!(bulk(&*link, &sent).unwrap(), sent[4..]);
            proxy.back.cut_after(bytes as u64);
            assert!(bulk(&*link, &sent).is_err(), "cut after {bytes} bytes");
            assert!(matches!(link.call(ECHO, 0, &[b"x"], &mut Vec::new()), Err(LinkError::Closed)), "{bytes}");
            drop(link);
        });
    }
    goes_on(&server);
}

#[test]
fn all_threads_that_wait_for_bulk_fail_at_the_end() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    let sent = vec![5; BULK_BYTES];
    thread::scope(|scope| {
        scope.spawn(move || echo(worker));
        proxy.back.cut_after((2 * (HEAD_BYTES + BULK_BYTES) + 100_000) as u64);
        let callers: Vec<_> = (0..5).map(|_| scope.spawn(|| bulk(&*link, &sent))).collect();
        let came: Vec<_> = callers.into_iter().map(|thread| thread.join().unwrap()).collect();
        let whole = came.iter().filter(|came| came.as_ref().is_ok_and(|data| data == &sent[4..])).count();
        let failed = came.iter().filter(|came| came.is_err()).count();
        // A dying connection may lose what was under way, but never delivers a part as the whole.
        assert!(whole <= 2 && whole + failed == 5, "{whole} came whole, {failed} failed");
    });
    goes_on(&server);
}

#[test]
fn a_link_that_dies_within_a_request_ends_that_session_alone() {
    let server = Server::new(Path::Tcp);
    for bytes in [1, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 5000] {
        let (proxy, link, mut worker) = link_over(&server);
        proxy.there.cut_after(bytes as u64);
        thread::scope(|scope| {
            let ended = scope.spawn(move || worker.next().map(|event| event.frame().is_some()));
            // Sending may succeed: the system buffers it.
            let _ = link.enqueue(ADD, 0, &[&[1; 600_000]]);
            assert!(matches!(ended.join().unwrap(), Err(LinkError::Protocol { .. })), "cut after {bytes} bytes");
            assert!(link.call(SUM, 0, &[], &mut Vec::new()).is_err());
        });
    }
    goes_on(&server);
}

#[test]
fn a_lost_frame_is_noticed_by_the_next_one() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    proxy.there.lose_after(HEAD_BYTES as u64 + 1, HEAD_BYTES as u64 + 1);
    thread::scope(|scope| {
        let ended = scope.spawn(move || {
            let mut worker = worker;
            let first = worker.next().unwrap().frame().is_some();
            (first, worker.next().map(|event| event.frame().is_some()))
        });
        (0..3).for_each(|_| link.enqueue(ADD, 0, &[&[1]]).unwrap());
        assert!(matches!(ended.join().unwrap(), (true, Err(LinkError::Protocol { .. }))));
    });
}

#[test]
fn bytes_lost_within_a_request_are_noticed_by_the_next_one() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    proxy.there.lose_after(HEAD_BYTES as u64 + 100, 7);
    thread::scope(|scope| {
        let ended = scope.spawn(move || {
            let mut worker = worker;
            loop {
                if let Err(error) = worker.next() {
                    break error;
                }
            }
        });
        for _ in 0..3 {
            let _ = link.enqueue(ADD, 0, &[&[1; 1000]]);
        }
        drop(link);
        let error = ended.join().unwrap();
        assert!(matches!(error, LinkError::Protocol { .. } | LinkError::Frame(_)), "{error}");
    });
}

/// What a forger, or a broken network, removes from an encrypted stream is noticed at once, in both directions.
#[test]
fn an_encrypted_link_that_loses_bytes_or_dies_passes_nothing_off_as_whole() {
    let server = Server::new(Path::Tls);
    let sent: Vec<u8> = (0..BULK_BYTES).map(|at| (at % 253) as u8).collect();
    for bytes in [0, 4, 21, 70_000, 600_000] {
        for is_cut in [false, true] {
            let (proxy, link, worker) = link_over(&server);
            thread::scope(|scope| {
                scope.spawn(move || echo(worker));
                assert_eq!(bulk(&*link, &sent).unwrap(), sent[4..]);
                if is_cut {
                    proxy.back.cut_after(bytes)
                } else {
                    proxy.back.lose_after(bytes, 40)
                }
                assert!(bulk(&*link, &sent).is_err(), "{bytes} bytes, cut: {is_cut}");
                drop(link);
            });
            let (proxy, link, mut worker) = link_over(&server);
            if is_cut {
                proxy.there.cut_after(bytes)
            } else {
                proxy.there.lose_after(bytes, 40)
            }
            thread::scope(|scope| {
                let ended = scope.spawn(move || worker.next().map(|event| event.frame().is_some()));
                let _ = link.enqueue(ADD, 0, &[&[1; 700_000]]);
                // A cut before the first byte is an ordinary end.
                let ended = ended.join().unwrap();
                assert!(
                    ended.is_err() || (is_cut && bytes < 40 && matches!(ended, Ok(false))),
                    "{bytes}, cut: {is_cut}"
                );
                assert!(link.call(SUM, 0, &[], &mut Vec::new()).is_err());
            });
        }
    }
    goes_on(&server);
}

/// No thread waits for ever for a network that has stopped, in either direction and anywhere in a frame: all waiting threads get
/// an error.
#[test]
fn a_link_that_stalls_is_an_error_for_all_who_wait() {
    for path in [Path::Tcp, Path::Tls] {
        let server = Server::new(path);
        for (is_back, bytes) in [(true, 0), (true, 40), (true, 300_000), (false, 0), (false, 300_000)] {
            let (proxy, link, worker) = link_over(&server);
            stalls(&proxy, &*link, worker, (is_back, bytes));
        }
        goes_on(&server);
    }
}

/// Three threads request bulk, and the network stops after some bytes of one direction.
fn stalls(proxy: &Proxy, link: &dyn ProgramLink, worker: Box<dyn WorkerLink>, (is_back, bytes): (bool, u64)) {
    let sent = vec![7; BULK_BYTES];
    link.limit_silence(Duration::from_millis(200)).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || echo(worker));
        if is_back {
            proxy.back.hold_after(bytes);
        } else {
            proxy.there.hold_after(bytes);
        }
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(|| bulk(link, &sent))).collect();
        let errors: Vec<_> = callers.into_iter().map(|caller| caller.join().unwrap().unwrap_err()).collect();
        assert!(errors.iter().any(|error| matches!(error, LinkError::Stalled { .. })), "{errors:?}");
        // The network works again, and nothing that it held back counts as an answer.
        proxy.back.release();
        proxy.there.release();
        assert!(matches!(link.call(ECHO, 0, &[b"x"], &mut Vec::new()), Err(LinkError::Closed)));
    });
}

/// A thread that only sends notices as well, once the system accepts no more.
#[test]
fn a_link_that_takes_nothing_more_is_an_error_for_who_sends() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    link.limit_silence(Duration::from_millis(200)).unwrap();
    proxy.there.hold_after(0);
    let error = (0..1000).find_map(|_| link.enqueue(ADD, 0, &[&[1; 1_000_000]]).err()).unwrap();
    assert!(matches!(error, LinkError::Stalled { .. }), "{error}");
    assert!(matches!(link.enqueue(ADD, 0, &[&[1]]), Err(LinkError::Closed)));
    drop((link, worker));
    proxy.there.release();
    goes_on(&server);
}

/// How long a program waits for a sign of life from a worker that sends them.
const SILENCE: Duration = Duration::from_millis(600);
/// More than two such times.
const LONG: Duration = Duration::from_millis(1500);

/// Gives signs of life until the test stops it.
fn beat_until(link_control: &LinkControl, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        link_control.send_heartbeat();
        thread::sleep(Duration::from_millis(20));
    }
}

/// Sets the flag when dropped, so that a failed test ends.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A worker that is busy for long, and reads nothing meanwhile. Returns the errors of waiting and sending threads.
fn busy_worker(server: &Server) -> (Result<(), LinkError>, Result<(), LinkError>) {
    let (_proxy, link, mut worker) = link_over(server);
    link.limit_silence(SILENCE).unwrap();
    let (replier, link_control, done) = (worker.replier(), worker.link_control().unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        let beats = Done(&done);
        scope.spawn(|| beat_until(&link_control, &done));
        let waits = scope.spawn(|| link.call(ECHO, 0, &[b"a long kernel"], &mut Vec::new()).map(|_| ()));
        let frame = worker.next().unwrap().frame().unwrap();
        let (thread, sequence) = (frame.head.thread, frame.head.sequence);
        // Far more than the system keeps for a worker that does not read.
        let sends = scope.spawn(|| (0..40).try_for_each(|_| link.enqueue(ADD, 0, &[&[1; 1_000_000]])));
        thread::sleep(LONG);
        let _ = answer_in_parts(&replier, thread, sequence, (b"", b""));
        drop(beats);
        while worker.next().is_ok_and(|event| event.frame().is_some_and(|frame| frame.head.sequence < 40)) {}
        (waits.join().unwrap(), sends.join().unwrap())
    })
}

/// A long kernel, and a worker that reads nothing for long, are no stall: the worker sends heartbeats.
#[test]
fn a_worker_that_is_busy_is_no_stall() {
    for path in [Path::Tcp, Path::Tls] {
        let server = Server::new(path);
        // On a busy machine this test's network may stall at times. A program that takes a busy worker for a stall does so every
        // time: the worker is busy for longer than any thread waits.
        let errors: Vec<_> =
            (0..50).map(|_| busy_worker(&server)).take_while(|errors| !matches!(errors, (Ok(()), Ok(())))).collect();
        assert!(errors.len() < 50, "{errors:?}");
    }
}

/// Signs of life do not help requests that do not get through. The worker waits for the rest of a frame, or knows nothing of a
/// frame, while it owes another thread an answer.
#[test]
fn requests_that_do_not_arrive_are_noticed_although_the_worker_gives_signs() {
    for (path, bytes) in [(Path::Tcp, 0), (Path::Tcp, 20), (Path::Tcp, 300_000), (Path::Tls, 0)] {
        let server = Server::new(path);
        let (proxy, link, mut worker) = link_over(&server);
        link.limit_silence(Duration::from_millis(200)).unwrap();
        let (link_control, done) = (worker.link_control().unwrap(), AtomicBool::new(false));
        thread::scope(|scope| {
            let _done = Done(&done);
            scope.spawn(|| beat_until(&link_control, &done));
            let owed = scope.spawn(|| link.call(ECHO, 0, &[b"for ever"], &mut Vec::new()).map(|_| ()));
            assert!(worker.next().unwrap().frame().is_some());
            proxy.there.hold_after(bytes);
            let reads = scope.spawn(move || worker.next().map(|event| event.frame().is_some()));
            assert!(link.call(ECHO, 0, &[&[0; 500_000]], &mut Vec::new()).is_err());
            assert!(owed.join().unwrap().is_err());
            proxy.there.release();
            // The data held back may arrive complete, or be followed by the end.
            let _ = reads.join().unwrap();
        });
        goes_on(&server);
    }
}

/// An idle worker sends nothing.
#[test]
fn an_idle_link_is_silent() {
    let server = Server::new(Path::Tcp);
    let (_proxy, link, mut worker) = link_over(&server);
    let (replier, link_control) = (worker.replier(), worker.link_control().unwrap());
    let (answered, answers) = mpsc::channel();
    assert!(link_control.send_heartbeat(), "a worker that does not wait for a frame says that it is there");
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Some(frame) = worker.next().unwrap().frame() {
                answer(&replier, frame.head.thread, frame.head.sequence, &[]);
                answered.send(()).unwrap();
            }
        });
        link.call(SUM, 0, &[], &mut Vec::new()).unwrap();
        // While it sends it sends no heartbeat. Afterwards it sends heartbeats until it waits for the next frame.
        answers.recv().unwrap();
        while link_control.send_heartbeat() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!((0..50).all(|_| !link_control.send_heartbeat()));
        link.call(SUM, 0, &[], &mut Vec::new()).unwrap();
        drop(link);
    });
}

/// A network that holds everything back blocks no thread that did not request an answer.
#[test]
fn enqueues_do_not_wait_for_the_network() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    thread::scope(|scope| {
        scope.spawn(move || work(worker));
        proxy.there.hold_after(0);
        (0..1000).for_each(|_| link.enqueue(ADD, 0, &[&[1]]).unwrap());
        proxy.there.release();
        let mut sum = Vec::new();
        link.call(SUM, 0, &[], &mut sum).unwrap();
        assert_eq!(sum, 1000_u64.to_le_bytes());
        drop(link);
    });
}

/// A stall in the middle of a bulk reply is waited out, and no data is lost.
#[test]
fn a_reply_that_stops_on_its_way_comes_whole() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    let sent: Vec<u8> = (0..BULK_BYTES).map(|at| (at % 241) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(move || work(worker));
        for bytes in [5, HEAD_BYTES as u64, 300_000] {
            proxy.back.hold_after(bytes);
            let caller = scope.spawn(|| bulk(&*link, &sent));
            // Other threads with requests wait meanwhile, and do not get this reply.
            let other = scope.spawn(|| {
                let mut reply = Vec::new();
                link.call(ECHO, 0, &[b"other"], &mut reply).map(|_| reply)
            });
            proxy.back.release();
            assert_eq!(caller.join().unwrap().unwrap(), sent[4..]);
            assert_eq!(other.join().unwrap().unwrap(), b"other");
        }
        link.enqueue(EXIT, 0, &[]).unwrap();
    });
}

/// The requests of several threads reach the worker before it answers the first one: a long network delay counts once.
#[test]
fn requests_of_several_threads_are_on_their_way_together() {
    let server = Server::new(Path::Tcp);
    let (_proxy, link, mut worker) = link_over(&server);
    thread::scope(|scope| {
        let callers: Vec<_> = (0..4_u8)
            .map(|number| {
                let link = &link;
                scope.spawn(move || bulk(&**link, &vec![number; 10_000]).unwrap())
            })
            .collect();
        let replier = worker.replier();
        let requests: Vec<_> = (0..4)
            .map(|_| {
                let frame = worker.next().unwrap().frame().unwrap();
                (frame.head.thread, frame.head.sequence, frame.payload.to_vec())
            })
            .collect();
        // The last one first: the worker chooses the order of answers.
        for (thread, sequence, payload) in requests.iter().rev() {
            answer(&replier, *thread, *sequence, payload);
        }
        for (number, caller) in callers.into_iter().enumerate() {
            assert_eq!(caller.join().unwrap(), vec![number as u8; 9_996]);
        }
    });
}
