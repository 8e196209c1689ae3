//! The behavior of all links, on every path.
//!
//! A binary of its own: a test changes what the process does about faults, another counts how often a thread sleeps.

#![expect(clippy::unwrap_used, reason = "bodies of tests that a macro names")]
#![expect(unsafe_code, reason = "memory for data to land in")]

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{ADD, ECHO, EXIT, PRINT, Path, SLOW_ECHO, SUM, link, work};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::{LinkControl, LinkError, ProgramLink, ReplyBuffer};
use katydid_wire::frame::{FrameError, MAX_PAYLOAD_BYTES, ReplyHead};
use rustix::thread::{Pid, gettid};

/// Makes a test of each body for each path. The body gets the program's end, while a worker serves the other.
macro_rules! on_every_path {
    ($($(#[$attribute:meta])* fn $name:ident($link:ident) $body:block)*) => {
        $(mod $name {
            use super::*;
            $(#[$attribute])*
            fn body($link: &dyn ProgramLink) $body
            #[test]
            fn shm() { with_worker(Path::Shm, body); }
            #[test]
            fn shm_quickened() { with_worker(Path::Shm, |link| { link.enable_fast_path(); body(link) }); }
            #[test]
            fn unix() { with_worker(Path::Unix, body); }
            #[test]
            fn tcp() { with_worker(Path::Tcp, body); }
            #[test]
            fn tls() { with_worker(Path::Tls, body); }
        })*
    };
}

fn with_worker(path: Path, body: impl FnOnce(&dyn ProgramLink)) {
    let (connection, worker) = link(path);
    std::thread::scope(|scope| {
        scope.spawn(|| work(worker));
        let link = connection.link;
        body(&*link);
    });
}

on_every_path! {
    fn payloads_of_all_sizes_come_back(link) {
        let mut reply = b"what was there before".to_vec();
        for size in [0, 1, 7, 8, 24, 25, 1000, 65_504, 65_505, 500_000, MAX_PAYLOAD_BYTES - 1, MAX_PAYLOAD_BYTES] {
            let sent: Vec<u8> = (0..size).map(|at| (at * 31 + size) as u8).collect();
            let (first, second) = sent.split_at(size / 3);
            let head = link.call(ECHO, 5, &[first, &[], second], &mut reply).unwrap();
            assert_eq!((head.status, head.deferred, head.output), (0, 0, 0));
            assert!(reply == sent, "{size} bytes");
        }
    }

    fn data_lands_where_the_caller_wants_it(link) {
        let mut reply = Vec::new();
        for size in [1, 60_000, 65_504, 65_533, 65_540, MAX_PAYLOAD_BYTES - 4] {
            let sent: Vec<u8> = (0..size + 4).map(|at| (at * 31 + size) as u8).collect();
            let (head, landed, data) = call_into(link, ECHO, &sent, size, &mut reply);
            assert!(landed && head.status == 0 && data == sent[4..] && reply == sent[..4], "{size} bytes");
        }
    }

    fn replies_that_do_not_fit_their_target_are_read_as_any(link) {
        let mut reply = Vec::new();
        for (opcode, sent, size) in [(ECHO, &b"12345678"[..], 5), (ECHO, b"12345678", 3), (PRINT, b"12345678", 4), (ECHO, b"", 1)] {
            let (head, landed, data) = call_into(link, opcode, sent, size, &mut reply);
            assert!(!landed && head.split(&reply).unwrap().0 == sent && data == vec![0; size]);
        }
    }

    fn threads_get_their_data_whichever_thread_reads_it(link) {
        std::thread::scope(|scope| {
            for thread in 0..6_u8 {
                scope.spawn(move || {
                    for round in 0..40_u8 {
                        let opcode = if round % 10 == 3 { SLOW_ECHO } else { ECHO };
                        let mut sent = vec![thread.wrapping_mul(40).wrapping_add(round); 300_000 + usize::from(thread)];
                        sent[0] = round % 4;
                        let mut reply = Vec::new();
                        let (_, landed, data) = call_into(link, opcode, &sent, sent.len() - 4, &mut reply);
                        assert!(landed && data == sent[4..] && reply == sent[..4], "{thread} {round}");
                        link.call(ECHO, 0, &[&[thread, round]], &mut reply).unwrap();
                        assert_eq!(reply, [thread, round]);
                    }
                });
            }
        });
    }

    fn enqueued_frames_are_executed_in_order_before_a_later_call(link) {
        for _ in 0..10_000 {
            link.enqueue(ADD, 0, &[&[3]]).unwrap();
        }
        let mut reply = Vec::new();
        link.call(SUM, 0, &[], &mut reply).unwrap();
        assert_eq!(reply, 30_000_u64.to_le_bytes());
    }

    fn frames_beyond_the_ring_wait_for_room(link) {
        let bulk = vec![1; 900_000];
        (0..40).for_each(|_| link.enqueue(ADD, 0, &[&bulk]).unwrap());
        let mut reply = Vec::new();
        link.call(SUM, 0, &[], &mut reply).unwrap();
        assert_eq!(reply, 40_u64.to_le_bytes());
    }

    fn a_payload_beyond_the_limit_is_the_callers_fault_and_harms_nothing(link) {
        let large = vec![0; MAX_PAYLOAD_BYTES + 1];
        let error = link.enqueue(ADD, 0, &[&large]).unwrap_err();
        assert!(matches!(error, LinkError::Frame(FrameError::TooLarge { payload }) if payload == large.len()));
        assert!(link.call(ECHO, 0, &[&large], &mut Vec::new()).is_err());
        assert!(link.call(ECHO, 0, &[b"fine"], &mut Vec::new()).is_ok());
    }

    fn status_and_output_travel_with_the_reply(link) {
        let mut reply = Vec::new();
        let head = link.call(PRINT, 0, &[b"payload"], &mut reply).unwrap();
        assert_eq!((head.status, head.deferred), (2, 700));
        let (payload, output) = head.split(&reply).unwrap();
        assert_eq!((payload, output.stdout, output.stderr), (&b"payload"[..], &b"printed"[..], &b"failed"[..]));
    }

    fn threads_get_their_own_replies_in_whatever_order_they_come(link) {
        std::thread::scope(|scope| {
            for thread in 0..16_u8 {
                scope.spawn(move || {
                    let mut reply = Vec::new();
                    for round in 0..200_u8 {
                        let slow = (round % 50 == 7).then_some(SLOW_ECHO);
                        let sent = [(thread + round % 50) % 5, thread, round];
                        link.call(slow.unwrap_or(ECHO), 0, &[&sent], &mut reply).unwrap();
                        assert_eq!(reply, sent);
                        link.enqueue(ADD, 0, &[&[1]]).unwrap();
                    }
                });
            }
        });
        let mut reply = Vec::new();
        link.call(SUM, 0, &[], &mut reply).unwrap();
        assert_eq!(reply, 3200_u64.to_le_bytes());
    }

    fn threads_that_end_give_their_places_back(link) {
        for round in 0..1100_u32 {
            let thread = std::thread::scope(|scope| {
                scope.spawn(|| link.call(ECHO, 0, &[&round.to_le_bytes()], &mut Vec::new()).unwrap().thread).join().unwrap()
            });
            assert!(thread <= 2, "round {round} sits on {thread}");
        }
    }

    fn a_worker_that_ends_is_an_error_for_all_who_wait(link) {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let lost = loop {
                        match link.call(ECHO, 0, &[b"again"], &mut Vec::new()) {
                            Ok(_) => {}
                            Err(error) => break error,
                        }
                    };
                    assert!(matches!(lost, LinkError::Closed), "{lost}");
                });
            }
            link.enqueue(EXIT, 0, &[]).unwrap();
        });
        assert!(matches!(link.call(ECHO, 0, &[], &mut Vec::new()), Err(LinkError::Closed)));
        assert!(matches!(link.enqueue(ADD, 0, &[&[1]]), Err(LinkError::Closed)));
    }

    fn an_abandoned_link_refuses_and_the_worker_sees_the_end(link) {
        link.call(ECHO, 0, &[b"x"], &mut Vec::new()).unwrap();
        link.abandon();
        assert!(matches!(link.call(ECHO, 0, &[], &mut Vec::new()), Err(LinkError::Forked)));
        assert!(matches!(link.enqueue(ADD, 0, &[]), Err(LinkError::Forked)));
    }
}

