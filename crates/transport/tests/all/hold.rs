//! A program that is held, detaches from its worker and resumes, while its threads are busy.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread::{self, ScopedJoinHandle};

use crate::common::{self, ADD, ECHO, EXIT, Path, SUM, Server, build, hello, work};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{
    AttachError, ConnectError, ConnectedLink, LinkControl, LinkError, LinkEvent, Pending, ProgramLink, StagingPiece,
    WorkerLink, bypass_gate, with_lock_held,
};
use katydid_wire::handshake::{Hello, LinkKind, Ready};
use katydid_wire::key::SessionKey;
use rustix::event::{PollFd, PollFlags, poll};

const KEY: SessionKey = SessionKey([9; 16]);
const LINK_PATHS: [Path; 4] = [Path::Shm, Path::Unix, Path::Tcp, Path::Tls];

/// A server that stays for programs that come back.
struct Host {
    server: Server,
    kind: LinkKind,
}

impl Host {
    fn new(path: Path) -> Self {
        let kind = if matches!(path, Path::Shm) { LinkKind::SHM } else { LinkKind::STREAM };
        Self { server: Server::new(path), kind }
    }

    /// Without an arena of pinned memory, which no test here maps.
    fn hello(&self) -> Hello {
        Hello { arenas: vec![], ..hello(self.kind) }
    }

    fn accept(&self) -> (Pending, Ready) {
        let pending = self.server.greet().unwrap();
        let arenas = pending.hello().arenas.clone();
        (pending, Ready { worker_pid: 1, key: KEY, driver: "none".into(), arenas })
    }

    fn link(&self) -> (ConnectedLink, Box<dyn WorkerLink>) {
        thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let (pending, ready) = self.accept();
                pending.open(&build(), &ready, 0).unwrap()
            });
            let connection = connect(&self.server.address, &self.hello(), &build(), hang_limit()).unwrap();
            (connection, worker.join().unwrap())
        })
    }

    /// Detaches the program and resumes it. The worker and `program` stay the same.
    fn round<T>(&self, connection: &ConnectedLink, link_control: &LinkControl, program: &ScopedJoinHandle<'_, T>) {
        assert!(!program.is_finished());
        let gate = connection.link.quiesce_gate().unwrap();
        let frames = gate.hold();
        link_control.detach();
        assert_eq!(gate.detach().unwrap(), frames);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (pending, ready) = self.accept();
                assert_eq!((pending.hello().claim.key, pending.hello().claim.frames), (KEY, frames));
                link_control.attach(pending, &build(), &ready).unwrap();
            });
            gate.resume(&self.server.address, KEY, hang_limit()).unwrap();
        });
        assert_eq!(gate.frames(), frames);
        gate.release();
    }
}

/// Runs four threads that add and echo until `over` is set. Returns what they added.
fn busy(connection: &ConnectedLink, over: &AtomicBool) -> u64 {
    let added = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..4_u8 {
            let added = &added;
            scope.spawn(move || {
                let mut reply = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    connection.link.enqueue(ADD, 0, &[&[number]]).unwrap();
                    added.fetch_add(number.into(), Ordering::Relaxed);
                    connection.link.call(ECHO, 0, &[&[number; 100]], &mut reply).unwrap();
                    assert_eq!(reply, [number; 100]);
                }
            });
        }
    });
    added.into_inner()
}

#[test]
fn threads_do_not_notice_that_their_program_leaves_and_comes_back() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        let link_control = worker.link_control().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let worker = scope.spawn(|| work(worker));
            let program = scope.spawn(|| busy(&connection, &over));
            (0..50).for_each(|_| host.round(&connection, &link_control, &program));
            over.store(true, Ordering::Relaxed);
            let added = program.join().unwrap();
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
            assert_eq!(worker.join().unwrap(), added, "{path:?}");
        });
    }
}

