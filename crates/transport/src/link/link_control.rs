//! The worker's control over its link, beside the thread that reads it: interrupts that thread, lets the program leave, and takes
//! it back on another connection.
//!
//! The rule: a link is its frames, not its connection. Once a program may leave ([`LinkControl::detach`]), the end of the
//! connection is not the end of the link. Frame numbers, ring, replies and staging stay. The reading thread waits until the
//! program is back ([`LinkControl::attach`]) with the same memory that it left with.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_wire::frame::{Heartbeat, ReclaimNotice, ReplyHead};
use katydid_wire::handshake::{Build, LinkKind, Ready, RefusalCode, Refused};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::fs::fstat;
use rustix::net::{Shutdown, shutdown};

use crate::ipc::connection::Connection;
use crate::link::error::LinkError;
use crate::link::gate::NO_FRAME;
use crate::link::pending::{AcceptError, Pending};
use crate::os::descriptor::is_hung_up;
use crate::os::socket::is_writable;
use crate::stream::joined_connections::JoinedConnections;

/// How long a reclaim notice waits for a send under way, and the interval between checks.
const RECLAIM_SEND_TIMEOUT: Duration = Duration::from_millis(50);
const SEND_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Why a program could not be taken back. The program has got the reason.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The session's program is connected, or was not allowed to leave.
    #[error("the session's program is still connected")]
    NotAway,
    /// The connection comes from another program, or from a copy of the session.
    #[error("the program came back with another kind of link, or with other memory")]
    OtherLink,
    /// The bulk connection belongs to a program that has left.
    #[error("the session's program has left it")]
    Away,
    /// The bulk connection is of another kind of link, or already exists.
    #[error("the link takes no such bulk connection")]
    NoPlace,
    /// A bulk connection cannot be served.
    #[error("the worker cannot read a bulk connection: {0}")]
    System(#[from] io::Error),
    /// The connection broke while the program was taken back.
    #[error(transparent)]
    Accept(#[from] AcceptError),
}

/// A handle on a link. All handles of one link are equivalent.
#[derive(Clone)]
pub struct LinkControl {
    state: Arc<LinkState>,
}

struct LinkState {
    kind: LinkKind,
    /// Device and inode of each memory that came with the program; none while a program may come with other memory.
    memory: Mutex<Option<Vec<(u64, u64)>>>,
    /// Descriptor that the program gets each time it attaches.
    pieces: Option<OwnedFd>,
    attachment: Mutex<ProgramConnection>,
    changed: Condvar,
    /// The reading thread is interrupted when it has handed out this many frames.
    interrupt_at: AtomicU64,
    /// Frames that the reading thread has handed out.
    frames: AtomicU64,
    /// Readable when the reading thread must check for orders.
    wake: OwnedFd,
    /// Frames handed out that want a reply, less the replies sent for them.
    pending_replies: AtomicI64,
    /// The reading thread's activity: a [`ReaderState`].
    reading: AtomicU8,
    /// Frames handed out when a heartbeat last reported an incomplete frame.
    frames_when_late: AtomicU64,
    /// Held while something is sent on a stream link's first connection.
    send_lock: Mutex<()>,
    /// A stream link's bulk connections.
    joined: JoinedConnections,
    signals: Signals,
    /// Reclaim notices sent on a stream link.
    reclaim_notices: AtomicU32,
}

/// Replaces the memory that the program left with by the memory that it comes with.
pub(crate) type Adopt = Box<dyn Fn(&[OwnedFd]) -> io::Result<()> + Send + Sync>;

/// How a link sends signals that are not frames.
pub(crate) struct Signals {
    /// Wakes a reading thread that sleeps in shared memory.
    pub(crate) wake_reader: Box<dyn Fn() + Send + Sync>,
    /// Sends a reclaim notice to the program, and returns the notice's number. None on links that send it over the connection.
    pub(crate) reclaim_notice: Option<Box<dyn Fn() -> u32 + Send + Sync>>,
    /// Takes back a program that has memory of its own.
    pub(crate) adopt: Adopt,
}

/// The reading thread's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderState {
    /// It has handed out a frame and does not read.
    Busy,
    /// It waits for the next frame.
    Idle,
    /// It waits for the rest of a frame.
    InFrame,
}

/// The program's connection, and whether the program may leave.
struct ProgramConnection {
    socket: Option<Arc<Connection>>,
    /// While set, the end of the connection is not the end of the link.
    may_leave: bool,
}

impl ProgramConnection {
    /// Whether the program is connected. The reading thread may not have noticed yet that it has left.
    fn is_here(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| !is_hung_up(socket.as_fd(), Some(&Timespec::default())))
    }
}

