//! Peers that write arbitrary data: each causes an error, none a panic, a fault or a hang.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use crate::common::{ECHO, Path, Server, build, hello};
use crate::random::Random;
use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{ConnectError, ConnectedLink, LinkError, Pending, WorkerLink};
use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::{LinkKind, Ready};
use katydid_wire::key::SessionKey;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

const HEAD_COUNTER: u64 = 0x100;
const RING: u64 = 0x1000;
const REPLIES: u64 = 0x40_2000;
/// Bytes of the channel and of the staging pieces.
const CHANNEL: u64 = REPLIES + 0x4080_0000;
const PIECES: u64 = (64 << 20) + (64 << 30);

impl Random {
    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

fn ready() -> Ready {
    Ready { worker_pid: 1, key: SessionKey::NONE, driver: "none".into(), arenas: vec![] }
}

/// A worker's end whose program is this test: its socket, and its channel as a file.
fn worker_of(link: LinkKind) -> (Box<dyn WorkerLink>, UnixStream, Option<OwnedFd>) {
    let server = Server::new(Path::Unix);
    let katydid_transport::Address::Unix(path) = &server.address else { unreachable!() };
    let socket = UnixStream::connect(path).unwrap();
    let mut hello = hello(link);
    hello.arenas.clear();
    let channel = (link == LinkKind::SHM).then(|| sealed(CHANNEL));
    send_with(&socket, &hello.encode(&build()).unwrap(), channel.as_slice());
    let pending = Pending::accept(server.accept(), &build(), hang_limit()).unwrap();
    (pending.open(&build(), &ready(), 0).unwrap(), socket, channel)
}

/// Memory whose length can be changed.
fn loose(length: u64) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&memory, length).unwrap();
    memory
}

fn sealed(length: u64) -> OwnedFd {
    let memory = loose(length);
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    memory
}

