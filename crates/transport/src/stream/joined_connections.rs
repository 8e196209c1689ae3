//! The worker's ends of a program's bulk connections. A thread for each reads payloads ahead, up to a bound. The thread that
//! reads the link takes them when the heads of their frames are due, so that frames are handed out whole and in order.
//!
//! A bulk connection that ends does no harm until a frame names it. Then the frame's payload is lost, and so is the session.

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

/// Most payloads that a bulk connection reads ahead.
const MAX_FRAMES_AHEAD: usize = 2;
/// Most bulk connections of a link.
const MAX_JOINED_CONNECTIONS: usize = MAX_BULK_CONNECTIONS as usize;

/// The bulk connections of a link, by number.
#[derive(Default)]
pub(crate) struct JoinedConnections {
    slots: Mutex<[Option<Arc<JoinedConnection>>; MAX_JOINED_CONNECTIONS]>,
    /// Connections of pending replies, by the numbers of their requests.
    announced: Mutex<HashMap<u64, Arc<JoinedConnection>>>,
    /// The number of pending replies.
    pending_replies: AtomicUsize,
    /// Buffers that receive payloads; none once the system has refused the memory.
    buffers: OnceLock<Option<Arc<Buffers>>>,
}

/// A payload, and where it was received.
pub(crate) enum Payload {
    Buffer(Buffer),
    /// Received while no buffer was free.
    Memory(Vec<u8>),
}

impl Payload {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer.bytes(),
            Self::Memory(bytes) => bytes,
        }
    }

    /// Returns the buffer's number, if the payload is in a buffer.
    pub(crate) fn number(&self) -> Option<usize> {
        match self {
            Self::Buffer(buffer) => Some(buffer.number()),
            Self::Memory(_) => None,
        }
    }
}

