//! The worker's ends of a program's bulk connections. A thread for each reads payloads ahead, up to a bound; the thread that reads
//! the link takes them when the heads of their frames are due, so that frames are handed out whole and in their order.
//!
//! A bulk connection that ends is no harm until a frame names it: then what the frame should have brought is lost, and so is the
//! session.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use katydid_wire::frame::{FrameHead, HEAD_BYTES, Heartbeat, MAX_BULK_CONNECTIONS, ReplyHead};
use rustix::net::{Shutdown, shutdown};

use crate::ipc::connection::Connection;
use crate::link::error::LinkError;
use crate::os::socket::is_writable;
use crate::stream::bulk::{Buffer, Buffers};
use crate::stream::frame_reader::FrameReader;

const ABSENT_ERROR: LinkError = LinkError::Protocol { what: "a frame names a bulk connection that is not there" };
const ENDED_ERROR: LinkError = LinkError::Protocol { what: "a bulk connection ended before the payload of a frame" };
const OTHER_FRAME_ERROR: LinkError =
    LinkError::Protocol { what: "a bulk connection carries another frame than the one that is expected" };
const STRAY_FRAME_ERROR: LinkError =
    LinkError::Protocol { what: "a bulk connection carries a frame that is not for it" };

/// Payloads that a bulk connection reads ahead.
const MAX_FRAMES_AHEAD: usize = 2;
/// Bulk connections that a link may have.
const MAX_JOINED_CONNECTIONS: usize = MAX_BULK_CONNECTIONS as usize;

/// The bulk connections of a link, by number.
#[derive(Default)]
pub(crate) struct JoinedConnections {
    slots: Mutex<[Option<Arc<JoinedConnection>>; MAX_JOINED_CONNECTIONS]>,
    /// Replies that bulk connections owe, by the numbers of their requests.
    announced: Mutex<HashMap<u64, Arc<JoinedConnection>>>,
    /// How many those are.
    pending_replies: AtomicUsize,
    /// Where payloads are received; none once the system has refused the memory.
    buffers: OnceLock<Option<Arc<Buffers>>>,
}

/// A payload, where it was received.
pub(crate) enum Payload {
    Buffer(Buffer),
    /// There was no buffer.
    Memory(Vec<u8>),
}

impl Payload {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer.bytes(),
            Self::Memory(bytes) => bytes,
        }
    }

    /// The buffer's number, if it lies in one.
    pub(crate) fn number(&self) -> Option<usize> {
        match self {
            Self::Buffer(buffer) => Some(buffer.number()),
            Self::Memory(_) => None,
        }
    }
}

impl JoinedConnections {
    /// Takes bulk connection `number` in, which counts from 1, once `welcome` has answered its program. False if it is no number for a
    /// bulk connection, or of one that is there.
    pub(crate) fn join<E: From<io::Error>>(
        &self,
        number: u64,
        welcome: impl FnOnce() -> Result<Connection, E>,
    ) -> Result<bool, E> {
        // Held until the bulk connection is in its slot: a frame that names it may come with the welcome's arrival.
        let mut slots = lock(&self.slots);
        let slot = number.checked_sub(1).and_then(|slot| slots.get_mut(usize::try_from(slot).ok()?));
        let Some(slot) = slot.filter(|slot| slot.as_ref().is_none_or(|connection| connection.is_over())) else {
            return Ok(false);
        };
        let connection = Arc::new(JoinedConnection::new(number as u16, welcome()?, self.buffers().cloned()));
        let reader = Arc::clone(&connection);
        thread::Builder::new().name(format!("bulk {number}")).spawn(move || reader.read())?;
        *slot = Some(connection);
        Ok(true)
    }

    /// Lets go of all bulk connections: the program has left.
    pub(crate) fn clear(&self) {
        for connection in lock(&self.slots).iter_mut().filter_map(Option::take) {
            connection.finish(None);
        }
    }

    /// Memory for bulk, made at the first request.
    pub(crate) fn buffers(&self) -> Option<&Arc<Buffers>> {
        self.buffers.get_or_init(|| Buffers::new().ok()).as_ref()
    }

