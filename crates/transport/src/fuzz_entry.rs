//! Fuzzing entry points for untrusted peers of a link.
//!
//! A script says what the peer does; the link under test does what links do, without its waits. A script that keeps to the rules
//! must get out what it put in. Any other script can at worst end the link.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use katydid_wire::frame::{FrameHead, HEAD_BYTES, MAX_PAYLOAD_BYTES, Output, padded};

use crate::ipc::connection::Connection;
use crate::link::worker::{OutgoingReply, WorkerLink};
use crate::shm::channel::create;
use crate::shm::layout::{
    CHANNEL_ADDRESS, CHANNEL_BYTES, HEAD_OFFSET, PAGE_BYTES, RING_BYTES, RING_OFFSET, TAIL_OFFSET,
};
use crate::shm::shared_mapping::SharedMapping;
use crate::shm::worker::ShmWorker;
pub use crate::tls::fuzz_entry::records;

/// Bytes of a script's step.
const SCRIPT_STEP_BYTES: usize = 8;
/// Bytes of an honest frame's payload are fewer.
const MAX_HONEST_PAYLOAD_BYTES: usize = 1 << 12;

/// Reads the ring of a program that does what `script` says. Returns how many frames were handed out.
///
/// A step is a byte that says what the program does, another byte, and three numbers of 2 bytes. The program writes an honest
/// frame, bytes anywhere in the ring, either side's counter, any word in front of the ring, or the head of a frame. Or it waits
/// until the worker has taken a frame and answered it.
///
/// Frames written before the first dishonest step arrive as they were written.
///
/// # Errors
///
/// [`io::Error`]: the system refuses memory.
pub fn ring(script: &[u8]) -> io::Result<usize> {
    let channel = create("katydid-fuzzed", CHANNEL_BYTES as u64)?;
    let (_local, remote) = UnixStream::pair()?;
    let shared = SharedMapping::map(&channel, CHANNEL_BYTES, CHANNEL_ADDRESS)?;
    let connection = Connection::new(OwnedFd::from(remote), None);
    let worker = ShmWorker::new(connection, &[channel], 0).map_err(io::Error::other)?;
    let mut peer = Peer { shared, worker, tail: 0, sent: 0, received: 0, is_honest: true };
    let (steps, _) = script.as_chunks::<SCRIPT_STEP_BYTES>();
    for step in steps {
        match peer.step(*step) {
            WorkerFinding::Frame | WorkerFinding::Nothing => {}
            WorkerFinding::End => return Ok(peer.received),
        }
    }
    while let WorkerFinding::Frame = peer.take() {}
    assert!(!peer.is_honest || peer.received == peer.sent, "an honest frame was not handed out");
    Ok(peer.received)
}

/// What the worker found.
enum WorkerFinding {
    Frame,
    Nothing,
    /// The link has ended.
    End,
}

/// A program that does as it likes, and its worker.
struct Peer {
    shared: SharedMapping,
    worker: ShmWorker,
    /// The program's counter, as last published.
    tail: u64,
    /// Valid frames so far.
    sent: usize,
    received: usize,
    /// Nothing dishonest was done yet.
    is_honest: bool,
}

impl Peer {
    fn step(&mut self, [what, byte, numbers @ ..]: [u8; SCRIPT_STEP_BYTES]) -> WorkerFinding {
        let (numbers, _) = numbers.as_chunks::<2>();
        let number = |at: usize| numbers.get(at).map_or(0, |number| u16::from_le_bytes(*number));
        let [a, b, c] = [number(0), number(1), number(2)];
        match what % 8 {
            0 | 1 => return self.take(),
            2 | 3 if self.is_honest => {
                self.write_frame(byte, usize::from(a) % MAX_HONEST_PAYLOAD_BYTES);
                return WorkerFinding::Nothing;
            }
            2 | 3 => self.write_head(byte, [a, b, c]),
            4 => self.put(u64::from(a) << 8 | u64::from(b), &vec![byte; c.into()]),
            5 => {
                let wide = u64::from(a) | u64::from(b) << 16 | u64::from(c) << 32 | u64::from(byte) << 56;
                self.set_counter(if byte & 1 == 0 { TAIL_OFFSET } else { HEAD_OFFSET }, wide);
            }
            6 => self.publish(self.tail.wrapping_add(a.into())),
            _ => self.set_word(a.into(), u32::from(b) | u32::from(c) << 16),
        }
        self.is_honest = false;
        WorkerFinding::Nothing
    }

