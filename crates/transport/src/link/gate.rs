//! Holding frames back: whoever keeps a job can stop a program at the seam, between two frames, and let it go on.
//!
//! A link compares the number of the next frame with a limit, under the lock that it holds anyway; without a hold, and
//! without a train ([`crate::link::batch`]), the limit is never reached. A thread at the limit waits, with two exceptions: a thread that has said
//! [`pass_holds`] is answering for work of the GPU that has to end before the session is at rest, and one that is [`laden`]
//! has in its hand what the first one may need, and is told instead.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use katydid_wire::key::SessionKey;
use rustix::event::{EventfdFlags, eventfd};

use crate::link::address::Address;
use crate::link::batch::{Place, Rules, Trains, Wagon};
use crate::link::error::{ConnectError, LinkError};

/// The limit that no frame reaches.
const NEVER: u64 = u64::MAX;

thread_local! {
    static PASSES: Cell<bool> = const { Cell::new(false) };
    static IS_LADEN: Cell<bool> = const { Cell::new(false) };
}

/// From now on the calling thread's frames are sent although the link is held: it runs functions that the GPU waits
/// for. They are held like all others once the link is left.
pub fn pass_holds() {
    PASSES.set(true);
}

/// Runs `work` on a thread that has a lock in its hand, if that `is_so`, for which threads that [`pass_holds`] may wait: a frame
/// that would have to wait is not sent, and [`LinkError::Held`] says so.
pub fn laden<T>(is_so: bool, work: impl FnOnce() -> T) -> T {
    let before = IS_LADEN.replace(is_so);
    let done = work();
    IS_LADEN.set(before);
    done
}

/// Whether the calling thread is [`laden`].
pub fn is_laden() -> bool {
    IS_LADEN.get()
}

/// Refuses to have the calling thread wait for the link if it is laden. Nobody waits for one that passes holds.
pub(crate) fn may_wait() -> Result<(), LinkError> {
    if IS_LADEN.get() && !PASSES.get() { Err(LinkError::Held) } else { Ok(()) }
}

/// What a program's link can do for the keeper of its job. One thread gives these orders.
pub trait Holding: Send + Sync {
    /// From now on no thread sends a frame, but those that [`pass_holds`]. Returns the number of frames sent so far.
    fn hold(&self) -> u64;

    /// Frames are sent again.
    fn release(&self);

    /// The link will hold itself before it sends frame `frame`, and ring [`Holding::bell`] then.
    ///
    /// # Errors
    /// The system has no descriptor for the bell.
    fn hold_at(&self, frame: u64) -> io::Result<()>;

    /// Whether the link has come to the frame of [`Holding::hold_at`], and which: told once.
    fn reached(&self) -> Option<u64>;

    /// Lets go of the worker, after [`Holding::hold`]: closes the connection and keeps everything else. Returns the
    /// number of frames sent in all. The worker must have been told.
    ///
    /// # Errors
    /// [`LinkError::System`]: nothing has changed. Any other: the link has ended.
    fn leave(&self) -> Result<u64, LinkError>;

    /// Goes on with the worker that has the session `key` at `address`, after [`Holding::leave`] or a loss. Frames are
    /// still held.
    ///
    /// # Errors
    /// Why not; it may be tried again.
    fn resume(&self, address: &Address, key: SessionKey, timeout: Duration) -> Result<(), ConnectError>;

    /// From now on a worker that ends by itself does not end the link: calls wait for [`Holding::resume`] or
    /// [`Holding::give_up`], and the bell is rung.
    ///
    /// # Errors
    /// The system has no descriptor for the bell.
    fn keep(&self) -> io::Result<()>;

    /// Whether the worker has ended by itself and is waited for; frames are held then.
    fn is_lost(&self) -> bool;

    /// The link is useless from now on: whoever waits gets [`LinkError::Closed`].
    fn give_up(&self);

    /// The session's name.
    fn key(&self) -> SessionKey;

    /// Frames sent so far.
    fn frames(&self) -> u64;

    /// Readable when [`Holding::reached`] or [`Holding::is_lost`] has something to say.
    fn bell(&self) -> Option<BorrowedFd<'_>>;

    /// The connection, to be watched for its end.
    fn socket(&self) -> Option<BorrowedFd<'_>>;
}

/// Where a link stops, kept under the lock of its frames.
#[derive(Debug)]
pub(crate) struct Limit {
    /// A frame is looked at if its number is this or more.
    at: u64,
    /// It is held if its number is this or more.
    held_at: u64,
    trains: Trains,
    /// Nobody passes.
    is_strict: bool,
    /// [`Holding::hold_at`]: to be reported when it is reached.
    wish: Option<u64>,
    /// Reached, and not asked for yet.
    reached: Option<u64>,
}

impl Default for Limit {
    fn default() -> Self {
        Self { at: NEVER, held_at: NEVER, trains: Trains::default(), is_strict: false, wish: None, reached: None }
    }
}