    /// The payload of the frame with this head, out of bulk connection `number`.
    pub(crate) fn take(&self, number: u16, head: &[u8; HEAD_BYTES]) -> Result<Payload, LinkError> {
        self.numbered(number)?.take(head)
    }

    /// The reply to frame `sequence` will go over bulk connection `number`.
    pub(crate) fn expect_reply(&self, sequence: u64, number: u16) -> Result<(), LinkError> {
        let connection = self.numbered(number)?;
        lock(&self.announced).insert(sequence, connection);
        self.pending_replies.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The bulk connection that the reply to frame `sequence` goes over, asked for once.
    pub(crate) fn take_reply_connection(&self, sequence: u64) -> Option<Arc<JoinedConnection>> {
        if self.pending_replies.load(Ordering::Acquire) == 0 {
            return None;
        }
        let connection = lock(&self.announced).remove(&sequence)?;
        self.pending_replies.fetch_sub(1, Ordering::Release);
        Some(connection)
    }

    /// Says on each bulk connection that owes something that its worker is there, and on each that is held up here; not if that is so
    /// because the rest of a frame `is_late`, which may never come.
    pub(crate) fn send_heartbeats(&self, is_late: bool) {
        let connections: Vec<Arc<JoinedConnection>> = lock(&self.slots).iter().flatten().cloned().collect();
        let is_owing = |connection: &Arc<JoinedConnection>| {
            lock(&self.announced).values().any(|announced| Arc::ptr_eq(announced, connection))
        };
        let is_held_up = |connection: &Arc<JoinedConnection>| !is_late && connection.is_held_up();
        connections
            .iter()
            .filter(|connection| is_held_up(connection) || is_owing(connection))
            .for_each(|connection| connection.send_heartbeat());
    }

    fn numbered(&self, number: u16) -> Result<Arc<JoinedConnection>, LinkError> {
        let slot = usize::from(number).checked_sub(1).ok_or(ABSENT_ERROR)?;
        lock(&self.slots).get(slot).and_then(Clone::clone).ok_or(ABSENT_ERROR)
    }
}

/// One further connection of a stream link.
pub(crate) struct JoinedConnection {
    number: u16,
    line: Connection,
    buffers: Option<Arc<Buffers>>,
    /// Held while something is sent.
    send_lock: Mutex<()>,
    inbox: Mutex<Inbox>,
    /// A payload came, or was taken, or there will be none.
    changed: Condvar,
}

/// What was read ahead.
#[derive(Default)]
struct Inbox {
    full: VecDeque<([u8; HEAD_BYTES], Payload)>,
    /// Nothing more will come, for this reason if there is one that no caller has got.
    is_over: bool,
    reason: Option<LinkError>,
}

impl JoinedConnection {
    fn new(number: u16, line: Connection, buffers: Option<Arc<Buffers>>) -> Self {
        Self { number, line, buffers, send_lock: Mutex::default(), inbox: Mutex::default(), changed: Condvar::new() }
    }

    /// Reads payloads until the bulk connection ends.
    fn read(&self) {
        let mut frames = FrameReader::of_bulk();
        frames.read_from(self.line.take_opener());
        while self.wait_for_space() {
            match self.receive(&mut frames) {
                Ok(Some(came)) => lock(&self.inbox).full.push_back(came),
                Ok(None) => self.finish(None),
                Err(error) => self.finish(Some(error)),
            }
            self.changed.notify_all();
        }
    }