fn send_with(socket: &UnixStream, message: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<_> = fds.iter().map(std::os::fd::AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(socket, &[std::io::IoSlice::new(message)], &mut control, SendFlags::empty()).unwrap();
}

/// Reads until the worker refuses more.
fn drain(worker: &mut dyn WorkerLink) -> Result<usize, LinkError> {
    let mut frames = 0;
    while worker.next()?.frame().is_some() {
        frames += 1;
    }
    Ok(frames)
}

fn frame(sequence: u64, payload: &[u8]) -> Vec<u8> {
    let head = FrameHead { opcode: ECHO, wants_reply: false, thread: 1, context: 0, sequence };
    let mut frame = [&head.encode(payload.len()).unwrap(), payload].concat();
    frame.resize(frame.len().next_multiple_of(8), 0);
    frame
}

#[test]
fn a_worker_survives_random_rings() {
    let mut random = Random(0x0dd0_5eed);
    for round in 0..100 {
        let (mut worker, socket, channel) = worker_of(LinkKind::SHM);
        let channel = channel.unwrap();
        let mut ring = random.bytes(256);
        if round % 2 == 0 {
            ring.splice(0..40, frame(0, b"12345678"));
        }
        rustix::io::pwrite(&channel, &ring, RING).unwrap();
        let tail = random.next() >> (random.next() % 64);
        rustix::io::pwrite(&channel, &tail.to_le_bytes(), 0).unwrap();
        drop(socket);
        let _ = drain(&mut *worker);
    }
}

#[test]
fn a_worker_refuses_frames_that_it_does_not_expect() {
    let cases: [(&str, Vec<u8>); 6] = [
        ("number that is expected", frame(1, b"")),
        ("not whole", frame(0, b"")[..24].to_vec()),
        ("not whole", vec![0; 24]),
        ("announced", [&7_u32.to_le_bytes()[..], &[0; 28]].concat()),
        ("thread 0", [&frame(0, b"")[..8], &[0; 24]].concat()),
        ("beyond the limit", [&frame(0, b"")[..8], &2000_u32.to_le_bytes(), &[0; 20]].concat()),
    ];
    for (expected, ring) in cases {
        let (mut worker, _socket, channel) = worker_of(LinkKind::SHM);
        let channel = channel.unwrap();
        rustix::io::pwrite(&channel, &ring, RING).unwrap();
        rustix::io::pwrite(&channel, &(ring.len() as u64).to_le_bytes(), 0).unwrap();
        let error = drain(&mut *worker).unwrap_err();
        assert!(error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_worker_survives_random_streams() {
    let mut random = Random(0xfeed_beef);
    for round in 0..200 {
        let (mut worker, mut socket, _) = worker_of(LinkKind::STREAM);
        if round % 2 == 0 {
            socket.write_all(&frame(0, b"12345678")).unwrap();
        }
        let length = random.next() as usize % 300;
        socket.write_all(&random.bytes(length)).unwrap();
        drop(socket);
        let _ = drain(&mut *worker);
    }
}

#[test]
fn a_worker_that_is_cut_off_within_a_frame_says_so() {
    let (mut worker, mut socket, _) = worker_of(LinkKind::STREAM);
    socket.write_all(&frame(0, &[1; 1000])[..500]).unwrap();
    drop(socket);
    assert!(drain(&mut *worker).unwrap_err().to_string().contains("ended within a frame"));
}

/// A program's end whose worker is this test: the worker's socket, and the channel if there is one.
fn program_of(link: LinkKind) -> (ConnectedLink, UnixStream, Option<OwnedFd>) {
    let pieces = (link == LinkKind::SHM).then(|| sealed(PIECES));
    let (connection, socket, channel) = answered_with(link, pieces.as_slice());
    (connection.unwrap(), socket, channel)
}

/// Returns how a program ends whose worker answers with these descriptors.
fn answered_with(
    link: LinkKind,
    fds: &[OwnedFd],
) -> (Result<ConnectedLink, ConnectError>, UnixStream, Option<OwnedFd>) {
    let server = Server::new(Path::Unix);
    std::thread::scope(|scope| {
        let program = scope.spawn(|| connect(&server.address, &hello(link), &build(), hang_limit()));
        let socket = UnixStream::from(server.accept());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut message = vec![0; 65_536];
        recvmsg(&socket, &mut [IoSliceMut::new(&mut message)], &mut control, RecvFlags::empty()).unwrap();
        let mut received = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect(),
            _ => Vec::new(),
        });
        let channel = received.next();
        send_with(&socket, &ready().encode(&build()).unwrap(), fds);
        (program.join().unwrap(), socket, channel)
    })
}

#[test]
fn a_program_refuses_pieces_that_are_not_what_was_agreed() {
    let cases: [(LinkKind, Vec<OwnedFd>, &str); 6] = [
        (LinkKind::SHM, vec![], "other descriptors"),
        (LinkKind::SHM, vec![sealed(PIECES), sealed(PIECES)], "other descriptors"),
        (LinkKind::SHM, vec![loose(PIECES)], "not sealed"),
        (LinkKind::SHM, vec![sealed(PIECES - 4096)], "the length it should have"),
        (LinkKind::SHM, vec![UnixStream::pair().unwrap().0.into()], "not a memfd"),
        (LinkKind::STREAM, vec![sealed(PIECES)], "other descriptors"),
    ];
    for (link, fds, expected) in cases {
        let (refused, _socket, _channel) = answered_with(link, &fds);
        let text = refused.err().unwrap().to_string();
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn a_program_survives_random_replies_in_shared_memory() {
    let mut random = Random(0xabcd_ef01);
    for _ in 0..100 {
        let (connection, _socket, channel) = program_of(LinkKind::SHM);
        let channel = channel.unwrap();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| connection.link.call(ECHO, 0, &[b"x"], &mut Vec::new()));
            // The word is written again until the call has seen it: the call clears it when it begins.
            while !call.is_finished() {
                rustix::io::pwrite(&channel, &random.bytes(40), REPLIES + 8).unwrap();
                rustix::io::pwrite(&channel, &1_u32.to_le_bytes(), REPLIES).unwrap();
                std::thread::yield_now();
            }
            assert!(call.join().unwrap().is_err());
        });
    }
}

#[test]
fn a_program_refuses_a_ring_whose_counter_runs_away() {
    let (connection, _socket, channel) = program_of(LinkKind::SHM);
    rustix::io::pwrite(channel.unwrap(), &u64::MAX.to_le_bytes(), HEAD_COUNTER).unwrap();
    let bulk = vec![0; 1 << 20];
    let error = (0..8).find_map(|_| connection.link.enqueue(ECHO, 0, &[&bulk]).err()).unwrap();
    assert!(error.to_string().contains("read counter"), "{error}");
    assert!(matches!(connection.link.enqueue(ECHO, 0, &[]), Err(LinkError::Closed)));
}

#[test]
fn a_program_survives_random_replies_in_a_stream() {
    let mut random = Random(0x1357_9bdf);
    for _ in 0..100 {
        let (connection, mut socket, _) = program_of(LinkKind::STREAM);
        let length = 32 + random.next() as usize % 100;
        socket.write_all(&random.bytes(length)).unwrap();
        assert!(connection.link.call(ECHO, 0, &[b"x"], &mut Vec::new()).is_err());
        assert!(matches!(connection.link.call(ECHO, 0, &[], &mut Vec::new()), Err(LinkError::Closed)));
    }
}
