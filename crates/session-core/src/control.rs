//! Brings a session to rest, and has its main loop do a companion's work during the rest.
//!
//! At rest nothing is in flight: every frame of the program is executed, every call answered, all work completed. One thing
//! may go on: the program's upcall thread waits for a function that is not due. The error names work that does not complete
//! in time, and the session goes on unchanged.
//!
//! Orders reach the main loop by interrupting the link ([`LinkControl::interrupt`]), so a session that is never checkpointed
//! only pays for one comparison a frame.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use katydid_image::{ImageSource, Session as SessionPart, Sink};
use katydid_transport::{LinkControl, WorkerLink};
use katydid_wire::companion::MovedVariable;

use crate::progress::Progress;
use crate::snapshot::{CaptureOptions, Failure, PendingSnapshot, Precopy, RestoreOptions};

/// Shortest and longest pause between two checks of work that has not completed.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Why a session is not at rest. It goes on unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuiesceError {
    /// Announced frames have not arrived, or not been executed.
    #[error("{executed} of the program's {sent} frames were executed in time; try again, or raise --quiesce-timeout")]
    Behind {
        /// Frames that the program has sent.
        sent: u64,
        /// Frames that the worker has taken.
        executed: u64,
    },
    /// Calls that wait for the GPU, or for each other.
    #[error("{calls} calls of the program did not end in time; try again, or raise --quiesce-timeout")]
    Calls {
        /// Calls that are still executing when the deadline passes.
        calls: u64,
    },
    /// The program runs a function for the GPU that does not return.
    #[error("a host function that the GPU waits for did not end in time; try again, or raise --quiesce-timeout")]
    Upcall,
    /// Work of a device that does not complete.
    #[error("{what} did not finish in time: {why}")]
    Busy {
        /// Stream or queue with unfinished work, as shown to the user.
        what: String,
        /// The possible cause.
        why: &'static str,
    },
    /// An error that no checkpoint can save.
    #[error("{what} has the sticky error {error}, which only its end clears")]
    Ruined {
        /// Context or queue in the error state, as shown to the user.
        what: String,
        /// Code that the driver returned: the number of a `CUresult`, or an OpenCL code.
        error: String,
    },
    /// The session has ended meanwhile.
    #[error("the session has ended")]
    Ended,
}

/// A session that can be brought to rest and saved. Its main loop calls these methods.
pub trait Checkpointable {
    /// Checks that nothing is in flight at this moment.
    ///
    /// # Errors
    ///
    /// What is in flight.
    fn check_idle(&mut self) -> Result<(), QuiesceError>;

    /// Checks what a look at queues does not show, once nothing is in flight: devices in error, text that they printed.
    ///
    /// # Errors
    ///
    /// [`QuiesceError::Ruined`].
    fn synchronize(&mut self) -> Result<(), QuiesceError>;

    /// Notes the number of frames that were executed when it came to rest.
    fn note_frames(&mut self, frames: u64);

    /// Prepares for a snapshot soon: computes everything that can be found out while the program runs.
    fn prepare_snapshot(&mut self) {}

    /// Returns the work for a snapshot that can be done before the program is paused; `None` for none. `full` is as in
    /// [`CaptureOptions`].
    fn precopy(&mut self, _full: bool) -> Option<Box<dyn Precopy>> {
        None
    }

    /// Releases the results of [`Precopy::run`] for a snapshot that is not taken, and memory of one that was taken. Returns
    /// false if that cannot be done at this moment.
    fn release_snapshot(&mut self) -> bool {
        true
    }

    /// Captures state and contents; `name` is the session's name in the image.
    ///
    /// # Errors
    ///
    /// What cannot be saved. The session is unchanged.
    fn snapshot(
        &mut self,
        name: &str,
        options: CaptureOptions,
        sink: &dyn Sink,
        progress: &Arc<Progress>,
    ) -> Result<Box<dyn PendingSnapshot>, Failure>;

    /// Releases what an image of this process cannot have. The session is at rest, its program away, its snapshot in an
    /// image.
    ///
    /// # Errors
    ///
    /// Why it cannot. [`Checkpointable::refill`] restores what was released.
    fn suspend(&mut self) -> Result<(), Failure> {
        Err("the worker of a session of OpenCL cannot be saved as a process".into())
    }

    /// Restores what was released, except what needs the program; `part` is the session in the image.
    ///
    /// # Errors
    ///
    /// Why it cannot; the session cannot be used then.
    fn refill(&mut self, _part: &SessionPart, _source: &dyn ImageSource, _progress: &Progress) -> Result<(), Failure> {
        Ok(())
    }

    /// Joins the program after [`Checkpointable::refill`], with its pinned memory if the sides share some.
    ///
    /// # Errors
    ///
    /// As [`Checkpointable::refill`].
    fn rejoin(&mut self, _pinned: Option<BorrowedFd<'_>>) -> Result<(), Failure> {
        Ok(())
    }

