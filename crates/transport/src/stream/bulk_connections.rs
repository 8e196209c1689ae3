//! The program's bulk connections: they carry bulk beside a link's first connection, which keeps the order of frames.
//!
//! One thread at a time uses a bulk connection. It carries the payload of a frame whose head has gone over the first connection,
//! or the reply to a frame, with no other thread's bytes in between. So several threads send and receive at once, each straight
//! from and to the program's memory. A thread that finds no free bulk connection does not wait for one, since its user may wait
//! for the GPU: its bytes go over the first connection.
//!
//! Bulk connections are opened once bulk has begun to flow, each by a thread that wants one. They are closed when the program
//! leaves its worker. A bulk connection that ends by itself, or stalls, ends the link. The link does without one that cannot be
//! opened.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use katydid_wire::frame::{self, ReplyHead};
use rustix::net::{Shutdown, shutdown};

use crate::ipc::connection::Connection;
use crate::link::error::LinkError;
use crate::os::descriptor::{Descriptor, Placeholder};
use crate::os::socket::send_while;
use crate::stream::frame_reader::FrameReader;
use crate::stream::reply_dispatcher::{ArrivedReply, AwaitedReply, UNASKED_REPLY_ERROR, read_body};
use crate::tls::record::Sealer;

/// Fewest bytes that go over a bulk connection.
pub(crate) const MIN_BULK_BYTES: usize = 128 << 10;
/// Bytes of bulk that go over the first connection before bulk connections are opened: programs that copy little have no use for
/// them.
const BULK_BYTES_BEFORE_OPENING: u64 = 8 << 20;
/// Fewest bytes that are divided among bulk connections.
const MIN_SPLIT_BYTES: u64 = 2 << 20;
/// Most bulk connections of a link.
const MAX_BULK_CONNECTIONS: usize = frame::MAX_BULK_CONNECTIONS as usize;

/// The bulk connections of a link.
pub(crate) struct BulkConnections {
    /// A bulk connection keeps its slot, and the number of its descriptor, from its first opening to the link's end.
    slots: [OnceLock<BulkConnection>; MAX_BULK_CONNECTIONS],
    usage: Mutex<ConnectionUsage>,
    /// Notified when a bulk connection is given back, or an attempt to open one is over.
    changed: Condvar,
    /// Bytes of bulk so far.
    carried: AtomicU64,
    /// Bulk connections that may be opened.
    limit: AtomicUsize,
}

/// A bulk connection, with its cipher state and reader.
struct BulkConnection {
    socket: Descriptor,
    ends: Mutex<ConnectionEnds>,
}

/// The halves with which the connection's user reads and writes.
struct ConnectionEnds {
    /// None without TLS.
    sealer: Option<Sealer>,
    frames: FrameReader,
}

/// Which threads hold which connections.
#[derive(Default)]
struct ConnectionUsage {
    /// Slots of connections that are not in use.
    free: Vec<usize>,
    /// Bulk connections that were opened to the current worker, or are being opened.
    opened: usize,
    /// Bulk connections that threads use or are opening.
    in_use: usize,
    /// One was refused, so no further bulk connection is opened.
    is_refused: bool,
    /// No bulk connection is given out: the program is leaving its worker, or has left.
    is_closed: bool,
}

impl BulkConnections {
    pub(crate) fn new() -> Self {
        Self {
            slots: [const { OnceLock::new() }; MAX_BULK_CONNECTIONS],
            usage: Mutex::default(),
            changed: Condvar::new(),
            carried: AtomicU64::new(0),
            limit: AtomicUsize::new(0),
        }
    }

    fn usage(&self) -> MutexGuard<'_, ConnectionUsage> {
        // No code under this lock panics.
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allows at most `count` bulk connections.
    pub(crate) fn allow(&self, count: usize) {
        self.limit.store(count.min(MAX_BULK_CONNECTIONS), Ordering::Relaxed);
    }

    /// Returns how many bulk connections `bytes` of upcoming bulk may use at a time.
    pub(crate) fn expect(&self, bytes: u64) -> usize {
        if bytes < MIN_SPLIT_BYTES {
            return 0;
        }
        let old_bytes = self.carried.fetch_add(bytes, Ordering::Relaxed);
        if old_bytes.saturating_add(bytes) < BULK_BYTES_BEFORE_OPENING {
            return 0;
        }
        let (limit, usage) = (self.limit.load(Ordering::Relaxed), self.usage());
        if usage.is_refused { usage.opened.min(limit) } else { limit }
    }

    /// Opens a bulk connection with `connect`, which gets its number, if bulk flows, none is free and one more is allowed.
    pub(crate) fn open_one_more<E>(&self, bytes: usize, connect: impl FnOnce(u16) -> Result<Connection, E>) {
        let Some(index) = self.begin(bytes) else { return };
        let opened = connect(index as u16 + 1).is_ok_and(|connection| self.put(index, connection).is_ok());
        let mut usage = self.usage();
        usage.in_use -= 1;
        if opened {
            usage.free.push(index);
        } else {
            (usage.is_refused, usage.opened) = (true, usage.opened - 1);
        }
        drop(usage);
        self.changed.notify_all();
    }

    /// Reserves the slot of a bulk connection that the caller then opens.
    fn begin(&self, bytes: usize) -> Option<usize> {
        let carried = self.carried.fetch_add(bytes as u64, Ordering::Relaxed);
        let limit = self.limit.load(Ordering::Relaxed);
        if limit == 0 || carried < BULK_BYTES_BEFORE_OPENING {
            return None;
        }
        let mut usage = self.usage();
        if !usage.free.is_empty() || usage.opened >= limit || usage.is_refused || usage.is_closed {
            return None;
        }
        (usage.opened, usage.in_use) = (usage.opened + 1, usage.in_use + 1);
        Some(usage.opened - 1)
    }