impl JoinedConnections {
    /// Admits bulk connection `number`, which counts from 1, once `welcome` has answered its program. Returns false if the number
    /// is invalid, or that connection exists.
    pub(crate) fn join<E: From<io::Error>>(
        &self,
        number: u64,
        welcome: impl FnOnce() -> Result<Connection, E>,
    ) -> Result<bool, E> {
        // Held until the bulk connection is in its slot: a frame that names it may come as soon as the welcome arrives.
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

    /// Drops all bulk connections: the program has left.
    pub(crate) fn clear(&self) {
        for connection in lock(&self.slots).iter_mut().filter_map(Option::take) {
            connection.finish(None);
        }
    }

    /// Returns the memory for bulk, made at the first request.
    pub(crate) fn buffers(&self) -> Option<&Arc<Buffers>> {
        self.buffers.get_or_init(|| Buffers::new().ok()).as_ref()
    }

    /// Takes the payload of the frame with this head out of bulk connection `number`.
    pub(crate) fn take(&self, number: u16, head: &[u8; HEAD_BYTES]) -> Result<Payload, LinkError> {
        self.numbered(number)?.take(head)
    }

    /// Notes that the reply to frame `sequence` will go over bulk connection `number`.
    pub(crate) fn expect_reply(&self, sequence: u64, number: u16) -> Result<(), LinkError> {
        let connection = self.numbered(number)?;
        lock(&self.announced).insert(sequence, connection);
        self.pending_replies.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Takes the bulk connection for the reply to frame `sequence`. Returns it once.
    pub(crate) fn take_reply_connection(&self, sequence: u64) -> Option<Arc<JoinedConnection>> {
        if self.pending_replies.load(Ordering::Acquire) == 0 {
            return None;
        }
        let connection = lock(&self.announced).remove(&sequence)?;
        self.pending_replies.fetch_sub(1, Ordering::Release);
        Some(connection)
    }

    /// Sends heartbeats on each bulk connection that owes a reply, and on each that waits for this side. Not on the latter if the
    /// rest of a frame `is_late`, since it may never come.
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

/// A bulk connection of a stream link.
pub(crate) struct JoinedConnection {
    number: u16,
    connection: Connection,
    buffers: Option<Arc<Buffers>>,
    /// Held while a frame is sent.
    send_lock: Mutex<()>,
    inbox: Mutex<Inbox>,
    /// Notified when a payload came or was taken, or when no more will come.
    changed: Condvar,
}

/// Payloads that were read ahead.
#[derive(Default)]
struct Inbox {
    full: VecDeque<([u8; HEAD_BYTES], Payload)>,
    /// Nothing more will come. `reason` is why, if there is a reason that no caller has got.
    is_over: bool,
    reason: Option<LinkError>,
}

impl JoinedConnection {
    fn new(number: u16, connection: Connection, buffers: Option<Arc<Buffers>>) -> Self {
        Self {
            number,
            connection,
            buffers,
            send_lock: Mutex::default(),
            inbox: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Reads payloads until the bulk connection ends.
    fn read(&self) {
        let mut frames = FrameReader::of_bulk();
        frames.read_from(self.connection.take_opener());
        while self.wait_for_space() {
            match self.receive(&mut frames) {
                Ok(Some(came)) => lock(&self.inbox).full.push_back(came),
                Ok(None) => self.finish(None),
                Err(error) => self.finish(Some(error)),
            }
            self.changed.notify_all();
        }
    }

    /// Waits until another payload may be read ahead. Returns false at the end.
    fn wait_for_space(&self) -> bool {
        let mut inbox = lock(&self.inbox);
        while inbox.full.len() >= MAX_FRAMES_AHEAD && !inbox.is_over {
            inbox = self.changed.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        !inbox.is_over
    }

    /// Receives a head and its payload; none at the end of the stream.
    fn receive(&self, frames: &mut FrameReader) -> Result<Option<([u8; HEAD_BYTES], Payload)>, LinkError> {
        let Some(bytes) = frames.head(self.connection.as_fd())? else { return Ok(None) };
        let (_, connections, length) = FrameHead::decode_over(&bytes)?;
        if connections.payload != self.number {
            return Err(STRAY_FRAME_ERROR);
        }
        Ok(Some((bytes, self.receive_payload(frames, length)?)))
    }

    /// Receives `length` bytes into a buffer, or into other memory if the GPU keeps all buffers for long.
    fn receive_payload(&self, frames: &mut FrameReader, length: usize) -> Result<Payload, LinkError> {
        if let Some(mut buffer) = self.buffers.as_ref().and_then(Buffers::take)
            && let Some(bytes) = buffer.resized(length)
        {
            frames.fill(self.connection.as_fd(), bytes)?;
            return Ok(Payload::Buffer(buffer));
        }
        let mut bytes = Vec::new();
        frames.append_to(self.connection.as_fd(), length, &mut bytes)?;
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

    /// Notes that nothing more will come.
    fn finish(&self, reason: Option<LinkError>) {
        let mut inbox = lock(&self.inbox);
        if !mem::replace(&mut inbox.is_over, true) {
            inbox.reason = reason;
        }
        drop(inbox);
        // This keeps threads on both sides from waiting.
        let _ = shutdown(&self.connection, Shutdown::Both);
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        lock(&self.inbox).is_over
    }

    /// Returns whether the program has to wait because of this side.
    fn is_held_up(&self) -> bool {
        lock(&self.inbox).full.len() >= MAX_FRAMES_AHEAD
    }

    /// Sends a whole reply.
    pub(crate) fn send(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        let _whole = lock(&self.send_lock);
        self.connection.send(parts)
    }

    fn send_heartbeat(&self) {
        let Ok(_whole) = self.send_lock.try_lock() else { return };
        if let (true, Ok(head)) =
            (is_writable(&self.connection), ReplyHead::from(Heartbeat { is_busy: true, frames: 0 }).encode(0))
        {
            // Other code notices a program that is gone.
            let _ = self.connection.send(&mut [IoSlice::new(&head)]);
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

    /// Bulk connection 1, whose reader waits until its payloads are taken, and its program's end.
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

    /// A sender must learn of a stall of another connection that the worker waits for.
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
