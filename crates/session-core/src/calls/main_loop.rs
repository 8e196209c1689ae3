//! The main loop: one thread that executes a program's frames in order, and never waits for a device.
//!
//! ```text
//! link ──▶ execute_frames ──▶ FrameHandler::dispatch ─┬─ answered by the handler
//!               │    ▲                                ├─ MainLoop::run ── polled (`busy_poll`), or an executor
//!            orders  └── spins while executors wait   └─ Fault ── its code: Api::refuse; else the session ends
//! ```

use std::sync::Arc;

use katydid_transport::{LinkControl, LinkEvent, WorkerLink};
use katydid_wire::frame::FrameHead;

use crate::calls::api::Api;
use crate::calls::busy_poll::{BusyPoll, WaitTarget};
use crate::calls::error::{Fault, SessionError};
use crate::calls::executor::{Executors, Task};
use crate::control::{Checkpointable, Control, FramePump, Orders, PumpOutcome, QuiesceError};
use crate::journal::format::SavedProgress;

/// The main loop's state of a session, beside the API's objects.
pub struct MainLoop<A: Api, T> {
    /// Threads that execute calls which may wait.
    pub executors: Executors<A>,
    /// Whether calls are polled before executors get them.
    pub busy_poll: BusyPoll<A, T>,
    /// Orders of a companion, if there can be one.
    pub orders: Option<Orders>,
    /// Frames executed when the session was last at rest, or in the worker before this one.
    pub frames: u64,
    /// After a restore: the frame for which the program's upcall thread waits.
    pub waiting_upcall: Option<FrameHead>,
}

impl<A: Api, T: WaitTarget<A>> MainLoop<A, T> {
    /// Creates the loop of a session that has executed no frame.
    #[must_use]
    pub fn new(busy_poll: BusyPoll<A, T>) -> Self {
        Self { executors: Executors::default(), busy_poll, orders: None, frames: 0, waiting_upcall: None }
    }

    /// Gives a call that may wait to the executor of `thread`, or polls it first if the current frame waits for something
    /// that can be polled.
    ///
    /// # Errors
    ///
    /// As [`Executors::run`].
    pub fn run(
        &mut self,
        shared: &Arc<A::SessionShared>,
        thread: u32,
        context: A::Context,
        task: Task<A>,
    ) -> Result<(), SessionError> {
        match self.busy_poll.put_off(thread, context, task) {
            Some(task) => self.executors.run(shared, thread, context, task),
            None => Ok(()),
        }
    }

    /// Lets a companion control the session, whose link is `link_control`'s.
    pub fn control(&mut self, link_control: LinkControl) -> Control {
        let (orders, control) = Orders::new(link_control);
        self.orders = Some(orders);
        control
    }

    /// Counters of the session, as a checkpoint saves them.
    pub fn progress(&self, shared: &A::SessionShared) -> SavedProgress {
        let replies = A::replies(shared);
        SavedProgress {
            deferred: replies.deferred(),
            calls: A::usage(shared).calls(),
            frames: self.frames,
            printed: replies.unread(),
        }
    }

    /// Continues after another worker, whose program's upcall thread waits for the reply to `waiting_upcall`.
    pub fn resume(&mut self, shared: &A::SessionShared, progress: SavedProgress, waiting_upcall: Option<FrameHead>) {
        let SavedProgress { deferred, calls, frames, printed } = progress;
        (self.frames, self.waiting_upcall) = (frames, waiting_upcall);
        A::usage(shared).resume_calls(calls);
        A::replies(shared).resume(deferred, printed);
    }

    /// Ends an executed frame: finishes the call that it left to be polled, and stays awake for executors.
    fn finish_frame(
        &mut self,
        shared: &Arc<A::SessionShared>,
        upcalls: impl FnOnce() -> u64,
        link: &mut dyn WorkerLink,
    ) -> Result<(), SessionError> {
        self.busy_poll.is_on = false;
        self.busy_poll.poll_pending_wait(shared, &mut self.executors, || link.has_pending())?;
        self.busy_poll.spin_for_executor(A::calls(shared), upcalls, || link.has_pending());
        Ok(())
    }
}

