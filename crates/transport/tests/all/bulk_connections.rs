//! Links of several connections: bulk goes over all of them, frames keep their order, and the end of one ends all.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(unsafe_code, reason = "memory for data to land in")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::common::proxy::{Network, Ways};
use crate::common::{ADD, ECHO, EXIT, Path, SUM, Server, answer, answer_in_parts, build, hello};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{
    Address, ConnectedLink, LinkControl, LinkError, LinkEvent, Pending, ProgramLink, ReplyBuffer, WorkerLink,
};
use katydid_wire::frame::{FrameConnections, FrameHead, HEAD_BYTES};
use katydid_wire::handshake::{ConnectionRole, Hello, LinkKind, Ready, SessionClaim};
use katydid_wire::key::SessionKey;

/// Bytes of a bulk frame's payload, and of a bulk reply's message.
const BULK_BYTES: usize = 900_004;
/// More than enough for bulk connections to be opened.
const LARGE_BYTES: u64 = 64 << 20;
/// Bulk connections of a link in these tests.
const BULK_CONNECTIONS: usize = 3;
const KEY: SessionKey = SessionKey([9; 16]);

fn ready() -> Ready {
    Ready { worker_pid: 1, key: KEY, driver: "none".into(), arenas: vec![] }
}

/// A server that admits programs, and bulk connections of the connected one, as the crate `server` and a worker's attach point
/// do.
struct Host {
    address: Address,
    programs: Receiver<Pending>,
    present: Arc<Mutex<Option<LinkControl>>>,
}

impl Host {
    fn new(path: Path) -> Self {
        let server = Server::new(path);
        let (sender, programs) = channel();
        let (address, present) = (server.address.clone(), Arc::new(Mutex::new(None::<LinkControl>)));
        let link_control = Arc::clone(&present);
        thread::spawn(move || {
            loop {
                // Connections that a network cuts do not count.
                let Ok(pending) = server.greet() else { continue };
                if pending.hello().claim.role == ConnectionRole::PROGRAM {
                    let _ = sender.send(pending);
                } else if let Some(link_control) = link_control.lock().unwrap().clone() {
                    let _ = link_control.join(pending, &build(), &ready());
                }
            }
        });
        Self { address, programs, present }
    }

    /// A link over `network`, if there is one, that may have bulk connections.
    fn link(&self, network: Option<&Network>) -> (ConnectedLink, Box<dyn WorkerLink>) {
        let address = network.map_or(&self.address, |network| &network.address).clone();
        let hello = Hello { arenas: vec![], ..hello(LinkKind::STREAM) };
        let program = thread::spawn(move || connect(&address, &hello, &build(), hang_limit()).unwrap());
        let worker = self.programs.recv().unwrap().open(&build(), &ready(), 0).unwrap();
        *self.present.lock().unwrap() = worker.link_control();
        let connection = program.join().unwrap();
        connection.link.allow_bulk_connections(BULK_CONNECTIONS);
        (connection, worker)
    }

    /// A link that may have bulk connections, and expects bulk, with its worker serving.
    fn work(&self, network: Option<&Network>) -> (ConnectedLink, Work) {
        let (connection, worker) = self.link(network);
        assert_eq!(connection.link.bulk_connections_for(LARGE_BYTES), BULK_CONNECTIONS);
        (connection, self.serve(worker))
    }

    /// Serves until the link ends, and drops it then.
    fn serve(&self, worker: Box<dyn WorkerLink>) -> Work {
        let present = Arc::clone(&self.present);
        thread::spawn(move || {
            let ended = serve(worker);
            present.lock().unwrap().take();
            ended
        })
    }
}

/// Numbers of received bulk, in the order of the frames, and how the link ended.
type Work = JoinHandle<(Vec<u64>, Result<(), LinkError>)>;

/// A network that forwards everything.
fn plain_network(host: &Host) -> Network {
    Network::to(&host.address, |_, _| ())
}