impl LinkControl {
    /// Controls a link whose program is connected. `fds` are the memory that the program came with; `pieces` is that of the
    /// staging pieces.
    pub(crate) fn new(
        kind: LinkKind,
        socket: Connection,
        fds: &[OwnedFd],
        pieces: Option<OwnedFd>,
        signals: Signals,
    ) -> Result<Self, LinkError> {
        let failed = LinkError::system("make an event descriptor");
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        let memory = identities(fds).map_err(LinkError::system("look at the program's memory"))?;
        let attachment = Mutex::new(ProgramConnection { socket: Some(Arc::new(socket)), may_leave: false });
        let (changed, interrupt_at, frames) = (Condvar::new(), AtomicU64::new(NO_FRAME), AtomicU64::new(0));
        let (pending_replies, reading) = (AtomicI64::new(0), AtomicU8::new(ReaderState::Busy as u8));
        let (frames_when_late, send_lock) = (AtomicU64::new(0), Mutex::new(()));
        Ok(Self {
            state: Arc::new(LinkState {
                kind,
                memory: Mutex::new(Some(memory)),
                pieces,
                attachment,
                changed,
                interrupt_at,
                frames,
                wake,
                pending_replies,
                reading,
                frames_when_late,
                send_lock,
                joined: JoinedConnections::default(),
                signals,
                reclaim_notices: AtomicU32::new(0),
            }),
        })
    }

    /// Interrupts the reading thread once it has handed out `frames` frames since the link began, or at once if it has. The
    /// thread gets [`LinkEvent::Interrupted`](crate::link::worker::LinkEvent::Interrupted).
    pub fn interrupt(&self, frames: u64) {
        self.state.interrupt_at.store(frames, Ordering::Release);
        self.look_up();
    }