/// A call whose reply comes only after the program's return is answered then.
#[test]
fn a_thread_that_waits_for_its_reply_waits_on() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        let link_control = worker.link_control().unwrap();
        let reply_barrier = Arc::new(Barrier::new(2));
        thread::scope(|scope| {
            let held = Arc::clone(&reply_barrier);
            scope.spawn(move || late_echo(worker, &held));
            let caller = scope.spawn(|| {
                let mut reply = Vec::new();
                connection.link.call(ECHO, 0, &[b"late"], &mut reply).unwrap();
                reply
            });
            while connection.link.quiesce_gate().unwrap().frames() == 0 {
                thread::yield_now();
            }
            for _ in 0..3 {
                host.round(&connection, &link_control, &caller);
            }
            assert!(!caller.is_finished());
            reply_barrier.wait();
            assert_eq!(caller.join().unwrap(), b"late");
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
        });
    }
}

/// Answers the only call once the test allows it, while it reads on.
fn late_echo(mut link: Box<dyn WorkerLink>, reply_barrier: &Barrier) {
    let replier = link.replier();
    thread::scope(|scope| {
        while let LinkEvent::Frame(frame) = link.next().unwrap() {
            let (head, payload) = (frame.head, frame.payload.to_vec());
            if head.opcode == EXIT {
                return;
            }
            let replier = Arc::clone(&replier);
            scope.spawn(move || {
                reply_barrier.wait();
                common::answer(&replier, head.thread, head.sequence, &payload);
            });
        }
    });
}

#[test]
fn a_held_link_sends_nothing_but_what_passes_holds() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        thread::scope(|scope| {
            let worker = scope.spawn(|| work(worker));
            let gate = connection.link.quiesce_gate().unwrap();
            connection.link.enqueue(ADD, 0, &[&[1]]).unwrap();
            assert_eq!(gate.hold(), 1);
            let late = scope.spawn(|| connection.link.enqueue(ADD, 0, &[&[2]]).unwrap());
            let passing = scope.spawn(|| {
                bypass_gate();
                let mut sum = Vec::new();
                connection.link.call(SUM, 0, &[], &mut sum).unwrap();
                sum
            });
            assert_eq!(passing.join().unwrap(), 1_u64.to_le_bytes());
            assert!(!late.is_finished());
            assert_eq!(gate.frames(), 2);
            gate.release();
            late.join().unwrap();
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
            assert_eq!(worker.join().unwrap(), 3);
        });
    }
}

#[test]
fn a_thread_that_holds_a_lock_is_told_that_a_link_is_held() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        let add = || with_lock_held(true, || connection.link.enqueue(ADD, 0, &[&[1]]));
        thread::scope(|scope| {
            let worker = scope.spawn(|| work(worker));
            let gate = connection.link.quiesce_gate().unwrap();
            add().unwrap();
            assert_eq!(gate.hold(), 1);
            let mut sum = Vec::new();
            assert!(matches!(add(), Err(LinkError::Held)));
            assert!(matches!(
                with_lock_held(true, || connection.link.call(SUM, 0, &[], &mut sum)),
                Err(LinkError::Held)
            ));
            let passing = scope.spawn(|| {
                bypass_gate();
                add()
            });
            passing.join().unwrap().unwrap();
            let waiting = scope.spawn(|| connection.link.wait_until_open());
            assert!(!waiting.is_finished());
            gate.release();
            waiting.join().unwrap().unwrap();
            connection.link.wait_until_open().unwrap();
            connection.link.call(SUM, 0, &[], &mut sum).unwrap();
            assert_eq!(sum, 2_u64.to_le_bytes());
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
            assert_eq!(worker.join().unwrap(), 2);
        });
    }
}

#[test]
fn a_link_stops_at_the_frame_that_was_wished_and_rings() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        thread::scope(|scope| {
            let worker = scope.spawn(|| work(worker));
            let gate = connection.link.quiesce_gate().unwrap();
            gate.set_stop_at(5).unwrap();
            let program = scope.spawn(|| (0..9).for_each(|_| connection.link.enqueue(ADD, 0, &[&[1]]).unwrap()));
            let notify_fd = gate.notify_fd().unwrap();
            poll(&mut [PollFd::from_borrowed_fd(notify_fd, PollFlags::IN)], None).unwrap();
            assert_eq!((gate.reached(), gate.reached(), gate.hold()), (Some(5), None, 5));
            assert!(!program.is_finished());
            gate.release();
            program.join().unwrap();
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
            assert_eq!(worker.join().unwrap(), 9);
        });
    }
}

