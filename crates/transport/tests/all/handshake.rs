//! Handshakes that fail, and the error on each side.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{Path, Server, build, hello};
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{AcceptError, Address, ConnectError, Pending};
use katydid_wire::handshake::{Build, HandshakeError, LinkKind, Ready, RefusalCode, Refused};
use katydid_wire::key::SessionKey;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sendmsg, socketpair,
};

const CHANNEL: u64 = 0x40c0_2000;

fn control() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn memory(length: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, length).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

/// Sends a hello with descriptors that no shim would send.
fn send_raw(socket: &UnixStream, message: &[u8], fds: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    sendmsg(socket, &[std::io::IoSlice::new(message)], &mut control, SendFlags::empty()).unwrap();
}

/// Returns the errors of both sides for these bytes and descriptors.
fn refusal_for(message: &[u8], fds: &[BorrowedFd<'_>]) -> (AcceptError, Refused) {
    let (mut program, server) = UnixStream::pair().unwrap();
    send_raw(&program, message, fds);
    let error = Pending::accept(server.into(), &build(), hang_limit()).unwrap_err();
    let mut answer = Vec::new();
    program.read_to_end(&mut answer).unwrap();
    (error, Refused::decode(&answer).unwrap())
}

#[test]
fn two_builds_refuse_each_other_and_both_users_read_both_names() {
    let server = Server::new(Path::Unix);
    let other_build = Build { protocol: 7, spec_hash: [0xee; 32], release: "9.9.9".into() };
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| Pending::accept(server.accept(), &other_build, hang_limit()));
        let error = connect(&server.address, &hello(LinkKind::STREAM), &build(), hang_limit()).err().unwrap();
        let server_error = accepted.join().unwrap().unwrap_err();
        for text in [error.to_string(), server_error.to_string()] {
            assert!(
                text.contains("interface 07070707") && text.contains("9.9.9 (protocol 7, interface eeeeeeee)"),
                "{text}"
            );
        }
    });
}

#[test]
fn a_missing_server_is_told_with_the_address_and_the_remedy() {
    let address: Address = "unix:/nonexistent/socket".parse().unwrap();
    let text = connect(&address, &hello(LinkKind::SHM), &build(), hang_limit()).err().unwrap().to_string();
    assert!(text.contains("katydid serve --listen unix:/nonexistent/socket"), "{text}");
    let address: Address = "tcp://127.0.0.1:1".parse().unwrap();
    let error = connect(&address, &hello(LinkKind::STREAM), &build(), hang_limit()).err().unwrap();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
}

#[test]
fn a_silent_server_is_not_waited_for_longer_than_agreed() {
    let server = Server::new(Path::Tcp);
    let error = connect(&server.address, &hello(LinkKind::STREAM), &build(), Duration::from_millis(30)).err().unwrap();
    assert!(matches!(error, ConnectError::Deadline { .. }), "{error}");
}

#[test]
fn a_silent_program_is_not_waited_for_longer_than_agreed() {
    let (_program, server) = UnixStream::pair().unwrap();
    let error = Pending::accept(server.into(), &build(), Duration::from_millis(30)).unwrap_err();
    assert!(matches!(error, AcceptError::Deadline { .. }), "{error}");
}

#[test]
fn a_program_that_leaves_early_is_no_mystery() {
    for sent in [&b""[..], b"KATYDID\0", &[0; 71]] {
        let (mut program, server) = UnixStream::pair().unwrap();
        program.write_all(sent).unwrap();
        drop(program);
        let error = Pending::accept(server.into(), &build(), hang_limit()).unwrap_err();
        assert!(matches!(error, AcceptError::Closed), "{error}");
    }
}

#[test]
fn a_client_of_another_protocol_is_refused() {
    let server = Server::new(Path::Tcp);
    let Address::Tcp { host, port } = &server.address else { unreachable!() };
    let mut client = TcpStream::connect((host.as_str(), *port)).unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{}", "X".repeat(40));
    client.write_all(&request.as_bytes()[..72]).unwrap();
    let error = Pending::accept(server.accept(), &build(), hang_limit()).unwrap_err();
    assert!(matches!(error, AcceptError::Handshake(HandshakeError::NotKatydid { .. })), "{error}");
}

#[test]
fn shared_memory_must_come_with_the_hello_and_be_sealed() {
    let message = hello(LinkKind::SHM).encode(&build()).unwrap();
    let (seals, pinned) = (SealFlags::SHRINK | SealFlags::GROW, memory(1 << 30, SealFlags::SHRINK | SealFlags::GROW));
    let good = memory(CHANNEL, seals);
    let cases: [(&str, Vec<OwnedFd>); 5] = [
        ("not the descriptors", vec![]),
        ("not the descriptors", vec![good.try_clone().unwrap()]),
        ("not sealed", vec![memory(CHANNEL, SealFlags::GROW), pinned.try_clone().unwrap()]),
        ("does not have the length", vec![memory(CHANNEL - 4096, seals), pinned.try_clone().unwrap()]),
        ("not sealed", vec![good.try_clone().unwrap(), memory(1 << 30, SealFlags::GROW)]),
    ];
    for (expected, fds) in cases {
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        let (error, refused) = refusal_for(&message, &fds);
        assert!(error.to_string().contains(expected) && refused.text.contains(expected), "{expected}: {error}");
        assert_eq!(refused.code, RefusalCode::BAD_HELLO);
    }
}