impl Limit {
    /// Whether frame `number` may be sent, whatever it is and whoever sends it.
    #[inline]
    pub(crate) fn is_open(&self, number: u64) -> bool {
        number < self.at
    }

    /// Whether the calling thread may send `frame` as number `number`.
    pub(crate) fn admit(&mut self, number: u64, frame: Wagon<'_>) -> bool {
        let is_held = number >= self.held_at && (self.is_strict || !PASSES.get());
        !is_held && self.trains.admit(frame)
    }

    /// As [`Trains::begin`].
    pub(crate) fn begin_train(&mut self, place: Place, rules: Rules) -> Option<u64> {
        let begun = self.trains.begin(place, rules);
        self.fit();
        begun
    }

    /// As [`Trains::end`].
    pub(crate) fn end_train(&mut self, number: u64) -> bool {
        let was_awaited = self.trains.end(number);
        self.fit();
        was_awaited
    }

    /// While there are trains each frame is looked at.
    fn fit(&mut self) {
        self.at = if self.trains.is_empty() { self.held_at } else { 0 };
    }

    /// Frame `number` waits; true if that is what somebody wished to know.
    pub(crate) fn note(&mut self, number: u64) -> bool {
        let is_wished = self.wish.is_some_and(|wish| wish <= number);
        if is_wished {
            self.wish = None;
            self.reached = Some(number);
        }
        is_wished
    }

    pub(crate) fn hold(&mut self) {
        self.held_at = 0;
        self.fit();
    }

    /// Not even threads that pass holds get through.
    pub(crate) fn close(&mut self) {
        (self.held_at, self.is_strict) = (0, true);
        self.fit();
    }

    pub(crate) fn open(&mut self) {
        // Whoever has not asked by now would hear of a frame that does not wait any more.
        self.reached = None;
        (self.held_at, self.is_strict) = (self.wish.unwrap_or(NEVER), false);
        self.fit();
    }

    pub(crate) fn wish(&mut self, frame: u64) {
        self.wish = Some(frame);
        self.held_at = self.held_at.min(frame);
        self.fit();
    }

    pub(crate) fn take_reached(&mut self) -> Option<u64> {
        self.reached.take()
    }
}

/// Rings when something has happened that the keeper of the job must know.
#[derive(Debug, Default)]
pub(crate) struct Bell(OnceLock<OwnedFd>);

impl Bell {
    /// Makes the descriptor, unless that was done before.
    pub(crate) fn install(&self) -> io::Result<()> {
        if self.0.get().is_none() {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            self.0.get_or_init(|| fd);
        }
        Ok(())
    }

    pub(crate) fn ring(&self) {
        if let Some(fd) = self.0.get() {
            // The counter cannot be full; a program that has closed the descriptor is looked at now and then anyway.
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
    use crate::link::batch::aboard;
    use crate::link::batch::tests::RULES;

    /// A frame for stream 5 of context 1.
    const FRAME: Wagon<'_> = Wagon { opcode: 1, context: 1, payload: &[5] };

    #[test]
    fn a_hold_admits_nobody_but_those_that_pass() {
        let mut limit = Limit::default();
        assert!(limit.admit(u64::MAX - 1, FRAME));
        limit.hold();
        assert!(!limit.admit(0, FRAME));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pass_holds();
                assert!(limit.admit(5, FRAME));
            });
        });
        limit.close();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pass_holds();
                assert!(!limit.admit(5, FRAME));
            });
        });
        limit.open();
        assert!(limit.admit(7, FRAME));
    }

    #[test]
    fn a_wished_frame_is_told_once() {
        let mut limit = Limit::default();
        limit.wish(3);
        assert!(limit.admit(2, FRAME) && !limit.admit(3, FRAME));
        assert!(limit.note(3) && !limit.note(3));
        assert_eq!((limit.take_reached(), limit.take_reached()), (Some(3), None));
        limit.open();
        assert!(limit.admit(3, FRAME));
        limit.wish(5);
        assert!(limit.note(5));
        limit.open();
        assert_eq!(limit.take_reached(), None);
    }

    #[test]
    fn a_hold_does_not_forget_a_wish() {
        let mut limit = Limit::default();
        limit.wish(9);
        limit.hold();
        assert!(!limit.note(4));
        limit.open();
        assert!(limit.admit(8, FRAME) && !limit.admit(9, FRAME));
    }

    #[test]
    fn trains_and_holds_do_not_undo_each_other() {
        let mut limit = Limit::default();
        let train = limit.begin_train((1, 5), RULES).unwrap();
        assert!(!limit.is_open(3) && !limit.admit(3, FRAME) && aboard(train, || limit.admit(3, FRAME)));
        limit.hold();
        assert!(!aboard(train, || limit.admit(3, FRAME)));
        assert!(limit.end_train(train) && !limit.is_open(3) && !limit.admit(3, FRAME));
        let train = limit.begin_train((1, 6), RULES).unwrap();
        limit.open();
        assert!(!limit.is_open(3) && limit.admit(3, FRAME) && !limit.end_train(train) && limit.is_open(3));
    }
}