/// Makes a call with a buffer for `size` bytes after the first four. The third value is the buffer's content.
fn call_into(
    link: &dyn ProgramLink,
    opcode: u16,
    sent: &[u8],
    size: usize,
    reply: &mut Vec<u8>,
) -> (ReplyHead, bool, Vec<u8>) {
    let mut data = vec![0; size];
    // SAFETY: the vector's own bytes, which no other thread knows.
    let target = unsafe { ReplyBuffer::new(data.as_mut_ptr(), size, 4) };
    let (head, landed) = link.call_into(opcode, 0, &[sent], reply, target).unwrap();
    (head, landed, data)
}

/// The program's own thread writes memory that the system may not write to: a handler of its faults expects them in that thread.
#[test]
fn data_lands_in_memory_that_a_handler_of_faults_opens() {
    let page = rustix::param::page_size();
    let size = 64 * page;
    // SAFETY: a new mapping, which this test alone knows; the handler makes it writable at the first touch.
    unsafe {
        let at =
            libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        GUARDED.store(at as usize, std::sync::atomic::Ordering::SeqCst);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = open_guarded as *const () as usize;
        // A fault anywhere else, or a second one, ends the process as usual.
        action.sa_flags = libc::SA_RESETHAND;
        libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
    }
    let at: *mut u8 = std::ptr::with_exposed_provenance_mut(GUARDED.load(std::sync::atomic::Ordering::SeqCst));
    with_worker(Path::Tcp, |link| {
        let sent = vec![7; size + 4];
        // SAFETY: the mapping from above.
        let target = unsafe { ReplyBuffer::new(at, size, 4) };
        let (_, landed) = link.call_into(ECHO, 0, &[&sent], &mut Vec::new(), target).unwrap();
        // SAFETY: the mapping from above.
        assert!(landed && unsafe { std::slice::from_raw_parts(at, size) } == &sent[4..]);
    });
}

