//! The gate of a link: a job's supervisor stops a program between two frames, and lets it continue.
//!
//! A link compares the number of the next frame with a limit, under the lock that it holds anyway. Without a hold, and without a
//! batch ([`crate::link::batch`]), the limit is never reached. A thread at the limit waits, with two exceptions. A thread that
//! has called [`bypass_gate`] passes: it serves GPU work that has to end before the session is at rest. A thread inside
//! [`with_lock_held`] gets an error instead: it holds a lock that the first one may need.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use katydid_wire::key::SessionKey;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::address::Address;
use crate::link::batch::{Batches, FrameInfo, OrderingRules, StreamKey};
use crate::link::error::{ConnectError, LinkError};

/// The limit that no frame reaches.
pub(crate) const NO_FRAME: u64 = u64::MAX;

thread_local! {
    static BYPASSES: Cell<bool> = const { Cell::new(false) };
    static HOLDS_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread's frames pass although the link is held: it runs functions that the GPU waits for. Once the link is
/// detached, they wait like all others.
pub fn bypass_gate() {
    BYPASSES.set(true);
}

/// Runs `work`. If `holds_lock`, marks the calling thread as the holder of a lock meanwhile. Its frames fail with
/// [`LinkError::Held`] instead of blocking at the gate, so that threads that [`bypass_gate`] and wait for the lock cannot
/// deadlock.
pub fn with_lock_held<T>(holds_lock: bool, work: impl FnOnce() -> T) -> T {
    let held_lock = HOLDS_LOCK.replace(holds_lock);
    let done = work();
    HOLDS_LOCK.set(held_lock);
    done
}

/// Returns whether the calling thread is inside [`with_lock_held`].
pub fn holds_lock() -> bool {
    HOLDS_LOCK.get()
}

/// Returns an error if the calling thread holds a lock, so that it must not wait for the link. A thread that bypasses the gate
/// may.
pub(crate) fn may_wait() -> Result<(), LinkError> {
    if HOLDS_LOCK.get() && !BYPASSES.get() { Err(LinkError::Held) } else { Ok(()) }
}

/// Controls a program's link while its job quiesces. One thread gives these orders.
pub trait QuiesceGate: Send + Sync {
    /// Stops all threads from sending frames, except those that [`bypass_gate`]. Returns the number of frames sent so far.
    fn hold(&self) -> u64;

    /// Lets threads send frames again.
    fn release(&self);

    /// Makes the link hold itself before it sends frame `frame`, and notify [`QuiesceGate::notify_fd`] then.
    ///
    /// # Errors
    /// The system has no descriptor for notifications.
    fn set_stop_at(&self, frame: u64) -> io::Result<()>;

    /// Returns the frame of [`QuiesceGate::set_stop_at`] once the link has come to it. Returns it only once.
    fn reached(&self) -> Option<u64>;

    /// Detaches from the worker, after [`QuiesceGate::hold`]: closes the connection and keeps everything else. Returns the number
    /// of frames sent in all. The worker must know that number already.
    ///
    /// # Errors
    /// [`LinkError::System`]: nothing has changed. Any other error: the link has ended.
    fn detach(&self) -> Result<u64, LinkError>;

    /// Continues with the worker that has session `key` at `address`, after [`QuiesceGate::detach`] or a loss. Frames are still
    /// held.
    ///
    /// # Errors
    /// Why the connection failed. The caller may try again.
    fn resume(&self, address: &Address, key: SessionKey, timeout: Duration) -> Result<(), ConnectError>;

    /// Keeps the link when a worker ends by itself. Calls then wait for [`QuiesceGate::resume`] or [`QuiesceGate::give_up`], and
    /// the supervisor is notified.
    ///
    /// # Errors
    /// The system has no descriptor for notifications.
    fn enable_reconnect(&self) -> io::Result<()>;

    /// Returns whether the worker has ended by itself and the link waits for another. Frames are held meanwhile.
    fn is_lost(&self) -> bool;

    /// Ends the link: waiting threads get [`LinkError::Closed`].
    fn give_up(&self);

    /// Returns the key that names the session at its server.
    fn key(&self) -> SessionKey;

    /// Returns the number of frames sent so far.
    fn frames(&self) -> u64;

    /// Returns a descriptor that is readable when [`QuiesceGate::reached`] or [`QuiesceGate::is_lost`] has something to report.
    fn notify_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the connection, to be watched for its end.
    fn socket(&self) -> Option<BorrowedFd<'_>>;
}

/// Where a link stops. It is kept under the lock of its frames.
#[derive(Debug)]
pub(crate) struct LinkGate {
    /// Frames with this number or more are checked.
    at: u64,
    /// Frames with this number or more are held.
    held_at: u64,
    batches: Batches,
    /// Whether threads that bypass the gate are held too.
    is_strict: bool,
    /// The frame of [`QuiesceGate::set_stop_at`], to be reported when reached.
    stop_at: Option<u64>,
    /// The frame reached, until it is asked for.
    reached: Option<u64>,
}

impl Default for LinkGate {
    fn default() -> Self {
        Self {
            at: NO_FRAME,
            held_at: NO_FRAME,
            batches: Batches::default(),
            is_strict: false,
            stop_at: None,
            reached: None,
        }
    }
}

impl LinkGate {
    /// Whether frame `number` may be sent, whatever it is and whichever thread sends it.
    #[inline]
    pub(crate) fn is_open(&self, number: u64) -> bool {
        number < self.at
    }

    /// Whether the calling thread may send `frame` as number `number`.
    pub(crate) fn admit(&mut self, number: u64, frame: FrameInfo<'_>) -> bool {
        let is_held = number >= self.held_at && (self.is_strict || !BYPASSES.get());
        !is_held && self.batches.admit(frame)
    }

    /// Begins a batch, as [`Batches::begin`] does, and moves the limit.
    pub(crate) fn begin_batch(&mut self, stream_key: StreamKey, rules: OrderingRules) -> Option<u64> {
        let number = self.batches.begin(stream_key, rules);
        self.fit();
        number
    }

    /// Ends a batch, as [`Batches::end`] does, and moves the limit.
    pub(crate) fn end_batch(&mut self, number: u64) -> bool {
        let was_awaited = self.batches.end(number);
        self.fit();
        was_awaited
    }

    /// Sets the limit: while there are batches, each frame is checked.
    fn fit(&mut self) {
        self.at = if self.batches.is_empty() { self.held_at } else { 0 };
    }

    /// Notes that frame `number` waits. Returns true if the supervisor waits for it.
    pub(crate) fn note_waiting(&mut self, number: u64) -> bool {
        let is_wanted = self.stop_at.is_some_and(|stop| stop <= number);
        if is_wanted {
            self.stop_at = None;
            self.reached = Some(number);
        }
        is_wanted
    }

    pub(crate) fn hold(&mut self) {
        self.held_at = 0;
        self.fit();
    }

    /// Holds all threads, even those that bypass the gate.
    pub(crate) fn close(&mut self) {
        (self.held_at, self.is_strict) = (0, true);
        self.fit();
    }

    pub(crate) fn open(&mut self) {
        // A later question would get a frame that no longer waits.
        self.reached = None;
        (self.held_at, self.is_strict) = (self.stop_at.unwrap_or(NO_FRAME), false);
        self.fit();
    }

    pub(crate) fn set_stop_at(&mut self, frame: u64) {
        self.stop_at = Some(frame);
        self.held_at = self.held_at.min(frame);
        self.fit();
    }

    pub(crate) fn take_reached(&mut self) -> Option<u64> {
        self.reached.take()
    }
}

/// Becomes readable when something happened that the job's supervisor must know.
#[derive(Debug, Default)]
pub(crate) struct NotifyFd(OnceLock<OwnedFd>);

impl NotifyFd {
    /// Creates the descriptor, unless it exists.
    pub(crate) fn install(&self) -> io::Result<()> {
        if self.0.get().is_none() {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            self.0.get_or_init(|| fd);
        }
        Ok(())
    }

    pub(crate) fn notify(&self) {
        if let Some(fd) = self.0.get() {
            // The counter cannot be full. A program that has closed the descriptor is polled now and then anyway.
            let _ = rustix::io::write(fd, &1u64.to_le_bytes());
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.get().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::batch::in_batch;
    use crate::link::batch::tests::ORDERING_RULES;

    /// A frame for stream 5 of context 1.
    const FRAME: FrameInfo<'_> = FrameInfo { opcode: 1, context: 1, payload: &[5] };

    #[test]
    fn a_hold_admits_only_threads_that_bypass_it() {
        let mut gate = LinkGate::default();
        assert!(gate.admit(u64::MAX - 1, FRAME));
        gate.hold();
        assert!(!gate.admit(0, FRAME));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bypass_gate();
                assert!(gate.admit(5, FRAME));
            });
        });
        gate.close();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bypass_gate();
                assert!(!gate.admit(5, FRAME));
            });
        });
        gate.open();
        assert!(gate.admit(7, FRAME));
    }

    #[test]
    fn a_stop_at_a_frame_is_reported_once() {
        let mut gate = LinkGate::default();
        gate.set_stop_at(3);
        assert!(gate.admit(2, FRAME) && !gate.admit(3, FRAME));
        assert!(gate.note_waiting(3) && !gate.note_waiting(3));
        assert_eq!((gate.take_reached(), gate.take_reached()), (Some(3), None));
        gate.open();
        assert!(gate.admit(3, FRAME));
        gate.set_stop_at(5);
        assert!(gate.note_waiting(5));
        gate.open();
        assert_eq!(gate.take_reached(), None);
    }

    #[test]
    fn a_hold_keeps_a_requested_stop() {
        let mut gate = LinkGate::default();
        gate.set_stop_at(9);
        gate.hold();
        assert!(!gate.note_waiting(4));
        gate.open();
        assert!(gate.admit(8, FRAME) && !gate.admit(9, FRAME));
    }

    #[test]
    fn batches_and_holds_do_not_undo_each_other() {
        let mut gate = LinkGate::default();
        let batch = gate.begin_batch((1, 5), ORDERING_RULES).unwrap();
        assert!(!gate.is_open(3) && !gate.admit(3, FRAME) && in_batch(batch, || gate.admit(3, FRAME)));
        gate.hold();
        assert!(!in_batch(batch, || gate.admit(3, FRAME)));
        assert!(gate.end_batch(batch) && !gate.is_open(3) && !gate.admit(3, FRAME));
        let batch = gate.begin_batch((1, 6), ORDERING_RULES).unwrap();
        gate.open();
        assert!(!gate.is_open(3) && gate.admit(3, FRAME) && !gate.end_batch(batch) && gate.is_open(3));
    }
}