    /// Lets a companion control this session, whose link is `link_control`'s.
    fn control(&mut self, link_control: LinkControl) -> Control;

    /// Executes frames until the program closes its end.
    ///
    /// Session and link must stay when this returns, however the session ended: the driver, its threads and the session's
    /// own use memory of both until the process ends. The caller ends it without unwinding.
    ///
    /// # Errors
    ///
    /// The program's fault, or why the worker cannot go on.
    fn serve(&'static mut self, link: &'static mut dyn WorkerLink) -> Result<(), Failure>;
}

/// A new session that is to become one of an image.
pub trait Restorable: Checkpointable {
    /// Rebuilds everything that needs nothing of the program: from an image, or first from an outline and then from an
    /// image.
    ///
    /// # Errors
    ///
    /// Why it cannot; the session cannot be used then. [`AddressMismatch`](crate::AddressMismatch): another process may
    /// succeed. [`OutOfMemory`](crate::OutOfMemory): a later attempt may succeed.
    fn restore(
        &mut self,
        part: &SessionPart,
        source: &dyn ImageSource,
        progress: &Progress,
        options: RestoreOptions,
    ) -> Result<(), Failure>;

    /// Returns variables that have moved since the image, and to which no memory of the session points.
    fn moved(&self) -> &[MovedVariable] {
        &[]
    }

    /// Rebuilds the rest when the program is there, with its pinned memory if the sides share some.
    ///
    /// # Errors
    ///
    /// As [`Restorable::restore`].
    fn restore_host(
        &mut self,
        pinned: Option<BorrowedFd<'_>>,
        part: &SessionPart,
        source: &dyn ImageSource,
    ) -> Result<(), Failure>;

    /// Connects the program's link; once a session.
    fn connect(&mut self, link: &dyn WorkerLink);

    /// Returns the frames executed when the session was last at rest, including those of the worker before this one.
    fn frames(&self) -> u64;

    /// Returns the same session for its main loop.
    fn begin(&'static mut self) -> &'static mut dyn Checkpointable;
}

/// A companion's work with a session at rest.
type CompanionWork = Box<dyn FnOnce(&mut dyn Checkpointable) + Send>;

/// An order for the main loop.
enum LoopOrder {
    /// Comes to rest when `frames` frames were executed, and stays there.
    Quiesce { frames: u64, deadline: Instant, answer: SyncSender<Result<u64, QuiesceError>> },
    /// Work that needs a session at rest.
    Work(CompanionWork),
    /// Leaves the state of rest: frames are executed again.
    Resume,
}

/// Gives orders to the main loop of a session. Those of one session come from one thread at a time.
#[derive(Clone)]
pub struct Control {
    orders: Sender<LoopOrder>,
    link_control: LinkControl,
}

impl Control {
    /// Brings the session to rest once the program's first `frames` frames are executed, within `timeout`. Returns the
    /// number of all executed frames, including those of upcalls that had to end.
    ///
    /// # Errors
    ///
    /// [`QuiesceError`]; the session then goes on.
    pub fn quiesce(&self, frames: u64, timeout: Duration) -> Result<u64, QuiesceError> {
        let (answer, answered) = sync_channel(1);
        let order = LoopOrder::Quiesce { frames, deadline: Instant::now() + timeout, answer };
        self.orders.send(order).map_err(|_| QuiesceError::Ended)?;
        self.link_control.interrupt(frames);
        match answered.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => {
                // The main loop takes the order now, and answers how far it is.
                self.link_control.interrupt(0);
                answered.recv().unwrap_or(Err(QuiesceError::Ended))
            }
            Err(RecvTimeoutError::Disconnected) => Err(QuiesceError::Ended),
        }
    }

    /// Has the main loop of a session at rest do `work`, and waits for its result; none if the session has ended.
    pub fn with<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Checkpointable) -> R + Send + 'static,
    ) -> Option<R> {
        self.order(work)?.recv().ok()
    }

    /// Has the main loop of a running session do `work` between two frames, and waits for its result; none if the session
    /// has ended.
    pub fn with_running<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Checkpointable) -> R + Send + 'static,
    ) -> Option<R> {
        let answered = self.order(work)?;
        self.link_control.interrupt(0);
        answered.recv().ok()
    }

    /// Orders `work`, whose result will be received; none if the session has ended.
    fn order<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut dyn Checkpointable) -> R + Send + 'static,
    ) -> Option<Receiver<R>> {
        let (answer, answered) = sync_channel(1);
        let work = move |session: &mut dyn Checkpointable| {
            // Some threads do not wait for the answer.
            let _ = answer.send(work(session));
        };
        self.orders.send(LoopOrder::Work(Box::new(work))).ok()?;
        Some(answered)
    }

    /// Announces a snapshot of the session: everything that can be found out while the program runs is computed.
    pub fn prepare(&self) {
        if self.order(|session| session.prepare_snapshot()).is_some() {
            self.link_control.interrupt(0);
        }
    }

    /// Returns the result of [`Checkpointable::precopy`] for a running session; none if it has ended.
    #[must_use]
    pub fn precopy(&self, full: bool) -> Option<Box<dyn Precopy>> {
        self.with_running(move |session| session.precopy(full))?
    }

    /// Returns the result of [`Checkpointable::release_snapshot`] for a running session; true if it has ended.
    #[must_use]
    pub fn release_snapshot(&self) -> bool {
        self.with_running(|session| session.release_snapshot()).unwrap_or(true)
    }

    /// Has a session at rest go on.
    pub fn resume(&self) {
        // A session that has ended needs no order.
        let _ = self.orders.send(LoopOrder::Resume);
    }

    /// Handle that pauses and resumes the session's link.
    #[must_use]
    pub fn link_control(&self) -> &LinkControl {
        &self.link_control
    }
}