/// Address of the guarded memory.
static GUARDED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

extern "C" fn open_guarded(_signal: i32) {
    let at = std::ptr::with_exposed_provenance_mut(GUARDED.load(std::sync::atomic::Ordering::SeqCst));
    // SAFETY: the test's own mapping; the call is one that handlers may make.
    unsafe { libc::mprotect(at, 64 * rustix::param::page_size(), libc::PROT_READ | libc::PROT_WRITE) };
}

#[test]
fn the_worker_reads_everything_before_the_end() {
    for path in [Path::Shm, Path::Unix, Path::Tcp, Path::Tls] {
        let (connection, worker) = link(path);
        for _ in 0..50 {
            connection.link.enqueue(ADD, 0, &[&[2]]).unwrap();
            connection.link.enqueue_lazily(ADD, 0, &[&[2]]).unwrap();
        }
        let hangup = worker.hangup();
        drop(connection);
        hangup.wait();
        assert_eq!(work(worker), 200, "{path:?}");
    }
}

/// No frame waits for a later one, or for its thread: the worker has each before the program does anything else. The frame itself
/// wakes a worker that sleeps; for a lazy frame the worker wakes by itself.
#[test]
fn an_enqueued_frame_arrives_although_nothing_follows_it() {
    for path in [Path::Shm, Path::Unix, Path::Tcp, Path::Tls] {
        let (connection, mut worker) = link(path);
        for (size, is_lazy) in [0, 1, 1500, 200_000].into_iter().flat_map(|size| [(size, false), (size, true)]) {
            let payload = vec![7; size];
            let (came, arrives) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    came.send(None).unwrap();
                    let length = worker.next().unwrap().frame().map(|frame| frame.payload.len());
                    came.send(length).unwrap();
                });
                assert_eq!(arrives.recv().unwrap(), None);
                let (link, parts) = (&connection.link, [&payload[..]]);
                let sent = if is_lazy { link.enqueue_lazily(ADD, 0, &parts) } else { link.enqueue(ADD, 0, &parts) };
                sent.unwrap();
                // Nothing else is sent until it is there.
                assert_eq!(arrives.recv_timeout(hang_limit()).unwrap(), Some(size), "{path:?}");
                reader.join().unwrap();
            });
        }
    }
}