/// Bytes that identify their number.
fn pattern(number: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..BULK_BYTES).map(|at| (at as u64 % 251 + number) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Requests a bulk reply that echoes `sent`, which is small, and returns the received data.
fn fetch(link: &dyn ProgramLink, number: u64) -> Result<Vec<u8>, LinkError> {
    let mut data = vec![0; BULK_BYTES - 4];
    // SAFETY: the vector's own bytes, which no other thread knows until the call is over.
    let target = unsafe { ReplyBuffer::new(data.as_mut_ptr(), data.len(), 4) };
    let (_, landed) = link.call_into(ECHO, 0, &[&number.to_le_bytes()], &mut Vec::new(), target)?;
    assert!(landed, "a reply came that is not the one that was asked for");
    Ok(data)
}

/// Sends bulk for a number, and counts added numbers.
fn serve(mut worker: Box<dyn WorkerLink>) -> (Vec<u64>, Result<(), LinkError>) {
    let (replier, mut came) = (worker.replier(), Vec::new());
    loop {
        let frame = match worker.next() {
            Ok(LinkEvent::Frame(frame)) => frame,
            Ok(_) => return (came, Ok(())),
            Err(error) => return (came, Err(error)),
        };
        let (thread, sequence) = (frame.head.thread, frame.head.sequence);
        match frame.head.opcode {
            ADD => {
                let number = u64::from_le_bytes(*frame.payload.first_chunk().unwrap());
                if frame.payload.len() != 8 && frame.payload != pattern(number) {
                    return (came, Err(LinkError::Protocol { what: "bulk came that is not what was sent" }));
                }
                came.push(number);
            }
            ECHO => {
                let bytes = pattern(u64::from_le_bytes(*frame.payload.first_chunk().unwrap()));
                let _ = answer_in_parts(&replier, thread, sequence, bytes.split_at(4));
            }
            SUM => answer(&replier, thread, sequence, &(came.len() as u64).to_le_bytes()),
            _ => return (came, Ok(())),
        }
    }
}

/// Sends bulk and small frames from several threads, and fetches bulk in between. Numbers begin at `first`.
fn mix(link: &dyn ProgramLink, threads: u64, first: u64) {
    thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for number in (first..first + ROUND).step_by(2).map(|number| thread * MANY + number) {
                    link.enqueue(ADD, 0, &[&pattern(number)]).unwrap();
                    link.enqueue(ADD, 0, &[&(number + 1).to_le_bytes()]).unwrap();
                    assert_eq!(fetch(link, number).unwrap(), pattern(number)[4..]);
                }
            });
        }
    });
}

/// Frames of a thread in [`mix`].
const ROUND: u64 = 12;
/// More numbers than a thread uses.
const MANY: u64 = 1 << 32;

/// Lets bulk flow until all bulk connections exist and have carried some. The number of rounds depends on how the threads run.
fn use_all(link: &dyn ProgramLink, network: &Network) -> u64 {
    let mut first = 0;
    loop {
        // More threads than bulk connections: some of their bulk goes over the first connection.
        mix(link, BULK_CONNECTIONS as u64 + 2, first);
        first += ROUND;
        // A connection that could not be opened in time is not tried again.
        assert_eq!(link.bulk_connections_for(LARGE_BYTES), BULK_CONNECTIONS);
        let ways = network.ways();
        let is_used = |(there, back): &Ways| there.passed() + back.passed() > BULK_BYTES as u64;
        if ways.len() == 1 + BULK_CONNECTIONS && ways.iter().all(is_used) {
            return first;
        }
    }
}

