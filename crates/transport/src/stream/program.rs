//! The program's end of a stream link. It has no thread of its own: one of the waiting threads reads for all.

mod listening;
mod recovery;

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use katydid_wire::frame::{self, FrameHead, Heartbeat, ReplyHead};
use katydid_wire::key::SessionKey;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{Shutdown, shutdown};

use crate::ipc::connection::Connection;
use crate::link::address::Address;
use crate::link::batch::{FrameInfo, OrderingRules, StreamKey};
use crate::link::error::{ConnectError, LinkError};
use crate::link::gate::{LinkGate, NotifyFd, QuiesceGate, may_wait};
use crate::link::program::{BatchLink, CallLink, QuiesceLink, ReclaimLink};
use crate::link::reconnect::{LINK_CLOSE_TIMEOUT, Reconnect};
use crate::link::reply_buffer::ReplyBuffer;
use crate::link::thread_ids::ThreadIds;
use crate::os::descriptor::{Descriptor, Placeholder, SocketGeneration};
use crate::os::socket::send_while;
use crate::shm::staging::Staging;
use crate::stream::bulk_connections::{BulkConnectionGuard, BulkConnections, MIN_BULK_BYTES};
use crate::stream::frame_reader::FrameReader;
use crate::stream::reply_dispatcher::{
    ArrivedReply, AwaitedReply, ReplyDispatcher, UNASKED_REPLY_ERROR, Waiter, read_body,
};
use crate::tls::record::Sealer;

const STALLED_ERROR: LinkError = LinkError::Stalled { seconds: 0 };
/// Number of slices, head included, that the most common frames need.
const INLINE_SLICES: usize = 4;
/// How long opening a bulk connection may take. The link works without one.
const BULK_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The program's end of a stream link.
pub(crate) struct StreamProgram {
    socket: Descriptor,
    send_half: Mutex<SendHalf>,
    /// Notified when the limit has moved, or the worker is back or gone for good.
    opened: Condvar,
    notify_fd: NotifyFd,
    /// Signals the thread that listens for reclaim notices.
    reclaim_notices: NotifyFd,
    replies: Mutex<ReplyDispatcher>,
    /// Notified when a thread has stopped reading.
    unread: Condvar,
    thread_ids: Arc<ThreadIds>,
    reconnect: Reconnect,
    bulk_connections: BulkConnections,
    /// The process that opened the link. What a child opens that shares its memory (`vfork`) the parent does not have.
    process: u32,
    /// How long there may be no sign of life, in milliseconds; 0: for ever.
    silence: AtomicU64,
    /// Signs of life so far, for a thread that is sending meanwhile.
    received: AtomicU64,
    /// Frames sent so far, for a thread that is reading meanwhile.
    sent: AtomicU64,
    /// The count of [`CallLink::enqueued`].
    enqueued: AtomicU64,
    /// Whether the link ended because it stalled.
    has_stalled: AtomicBool,
}

/// The sending half. It is locked while a frame is written.
#[derive(Default)]
struct SendHalf {
    /// Number of the next frame.
    sequence: u64,
    gate: LinkGate,
    /// None without TLS.
    sealer: Option<Sealer>,
}

/// Whether a worker that sends heartbeats receives what is sent to it: a network may carry only one direction.
struct Liveness {
    /// The last sign that it does, and its time.
    frames: u64,
    at: Instant,
}

impl Liveness {
    fn new() -> Self {
        Self { frames: 0, at: Instant::now() }
    }

    /// Notes a heartbeat after `sent` frames were sent. Returns how long no sign came that frames arrive; none if this is one.
    fn note_heartbeat(&mut self, beat: Heartbeat, sent: u64) -> Option<Duration> {
        if beat.is_busy || beat.frames >= sent || beat.frames > self.frames {
            (self.frames, self.at) = (beat.frames, Instant::now());
            return None;
        }
        Some(self.at.elapsed())
    }
}

/// What a reading thread has received.
enum ReadOutcome {
    /// The reply that it waits for.
    Own(ArrivedReply),
    /// A reply for another thread, or a sign of life.
    Other,
    /// The end of the connection.
    End,
}