    /// Waits until another payload may be read ahead; false at the end.
    fn wait_for_space(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        while inbox.full.len() >= MAX_FRAMES_AHEAD && !inbox.is_over {
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        !inbox.is_over
    }

    /// Receives a head, and what follows it; none at the end of the stream.
    fn receive(&self, frames: &mut FrameReader) -> Result<Option<([u8; HEAD_BYTES], Payload)>, LinkError> {
        let Some(bytes) = frames.head(self.line.as_fd())? else { return Ok(None) };
        let (_, connections, length) = FrameHead::decode_over(&bytes)?;
        if connections.payload != self.number {
            return Err(STRAY_FRAME_ERROR);
        }
        Ok(Some((bytes, self.receive_payload(frames, length)?)))
    }

    /// Receives `length` bytes into a buffer, unless the GPU has them all for long.
    fn receive_payload(&self, frames: &mut FrameReader, length: usize) -> Result<Payload, LinkError> {
        if let Some(mut buffer) = self.buffers.as_ref().and_then(Buffers::take)
            && let Some(bytes) = buffer.resized(length)
        {
            frames.fill(self.line.as_fd(), bytes)?;
            return Ok(Payload::Buffer(buffer));
        }
        let mut bytes = Vec::new();
        frames.append_to(self.line.as_fd(), length, &mut bytes)?;
        Ok(Payload::Memory(bytes))
    }

    fn take(&self, head: &[u8; HEAD_BYTES]) -> Result<Payload, LinkError> {
        let mut inbox = lock(&self.inbox);
        loop {
            if let Some((came, payload)) = inbox.full.pop_front() {
                self.changed.notify_all();
                return if came == *head { Ok(payload) } else { Err(OTHER_FRAME_ERROR) };
            }
            if inbox.is_over {
                return Err(inbox.reason.take().unwrap_or(ENDED_ERROR));
            }
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing more will come.
    fn finish(&self, reason: Option<LinkError>) {
        let mut inbox = lock(&self.inbox);
        if !mem::replace(&mut inbox.is_over, true) {
            inbox.reason = reason;
        }
        drop(inbox);
        // So that no thread waits on either side.
        let _ = shutdown(&self.line, Shutdown::Both);
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        lock(&self.inbox).is_over
    }

    /// Whether its program has to wait because of this side.
    fn is_held_up(&self) -> bool {
        lock(&self.inbox).full.len() >= MAX_FRAMES_AHEAD
    }

    /// Sends a reply whole.
    pub(crate) fn send(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let _whole = lock(&self.send_lock);
        self.line.send(parts)
    }

    fn send_heartbeat(&self) {
        let Ok(_whole) = self.send_lock.try_lock() else { return };
        if let (true, Ok(head)) =
            (is_writable(&self.line), ReplyHead::from(Heartbeat { is_busy: true, frames: 0 }).encode(0))
        {
            // A program that is gone is noticed by others.
            let _ = self.line.send(&mut [IoSlice::new(&head)]);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code under these locks panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use katydid_wire::frame::FrameConnections;

    use super::*;

    /// Connection 1 of some bulk connections, whose reader waits for its payloads to be taken; and its program's end.
    fn held_up(joined: &JoinedConnections) -> UnixStream {
        let (mut program, worker) = UnixStream::pair().unwrap();
        let is_taken = joined.join::<io::Error>(1, || Ok(Connection::from(OwnedFd::from(worker))));
        assert!(is_taken.unwrap());
        let connections = FrameConnections { payload: 1, reply: 0 };
        for sequence in 0..MAX_FRAMES_AHEAD as u64 {
            let head = FrameHead { opcode: 1, wants_reply: false, thread: 1, context: 0, sequence };
            program.write_all(&head.encode_over(3, connections).unwrap()).unwrap();
            program.write_all(b"abc").unwrap();
        }
        let connection = joined.numbered(1).unwrap();
        while !connection.is_held_up() {
            thread::yield_now();
        }
        program
    }

    fn has_heard(program: &mut UnixStream) -> bool {
        program.set_nonblocking(true).unwrap();
        program.read(&mut [0; 1024]).is_ok_and(|length| length > 0)
    }

    /// A sender must learn of a stall of another connection, for which the worker waits.
    #[test]
    fn a_bulk_connection_that_is_held_up_by_what_does_not_come_gives_no_sign_of_life() {
        let joined = JoinedConnections::default();
        let mut program = held_up(&joined);
        joined.send_heartbeats(true);
        assert!(!has_heard(&mut program));
        joined.send_heartbeats(false);
        assert!(has_heard(&mut program));
        joined.expect_reply(7, 1).unwrap();
        joined.send_heartbeats(true);
        assert!(has_heard(&mut program), "what it owes comes whatever else does not");
        joined.clear();
    }
}
