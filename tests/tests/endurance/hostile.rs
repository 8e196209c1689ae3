//! Attacks of hostile clients on a server, each kind in small rounds.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use katydid_tests::catalog::Variant;
use katydid_tests::paths::Paths;
use katydid_tests::program::Running;
use katydid_tests::server::Server;
use katydid_tests::watch::WAIT_TIMEOUT;
use katydid_tests::way::Way;
use katydid_transport::connect;
use katydid_transport::{Address, companion};
use katydid_wire::frame::FrameHead;
use katydid_wire::handshake::{ConnectionRole, Hello, PREFIX_BYTES, SessionClaim, SessionKind};
use katydid_wire::key::SessionKey;

use crate::peer;

/// Addresses at which a server can be attacked.
pub(crate) struct Target<'a> {
    paths: &'a Paths,
    ways: [Way; 2],
    addresses: Vec<String>,
    admin: PathBuf,
}

impl<'a> Target<'a> {
    pub(crate) fn of(server: &Server, paths: &'a Paths) -> Self {
        let all = [Some(server.unix()), Some(server.tcp().to_owned()), server.tls().map(str::to_owned)];
        let addresses = all.into_iter().flatten().collect();
        Self { paths, ways: Way::through(server), addresses, admin: server.admin_socket() }
    }

    fn address(&self, round: u64) -> &str {
        &self.addresses[(round % self.addresses.len() as u64) as usize]
    }

    /// Returns an address without TLS.
    fn plain(&self, round: u64) -> &str {
        &self.addresses[(round % 2) as usize]
    }
}

/// One round of an attack; the number varies it.
pub(crate) type Attack = fn(&Target<'_>, u64) -> Result<()>;

pub(crate) const ATTACKS: [Attack; 7] = [silence, noise, visits, broken_session, questions, requests, killed];

/// Returns a hello with the longest possible name.
fn hello(session: SessionKind, claim: SessionClaim) -> Hello {
    Hello { program: "h".repeat(4096), name: String::new(), ..peer::hello(session, claim) }
}

/// Opens more silent connections than there are slots.
fn silence(target: &Target<'_>, round: u64) -> Result<()> {
    let all = (0..150).map(|_| peer::connect(target.address(round))).collect::<Result<Vec<_>, _>>()?;
    sleep(Duration::from_millis(100));
    drop(all);
    Ok(())
}

/// Sends a part of a hello, or other bytes.
fn noise(target: &Target<'_>, round: u64) -> Result<()> {
    let whole = hello(SessionKind::CUDA, SessionClaim::NEW).encode(&peer::build())?;
    for number in 0..16_u64 {
        let mut socket = peer::connect(target.address(round + number))?;
        let mut state = round << 8 | number;
        // Never a whole hello: that would open a session.
        let mut bytes = whole[..(whole.len() - 1) / (1 + number as usize % 3)].to_vec();
        for _ in 0..number % 5 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] = state as u8;
        }
        // The server may have hung up already.
        let _ = socket.write_all(&bytes);
    }
    Ok(())
}

/// Opens connections to a worker that accepts none.
fn visits(target: &Target<'_>, round: u64) -> Result<()> {
    let at: Address = target.address(round).parse()?;
    let (silent, ready) = companion(&at, SessionKey::NONE, WAIT_TIMEOUT)?;
    let mut connections = Vec::new();
    for _ in 0..40 {
        let claim = SessionClaim { role: ConnectionRole::COMPANION, key: ready.key, frames: 0 };
        let mut socket = peer::connect(target.plain(round))?;
        socket.write_all(&hello(SessionKind::CUDA, claim).encode(&peer::build())?)?;
        connections.push(socket);
    }
    sleep(Duration::from_millis(50));
    drop(silent);
    Ok(())
}

/// Breaks off a session in the middle of frames, or breaks the protocol there.
fn broken_session(target: &Target<'_>, round: u64) -> Result<()> {
    let mut socket = peer::connect(target.plain(round))?;
    socket.write_all(&hello(SessionKind::CUDA, SessionClaim::NEW).encode(&peer::build())?)?;
    socket.read_exact(&mut [0; PREFIX_BYTES])?;
    let head = FrameHead { opcode: (round % 700) as u16, wants_reply: true, thread: 1, context: 0, sequence: 0 };
    let frame = [&head.encode(4096)?[..], &[round as u8; 4096]].concat();
    let _ = socket.write_all(&frame[..frame.len() / (1 + round as usize % 2)]);
    sleep(Duration::from_millis(20));
    Ok(())
}

/// Opens connections for questions about devices and asks none.
fn questions(target: &Target<'_>, round: u64) -> Result<()> {
    let at: Address = target.address(round).parse()?;
    let idle: Vec<_> = (0..3)
        .map(|_| connect(&at, &hello(SessionKind::NVML, SessionClaim::NEW), &peer::build(), Duration::from_secs(5)))
        .collect();
    sleep(Duration::from_millis(200));
    drop(idle);
    Ok(())
}

/// Sends requests that are too large, too slow, or invalid.
fn requests(target: &Target<'_>, round: u64) -> Result<()> {
    let heads = [
        "GET /v1/sessions HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(100_000)),
        "POST /v1/server HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n".to_owned(),
        "GET /v1/server HTTP/1.1\r\nHost".to_owned(),
        "\u{16}\u{3}\u{1}".to_owned(),
    ];
    let mut idle = Vec::new();
    for number in 0..30 {
        let mut stream = UnixStream::connect(&target.admin)?;
        let _ = stream.write_all(heads[(round as usize + number) % heads.len()].as_bytes());
        idle.push(stream);
    }
    sleep(Duration::from_millis(20));
    Ok(())
}

/// Kills a program in the middle of its calls.
fn killed(target: &Target<'_>, round: u64) -> Result<()> {
    let way = &target.ways[(round % 2) as usize];
    let mut command = way.command(target.paths, &target.paths.program("fixture", Variant::Static));
    let mut running = Running::start(command.arg("endless"), Stdio::piped())?;
    running.wait_for("ready", WAIT_TIMEOUT)?;
    sleep(Duration::from_millis(round % 50));
    running.kill();
    Ok(())
}