    /// Returns how many frames the reading thread has handed out since the link began.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.state.frames.load(Ordering::Acquire)
    }

    /// Lets the program leave: the end of the connection no longer ends the link.
    pub fn detach(&self) {
        self.attachment().may_leave = true;
    }

    /// Cancels [`LinkControl::detach`]. Returns false if the program has left.
    pub fn cancel_detach(&self) -> bool {
        let mut attachment = self.attachment();
        let is_here = attachment.is_here();
        attachment.may_leave &= !is_here;
        is_here
    }

    /// Returns whether the program may leave, or has left.
    #[must_use]
    pub fn may_leave(&self) -> bool {
        self.attachment().may_leave
    }

    /// Returns the connection; none while the program is away.
    #[must_use]
    pub fn socket(&self) -> Option<Arc<Connection>> {
        self.attachment().socket.clone()
    }

    /// Takes the program back and tells it that the session continues.
    ///
    /// # Errors
    ///
    /// The reason, which the program has got as well. The link is unchanged.
    pub fn attach(&self, program: Pending, build: &Build, ready: &Ready) -> Result<(), AttachError> {
        let mut attachment = self.attachment();
        if attachment.may_leave && !attachment.is_here() {
            attachment.socket = None;
            self.state.joined.clear();
        }
        let refusal = match () {
            () if attachment.socket.is_some() => Some(AttachError::NotAway),
            () if program.hello().link != self.state.kind => Some(AttachError::OtherLink),
            () => self.take_memory(program.fds()).err(),
        };
        if let Some(refusal) = refusal {
            program.refuse(build, &Refused::new(RefusalCode::NO_SESSION, refusal.to_string()));
            return Err(refusal);
        }
        let socket = program.consent_with(build, ready, self.pieces())?;
        *attachment = ProgramConnection { socket: Some(Arc::new(socket)), may_leave: false };
        drop(attachment);
        self.state.changed.notify_all();
        self.look_up();
        Ok(())
    }

    /// Forgets the memory that the program left with. The next program comes out of an image of both sides and has copies of that
    /// memory. Its link is unchanged.
    pub fn forget_memory(&self) {
        *self.memory() = None;
    }

    /// Returns whether the next program may come with memory of its own.
    #[must_use]
    pub fn takes_any_memory(&self) -> bool {
        self.memory().is_none()
    }

    /// Takes the memory of a program that attaches. It must be what the program left with, unless that was forgotten.
    fn take_memory(&self, fds: &[OwnedFd]) -> Result<(), AttachError> {
        let identities = identities(fds)?;
        let mut memory = self.memory();
        match &*memory {
            Some(old) if *old == identities => Ok(()),
            Some(_) => Err(AttachError::OtherLink),
            None => {
                (self.state.signals.adopt)(fds)?;
                *memory = Some(identities);
                Ok(())
            }
        }
    }

    fn memory(&self) -> MutexGuard<'_, Option<Vec<(u64, u64)>>> {
        // No code under this lock panics.
        self.state.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the program has closed `socket`. Returns true if it may come back: then this end is closed as well, after what
    /// was sent.
    pub fn ended(&self, socket: &Arc<Connection>) -> bool {
        let mut attachment = self.attachment();
        let is_current = attachment.socket.as_ref().is_some_and(|current| Arc::ptr_eq(current, socket));
        if is_current && attachment.may_leave {
            attachment.socket = None;
            self.state.joined.clear();
            // Other processes may hold the descriptor for a moment. The program need not wait for them.
            let _ = shutdown(&**socket, Shutdown::Both);
            self.state.changed.notify_all();
        }
        !is_current || attachment.may_leave
    }

    /// Returns whether the program has closed its end for good. Threads that wait for the end need not have seen it yet.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // One lock covers both checks: a program that may leave closes its end, and comes back.
        let attachment = self.attachment();
        let is_closed = |socket: &Arc<Connection>| is_hung_up(socket.as_fd(), Some(&Timespec::default()));
        !attachment.may_leave && attachment.socket.as_ref().is_some_and(is_closed)
    }

    /// Tells the program that the worker lives, if the worker owes it something or is busy otherwise. The caller does so about
    /// once a second. Links that share memory need none; nor does a send under way, which shows as much. Returns whether the
    /// first connection carried it.
    pub fn send_heartbeat(&self) -> bool {
        let is_late = self.is_late();
        self.state.joined.send_heartbeats(is_late);
        let Some(heartbeat) = self.heartbeat_due(is_late) else { return false };
        let (Ok(_whole), Some(connection)) = (self.state.send_lock.try_lock(), self.socket()) else { return false };
        // Other code notices a program that is gone.
        is_writable(&connection)
            && ReplyHead::from(heartbeat)
                .encode(0)
                .is_ok_and(|head| connection.send(&mut [IoSlice::new(&head)]).is_ok())
    }

    /// Asks the program to give back device memory that it holds idle. Returns the number that its answer will carry. None if the
    /// program cannot be told: it is away, or does not read what is being sent to it.
    #[must_use]
    pub fn request_reclaim(&self) -> Option<u32> {
        let connection = self.socket().filter(|_| !self.may_leave())?;
        if let Some(reclaim_notice) = &self.state.signals.reclaim_notice {
            return Some(reclaim_notice());
        }
        let deadline = Instant::now() + RECLAIM_SEND_TIMEOUT;
        let whole = loop {
            match self.state.send_lock.try_lock() {
                Ok(whole) if is_writable(&connection) => break whole,
                _ if Instant::now() >= deadline => return None,
                _ => thread::sleep(SEND_POLL_INTERVAL),
            }
        };
        let number = self.state.reclaim_notices.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let head = ReplyHead::from(ReclaimNotice { number }).encode(0).ok()?;
        let sent = connection.send(&mut [IoSlice::new(&head)]);
        drop(whole);
        sent.ok().map(|()| number)
    }

    /// Returns whether the reading thread waits for the rest of a frame, as it did when last asked: the network has stalled or is
    /// slow.
    fn is_late(&self) -> bool {
        let frames = self.frames();
        let is_coming = self.state.reading.load(Ordering::Relaxed) == ReaderState::InFrame as u8;
        is_coming && self.state.frames_when_late.swap(frames, Ordering::Relaxed) == frames
    }

    /// Returns the heartbeat that is due, if any.
    fn heartbeat_due(&self, is_late: bool) -> Option<Heartbeat> {
        if self.state.kind != LinkKind::STREAM {
            return None;
        }
        let reading = self.state.reading.load(Ordering::Relaxed);
        let frames = self.frames();
        let is_busy = reading == ReaderState::Busy as u8;
        let is_due = match () {
            () if is_busy => true,
            () if reading == ReaderState::Idle as u8 => self.state.pending_replies.load(Ordering::Relaxed) > 0,
            () => !is_late,
        };
        is_due.then_some(Heartbeat { is_busy, frames })
    }

    /// Sets the reading thread's activity.
    pub(crate) fn set_reading(&self, reader: ReaderState) {
        self.state.reading.store(reader as u8, Ordering::Relaxed);
    }

    /// Counts a frame that wants a reply, handed out here or by a worker that this one replaces.
    pub fn expect_reply(&self) {
        self.state.pending_replies.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends the whole reply to frame `sequence`. Waits for the program if it is away.
    pub(crate) fn reply(&self, sequence: u64, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        self.state.pending_replies.fetch_sub(1, Ordering::Relaxed);
        let Some(connection) = self.state.joined.take_reply_connection(sequence) else {
            let _whole = self.state.send_lock.lock().unwrap_or_else(PoisonError::into_inner);
            return self.wait_for_socket().send(parts);
        };
        connection.send(parts).inspect_err(|_| {
            // The thread that waits there has lost its reply. That ends the other connections as well.
            let _ = self.socket().map(|first_connection| shutdown(&*first_connection, Shutdown::Both));
        })
    }

    /// Returns the bulk connections of a stream link.
    pub(crate) fn joined(&self) -> &JoinedConnections {
        &self.state.joined
    }

    /// Admits a bulk connection of the connected program, and tells it so.
    ///
    /// # Errors
    ///
    /// The reason, which the program has got as well.
    pub fn join(&self, pending: Pending, build: &Build, ready: &Ready) -> Result<(), AttachError> {
        let number = pending.hello().claim.frames;
        let fits =
            self.state.kind == LinkKind::STREAM && pending.hello().link == LinkKind::STREAM && pending.fds().is_empty();
        let (mut pending, is_here) = (Some(pending), self.attachment().is_here());
        let welcome = || match pending.take() {
            Some(pending) => Ok(pending.consent(build, ready)?),
            None => Err(AttachError::NoPlace),
        };
        if fits && is_here && self.state.joined.join(number, welcome)? {
            return Ok(());
        }
        let refusal = if is_here { AttachError::NoPlace } else { AttachError::Away };
        if let Some(pending) = pending {
            pending.refuse(build, &Refused::new(RefusalCode::NO_SESSION, refusal.to_string()));
        }
        Err(refusal)
    }

    /// Waits until the program is connected. Returns none if the reading thread, which has handed out `frames` frames, must be
    /// interrupted first.
    pub(crate) fn wait_for_program(&self, frames: u64) -> Option<Arc<Connection>> {
        let mut attachment = self.attachment();
        loop {
            if let Some(socket) = &attachment.socket {
                return Some(Arc::clone(socket));
            }
            if self.needs_interrupt(frames) {
                return None;
            }
            attachment = self.state.changed.wait(attachment).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the connection. Waits for the program if it is away.
    pub(crate) fn wait_for_socket(&self) -> Arc<Connection> {
        let mut attachment = self.attachment();
        loop {
            if let Some(socket) = &attachment.socket {
                return Arc::clone(socket);
            }
            attachment = self.state.changed.wait(attachment).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the memory of the staging pieces; none on stream links.
    pub(crate) fn pieces(&self) -> Option<BorrowedFd<'_>> {
        self.state.pieces.as_ref().map(AsFd::as_fd)
    }

    /// Notes that the reading thread has handed out `frames` frames.
    pub(crate) fn count(&self, frames: u64) {
        self.state.frames.store(frames, Ordering::Release);
    }

    /// Returns whether the reading thread, which has handed out `frames` frames, must be interrupted.
    pub(crate) fn needs_interrupt(&self, frames: u64) -> bool {
        frames >= self.state.interrupt_at.load(Ordering::Acquire)
    }

    /// Returns whether the reading thread must be interrupted. Returns true once.
    pub(crate) fn take_interrupt(&self, frames: u64) -> bool {
        let needs_interrupt = self.needs_interrupt(frames);
        if needs_interrupt {
            self.state.interrupt_at.store(NO_FRAME, Ordering::Release);
        }
        needs_interrupt
    }

    /// Returns a descriptor that is readable when the reading thread must check for orders.
    pub(crate) fn wake(&self) -> BorrowedFd<'_> {
        self.state.wake.as_fd()
    }

    /// Clears the wake descriptor once the reading thread has checked.
    pub(crate) fn has_looked_up(&self) {
        // Nothing to read there is as good.
        let _ = rustix::io::read(&self.state.wake, &mut [0; 8]);
    }

    fn look_up(&self) {
        // The counter cannot be full.
        let _ = rustix::io::write(&self.state.wake, &1u64.to_le_bytes());
        (self.state.signals.wake_reader)();
        // Under the lock, so that a thread that has just found nothing to do is not missed.
        let _visit = self.attachment();
        self.state.changed.notify_all();
    }

    fn attachment(&self) -> MutexGuard<'_, ProgramConnection> {
        // No code under this lock panics.
        self.state.attachment.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn identities(fds: &[OwnedFd]) -> io::Result<Vec<(u64, u64)>> {
    fds.iter().map(|fd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino)).map_err(io::Error::from)).collect()
}
