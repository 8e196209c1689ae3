//! A test network between a program and its server: TCP that can be held back, or cut off at a counted byte.
//!
//! Nothing here depends on the clock: bytes are counted, and data held back stays so until a test releases it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use katydid_transport::Address;

/// The possible faults of one direction of the connection.
#[derive(Debug)]
pub(crate) struct Direction {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Bytes that may still pass; what comes after them waits.
    allowance: u64,
    /// The whole connection ends when this many bytes have passed.
    cut_after: u64,
    /// Bytes at these offsets, counted from the start, are lost.
    lost: std::ops::Range<u64>,
    passed: u64,
    /// The bytes that have passed, if the test records them.
    record: Option<Vec<u8>>,
}

impl Direction {
    fn new() -> Arc<Self> {
        let state = State { allowance: u64::MAX, cut_after: u64::MAX, lost: 0..0, passed: 0, record: None };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Lets only `bytes` more bytes pass until [`Direction::release`].
    pub(crate) fn hold_after(&self, bytes: u64) {
        self.state.lock().unwrap().allowance = bytes;
    }

    /// Lets everything pass again.
    pub(crate) fn release(&self) {
        self.state.lock().unwrap().allowance = u64::MAX;
        self.changed.notify_all();
    }

    /// Cuts the connection after `bytes` more bytes.
    pub(crate) fn cut_after(&self, bytes: u64) {
        let mut state = self.state.lock().unwrap();
        state.cut_after = state.passed + bytes;
    }

    /// Loses `length` bytes after `bytes` more bytes; the rest passes.
    pub(crate) fn lose_after(&self, bytes: u64, length: u64) {
        let mut state = self.state.lock().unwrap();
        let start = state.passed + bytes;
        state.lost = start..start + length;
    }

    /// Returns the number of bytes that have passed.
    pub(crate) fn passed(&self) -> u64 {
        self.state.lock().unwrap().passed
    }

    /// Starts to record the bytes that pass.
    pub(crate) fn record(&self) {
        self.state.lock().unwrap().record = Some(Vec::new());
    }

    /// Returns the bytes that have passed since [`Direction::record`].
    pub(crate) fn recorded(&self) -> Vec<u8> {
        self.state.lock().unwrap().record.clone().unwrap_or_default()
    }

    /// Returns how many bytes of `length` pass now, and whether they arrive; none when the connection must end.
    fn admit(&self, length: u64) -> Option<(u64, bool)> {
        let mut state = self.state.lock().unwrap();
        while state.allowance == 0 {
            state = self.changed.wait(state).unwrap();
        }
        let passed = state.passed;
        let is_lost = state.lost.contains(&passed);
        let next = if is_lost { state.lost.end } else { state.lost.start };
        let until_next = if next > passed { next - passed } else { u64::MAX };
        let admitted = length.min(state.allowance).min(until_next).min(state.cut_after - passed);
        state.passed += admitted;
        if state.allowance != u64::MAX {
            state.allowance -= admitted;
        }
        (admitted > 0).then_some((admitted, !is_lost))
    }

    /// Forwards bytes until an end closes, or the cut.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            let mut at = 0;
            while at < length {
                let Some((admitted, arrives)) = self.admit((length - at) as u64) else {
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    return;
                };
                let part = &bytes[at..at + admitted as usize];
                if let Some(record) = &mut self.state.lock().unwrap().record {
                    record.extend_from_slice(part);
                }
                if arrives && to.write_all(part).is_err() {
                    return;
                }
                at += admitted as usize;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}

/// The two directions of a connection: from the program to its worker, and back.
pub(crate) type Ways = (Arc<Direction>, Arc<Direction>);

/// The network between programs and `server`, for any number of connections.
pub(crate) struct Network {
    /// Where programs connect to.
    pub(crate) address: Address,
    ways: Arc<Mutex<Vec<Ways>>>,
}

impl Network {
    /// `prepare` gets the number of each connection, from 0, before a byte passes.
    pub(crate) fn to(server: &Address, prepare: impl Fn(usize, &Ways) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, host, port) = through(server, &listener);
        let ways: Arc<Mutex<Vec<Ways>>> = Arc::default();
        let shared_ways = Arc::clone(&ways);
        std::thread::spawn(move || {
            while let Ok((program, _)) = listener.accept() {
                let new = (Direction::new(), Direction::new());
                let mut ways = shared_ways.lock().unwrap();
                prepare(ways.len(), &new);
                ways.push((Arc::clone(&new.0), Arc::clone(&new.1)));
                drop(ways);
                carry(program, TcpStream::connect((host.as_str(), port)).unwrap(), new);
            }
        });
        Self { address, ways }
    }

    /// Connections so far, in the order in which they were made.
    pub(crate) fn ways(&self) -> Vec<Ways> {
        self.ways.lock().unwrap().clone()
    }
}

/// An address like the server's for the listener, and where the server is.
fn through(server: &Address, listener: &TcpListener) -> (Address, String, u16) {
    let (local_host, own) = ("127.0.0.1".to_owned(), listener.local_addr().unwrap().port());
    match server.clone() {
        Address::Tcp { host, port } => (Address::Tcp { host: local_host, port: own }, host, port),
        Address::Tls { host, port, certs } => (Address::Tls { host: local_host, port: own, certs }, host, port),
        other => panic!("{other} is not TCP"),
    }
}

/// Carries the bytes of one connection.
fn carry(program: TcpStream, worker: TcpStream, (there, back): Ways) {
    let (their_program, their_worker) = (program.try_clone().unwrap(), worker.try_clone().unwrap());
    std::thread::spawn(move || there.pump(program, worker));
    std::thread::spawn(move || back.pump(their_worker, their_program));
}

/// The network between one program and `server`.
pub(crate) struct Proxy {
    /// Where the program connects to.
    pub(crate) address: Address,
    /// From the program to its worker.
    pub(crate) there: Arc<Direction>,
    /// From the worker to its program.
    pub(crate) back: Arc<Direction>,
}

impl Proxy {
    /// For one connection.
    pub(crate) fn to(server: &Address) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, host, port) = through(server, &listener);
        let (there, back) = (Direction::new(), Direction::new());
        let ways = (Arc::clone(&there), Arc::clone(&back));
        std::thread::spawn(move || {
            let program = listener.accept().unwrap().0;
            carry(program, TcpStream::connect((host, port)).unwrap(), ways);
        });
        Self { address, there, back }
    }
}
