//! Networks that stop, lose bytes or die: a call ends with an error or with all it asked for, never with a part of it, and
//! the server goes on with others.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "memory for data to land in")]

mod common;

use std::thread;

use common::proxy::Proxy;
use common::{ADD, ECHO, EXIT, PATIENCE, Path, SUM, Server, answer, answer_in_parts, build, hello, work};
use katydid_transport::{Landing, LinkError, ProgramLink, WorkerLink, connect};
use katydid_wire::frame::HEAD;
use katydid_wire::handshake::LinkKind;

/// Bytes of a bulk reply's message, the length in front included.
const BULK: usize = 700_004;

/// A link over a network of its own, and the worker's end of it.
fn link_over(server: &Server) -> (Proxy, Box<dyn ProgramLink>, Box<dyn WorkerLink>) {
    let proxy = Proxy::to(&server.address);
    let (link, worker) = thread::scope(|scope| {
        let worker = scope.spawn(|| server.serve());
        let connection = connect(&proxy.address, &hello(LinkKind::STREAM), &build(), PATIENCE).unwrap();
        (connection.link, worker.join().unwrap())
    });
    (proxy, link, worker)
}

/// Asks for a bulk reply that echoes `sent`; whether all of it landed.
fn bulk(link: &dyn ProgramLink, sent: &[u8]) -> Result<Vec<u8>, LinkError> {
    let mut data = vec![0; sent.len() - 4];
    // SAFETY: the vector's own bytes, which nobody else knows until the call is over.
    let landing = unsafe { Landing::new(data.as_mut_ptr(), data.len(), 4) };
    let (_, landed) = link.call_landing(ECHO, 0, &[sent], &mut Vec::new(), landing)?;
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

/// The server serves somebody else.
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
    let sent: Vec<u8> = (0..BULK).map(|at| (at % 253) as u8).collect();
    for bytes in [0, 1, HEAD - 1, HEAD, HEAD + 3, HEAD + 4, HEAD + 70_000, HEAD + BULK - 1] {
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
fn all_threads_that_wait_for_bulk_hear_of_the_end() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    let sent = vec![5; BULK];
    thread::scope(|scope| {
        scope.spawn(move || echo(worker));
        proxy.back.cut_after((2 * (HEAD + BULK) + 100_000) as u64);
        let asked: Vec<_> = (0..5).map(|_| scope.spawn(|| bulk(&*link, &sent))).collect();
        let came: Vec<_> = asked.into_iter().map(|thread| thread.join().unwrap()).collect();
        let whole = came.iter().filter(|came| came.as_ref().is_ok_and(|data| data == &sent[4..])).count();
        let failed = came.iter().filter(|came| came.is_err()).count();
        // A connection that dies may take with it what was under way, but passes nothing off as whole.
        assert!(whole <= 2 && whole + failed == 5, "{whole} came whole, {failed} failed");
    });
    goes_on(&server);
}

#[test]
fn a_link_that_dies_within_a_request_ends_that_session_alone() {
    let server = Server::new(Path::Tcp);
    for bytes in [1, HEAD - 1, HEAD, HEAD + 5000] {
        let (proxy, link, mut worker) = link_over(&server);
        proxy.there.cut_after(bytes as u64);
        thread::scope(|scope| {
            let ended = scope.spawn(move || worker.next().map(|event| event.frame().is_some()));
            // Sending may succeed: what is on its way is the system's.
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
    proxy.there.lose_after(HEAD as u64 + 1, HEAD as u64 + 1);
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
    proxy.there.lose_after(HEAD as u64 + 100, 7);
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

/// What a forger, or a broken network, takes out of a sealed stream is noticed at once, in both directions.
#[test]
fn a_sealed_link_that_loses_bytes_or_dies_passes_nothing_off_as_whole() {
    let server = Server::new(Path::Tls);
    let sent: Vec<u8> = (0..BULK).map(|at| (at % 253) as u8).collect();
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
                // A cut before the first byte is an end like any.
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

/// A network that holds everything back makes nobody wait who did not ask for an answer.
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

/// A stop in the middle of a bulk reply is waited out, and nothing of it is lost.
#[test]
fn a_reply_that_stops_on_its_way_comes_whole() {
    let server = Server::new(Path::Tcp);
    let (proxy, link, worker) = link_over(&server);
    let sent: Vec<u8> = (0..BULK).map(|at| (at % 241) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(move || work(worker));
        for bytes in [5, HEAD as u64, 300_000] {
            proxy.back.hold_after(bytes);
            let asked = scope.spawn(|| bulk(&*link, &sent));
            // Others that ask meanwhile wait as well, and are not answered in its place.
            let other = scope.spawn(|| {
                let mut reply = Vec::new();
                link.call(ECHO, 0, &[b"other"], &mut reply).map(|_| reply)
            });
            proxy.back.release();
            assert_eq!(asked.join().unwrap().unwrap(), sent[4..]);
            assert_eq!(other.join().unwrap().unwrap(), b"other");
        }
        link.enqueue(EXIT, 0, &[]).unwrap();
    });
}

/// Several threads have their requests at the worker before the first of them is answered: a long way costs its time once.
#[test]
fn requests_of_several_threads_are_on_their_way_together() {
    let server = Server::new(Path::Tcp);
    let (_proxy, link, mut worker) = link_over(&server);
    thread::scope(|scope| {
        let asked: Vec<_> = (0..4_u8)
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
        // The last one first: the order of answers is the worker's.
        for (thread, sequence, payload) in requests.iter().rev() {
            answer(&replier, *thread, *sequence, payload);
        }
        for (number, asked) in asked.into_iter().enumerate() {
            assert_eq!(asked.join().unwrap(), vec![number as u8; 9_996]);
        }
    });
}
