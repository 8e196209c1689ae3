//! The loop that executes a program's frames, in their order, by one thread that never waits for a device.
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

/// What the main loop of a session has beside the API's objects.
pub struct MainLoop<A: Api, T> {
    /// Threads that execute calls which may wait.
    pub executors: Executors<A>,
    /// Whether calls are looked at before executors get them.
    pub busy_poll: BusyPoll<A, T>,
    /// What a companion wants, where there can be one.
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

    /// Hands a call that may wait to the executor of `thread`; polls it first if the current frame waits for something that can be polled.
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

    /// Goes on where another worker stopped, whose program's upcall thread waits for the reply to `waiting_upcall`.
    pub fn resume(&mut self, shared: &A::SessionShared, progress: SavedProgress, waiting_upcall: Option<FrameHead>) {
        let SavedProgress { deferred, calls, frames, printed } = progress;
        (self.frames, self.waiting_upcall) = (frames, waiting_upcall);
        A::usage(shared).resume_calls(calls);
        A::replies(shared).resume(deferred, printed);
    }

    /// The current frame was executed: finishes the call that it left to be polled, and stays awake for executors.
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
    /// Why a frame is not carried out.
    type Fault: Fault<<Self::Api as Api>::Code>;

    /// What its threads share, and what the main loop has.
    #[expect(clippy::type_complexity, reason = "two parts that are used at once")]
    fn parts(&mut self) -> (&Arc<<Self::Api as Api>::SessionShared>, &mut MainLoop<Self::Api, Self::Target>);

    /// Executes a frame, whose payload may be any bytes.
    ///
    /// # Errors
    ///
    /// Why it is not carried out.
    fn dispatch(&mut self, head: &FrameHead, payload: &[u8]) -> Result<(), Self::Fault>;

    /// The frame was not carried out: what came with it, or before it for it, is of no use any more.
    fn discard(&mut self, head: &FrameHead);

    /// How many executors wait for upcalls, and so for no device.
    fn waiting_upcalls(shared: &<Self::Api as Api>::SessionShared) -> u64;

    /// The next frame's payload lies in this one of the link's buffers, or in none.
    fn set_payload_buffer(&mut self, _buffer: Option<usize>) {}

    /// Whether another loop goes on behind a message.
    fn ends_loop(_opcode: u16) -> bool {
        false
    }

    /// The session goes on after it was at rest.
    fn resumed(&mut self) {}
}

/// Why [`execute_frames`] is over.
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
/// What the program did wrong, or why the worker cannot go on.
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
                // Nothing comes from the program while orders are obeyed.
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

/// Executes one frame. A call that is not carried out comes to a code: as its reply, or for the next one.
///
/// # Errors
///
/// What the program did wrong, which ends its session.
pub fn execute<S: FrameHandler>(session: &mut S, head: &FrameHead, payload: &[u8]) -> Result<(), SessionError> {
    S::Api::usage(session.parts().0).count_call();
    let Err(fault) = session.dispatch(head, payload) else { return Ok(()) };
    let code = fault.into_code()?;
    session.discard(head);
    Ok(S::Api::refuse(session.parts().0, head, code)?)
}

/// Obeys until the session may go on. The link was interrupted for an order, which may have been obeyed by now.
///
/// # Errors
///
/// The pump's.
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

/// Names calls that have not ended: those that executors have, and `others`. The program's upcall thread may wait.
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