#[test]
fn descriptors_that_a_link_does_not_have_are_refused() {
    let message = hello(LinkKind::STREAM).encode(&build()).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    assert!(matches!(refusal_for(&message, &[null.as_fd()]).0, AcceptError::SharedMemory { .. }));
    let unknown = hello(LinkKind(77)).encode(&build()).unwrap();
    assert!(refusal_for(&unknown, &[]).1.text.contains("does not know that kind of link"));
}

#[test]
fn a_flood_of_descriptors_ends_the_handshake() {
    let (program, server) = UnixStream::pair().unwrap();
    let message = hello(LinkKind::SHM).encode(&build()).unwrap();
    send_raw(&program, &message, &[program.as_fd(); 8]);
    let error = Pending::accept(server.into(), &build(), hang_limit()).unwrap_err();
    assert!(matches!(error, AcceptError::System { .. }), "{error}");
}

#[test]
fn shared_memory_is_refused_over_a_network_before_anything_is_sent() {
    let address: Address = "tcp://127.0.0.1:1".parse().unwrap();
    let error = connect(&address, &hello(LinkKind::SHM), &build(), hang_limit()).err().unwrap();
    assert!(matches!(error, ConnectError::NoSharedMemory { .. }), "{error}");
}

#[test]
fn a_refusal_of_the_server_reaches_the_user_in_its_own_words() {
    let server = Server::new(Path::Tcp);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pending = Pending::accept(server.accept(), &build(), hang_limit()).unwrap();
            pending.refuse(&build(), &Refused::new(RefusalCode::BUSY, "all 4 workers are taken; try later"));
        });
        let error = connect(&server.address, &hello(LinkKind::STREAM), &build(), hang_limit()).err().unwrap();
        assert!(error.to_string().contains("all 4 workers are taken; try later"), "{error}");
    });
}

#[test]
fn another_worker_gets_the_program_when_the_first_is_gone() {
    let server = Server::new(Path::Shm);
    std::thread::scope(|scope| {
        let program = scope.spawn(|| connect(&server.address, &hello(LinkKind::SHM), &build(), hang_limit()));
        let pending = Pending::accept(server.accept(), &build(), hang_limit()).unwrap();
        let (server, dead) = control();
        drop(dead);
        assert!(pending.hand_over(&server, &build(), b"").is_err());
        let (server, worker) = control();
        pending.hand_over(&server, &build(), &[b'n'; 64 * 1024]).unwrap();
        drop((pending, server));
        let (received, note) = Pending::receive(&worker, &build()).unwrap().unwrap();
        assert!(note.len() == 64 * 1024 && received.pinned().is_some());
        assert!(Pending::receive(&worker, &build()).unwrap().is_none());
        let ready = Ready { worker_pid: 77, key: SessionKey::NONE, driver: "soft".into(), arenas: vec![] };
        let _link = received.open(&build(), &ready, 0).unwrap();
        assert_eq!(program.join().unwrap().ok().unwrap().ready, ready);
    });
}

#[test]
fn a_hand_over_of_garbage_is_an_error() {
    for packet in [&b"x"[..], &[0; 100], &hello(LinkKind::STREAM).encode(&build()).unwrap()] {
        let (server, worker) = control();
        rustix::net::send(&server, packet, SendFlags::empty()).unwrap();
        assert!(Pending::receive(&worker, &build()).is_err());
    }
}

/// Refuses the next program because too many connect.
fn turn_away(socket: OwnedFd) {
    let pending = Pending::accept(socket, &build(), hang_limit()).unwrap();
    pending.refuse(&build(), &Refused::new(RefusalCode::CROWDED, "too many programs are connecting at once"));
}

#[test]
fn a_crowded_server_is_asked_again_until_the_time_is_over() {
    for path in [Path::Shm, Path::Tcp] {
        let server = Server::new(path);
        let link = if matches!(path, Path::Shm) { LinkKind::SHM } else { LinkKind::STREAM };
        std::thread::scope(|scope| {
            let program = scope.spawn(|| connect(&server.address, &hello(link), &build(), hang_limit()));
            (0..3).for_each(|_| turn_away(server.accept()));
            let pending = Pending::accept(server.accept(), &build(), hang_limit()).unwrap();
            let ready = Ready { worker_pid: 7, key: SessionKey::NONE, driver: "soft".into(), arenas: vec![] };
            let _link = pending.open(&build(), &ready, 0).unwrap();
            assert_eq!(program.join().unwrap().ok().unwrap().ready, ready);
        });
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address: Address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    let soon = Duration::from_millis(300);
    let program =
        std::thread::spawn(move || connect(&address, &hello(LinkKind::STREAM), &build(), soon).err().unwrap());
    while !program.is_finished() {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false).unwrap();
                turn_away(socket.into());
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    let error = program.join().unwrap();
    let is_refusal = error.to_string().contains("too many programs are connecting at once");
    // The last answer may come too late.
    assert!(is_refusal || matches!(error, ConnectError::Deadline { .. }), "{error}");
}

#[test]
fn a_worker_that_takes_no_program_in_is_not_waited_for() {
    let server = Server::new(Path::Unix);
    std::thread::scope(|scope| {
        let program = scope.spawn(|| connect(&server.address, &hello(LinkKind::STREAM), &build(), hang_limit()));
        let pending = Pending::accept(server.accept(), &build(), hang_limit()).unwrap();
        let (server, _worker) = control();
        let refused = (0..10_000).find_map(|_| pending.hand_over(&server, &build(), b"").err()).unwrap();
        let AcceptError::System { source, .. } = refused else { panic!("{refused}") };
        assert_eq!(source.kind(), std::io::ErrorKind::WouldBlock);
        pending.refuse(&build(), &Refused::new(RefusalCode::BUSY, "as it should"));
        assert!(program.join().unwrap().is_err());
    });
}