/// Lazy frames leave a worker asleep: it wakes for some of many, and by itself.
#[test]
fn a_worker_sleeps_on_while_lazy_frames_arrive() {
    const FRAMES: u64 = 320;
    let (connection, worker) = link(Path::Shm);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            sender.send(gettid()).unwrap();
            work(worker)
        });
        let (link, thread) = (connection.link, receiver.recv().unwrap());
        let (began, sleeps_before) = (Instant::now(), sleeps(thread));
        for _ in 0..FRAMES {
            link.enqueue_lazily(ADD, 0, &[&[1]]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let slept = sleeps(thread) - sleeps_before;
        // It wakes for one frame of 32, ten times a second by itself, and at its start.
        let by_itself = began.elapsed().as_secs() * 10 + 10;
        let most = FRAMES / 32 + by_itself + 20;
        assert!(slept <= most, "it slept {slept} times, where {most} are enough");
        let mut sum = Vec::new();
        link.call(SUM, 0, &[], &mut sum).unwrap();
        assert_eq!(u64::from_le_bytes(sum.try_into().unwrap()), FRAMES, "all before the call");
    });
}

/// How often a thread of this process has gone to sleep.
fn sleeps(thread: Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{}/status", thread.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// The thread that listens for reclaim notices leaves replies to the threads that wait for them. It still gets a reclaim notice
/// among replies, and one that comes when no thread calls any more.
#[test]
fn a_thread_that_listens_does_not_wake_for_each_reply() {
    /// A thread that sleeps this often a second does not wake for each reply; polling every 20 ms would be 100 times.
    const MAX_SLEEPS_PER_SECOND: f64 = 20.0;
    let listens = |worker: LinkControl, link: &dyn ProgramLink| {
        let (sender, receiver) = channel();
        std::thread::scope(|scope| {
            let listener = scope.spawn(move || {
                sender.send(gettid()).unwrap();
                [link.next_reclaim_notice().unwrap(), link.next_reclaim_notice().unwrap()]
            });
            let thread = receiver.recv().unwrap();
            let busy = || {
                link.call(ECHO, 0, &[b"?"], &mut Vec::new()).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            };
            let (began, sleeps_before) = (Instant::now(), sleeps(thread));
            while began.elapsed() < Duration::from_millis(700) {
                busy();
            }
            let (slept, took) = (sleeps(thread) - sleeps_before, began.elapsed().as_secs_f64());
            let first = worker.request_reclaim().unwrap();
            (0..50).for_each(|_| busy());
            let second = worker.request_reclaim().unwrap();
            assert_eq!(listener.join().unwrap(), [first, second]);
            assert!((slept as f64) < MAX_SLEEPS_PER_SECOND * (1.0 + took), "{slept} times in {took} s");
        });
    };
    for path in [Path::Unix, Path::Tcp, Path::Tls] {
        let (connection, worker) = link(path);
        let link_control = worker.link_control().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| work(worker));
            let link = connection.link;
            listens(link_control, &*link);
        });
    }
}

#[test]
fn several_links_of_a_process_do_not_mix() {
    let links: Vec<_> = [Path::Shm, Path::Shm, Path::Tcp].into_iter().map(link).collect();
    std::thread::scope(|scope| {
        let mut ends = Vec::new();
        for (connection, worker) in links {
            scope.spawn(|| work(worker));
            ends.push(connection.link);
        }
        for round in 0..50_u8 {
            for (index, end) in ends.iter().enumerate() {
                let mut reply = Vec::new();
                end.call(ECHO, 0, &[&[round, index as u8]], &mut reply).unwrap();
                assert_eq!(reply, [round, index as u8]);
            }
        }
    });
}

#[test]
fn a_full_ring_of_a_dead_worker_does_not_hold_the_program() {
    for path in [Path::Shm, Path::Unix] {
        let (connection, worker) = link(path);
        let bulk = vec![0; 1 << 20];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(worker);
            });
            let lost = (0..u64::MAX).find_map(|_| connection.link.enqueue(ADD, 0, &[&bulk]).err());
            assert!(matches!(lost, Some(LinkError::Closed)), "{lost:?}");
        });
    }
}

#[test]
fn staging_is_shared_where_there_is_any() {
    let (connection, worker) = link(Path::Shm);
    let (program_staging, worker_staging) = (connection.link.staging().unwrap(), worker.staging().unwrap());
    let piece = program_staging.take(4).unwrap();
    assert!(program_staging.write(piece, 0, b"bulk"));
    let mut got = [0; 4];
    assert!(worker_staging.read(piece, 0, &mut got) && &got == b"bulk");
    worker_staging.release(piece);
    assert!(!program_staging.is_busy(piece) && connection.pinned.is_some());
    let (connection, worker) = link(Path::Tcp);
    assert!(connection.link.staging().is_none() && worker.staging().is_none() && connection.pinned.is_none());
}