#[test]
fn a_reader_can_ask_whether_anything_waits_for_it() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, mut worker) = host.link();
        assert!(!worker.has_pending(), "{path:?}");
        (0..2).for_each(|_| connection.link.enqueue(ADD, 0, &[b"some bytes"]).unwrap());
        // Data sent over a network arrives a moment later.
        while !worker.has_pending() {
            thread::yield_now();
        }
        assert!(worker.next().unwrap().frame().is_some(), "{path:?}");
        assert!(worker.next().unwrap().frame().is_some(), "{path:?}");
        assert!(!worker.has_pending(), "{path:?}");
        worker.link_control().unwrap().interrupt(2);
        assert!(worker.has_pending(), "{path:?}");
        assert!(matches!(worker.next().unwrap(), LinkEvent::Interrupted), "{path:?}");
        assert!(!worker.has_pending(), "{path:?}");
    }
}

#[test]
fn a_reading_thread_is_interrupted_at_the_announced_frame() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, mut worker) = host.link();
        let link_control = worker.link_control().unwrap();
        let reader = thread::spawn(move || {
            let mut sent = 0;
            loop {
                match worker.next().unwrap() {
                    LinkEvent::Frame(_) => sent += 1,
                    LinkEvent::Interrupted => return (sent, worker),
                    LinkEvent::Closed => panic!("no side closed"),
                }
            }
        });
        link_control.interrupt(3);
        (0..3).for_each(|_| connection.link.enqueue(ADD, 0, &[]).unwrap());
        let (sent, mut worker) = reader.join().unwrap();
        assert_eq!(sent, 3, "{path:?}");
        // Asleep with nothing to read, and interrupted at once.
        let reader = thread::spawn(move || matches!(worker.next().unwrap(), LinkEvent::Interrupted));
        link_control.interrupt(3);
        assert!(reader.join().unwrap(), "{path:?}");
    }
}

#[test]
fn a_worker_that_was_lost_is_replaced_by_one_like_it() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        let gate = connection.link.quiesce_gate().unwrap();
        gate.enable_reconnect().unwrap();
        thread::scope(|scope| {
            let first = scope.spawn(|| work(worker));
            (0..5).for_each(|_| connection.link.enqueue(ADD, 0, &[&[1]]).unwrap());
            connection.link.call(ECHO, 0, &[b"all done"], &mut Vec::new()).unwrap();
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
            assert_eq!(first.join().unwrap(), 5);
            while !gate.is_lost() {
                thread::yield_now();
            }
            let frames = gate.hold();
            let late = scope.spawn(|| {
                let mut sum = Vec::new();
                connection.link.call(SUM, 0, &[], &mut sum).unwrap();
                sum
            });
            let host = &host;
            scope.spawn(move || {
                let (pending, ready) = host.accept();
                work(pending.open(&build(), &ready, frames).unwrap())
            });
            gate.resume(&host.server.address, KEY, hang_limit()).unwrap();
            assert!(!late.is_finished());
            gate.release();
            assert_eq!(late.join().unwrap(), 0_u64.to_le_bytes());
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
        });
    }
}

/// One thread is held. Another one gets a reply to a request that was never sent, so waiting is useless.
#[test]
fn a_held_thread_fails_when_the_link_is_useless() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, mut worker) = host.link();
        let link: Arc<dyn ProgramLink> = connection.link.into();
        // Not a scoped thread: one that waits for ever would block the test.
        let (sender, receiver) = mpsc::channel();
        let call = || {
            let (link, sender) = (Arc::clone(&link), sender.clone());
            thread::spawn(move || sender.send(link.call(ECHO, 0, &[b"?"], &mut Vec::new()).is_err()));
        };
        call();
        let head = worker.next().unwrap().frame().unwrap().head;
        let gate = link.quiesce_gate().unwrap();
        gate.set_stop_at(1).unwrap();
        call();
        while gate.reached().is_none() {
            thread::yield_now();
        }
        common::answer(&worker.replier(), head.thread, head.sequence + 7, b"!");
        for _ in 0..2 {
            assert_eq!(receiver.recv_timeout(hang_limit()), Ok(true), "{path:?}");
        }
    }
}