    fn put(&self, index: usize, connection: Connection) -> io::Result<()> {
        let (fd, sealer, opener) = connection.into_parts();
        let mut frames = FrameReader::of_bulk();
        frames.read_from(opener);
        let ends = ConnectionEnds { sealer, frames };
        match self.slots[index].get() {
            Some(connection) => {
                *connection.ends() = ends;
                connection.socket.replace(&fd)?.then_some(()).ok_or_else(|| io::ErrorKind::AlreadyExists.into())
            }
            None => {
                let (socket, ends) = (Descriptor::new(fd)?, Mutex::new(ends));
                self.slots[index].set(BulkConnection { socket, ends }).map_err(|_| io::ErrorKind::AlreadyExists.into())
            }
        }
    }

    /// Takes a bulk connection for the calling thread alone; none if none is free.
    pub(crate) fn take(&self) -> Option<BulkConnectionGuard<'_>> {
        let mut usage = self.usage();
        let index = if usage.is_closed { None } else { usage.free.pop() }?;
        let connection = self.slots[index].get()?;
        usage.in_use += 1;
        Some(BulkConnectionGuard { connections: self, connection, index })
    }

    /// Waits until no thread uses or opens a connection, and closes all. Returns false if that takes longer than the deadline.
    pub(crate) fn close(&self, placeholder: &Placeholder, deadline: Instant) -> io::Result<bool> {
        let mut usage = self.usage();
        usage.is_closed = true;
        while usage.in_use > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            usage = self.changed.wait_timeout(usage, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        for connection in self.each().filter(|connection| connection.socket.expect_end()) {
            connection.socket.close(placeholder)?;
        }
        Ok(true)
    }

    /// Allows bulk connections to another worker, or again to the same one. All must be closed.
    pub(crate) fn reopen(&self) {
        *self.usage() = ConnectionUsage::default();
    }

    /// Ends all bulk connections, so that threads that wait on them return.
    pub(crate) fn end(&self) {
        let connected = self.each().filter(|connection| connection.socket.is_connected());
        for socket in connected.filter_map(|connection| connection.socket.get().ok()) {
            // A connection whose peer is gone has ended already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// In the child of a fork: abandons all connections. It takes no lock.
    pub(crate) fn abandon(&self) {
        self.each().for_each(|connection| connection.socket.abandon());
    }

    fn each(&self) -> impl Iterator<Item = &BulkConnection> {
        self.slots.iter().filter_map(OnceLock::get)
    }
}

impl BulkConnection {
    fn ends(&self) -> MutexGuard<'_, ConnectionEnds> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bulk connection that a thread holds until this is dropped.
pub(crate) struct BulkConnectionGuard<'a> {
    connections: &'a BulkConnections,
    connection: &'a BulkConnection,
    index: usize,
}

impl BulkConnectionGuard<'_> {
    /// Returns the connection's number in frames.
    pub(crate) fn number(&self) -> u16 {
        self.index as u16 + 1
    }

    /// Sends all of `slices`, as long as there are signs of life. Otherwise [`io::ErrorKind::WouldBlock`].
    pub(crate) fn send(&self, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let socket = self.connection.socket.get().map_err(|_| io::ErrorKind::NotConnected)?;
        let ConnectionEnds { sealer, frames } = &mut *self.connection.ends();
        // Signs of life on the first connection say nothing about this one.
        let mut is_alive = || take_heartbeats(frames, socket);
        match sealer {
            Some(sealer) => sealer.send(socket, slices, &mut is_alive),
            None => send_while(socket, slices, &mut is_alive),
        }
    }

    /// Reads up to the reply for this thread. Only heartbeats may precede it. Returns none if the bulk connection ends before.
    pub(crate) fn read(
        &self,
        awaited_reply: AwaitedReply,
        reply: &mut Vec<u8>,
    ) -> Result<Option<ArrivedReply>, LinkError> {
        let (socket, mut ends) = (self.connection.socket.get()?, self.connection.ends());
        loop {
            let Some(bytes) = ends.frames.head(socket)? else { return Ok(None) };
            let (head, length) = ReplyHead::decode(&bytes)?;
            if head.heartbeat().is_some() && length == 0 {
                continue;
            }
            if head.sequence != awaited_reply.sequence {
                return Err(UNASKED_REPLY_ERROR);
            }
            reply.clear();
            let buffer = awaited_reply.buffer.filter(|buffer| buffer.fits(&head, length));
            read_body(&mut ends.frames, socket, length, buffer, reply)?;
            return Ok(Some((head, buffer.is_some())));
        }
    }
}

/// Returns whether the worker has given a sign of life since a thread last listened. Nothing else can come on a bulk connection
/// that sends.
fn take_heartbeats(frames: &mut FrameReader, socket: BorrowedFd<'_>) -> bool {
    let mut has_beat = false;
    while frames.has_bytes(socket) {
        let Ok(Some(bytes)) = frames.head(socket) else { return false };
        let beat = ReplyHead::decode(&bytes).ok().and_then(|(head, length)| head.heartbeat().filter(|_| length == 0));
        if beat.is_none() {
            return false;
        }
        has_beat = true;
    }
    has_beat
}

impl Drop for BulkConnectionGuard<'_> {
    fn drop(&mut self) {
        let mut usage = self.connections.usage();
        usage.in_use -= 1;
        usage.free.push(self.index);
        drop(usage);
        self.connections.changed.notify_all();
    }
}