/// The events of the link while a session was brought to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PumpOutcome {
    /// Number of frames that came and were executed.
    Frames(usize),
    /// The program closed its end of the link.
    End,
}

/// Executes frames that have arrived meanwhile, for sessions that execute frames while they come to rest.
pub type FramePump<'a, S, E> = &'a mut dyn FnMut(&mut S) -> Result<PumpOutcome, E>;

/// The main loop's side of a [`Control`].
pub struct Orders {
    received: Receiver<LoopOrder>,
    /// An order that was received too early.
    later: Option<LoopOrder>,
    link_control: LinkControl,
}

impl Orders {
    /// Makes both sides, for the session whose link is `link_control`'s.
    #[must_use]
    pub fn new(link_control: LinkControl) -> (Self, Control) {
        let (orders, received) = channel();
        (Self { received, later: None, link_control: link_control.clone() }, Control { orders, link_control })
    }

    /// Executes orders until the session may go on. The link was interrupted for an order, which may have been executed
    /// already.
    ///
    /// # Errors
    ///
    /// The error of the pump.
    pub fn execute<S: Checkpointable, E>(
        &mut self,
        session: &mut S,
        pump: FramePump<'_, S, E>,
    ) -> Result<PumpOutcome, E> {
        let mut is_at_rest = false;
        loop {
            let order = match self.later.take() {
                Some(order) => Some(order),
                None if is_at_rest => self.received.recv().ok(),
                None => self.received.try_recv().ok(),
            };
            match order {
                // The link was interrupted for another order: this order is due with its frames, or at its deadline.
                Some(order @ LoopOrder::Quiesce { frames, deadline, .. })
                    if self.link_control.frames() < frames && Instant::now() < deadline =>
                {
                    self.later = Some(order);
                    self.link_control.interrupt(frames);
                    return Ok(PumpOutcome::Frames(0));
                }
                Some(LoopOrder::Quiesce { frames, deadline, answer }) => {
                    let executed = self.link_control.frames();
                    let shortfall = QuiesceError::Behind { sent: frames, executed };
                    let result = if executed < frames { Err(shortfall) } else { quiesce(session, deadline, pump)? };
                    let executed = self.link_control.frames();
                    session.note_frames(executed);
                    is_at_rest = result.is_ok();
                    let ended = matches!(result, Err(QuiesceError::Ended));
                    // A companion that is gone has been answered in another way.
                    let _ = answer.send(result.map(|()| executed));
                    if !is_at_rest {
                        return Ok(if ended { PumpOutcome::End } else { PumpOutcome::Frames(0) });
                    }
                }
                Some(LoopOrder::Work(work)) => work(session),
                Some(LoopOrder::Resume) | None => return Ok(PumpOutcome::Frames(0)),
            }
        }
    }
}

/// Waits until nothing is in flight. A state that it finds twice in a row, with no frame between, is stable: only work in
/// flight sends anything.
fn quiesce<S: Checkpointable, E>(
    session: &mut S,
    deadline: Instant,
    pump: FramePump<'_, S, E>,
) -> Result<Result<(), QuiesceError>, E> {
    let (mut nap, mut clean) = (POLL_PAUSES.0, 0);
    while clean < 2 {
        match pump(session)? {
            PumpOutcome::End => return Ok(Err(QuiesceError::Ended)),
            PumpOutcome::Frames(0) => {}
            PumpOutcome::Frames(_) => clean = 0,
        }
        let Err(busy) = session.check_idle() else {
            clean += 1;
            continue;
        };
        clean = 0;
        if matches!(busy, QuiesceError::Ruined { .. }) || Instant::now() >= deadline {
            return Ok(Err(busy));
        }
        thread::sleep(nap);
        nap = (nap * 2).min(POLL_PAUSES.1);
    }
    Ok(session.synchronize())
}