#[test]
fn bulk_goes_over_all_connections_and_frames_keep_their_order() {
    for path in [Path::Tcp, Path::Tls] {
        let host = Host::new(path);
        let network = plain_network(&host);
        let (connection, work) = host.work(Some(&network));
        let each = use_all(&*connection.link, &network);
        connection.link.enqueue(EXIT, 0, &[]).unwrap();
        let (came, ended) = work.join().unwrap();
        ended.unwrap();
        for thread in 0..BULK_CONNECTIONS as u64 + 2 {
            let of_thread = came.iter().copied().filter(|number| number / MANY == thread);
            assert!(of_thread.eq((0..each).map(|at| thread * MANY + at)), "{path:?}");
        }
    }
}

#[test]
fn bulk_connections_of_unix_sockets_do_as_well() {
    let host = Host::new(Path::Unix);
    let (connection, work) = host.work(None);
    mix(&*connection.link, BULK_CONNECTIONS as u64, 0);
    connection.link.enqueue(EXIT, 0, &[]).unwrap();
    work.join().unwrap().1.unwrap();
}

#[test]
fn programs_that_copy_little_open_nothing() {
    let host = Host::new(Path::Tcp);
    let network = plain_network(&host);
    let (connection, worker) = host.link(Some(&network));
    let work = host.serve(worker);
    assert_eq!(connection.link.bulk_connections_for(1 << 20), 0);
    (0..3).for_each(|number| drop(fetch(&*connection.link, number).unwrap()));
    assert_eq!(network.ways().len(), 1);
    drop(connection);
    work.join().unwrap().1.unwrap();
}

/// A server that admits no more connections, or does not know the link: everything works as without bulk connections.
#[test]
fn a_link_without_further_connections_goes_on_with_the_first() {
    let host = Host::new(Path::Tcp);
    let network = Network::to(&host.address, |at, (there, _)| {
        if at > 0 {
            there.cut_after(0);
        }
    });
    let (connection, work) = host.work(Some(&network));
    mix(&*connection.link, 3, 0);
    assert!(network.ways().len() > 1);
    assert_eq!(connection.link.bulk_connections_for(LARGE_BYTES), 0);
    drop(connection);
    work.join().unwrap().1.unwrap();
}

/// A link with one bulk connection, which has carried bulk 1, and its worker.
fn one_bulk_connection(host: &Host, network: &Network) -> (ConnectedLink, Work) {
    let (connection, work) = host.work(Some(network));
    connection.link.enqueue(ADD, 0, &[&pattern(1)]).unwrap();
    let mut reply = Vec::new();
    connection.link.call(SUM, 0, &[], &mut reply).unwrap();
    assert_eq!((network.ways().len(), &reply[..]), (2, &1_u64.to_le_bytes()[..]));
    (connection, work)
}

#[test]
fn a_bulk_connection_that_dies_within_bulk_is_the_end_of_the_link_wherever_it_dies() {
    for path in [Path::Tcp, Path::Tls] {
        let host = Host::new(path);
        for bytes in [0, 1, HEAD_BYTES as u64 - 1, HEAD_BYTES as u64, 70_000, BULK_BYTES as u64] {
            for is_back in [false, true] {
                let network = plain_network(&host);
                let (connection, work) = one_bulk_connection(&host, &network);
                let link = &*connection.link;
                let (there, back) = &network.ways()[1];
                if is_back {
                    back.cut_after(bytes)
                } else {
                    there.cut_after(bytes)
                }
                let outcome = if is_back { fetch(link, 2).map(drop) } else { link.enqueue(ADD, 0, &[&pattern(2)]) };
                assert!(!is_back || outcome.is_err(), "cut after {bytes} bytes");
                // The system may still buffer what was sent; the next call that waits gets the error.
                assert!(link.call(SUM, 0, &[], &mut Vec::new()).is_err(), "{bytes} bytes, back: {is_back}");
                assert!(matches!(link.enqueue(ADD, 0, &[&[0; 8]]), Err(LinkError::Closed)));
                drop(connection);
                let (came, _) = work.join().unwrap();
                assert_eq!(came, [1], "{bytes} bytes, back: {is_back}");
            }
        }
    }
}