/// Takes pieces, writes to them and names them in frames until `over` is set. Returns the sum of the bytes.
fn copy(connection: &ConnectedLink, over: &AtomicBool) -> u64 {
    let staging = connection.link.staging().unwrap();
    let added = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 1..4_u8 {
            let added = &added;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let piece = staging.take(SOME_BYTES).unwrap();
                    assert!(staging.write(piece, 0, &[number; SOME_BYTES]));
                    connection.link.enqueue(PIECE_OPCODE, 0, &[&piece.number().to_le_bytes()]).unwrap();
                    added.fetch_add(u64::from(number) * SOME_BYTES as u64, Ordering::Relaxed);
                }
            });
        }
    });
    added.into_inner()
}

/// A frame that names a piece with [`SOME_BYTES`] bytes.
const PIECE_OPCODE: u16 = 100;
const SOME_BYTES: usize = 100_000;

/// A worker that adds up the bytes of pieces.
fn add_up(mut link: Box<dyn WorkerLink>) -> u64 {
    let mut sum = 0;
    while let Some(frame) = link.next().unwrap().frame().filter(|frame| frame.head.opcode == PIECE_OPCODE) {
        let piece = StagingPiece::new(u32::from_le_bytes(frame.payload.try_into().unwrap())).unwrap();
        let (staging, mut bytes) = (link.staging().unwrap(), [0; SOME_BYTES]);
        assert!(staging.read(piece, 0, &mut bytes));
        staging.release(piece);
        sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    sum
}

/// Returns whether a file is mapped at the program's address of this piece.
fn has_piece(connection: &ConnectedLink, piece: StagingPiece) -> bool {
    mapping_of(connection, piece)[0].contains("katydid-staging")
}

/// Returns whether neither forked children nor core dumps get the piece.
fn is_kept_from_others(connection: &ConnectedLink, piece: StagingPiece) -> bool {
    let lines = mapping_of(connection, piece);
    let flags = lines.iter().find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
    ["dc", "dd"].iter().all(|flag| flags.split_whitespace().any(|found| found == *flag))
}

/// Returns the system's description of the mapping at the program's address of this piece. Its first line has the range.
fn mapping_of(connection: &ConnectedLink, piece: StagingPiece) -> Vec<String> {
    let at = connection.link.staging().unwrap().pointer(piece).addr();
    let holds = |line: &&str| {
        let range = line.split_whitespace().next().and_then(|range| range.split_once('-'));
        let ends = range.map(|(start, end)| [start, end].map(|end| usize::from_str_radix(end, 16)));
        matches!(ends, Some([Ok(start), Ok(end)]) if (start..end).contains(&at))
    };
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let from = maps.lines().skip_while(|line| !holds(line));
    // The flags are the last line of each mapping.
    let mut lines: Vec<String> = from.map(str::to_owned).collect();
    let flags = lines.iter().position(|line| line.starts_with("VmFlags:")).unwrap();
    lines.truncate(flags + 1);
    lines
}

#[test]
fn copies_do_not_notice_that_their_program_is_without_the_pieces_for_a_while() {
    let host = Host::new(Path::Shm);
    let (connection, worker) = host.link();
    let link_control = worker.link_control().unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let worker = scope.spawn(|| add_up(worker));
        let program = scope.spawn(|| copy(&connection, &over));
        (0..50).for_each(|_| host.round(&connection, &link_control, &program));
        over.store(true, Ordering::Relaxed);
        let added = program.join().unwrap();
        connection.link.enqueue(EXIT, 0, &[]).unwrap();
        assert_eq!(worker.join().unwrap(), added);
    });
}