/// A session whose frames the main loop executes.
pub trait FrameHandler: Checkpointable + Sized {
    /// API that the session executes: CUDA or OpenCL.
    type Api: Api;
    /// What its calls wait for.
    type Target: WaitTarget<Self::Api>;
    /// Why a frame is not executed.
    type Fault: Fault<<Self::Api as Api>::Code>;

    /// Returns the state that its threads share, and that of the main loop.
    #[expect(clippy::type_complexity, reason = "two parts that are used at once")]
    fn parts(&mut self) -> (&Arc<<Self::Api as Api>::SessionShared>, &mut MainLoop<Self::Api, Self::Target>);

    /// Executes a frame, whose payload may be any bytes.
    ///
    /// # Errors
    ///
    /// Why it is not executed.
    fn dispatch(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), Self::Fault>;

    /// Discards data that came with a failed frame, or before it for it.
    fn discard(&mut self, head: &FrameHead);

    /// Returns how many executors wait for upcalls, and so for no device.
    fn waiting_upcalls(shared: &<Self::Api as Api>::SessionShared) -> u64;

    /// Sets the link's buffer with the next frame's payload; none for a payload elsewhere.
    fn set_payload_buffer(&mut self, _buffer: Option<usize>) {}

    /// Returns whether another loop takes over after a message.
    fn ends_loop(_opcode: u16) -> bool {
        false
    }

    /// Called when the session goes on after a rest.
    fn resumed(&mut self) {}
}

/// Why [`execute_frames`] has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopEnd {
    /// The program has closed its end.
    Closed,
    /// A message for which [`FrameHandler::ends_loop`] is true came; another loop takes over.
    HandedOver,
}

/// Executes frames until the program closes its end.
///
/// # Errors
///
/// The program's fault, or why the worker cannot go on.
pub fn execute_frames<S: FrameHandler>(session: &mut S, link: &mut dyn WorkerLink) -> Result<LoopEnd, SessionError> {
    loop {
        let opcode = match link.next()? {
            LinkEvent::Frame(frame) => {
                session.parts().1.busy_poll.is_on = true;
                session.set_payload_buffer(frame.buffer);
                execute(session, &frame.head, frame.payload)?;
                session.set_payload_buffer(None);
                frame.head.opcode
            }
            LinkEvent::Interrupted => {
                // Nothing comes from the program while orders are executed.
                execute_orders(session, &mut |_| Ok(PumpOutcome::Frames(0)))?;
                continue;
            }
            LinkEvent::Closed => return Ok(LoopEnd::Closed),
        };
        let (shared, main_loop) = session.parts();
        main_loop.finish_frame(shared, || S::waiting_upcalls(shared), link)?;
        if S::ends_loop(opcode) {
            return Ok(LoopEnd::HandedOver);
        }
    }
}

/// Executes one frame. A failed call gives a code: in its reply, or in the next one.
///
/// # Errors
///
/// The program's fault, which ends its session.
pub fn execute<S: FrameHandler>(session: &mut S, head: &FrameHead, payload: &[u8]) -> Result<(), SessionError> {
    S::Api::usage(session.parts().0).count_call();
    let Err(fault) = session.dispatch(head, payload) else { return Ok(()) };
    let code = fault.into_code()?;
    session.discard(head);
    Ok(S::Api::refuse(session.parts().0, head, code)?)
}

/// Executes orders until the session may go on. The link was interrupted for an order, which may have been executed already.
///
/// # Errors
///
/// The error of the pump.
pub fn execute_orders<S: FrameHandler>(
    session: &mut S,
    pump: FramePump<'_, S, SessionError>,
) -> Result<PumpOutcome, SessionError> {
    let Some(mut orders) = session.parts().1.orders.take() else { return Ok(PumpOutcome::Frames(0)) };
    let outcome = orders.execute(session, pump);
    session.parts().1.orders = Some(orders);
    session.resumed();
    outcome
}

/// Reports calls that have not ended: those of executors, and `others`. The program's upcall thread may wait.
///
/// # Errors
///
/// [`QuiesceError::Calls`].
pub fn check_calls<S: FrameHandler>(session: &mut S, others: u64) -> Result<(), QuiesceError> {
    let shared = session.parts().0;
    let waiting = S::waiting_upcalls(shared);
    let calls = S::Api::calls(shared).in_flight().saturating_sub(waiting) + others;
    if calls > 0 { Err(QuiesceError::Calls { calls }) } else { Ok(()) }
}