    /// Lets the worker take a frame, if there is one, and answer it.
    fn take(&mut self) -> WorkerFinding {
        let replier = self.worker.replier();
        let frame = match self.worker.next_ready() {
            Ok(Some(frame)) => frame,
            Ok(None) => return WorkerFinding::Nothing,
            Err(error) => {
                assert!(!self.is_honest, "an honest program is refused: {error}");
                return WorkerFinding::End;
            }
        };
        let FrameHead { thread, sequence, wants_reply, .. } = frame.head;
        assert!(frame.payload.len() <= MAX_PAYLOAD_BYTES && sequence == self.received as u64);
        if self.is_honest {
            let sent = self.received as u8;
            assert!(frame.payload.iter().all(|byte| *byte == sent), "an honest payload was changed");
        }
        if wants_reply {
            let (payload, output) = (frame.payload.get(..64).unwrap_or_default(), Output::default());
            let answer = OutgoingReply { thread, sequence, status: 0, deferred: 0, payload, tail: &[], output };
            assert!(replier.reply(&answer).is_ok(), "a thread that was let in has no slot");
        }
        self.received += 1;
        WorkerFinding::Frame
    }

    /// Writes at an offset of the ring, wrapping around its end.
    fn put(&self, offset_in_ring: u64, bytes: &[u8]) {
        let offset_in_ring = (offset_in_ring % RING_BYTES as u64) as usize;
        let (first, second) = bytes.split_at(bytes.len().min(RING_BYTES - offset_in_ring));
        self.shared.copy_in(RING_OFFSET + offset_in_ring, first);
        self.shared.copy_in(RING_OFFSET, second);
    }

    fn set_counter(&self, counter: usize, value: u64) {
        self.shared.long_word(counter).store(value, Ordering::Release);
    }

    fn publish(&mut self, tail: u64) {
        self.tail = tail;
        self.set_counter(TAIL_OFFSET, tail);
    }

    /// Writes any word in front of the ring.
    fn set_word(&self, at: usize, value: u32) {
        self.shared.word((at % PAGE_BYTES) & !3).store(value, Ordering::Release);
    }

    /// Writes an honest frame, if there is room for it.
    fn write_frame(&mut self, byte: u8, length: usize) {
        let (wants_reply, thread, sequence) = (byte & 1 != 0, 1 + u32::from(byte), self.sent as u64);
        let head = FrameHead { opcode: byte.into(), wants_reply, thread, context: 0, sequence };
        let used = self.tail - self.shared.long_word(HEAD_OFFSET).load(Ordering::Acquire);
        let whole = padded(HEAD_BYTES + length) as u64;
        let Ok(head) = head.encode(length) else { return };
        if used + whole <= RING_BYTES as u64 {
            self.put(self.tail, &head);
            self.put(self.tail + HEAD_BYTES as u64, &vec![self.sent as u8; length]);
            self.publish(self.tail + whole);
            self.sent += 1;
        }
    }

    /// Writes a head with these numbers as its fields, and publishes some bytes.
    fn write_head(&mut self, byte: u8, [length, thread, published]: [u16; 3]) {
        let mut head = [0; HEAD_BYTES];
        // Lengths up to beyond the limit; one in four is arbitrary.
        let length = if byte & 3 == 0 { u32::from(length) << 8 } else { u32::from(length) };
        head[..4].copy_from_slice(&length.to_le_bytes());
        head[4..6].copy_from_slice(&u16::from(byte).to_le_bytes());
        head[6] = byte >> 2 & 1;
        head[8..10].copy_from_slice(&thread.to_le_bytes());
        // The number that is expected, or the next.
        let sequence = self.received as u64 + u64::from(byte >> 7);
        head[16..24].copy_from_slice(&sequence.to_le_bytes());
        self.put(self.tail, &head);
        let published = if byte & 8 == 0 { padded(length as usize) as u64 } else { published.into() };
        self.publish(self.tail.wrapping_add(published));
    }
}