#[test]
fn another_worker_finds_in_its_pieces_what_was_in_use() {
    for how in ["left", "lost"] {
        let host = Host::new(Path::Shm);
        let (connection, worker) = host.link();
        let (gate, staging) = (connection.link.quiesce_gate().unwrap(), connection.link.staging().unwrap());
        gate.enable_reconnect().unwrap();
        let piece = staging.take(SOME_BYTES).unwrap();
        assert!(staging.write(piece, 0, &[7; SOME_BYTES]) && is_kept_from_others(&connection, piece));
        let link_control = worker.link_control().unwrap();
        if how == "left" {
            link_control.detach();
            gate.hold();
            gate.detach().unwrap();
            assert!(!has_piece(&connection, piece));
        }
        drop((worker, link_control));
        thread::scope(|scope| {
            let host = &host;
            let other = scope.spawn(move || {
                let (pending, ready) = host.accept();
                add_up(pending.open(&build(), &ready, 0).unwrap())
            });
            while how == "lost" && !gate.is_lost() {
                thread::yield_now();
            }
            gate.resume(&host.server.address, KEY, hang_limit()).unwrap();
            gate.release();
            assert!(has_piece(&connection, piece) && is_kept_from_others(&connection, piece));
            connection.link.enqueue(PIECE_OPCODE, 0, &[&piece.number().to_le_bytes()]).unwrap();
            connection.link.enqueue(EXIT, 0, &[]).unwrap();
            assert_eq!(other.join().unwrap(), 7 * SOME_BYTES as u64, "{how}");
        });
    }
}

#[test]
fn copies_of_a_session_that_is_given_up_end() {
    let host = Host::new(Path::Shm);
    let (connection, worker) = host.link();
    let (gate, staging) = (connection.link.quiesce_gate().unwrap(), connection.link.staging().unwrap());
    let piece = staging.take(SOME_BYTES).unwrap();
    worker.link_control().unwrap().detach();
    gate.hold();
    gate.detach().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| staging.with(piece, |_| ()));
        gate.give_up();
        assert!(matches!(waiting.join().unwrap(), Err(LinkError::Closed)));
    });
}

#[test]
fn a_session_that_is_given_up_fails_those_who_wait() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        let gate = connection.link.quiesce_gate().unwrap();
        gate.enable_reconnect().unwrap();
        drop(worker);
        while !gate.is_lost() {
            thread::yield_now();
        }
        thread::scope(|scope| {
            let call = scope.spawn(|| connection.link.call(ECHO, 0, &[], &mut Vec::new()));
            let enqueued = scope.spawn(|| connection.link.enqueue(ADD, 0, &[]));
            gate.give_up();
            assert!(matches!(call.join().unwrap(), Err(LinkError::Closed)), "{path:?}");
            assert!(matches!(enqueued.join().unwrap(), Err(LinkError::Closed)), "{path:?}");
        });
    }
}

#[test]
fn a_program_that_has_not_left_or_is_another_one_is_refused() {
    for path in LINK_PATHS {
        let host = Host::new(path);
        let (connection, worker) = host.link();
        let link_control = worker.link_control().unwrap();
        let visit = |expected: fn(&AttachError) -> bool| {
            thread::scope(|scope| {
                let program = scope.spawn(|| connect(&host.server.address, &host.hello(), &build(), hang_limit()));
                let (pending, ready) = host.accept();
                let refused = link_control.attach(pending, &build(), &ready).unwrap_err();
                assert!(expected(&refused), "{path:?}: {refused}");
                assert!(matches!(program.join().unwrap(), Err(ConnectError::Handshake { .. })));
            });
        };
        visit(|refused| matches!(refused, AttachError::NotAway));
        if matches!(path, Path::Shm) {
            let socket = link_control.socket().unwrap();
            connection.link.quiesce_gate().unwrap().hold();
            link_control.detach();
            connection.link.quiesce_gate().unwrap().detach().unwrap();
            assert!(link_control.ended(&socket));
            visit(|refused| matches!(refused, AttachError::OtherLink));
        }
    }
}