#[test]
fn a_bulk_connection_that_loses_bytes_passes_nothing_off_as_whole() {
    for path in [Path::Tcp, Path::Tls] {
        let host = Host::new(path);
        for bytes in [HEAD_BYTES as u64 - 8, 5000] {
            let network = plain_network(&host);
            let (connection, work) = one_bulk_connection(&host, &network);
            network.ways()[1].0.lose_after(bytes, 40);
            // The rest of the first one is filled with the second; both are useless then.
            let sent = (2..6).try_for_each(|number| connection.link.enqueue(ADD, 0, &[&pattern(number)]));
            let waited = connection.link.call(SUM, 0, &[], &mut Vec::new());
            assert!(sent.is_err() || waited.is_err(), "{path:?}: {bytes}");
            drop(connection);
            // This test's worker checks what it received: it detects missing bytes in a payload, if no earlier check does.
            assert!(work.join().unwrap().1.is_err(), "{path:?}: {bytes}");
        }
    }
}

/// Signs of life on the first connection do not help a bulk connection that has stalled.
#[test]
fn a_bulk_connection_that_stalls_is_an_error_for_all_who_wait() {
    for path in [Path::Tcp, Path::Tls] {
        let host = Host::new(path);
        for (is_back, bytes) in [(true, 0), (true, 300_000), (false, 0), (false, 300_000)] {
            let network = plain_network(&host);
            let (connection, worker) = host.link(Some(&network));
            let (link_control, done) = (worker.link_control().unwrap(), Arc::new(AtomicBool::new(false)));
            let work = host.serve(worker);
            let link = &*connection.link;
            link.limit_silence(Duration::from_millis(300)).unwrap();
            link.bulk_connections_for(LARGE_BYTES);
            let beats = thread::spawn({
                let done = Arc::clone(&done);
                move || {
                    while !done.load(Ordering::Relaxed) {
                        link_control.send_heartbeat();
                        thread::sleep(Duration::from_millis(20));
                    }
                }
            });
            // The limit applies to bulk connections opened from here on.
            let _ = link.enqueue(ADD, 0, &[&pattern(1)]);
            let ways = network.ways();
            let (there, back) = ways.last().unwrap();
            if is_back {
                back.hold_after(bytes)
            } else {
                there.hold_after(bytes)
            }
            let error = (0..50).find_map(|_| match is_back {
                true => fetch(link, 2).err(),
                false => link.enqueue(ADD, 0, &[&pattern(2)]).err(),
            });
            assert!(error.is_some(), "{path:?}: back: {is_back}, {bytes} bytes");
            assert!(matches!(link.call(SUM, 0, &[], &mut Vec::new()), Err(LinkError::Closed)));
            there.release();
            back.release();
            drop(connection);
            let _ = work.join();
            done.store(true, Ordering::Relaxed);
            beats.join().unwrap();
        }
    }
}

/// A program that leaves closes its bulk connections, and opens others when it is back.
#[test]
fn bulk_connections_are_closed_when_the_program_leaves_and_opened_anew() {
    for path in [Path::Tcp, Path::Tls] {
        let host = Host::new(path);
        let network = plain_network(&host);
        let (connection, worker) = host.link(Some(&network));
        let link_control = worker.link_control().unwrap();
        let work = host.serve(worker);
        connection.link.bulk_connections_for(LARGE_BYTES);
        let gate = connection.link.quiesce_gate().unwrap();
        for _ in 0..3 {
            let ways_before = network.ways().len();
            mix(&*connection.link, BULK_CONNECTIONS as u64, 0);
            assert!(network.ways().len() > ways_before, "{path:?}");
            let frames = gate.hold();
            link_control.detach();
            assert_eq!(gate.detach().unwrap(), frames);
            thread::scope(|scope| {
                scope.spawn(|| gate.resume(&network.address, KEY, hang_limit()).unwrap());
                link_control.attach(host.programs.recv().unwrap(), &build(), &ready()).unwrap();
            });
            gate.release();
        }
        drop(link_control);
        connection.link.enqueue(EXIT, 0, &[]).unwrap();
        work.join().unwrap().1.unwrap();
    }
}