/// Gathers a frame's head and parts for one system call: in `few`, where there is room, so that nothing is allocated.
fn gathered<'a, 'b>(
    head: &'a [u8],
    parts: &[&'a [u8]],
    few: &'b mut [IoSlice<'a>; INLINE_SLICES],
    many: &'b mut Vec<IoSlice<'a>>,
) -> &'b mut [IoSlice<'a>] {
    let slices = [head].into_iter().chain(parts.iter().copied()).map(IoSlice::new);
    if parts.len() >= INLINE_SLICES {
        many.extend(slices);
        return many;
    }
    few.iter_mut().zip(slices).for_each(|(target, slice)| *target = slice);
    &mut few[..=parts.len()]
}

/// Returns whether a socket has reached its time limit.
fn is_timeout(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

impl StreamProgram {
    pub(crate) fn new(connection: Connection, reconnect: Reconnect) -> Result<Self, LinkError> {
        let (socket, sealer, opener) = connection.into_parts();
        let mut frames = FrameReader::new();
        frames.read_from(opener);
        Ok(Self {
            socket: Descriptor::new(socket).map_err(LinkError::system("keep the connection"))?,
            send_half: Mutex::new(SendHalf { sealer, ..SendHalf::default() }),
            opened: Condvar::new(),
            notify_fd: NotifyFd::default(),
            reclaim_notices: NotifyFd::default(),
            replies: Mutex::new(ReplyDispatcher {
                frames: Some(Box::new(frames)),
                reader: None,
                waiting: HashMap::new(),
                spare_wakeups: Vec::new(),
                reclaim_notice: None,
                is_listened: false,
            }),
            unread: Condvar::new(),
            thread_ids: ThreadIds::new(),
            reconnect,
            bulk_connections: BulkConnections::new(),
            process: std::process::id(),
            silence: AtomicU64::new(0),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            enqueued: AtomicU64::new(0),
            has_stalled: AtomicBool::new(false),
        })
    }

    fn replies(&self) -> MutexGuard<'_, ReplyDispatcher> {
        // No code under this lock panics.
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_half(&self) -> MutexGuard<'_, SendHalf> {
        self.send_half.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the sending half once this frame may be sent.
    fn admitted(&self, frame: FrameInfo<'_>) -> Result<MutexGuard<'_, SendHalf>, LinkError> {
        let mut send_half = self.send_half();
        loop {
            let number = send_half.sequence;
            let is_admitted = send_half.gate.is_open(number) || send_half.gate.admit(number, frame);
            if is_admitted && self.socket.is_connected() {
                return Ok(send_half);
            }
            self.socket.get()?;
            if send_half.gate.note_waiting(number) {
                self.notify_fd.notify();
            }
            may_wait()?;
            send_half = self.opened.wait(send_half).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes a frame. `before_send` runs with its number while no later frame, and no reply to this one, can come. Returns the
    /// number, and the bulk connection that the reply comes over, if any.
    fn put(
        &self,
        mut head: FrameHead,
        (parts, buffer): (&[&[u8]], usize),
        mut before_send: impl FnMut(u64, bool),
    ) -> Result<(u64, Option<BulkConnectionGuard<'_>>), LinkError> {
        let payload: usize = parts.iter().map(|part| part.len()).sum();
        let is_bulk = payload.max(buffer) >= MIN_BULK_BYTES;
        if is_bulk && self.process == std::process::id() {
            self.bulk_connections.open_one_more(payload + buffer, |number| self.open_bulk_connection(number));
        }
        loop {
            let mut send_half = self.admitted(FrameInfo::of(&head, parts))?;
            let connection = if is_bulk { self.bulk_connections.take() } else { None };
            let number = connection.as_ref().map_or(0, BulkConnectionGuard::number);
            let over = |bytes: usize| if bytes >= MIN_BULK_BYTES { number } else { 0 };
            let connections = frame::FrameConnections { payload: over(payload), reply: over(buffer) };
            head.sequence = send_half.sequence;
            let bytes = head.encode_over(payload, connections)?;
            before_send(head.sequence, connections.reply != 0);
            let (mut few, mut many) = ([IoSlice::new(&[]); INLINE_SLICES], Vec::new());
            let slices = gathered(&bytes, parts, &mut few, &mut many);
            let generation = self.socket.generation();
            let socket = self.socket.get()?;
            // With a bulk connection, only the head goes here: it marks when the frame is due.
            let on_socket = if connections.payload == 0 { &mut *slices } else { &mut [IoSlice::new(&bytes)][..] };
            let sent = self.send(socket, send_half.sealer.as_mut(), on_socket);
            if sent.is_ok() {
                send_half.sequence += 1;
                self.sent.store(send_half.sequence, Ordering::Relaxed);
                drop(send_half);
                let over_bulk = connection.as_ref().filter(|_| connections.payload != 0);
                let sent = over_bulk.map_or(Ok(()), |connection| connection.send(slices));
                if sent.is_ok() {
                    return Ok((head.sequence, connection.filter(|_| connections.reply != 0)));
                }
                self.bulk_connection_failed(generation, sent)?;
                continue;
            }
            if sent.as_ref().is_err_and(is_timeout) {
                drop(send_half);
                return Err(self.stalled());
            }
            // A part of the frame may be sent, so nothing can follow it here. A worker that replaces this one has not seen it.
            drop(send_half);
            self.ended(generation)?;
        }
    }

    /// Sends all of `slices` on the first connection, as long as there are signs of life.
    fn send(&self, socket: BorrowedFd<'_>, sealer: Option<&mut Sealer>, slices: &mut [IoSlice<'_>]) -> io::Result<()> {
        let mut last_received = None;
        let mut is_alive = || {
            let _ = self.read_if_idle(socket);
            let received = self.received.load(Ordering::Relaxed);
            // The first check finds that something was received.
            last_received.replace(received) != Some(received)
        };
        match sealer {
            Some(sealer) => sealer.send(socket, slices, &mut is_alive),
            None => send_while(socket, slices, &mut is_alive),
        }
    }

    /// Handles a bulk connection that did not take its payload: the link has ended. Where another worker may come, a partly sent
    /// frame was not executed, and is sent again to that worker.
    fn bulk_connection_failed(&self, generation: SocketGeneration, sent: io::Result<()>) -> Result<(), LinkError> {
        if sent.as_ref().is_err_and(is_timeout) {
            return Err(self.stalled());
        }
        self.hang_up();
        self.ended(generation)
    }

    /// Opens bulk connection `number`.
    fn open_bulk_connection(&self, number: u16) -> Result<Connection, LinkError> {
        let connection =
            self.reconnect.open_bulk_connection(number, BULK_CONNECT_TIMEOUT).map_err(|_| LinkError::Closed)?;
        self.limit(connection.as_fd()).map_err(LinkError::system("limit a bulk connection's silence"))?;
        Ok(connection)
    }

    /// Notes that the peer of that generation's socket is gone. An error means that the link has ended.
    fn ended(&self, generation: SocketGeneration) -> Result<(), LinkError> {
        let ended = self.socket.ended(generation);
        self.bulk_connections.end();
        ended
    }

    /// Ends the first connection, so that the worker sees it.
    fn hang_up(&self) {
        if let Ok(socket) = self.socket.get() {
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    /// Wakes all waiting threads of an unusable link, also those that wait for another worker. The caller must hold neither the
    /// sending half nor the replies.
    fn break_off(&self) {
        self.let_go();
        // A thread that found the link usable, and is about to wait, holds the sending half until it waits.
        drop(self.send_half());
        self.opened.notify_all();
    }

    /// Ends an unusable link. The caller may hold the sending half: no other thread is about to wait for it then.
    fn let_go(&self) {
        self.hang_up();
        self.socket.give_up();
        self.bulk_connections.end();
        self.opened.notify_all();
        self.ring_all();
    }

    /// Ends a link that has stalled, on both sides as far as possible.
    fn stalled(&self) -> LinkError {
        self.has_stalled.store(true, Ordering::Relaxed);
        self.break_off();
        self.stall()
    }

    fn stall(&self) -> LinkError {
        LinkError::Stalled { seconds: self.silence.load(Ordering::Relaxed).div_ceil(1000) }
    }

    /// Returns the longest allowed silence.
    fn silence(&self) -> Option<Duration> {
        Some(self.silence.load(Ordering::Relaxed)).filter(|limit| *limit > 0).map(Duration::from_millis)
    }

    /// Sets the limit of silence, if there is one, on the connection.
    fn limit(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let limit = self.silence();
        set_socket_timeout(socket, Timeout::Recv, limit)?;
        Ok(set_socket_timeout(socket, Timeout::Send, limit)?)
    }

    /// Waits for the reply to a request. Reads for all threads if no other thread does.
    fn wait(
        &self,
        thread: u32,
        awaited_reply: AwaitedReply,
        wakeup: &Condvar,
        reply: &mut Vec<u8>,
    ) -> Result<ArrivedReply, LinkError> {
        let mut replies = self.replies();
        loop {
            if let Some((arrived, body)) =
                replies.waiting.get_mut(&awaited_reply.sequence).and_then(|waiter| waiter.reply.take())
            {
                *reply = body;
                return Ok(arrived);
            }
            self.socket.get()?;
            let generation = self.socket.generation();
            // While the worker is away, the thread that detached from it reads the rest.
            let frames = if self.socket.is_connected() { replies.frames.take() } else { None };
            let Some(frames) = frames else {
                replies = wakeup.wait(replies).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut reading = replies.begin_reading(thread, frames);
            drop(replies);
            let result = self.read_until(&mut reading, Some(awaited_reply), reply);
            replies = self.replies();
            let frames = replies.end_reading(reading);
            if replies.is_listened {
                // Signals the thread that listens: no other thread may read the rest for long. Also if nothing is left: as long
                // as others read faster, the system would wake it for each reply, only to sleep again.
                replies.is_listened = false;
                self.reclaim_notices.notify();
            }
            replies.frames = Some(frames);
            self.unread.notify_all();
            match result {
                Ok(Some(arrived)) => return Ok(arrived),
                Ok(None) => self.ended(generation)?,
                Err(error) => {
                    drop(replies);
                    return Err(self.broken(error));
                }
            }
        }
    }

    /// Ends a link after this read error.
    fn broken(&self, error: LinkError) -> LinkError {
        if matches!(error, LinkError::Stalled { .. }) {
            return self.stalled();
        }
        self.break_off();
        error
    }

    /// Returns why a link has ended: after a stall, other threads have seen only the end.
    fn reason(&self, error: LinkError) -> LinkError {
        let is_end = matches!(error, LinkError::Closed | LinkError::Protocol { .. } | LinkError::System { .. });
        if is_end && self.has_stalled.load(Ordering::Relaxed) { self.stall() } else { error }
    }

    /// Reads replies and hands them out, up to the one for this thread. Returns none if the connection ends before.
    fn read_until(
        &self,
        frames: &mut FrameReader,
        own: Option<AwaitedReply>,
        reply: &mut Vec<u8>,
    ) -> Result<Option<ArrivedReply>, LinkError> {
        let mut liveness = Liveness::new();
        loop {
            match self.read_one(frames, own, &mut liveness, reply)? {
                ReadOutcome::Own(arrived) => return Ok(Some(arrived)),
                ReadOutcome::Other => {}
                ReadOutcome::End => return Ok(None),
            }
        }
    }

    /// Reads the next frame: a reply, for this or another thread, or a sign of life.
    fn read_one(
        &self,
        frames: &mut FrameReader,
        own: Option<AwaitedReply>,
        liveness: &mut Liveness,
        reply: &mut Vec<u8>,
    ) -> Result<ReadOutcome, LinkError> {
        let socket = self.socket.get()?;
        let Some(bytes) = frames.head(socket)? else { return Ok(ReadOutcome::End) };
        let (head, length) = ReplyHead::decode(&bytes)?;
        if let Some(beat) = head.heartbeat().filter(|_| length == 0) {
            match liveness.note_heartbeat(beat, self.sent.load(Ordering::Relaxed)) {
                None => _ = self.received.fetch_add(1, Ordering::Relaxed),
                Some(silence) if self.silence().is_some_and(|limit| silence > limit) => return Err(STALLED_ERROR),
                Some(_) => {}
            }
            return Ok(ReadOutcome::Other);
        }
        *liveness = Liveness::new();
        self.received.fetch_add(1, Ordering::Relaxed);
        if let Some(reclaim_notice) = head.reclaim_notice().filter(|_| length == 0) {
            self.replies().reclaim_notice = Some(reclaim_notice.number);
            self.reclaim_notices.notify();
            return Ok(ReadOutcome::Other);
        }
        if let Some(own) = own.filter(|own| own.sequence == head.sequence) {
            reply.clear();
            let buffer = own.buffer.filter(|buffer| buffer.fits(&head, length));
            read_body(frames, socket, length, buffer, reply)?;
            return Ok(ReadOutcome::Own((head, buffer.is_some())));
        }
        self.read_for_another(frames, socket, (head, length))?;
        Ok(ReadOutcome::Other)
    }

    /// Reads what has arrived, if no other thread reads: for a thread whose sends do not get through, and for one that listens.
    /// Returns whether that was the end of the connection.
    fn read_if_idle(&self, socket: BorrowedFd<'_>) -> bool {
        let Some(mut frames) = self.replies().frames.take() else { return false };
        let mut liveness = Liveness::new();
        let mut is_end = false;
        while frames.has_bytes(socket) {
            match self.read_one(&mut frames, None, &mut liveness, &mut Vec::new()) {
                Ok(ReadOutcome::Other) => {}
                Ok(ReadOutcome::Own(_) | ReadOutcome::End) => {
                    is_end = true;
                    break;
                }
                Err(_) => {
                    self.let_go();
                    break;
                }
            }
        }
        let mut replies = self.replies();
        replies.frames = Some(frames);
        replies.ring_next();
        self.unread.notify_all();
        is_end
    }

    /// Reads a reply for the thread that waits for it, and wakes that thread.
    fn read_for_another(
        &self,
        frames: &mut FrameReader,
        socket: BorrowedFd<'_>,
        (head, length): (ReplyHead, usize),
    ) -> Result<(), LinkError> {
        let buffer = self.waiter(&mut self.replies(), &head)?.begin_filling(&head, length);
        let mut body = Vec::new();
        let read = read_body(frames, socket, length, buffer, &mut body);
        let mut replies = self.replies();
        let waiter = self.waiter(&mut replies, &head)?;
        waiter.is_filling = false;
        waiter.wakeup.notify_one();
        read?;
        waiter.reply = Some(((head, buffer.is_some()), body));
        if waiter.is_left {
            replies.waiting.remove(&head.sequence);
        }
        Ok(())
    }

    /// Returns the thread that waits for a reply that has come. If the link has ended meanwhile, there is none, and the worker is
    /// not at fault.
    fn waiter<'a>(&self, replies: &'a mut ReplyDispatcher, head: &ReplyHead) -> Result<&'a mut Waiter, LinkError> {
        let waiter = replies.waiting.get_mut(&head.sequence).filter(|waiter| waiter.reply.is_none());
        waiter.ok_or_else(|| self.socket.get().err().unwrap_or(UNASKED_REPLY_ERROR))
    }

    fn exchange(
        &self,
        head: FrameHead,
        parts: &[&[u8]],
        reply: &mut Vec<u8>,
        buffer: Option<ReplyBuffer>,
    ) -> Result<ArrivedReply, LinkError> {
        // A condition variable that another thread has used may still be notified for that. Threads check what they were woken
        // for.
        let wakeup = self.replies().spare_wakeups.pop().unwrap_or_default();
        let mut registered = None;
        let mut register = |sequence| {
            registered = Some(sequence);
            let (thread, wakeup) = (head.thread, Arc::clone(&wakeup));
            let waiter = Waiter { thread, is_left: false, reply: None, buffer, is_filling: false, wakeup };
            self.replies().waiting.insert(sequence, waiter);
        };
        let size = buffer.as_ref().map_or(0, ReplyBuffer::size);
        let result = self.put(head, (parts, size), |sequence, has_bulk_connection| {
            if !has_bulk_connection {
                register(sequence);
            }
        });
        let result = result.and_then(|(sequence, connection)| {
            let awaited_reply = AwaitedReply { sequence, buffer };
            if let Some(connection) = connection {
                if let Some(arrived) = self.wait_there(&connection, awaited_reply, reply)? {
                    return Ok(arrived);
                }
                // If another worker replaces this one, the reply comes as without a bulk connection.
                register(sequence);
            }
            self.wait(head.thread, awaited_reply, &wakeup, reply)
        });
        let mut replies = self.replies();
        if let Some(sequence) = registered {
            while replies.waiting.get(&sequence).is_some_and(|waiter| waiter.is_filling) {
                replies = wakeup.wait(replies).unwrap_or_else(PoisonError::into_inner);
            }
            replies.waiting.remove(&sequence);
            replies.ring_next();
        }
        replies.spare_wakeups.push(wakeup);
        result
    }

    /// Waits for a reply on the bulk connection that the thread holds. Returns none if the worker is gone and another may come.
    fn wait_there(
        &self,
        connection: &BulkConnectionGuard<'_>,
        awaited_reply: AwaitedReply,
        reply: &mut Vec<u8>,
    ) -> Result<Option<ArrivedReply>, LinkError> {
        let generation = self.socket.generation();
        match connection.read(awaited_reply, reply) {
            Ok(Some(arrived)) => Ok(Some(arrived)),
            Ok(None) => {
                self.hang_up();
                self.ended(generation).map(|()| None)
            }
            Err(error) => Err(self.broken(error)),
        }
    }

    /// Takes the reading half of an ending connection as soon as no thread has it: its reader will find the end.
    fn take_frame_reader(&self) -> Result<Box<FrameReader>, LinkError> {
        let deadline = Instant::now() + LINK_CLOSE_TIMEOUT;
        let mut replies = self.replies();
        loop {
            if let Some(frames) = replies.frames.take() {
                return Ok(frames);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::Closed);
            }
            replies = self.unread.wait_timeout(replies, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Reads the replies that are under way while the connection is being closed, up to its end.
    fn drain_replies(&self) -> Result<(), LinkError> {
        let mut frames = self.take_frame_reader()?;
        let ended = self.read_until(&mut frames, None, &mut Vec::new());
        self.replies().frames = Some(frames);
        ended.map(|_| ())
    }

    /// Wakes all threads that wait for replies.
    fn ring_all(&self) {
        self.replies().waiting.values().for_each(|waiter| waiter.wakeup.notify_one());
        self.reclaim_notices.notify();
    }
}

impl CallLink for StreamProgram {
    fn enqueue(&self, opcode: u16, context: u32, parts: &[&[u8]]) -> Result<(), LinkError> {
        self.socket.get()?;
        let thread = self.thread_ids.number()?;
        let head = FrameHead { opcode, wants_reply: false, thread, context, sequence: 0 };
        // Counted under the lock that orders frames.
        let count = |_, _| {
            self.enqueued.fetch_add(1, Ordering::Release);
        };
        self.put(head, (parts, 0), count).map(|_| ()).map_err(|error| self.reason(error))
    }

    fn enqueued(&self) -> u64 {
        self.enqueued.load(Ordering::Acquire)
    }

    fn call(&self, opcode: u16, context: u32, parts: &[&[u8]], reply: &mut Vec<u8>) -> Result<ReplyHead, LinkError> {
        self.socket.get()?;
        self.thread_ids.call(
            |thread| self.recover(thread),
            |thread| {
                let head = FrameHead { opcode, wants_reply: true, thread, context, sequence: 0 };
                self.exchange(head, parts, reply, None).map(|(head, _)| head).map_err(|error| self.reason(error))
            },
        )
    }

    fn call_into(
        &self,
        opcode: u16,
        context: u32,
        parts: &[&[u8]],
        reply: &mut Vec<u8>,
        buffer: ReplyBuffer,
    ) -> Result<(ReplyHead, bool), LinkError> {
        self.socket.get()?;
        self.thread_ids.call(
            |thread| self.recover(thread),
            |thread| {
                let head = FrameHead { opcode, wants_reply: true, thread, context, sequence: 0 };
                self.exchange(head, parts, reply, Some(buffer)).map_err(|error| self.reason(error))
            },
        )
    }

    fn is_multithreaded(&self) -> bool {
        self.thread_ids.are_several()
    }

    fn limit_silence(&self, limit: Duration) -> io::Result<()> {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.silence.store(millis, Ordering::Relaxed);
        self.socket.get().map_or(Ok(()), |socket| self.limit(socket))
    }
}

impl BatchLink for StreamProgram {
    fn staging(&self) -> Option<&Staging> {
        None
    }

    fn begin_batch(&self, stream_key: StreamKey, rules: OrderingRules) -> Result<u64, LinkError> {
        let mut send_half = self.send_half();
        loop {
            if let Some(number) = send_half.gate.begin_batch(stream_key, rules) {
                return Ok(number);
            }
            self.socket.get()?;
            send_half = self.opened.wait(send_half).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end_batch(&self, number: u64) {
        if self.send_half().gate.end_batch(number) {
            self.opened.notify_all();
        }
    }

    fn allow_bulk_connections(&self, most: usize) {
        self.bulk_connections.allow(most);
    }

    fn bulk_connections_for(&self, bytes: u64) -> usize {
        self.bulk_connections.expect(bytes)
    }
}

impl QuiesceLink for StreamProgram {
    fn abandon(&self) {
        self.socket.abandon();
        self.bulk_connections.abandon();
    }

    fn wait_until_open(&self) -> Result<(), LinkError> {
        self.admitted(FrameInfo { opcode: 0, context: 0, payload: &[] }).map(drop)
    }

    fn quiesce_gate(&self) -> Option<&dyn QuiesceGate> {
        Some(self)
    }
}

impl ReclaimLink for StreamProgram {
    fn next_reclaim_notice(&self) -> Result<u32, LinkError> {
        self.listen()
    }
}

impl QuiesceGate for StreamProgram {
    fn hold(&self) -> u64 {
        let mut send_half = self.send_half();
        send_half.gate.hold();
        send_half.sequence
    }

    fn release(&self) {
        self.send_half().gate.open();
        self.opened.notify_all();
    }

    fn set_stop_at(&self, frame: u64) -> io::Result<()> {
        self.notify_fd.install()?;
        self.send_half().gate.set_stop_at(frame);
        Ok(())
    }

    fn reached(&self) -> Option<u64> {
        self.send_half().gate.take_reached()
    }

    /// Tells the worker that no frame will come, and reads its replies until it closes its end too.
    fn detach(&self) -> Result<u64, LinkError> {
        let placeholder = Placeholder::new().map_err(LinkError::system("make an event descriptor"))?;
        let frames = {
            let mut send_half = self.send_half();
            send_half.gate.close();
            send_half.sequence
        };
        // While the session is at rest no thread waits on a bulk connection for long.
        if !self.bulk_connections.close(&placeholder, Instant::now() + LINK_CLOSE_TIMEOUT).unwrap_or(false) {
            self.give_up();
        }
        if !self.socket.expect_end() {
            return Err(LinkError::Closed);
        }
        let socket = self.socket.get()?;
        let closing = set_socket_timeout(socket, Timeout::Recv, Some(LINK_CLOSE_TIMEOUT));
        let closing = closing.and_then(|()| shutdown(socket, Shutdown::Write));
        let read = closing.map_err(|_| LinkError::Closed).and_then(|()| self.drain_replies());
        if let Err(error) = read {
            // The worker's remaining replies are lost.
            self.give_up();
            return Err(error);
        }
        self.socket.close(&placeholder).map_err(LinkError::system("close the connection"))?;
        Ok(frames)
    }

    fn resume(&self, address: &Address, key: SessionKey, timeout: Duration) -> Result<(), ConnectError> {
        let failed = |source| ConnectError::Link { address: address.clone(), source };
        // The bulk connections of a worker that ended by itself are not closed yet.
        self.bulk_connections.end();
        Placeholder::new()
            .and_then(|placeholder| self.bulk_connections.close(&placeholder, Instant::now() + LINK_CLOSE_TIMEOUT))
            .and_then(|closed| closed.then_some(()).ok_or_else(|| io::ErrorKind::TimedOut.into()))
            .map_err(LinkError::system("close a bulk connection"))
            .map_err(failed)?;
        let connection = self.reconnect.reconnect(address, key, self.frames(), &[], timeout)?.connection;
        let (socket, sealer, opener) = connection.into_parts();
        self.limit(socket.as_fd()).map_err(LinkError::system("limit the connection's silence")).map_err(failed)?;
        // A thread that still reads the previous connection would continue with the buffer of that.
        let mut frames = self.take_frame_reader().map_err(failed)?;
        frames.read_from(opener);
        let mut send_half = self.send_half();
        let replaced = self.socket.replace(&socket);
        if replaced.is_ok() {
            send_half.sealer = sealer;
            send_half.gate.hold();
        }
        drop(send_half);
        self.replies().frames = Some(frames);
        replaced.map_err(LinkError::system("keep the connection")).map_err(failed)?;
        self.bulk_connections.reopen();
        self.ring_all();
        Ok(())
    }

    fn enable_reconnect(&self) -> io::Result<()> {
        self.notify_fd.install()?;
        self.socket.keep();
        Ok(())
    }

    fn is_lost(&self) -> bool {
        let _ = self.socket.check();
        self.socket.is_lost()
    }

    fn give_up(&self) {
        self.break_off();
        self.release();
        self.ring_all();
    }

    fn key(&self) -> SessionKey {
        self.reconnect.key()
    }

    fn frames(&self) -> u64 {
        self.send_half().sequence
    }

    fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.notify_fd.fd()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.get().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use katydid_tests::deadline::hang::hang_limit;
    use katydid_wire::frame::Output;
    use katydid_wire::handshake::{Build, Hello, LINK_TIMEOUT_SECONDS, LinkKind, Ready, SessionClaim, SessionKind};

    use super::*;
    use crate::link::pending::Pending;
    use crate::link::worker::OutgoingReply;

    const KEY: SessionKey = SessionKey([7; 16]);

    fn hello() -> Hello {
        Hello {
            session: SessionKind::CUDA,
            claim: SessionClaim::NEW,
            link: LinkKind::STREAM,
            pid: 1,
            memory_limit: None,
            program: "test".to_owned(),
            name: String::new(),
            arenas: Vec::new(),
            link_timeout: LINK_TIMEOUT_SECONDS,
            reservation: SessionKey::NONE,
        }
    }

    /// A worker that answers one request.
    fn answer_one(listener: &UnixListener, build: &Build, ready: &Ready) {
        let program = listener.accept().unwrap().0;
        let mut link = Pending::accept(program.into(), build, hang_limit()).unwrap().open(build, ready, 0).unwrap();
        let FrameHead { thread, sequence, .. } = link.next().unwrap().frame().unwrap().head;
        let (output, payload) = (Output::default(), &b"here"[..]);
        let answer = OutgoingReply { thread, sequence, status: 0, deferred: 0, payload, tail: &[], output };
        link.replier().reply(&answer).unwrap();
    }

    /// One thread has seen the end of the worker and waits for another one. Another thread has seen that waiting is useless.
    #[test]
    fn a_thread_that_waits_for_another_worker_fails_when_the_link_is_useless() {
        let (build, hello) = (Build::current([1; 32]), hello());
        let ready = Ready { worker_pid: 1, key: KEY, driver: "none".to_owned(), arenas: Vec::new() };
        let (local, peer) = UnixStream::pair().unwrap();
        let reconnect = Reconnect::new(&Address::Unix("none".into()), &hello, &build, &ready);
        let program = Arc::new(StreamProgram::new(OwnedFd::from(local).into(), reconnect).unwrap());
        program.enable_reconnect().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let caller = Arc::clone(&program);
        // Not a scoped thread: one that waits for ever would block the test.
        thread::spawn(move || sender.send(caller.call(1, 0, &[b"?"], &mut Vec::new()).is_err()));
        while program.replies().waiting.is_empty() {
            thread::yield_now();
        }
        drop(peer);
        while !program.socket.is_lost() || program.replies().frames.is_none() {
            thread::yield_now();
        }
        assert!(matches!(program.broken(UNASKED_REPLY_ERROR), LinkError::Protocol { .. }));
        assert_eq!(receiver.recv_timeout(hang_limit()), Ok(true));
    }

    /// A thread has read a part of the worker's output, and is slow to notice that the worker is gone.
    #[test]
    fn bytes_read_from_a_lost_worker_are_not_taken_for_the_next_worker_s() {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("worker")).unwrap();
        let address = Address::Unix(folder.path().join("worker"));
        let (build, hello) = (Build::current([1; 32]), hello());
        let ready = Ready { worker_pid: 1, key: KEY, driver: "none".to_owned(), arenas: Vec::new() };
        let (local, mut lost) = UnixStream::pair().unwrap();
        let reconnect = Reconnect::new(&address, &hello, &build, &ready);
        let program = StreamProgram::new(OwnedFd::from(local).into(), reconnect).unwrap();
        program.enable_reconnect().unwrap();
        lost.write_all(&[9; 7]).unwrap();
        drop(lost);
        let mut old = program.replies().frames.take().unwrap();
        assert!(old.head(program.socket.get().unwrap()).is_err() && program.is_lost());
        thread::scope(|scope| {
            scope.spawn(|| answer_one(&listener, &build, &ready));
            let resumed = scope.spawn(|| program.resume(&address, KEY, hang_limit()));
            let mut looks = 0;
            while program.replies().frames.is_none() && looks < 40 {
                thread::sleep(Duration::from_millis(5));
                looks += 1;
            }
            program.replies().frames = Some(old);
            program.unread.notify_all();
            resumed.join().unwrap().unwrap();
            program.release();
            let mut reply = Vec::new();
            program.call(1, 0, &[b"?"], &mut reply).unwrap();
            assert_eq!(reply, b"here");
        });
    }
}
