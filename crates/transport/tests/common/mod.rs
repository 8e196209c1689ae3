//! A server in this process: accepts one program, hands it over, opens the worker's end.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

pub(crate) mod certs;
pub(crate) mod proxy;

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use katydid_tests::deadline::hang::hang_limit;
use katydid_transport::connect;
use katydid_transport::{
    AcceptError, Address, ConnectedLink, Identity, LinkError, OutgoingReply, Pending, Replier, WorkerLink,
};
use katydid_wire::frame::Output;
use katydid_wire::handshake::{
    ArenaKind, ArenaRange, Build, Hello, LINK_TIMEOUT_SECONDS, LinkKind, Ready, SessionClaim, SessionKind,
};
use katydid_wire::key::SessionKey;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tempfile::TempDir;

use certs::Authority;

/// Opcodes of the echo worker.
pub(crate) const ECHO: u16 = 1;
pub(crate) const ADD: u16 = 2;
pub(crate) const SUM: u16 = 3;
pub(crate) const SLOW_ECHO: u16 = 4;
pub(crate) const PRINT: u16 = 5;
pub(crate) const EXIT: u16 = 6;

pub(crate) fn build() -> Build {
    Build::current([7; 32])
}

pub(crate) fn hello(link: LinkKind) -> Hello {
    Hello {
        session: SessionKind::CUDA,
        claim: SessionClaim::NEW,
        link,
        pid: std::process::id(),
        memory_limit: None,
        program: "test".into(),
        name: String::new(),
        arenas: vec![ArenaRange { kind: ArenaKind::PINNED, base: 0x3000_0000_0000, length: 1 << 30 }],
        link_timeout: LINK_TIMEOUT_SECONDS,
        reservation: SessionKey::NONE,
    }
}

/// A path from program to worker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path {
    Shm,
    Unix,
    Tcp,
    Tls,
}

/// A listening socket of either kind.
pub(crate) struct Server {
    pub(crate) address: Address,
    listener: Listener,
    /// The server's certificates, where it speaks TLS.
    certs: Option<PathBuf>,
    _authority: Option<Authority>,
    _folder: TempDir,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Server {
    pub(crate) fn new(path: Path) -> Self {
        if matches!(path, Path::Tls) {
            let authority = Authority::new("of tests");
            let server = authority.issue("127.0.0.1", certs::SERVER, certs::VALID);
            let client = authority.issue("program", certs::CLIENT, certs::VALID);
            return Self { _authority: Some(authority), ..Self::tls(server, client) };
        }
        let folder = tempfile::tempdir().unwrap();
        let (address, listener) = match path {
            Path::Shm | Path::Unix => {
                let file = folder.path().join("socket");
                let listener = UnixListener::bind(&file).unwrap();
                (Address::Unix(file), Listener::Unix(listener))
            }
            Path::Tcp | Path::Tls => {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let port = listener.local_addr().unwrap().port();
                (Address::Tcp { host: "127.0.0.1".into(), port }, Listener::Tcp(listener))
            }
        };
        Self { address, listener, certs: None, _authority: None, _folder: folder }
    }

    /// A server and an address for its programs, with these folders of certificates.
    pub(crate) fn tls(server: PathBuf, client: PathBuf) -> Self {
        let plain = Self::new(Path::Tcp);
        let Address::Tcp { host, port } = plain.address else { panic!("TCP is TCP") };
        Self { address: Address::Tls { host, port, certs: Some(client) }, certs: Some(server), ..plain }
    }

    /// Waits for the next program that says hello.
    pub(crate) fn greet(&self) -> Result<Pending, AcceptError> {
        match &self.certs {
            None => Pending::accept(self.accept(), &build(), hang_limit()),
            Some(folder) => Pending::accept_encrypted(self.accept(), &build(), Identity::read(folder)?, hang_limit()),
        }
    }

    pub(crate) fn accept(&self) -> OwnedFd {
        match &self.listener {
            Listener::Unix(listener) => listener.accept().unwrap().0.into(),
            Listener::Tcp(listener) => listener.accept().unwrap().0.into(),
        }
    }

    /// Runs all steps: server, hand-over, worker.
    pub(crate) fn serve(&self) -> Box<dyn WorkerLink> {
        let pending = self.greet().unwrap();
        let (server, worker) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        pending.hand_over(&server, &build(), b"note").unwrap();
        drop(pending);
        let (pending, note) = Pending::receive(&worker, &build()).unwrap().unwrap();
        assert_eq!(note, b"note");
        let arenas = pending.hello().arenas.clone();
        pending
            .open(&build(), &Ready { worker_pid: 1, key: SessionKey::NONE, driver: "none".into(), arenas }, 0)
            .unwrap()
    }
}

/// Both ends of a link over the given path.
pub(crate) fn link(path: Path) -> (ConnectedLink, Box<dyn WorkerLink>) {
    let server = Server::new(path);
    let kind = if matches!(path, Path::Shm) { LinkKind::SHM } else { LinkKind::STREAM };
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| server.serve());
        let connection = connect(&server.address, &hello(kind), &build(), hang_limit()).unwrap();
        (connection, worker.join().unwrap())
    })
}

/// A worker that echoes, and sums the numbers that it gets, until the program closes.
pub(crate) fn work(mut link: Box<dyn WorkerLink>) -> u64 {
    let (replier, mut sum) = (link.replier(), 0);
    let mut slow = Vec::new();
    while let Some(frame) = link.next().unwrap().frame() {
        let (thread, sequence) = (frame.head.thread, frame.head.sequence);
        let payload = frame.payload.to_vec();
        match frame.head.opcode {
            ECHO => answer(&replier, thread, sequence, &payload),
            ADD => sum += u64::from(payload[0]),
            SUM => answer(&replier, thread, sequence, &sum.to_le_bytes()),
            SLOW_ECHO => slow.push(std::thread::spawn({
                let replier = Arc::clone(&replier);
                move || {
                    std::thread::sleep(Duration::from_millis(u64::from(payload[0])));
                    answer(&replier, thread, sequence, &payload);
                }
            })),
            PRINT => {
                let output = Output { stdout: b"printed", stderr: b"failed" };
                let (status, deferred) = (2, 700);
                let answer = OutgoingReply { thread, sequence, status, deferred, payload: &payload, tail: &[], output };
                replier.reply(&answer).unwrap();
            }
            EXIT => break,
            other => panic!("opcode {other}"),
        }
    }
    slow.into_iter().for_each(|thread| thread.join().unwrap());
    sum
}

pub(crate) fn answer(replier: &Arc<dyn Replier>, thread: u32, sequence: u64, payload: &[u8]) {
    answer_in_parts(replier, thread, sequence, (payload, &[])).unwrap();
}

pub(crate) fn answer_in_parts(
    replier: &Arc<dyn Replier>,
    thread: u32,
    sequence: u64,
    (payload, tail): (&[u8], &[u8]),
) -> Result<(), LinkError> {
    replier.reply(&OutgoingReply { thread, sequence, status: 0, deferred: 0, payload, tail, output: Output::default() })
}