/// Returns the answer to a peer that knows the session's key and connects as bulk connection `number`.
fn come_as(host: &Host, number: u64) -> Result<(), String> {
    let claim = SessionClaim { role: ConnectionRole::BULK, key: KEY, frames: number };
    let hello = Hello { claim, arenas: vec![], ..hello(LinkKind::STREAM) };
    connect(&host.address, &hello, &build(), hang_limit()).map(drop).map_err(|error| error.to_string())
}

#[test]
fn bulk_connections_of_no_number_or_of_one_that_is_there_are_refused() {
    let host = Host::new(Path::Tcp);
    let network = plain_network(&host);
    let (connection, work) = host.work(Some(&network));
    use_all(&*connection.link, &network);
    for number in [0, 1, BULK_CONNECTIONS as u64, 17, u64::MAX] {
        let error = come_as(&host, number).unwrap_err();
        assert!(error.contains("no such bulk connection"), "{number}: {error}");
    }
    mix(&*connection.link, 2, MANY / 2);
    connection.link.enqueue(EXIT, 0, &[]).unwrap();
    work.join().unwrap().1.unwrap();
}

/// Frames that Katydid's program side never writes: each breaks the protocol, and none is handed out.
#[test]
fn frames_over_bulk_connections_that_are_not_there_or_carry_others_are_refused() {
    let head = FrameHead { opcode: ADD, wants_reply: false, thread: 1, context: 0, sequence: 0 };
    let over = |payload, reply| FrameConnections { payload, reply };
    let asks = FrameHead { wants_reply: true, ..head };
    let other = FrameHead { sequence: 1, ..head }.encode_over(8, over(1, 0)).unwrap();
    let good = head.encode_over(8, over(1, 0)).unwrap();
    let elsewhere = head.encode_over(8, over(2, 0)).unwrap();
    let cases = [
        (head.encode_over(8, over(2, 0)).unwrap(), None),
        (head.encode_over(8, over(17, 0)).unwrap(), None),
        (asks.encode_over(8, over(0, 3)).unwrap(), None),
        (head.encode_over(8, over(0, 1)).unwrap(), None),
        (good, Some(other)),
        (good, Some(elsewhere)),
        (good, Some([0xff; HEAD_BYTES])),
        (good, Some([0; HEAD_BYTES])),
    ];
    for (first, bulk) in cases {
        let server = Server::new(Path::Unix);
        let mut program = greeting(&server, ConnectionRole::PROGRAM);
        let mut worker = server.greet().unwrap().open(&build(), &ready(), 0).unwrap();
        let mut beside = greeting(&server, ConnectionRole::BULK);
        worker.link_control().unwrap().join(server.greet().unwrap(), &build(), &ready()).unwrap();
        program.write_all(&[&first[..], &[0; 8]].concat()).unwrap();
        beside.write_all(&[&bulk.unwrap_or(good)[..], &[0; 8]].concat()).unwrap();
        assert!(worker.next().is_err(), "{first:?} {bulk:?}");
    }
}

/// A connection whose program is this test: a link's first one, or its bulk connection 1.
fn greeting(server: &Server, role: ConnectionRole) -> UnixStream {
    let Address::Unix(path) = &server.address else { unreachable!() };
    let mut socket = UnixStream::connect(path).unwrap();
    let claim = SessionClaim { role, key: KEY, frames: u64::from(role == ConnectionRole::BULK) };
    let hello = Hello { claim, arenas: vec![], ..hello(LinkKind::STREAM) };
    socket.write_all(&hello.encode(&build()).unwrap()).unwrap();
    socket
}
