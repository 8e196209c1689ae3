//! The relay reads the link while a call blocks, from the session's first host function on.
//!
//! A driver's queue holds some thousand launches. When it is full, a launch waits for the GPU. If a host function blocks the
//! stream, the launch waits for the program, whose acknowledgment would come through the waiting loop itself. So from then
//! on a separate thread reads the link. It handles acknowledgments, and the pages of the program's memory that the function
//! reads and writes; everything else goes on to the main loop in order. While a function is due, the thread reads on where
//! it would otherwise leave frames in the link. Programs without host functions do not pay for the detour.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use katydid_cuda_sys::CUresult;
use katydid_session_core::{Api as _, PumpOutcome, execute, execute_orders, start_thread};
use katydid_transport::{LinkControl, LinkEvent, WorkerLink};
use katydid_wire::codec::Message as _;
use katydid_wire::frame::FrameHead;
use katydid_wire::message::{
    kdHostFunction, kdHostPull, kdHostPush, kdHostPushWords, kdStreamCallback, kdUpcallBytes, kdUpcallData,
    kdUpcallNext, kdUpcallsBegin,
};

use crate::calls::executor::Executors;
use crate::calls::fault::{Fault, SessionError};
use crate::calls::session_shared::{Cuda, CudaSessionShared};
use crate::state::Session;

/// Most bytes that may wait for the main loop; the frame that exceeds this waits in the link.
const MAX_RELAYED_BYTES: usize = 64 << 20;
/// Most bytes that may wait for the main loop while a function is due. The acknowledgment of its end may lie in the link
/// behind the frame that exceeds [`MAX_RELAYED_BYTES`].
const MAX_BYTES_BEFORE_END: usize = 1 << 30;
/// Counted for each frame beside its payload, so that there are not too many, in bytes.
const FRAME_COST_BYTES: usize = 1 << 10;
/// Interval of polls for functions that have become due.
const UPCALL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns whether a message makes a stream wait for the program.
pub(crate) fn begins_with(opcode: u16) -> bool {
    matches!(opcode, kdHostFunction::OPCODE | kdStreamCallback::OPCODE | kdUpcallsBegin::OPCODE)
}

/// An event from the reading thread.
pub(crate) enum RelayEvent {
    /// A frame for the main loop.
    Frame(FrameHead, Vec<u8>),
    /// A companion has an order for the main loop.
    Interrupted,
    /// The link has closed or failed; nothing follows.
    End(Result<(), SessionError>),
}

/// The main loop's side.
pub(crate) struct Relay {
    /// Events in the order of the link.
    pub(crate) frames: Receiver<RelayEvent>,
    budget: Arc<RelayBudget>,
}

impl Relay {
    /// Starts a thread that reads `link` from here on. `waiting` is the frame in which the program's upcall thread waited
    /// when the session was saved.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub(crate) fn start(
        link: &'static mut dyn WorkerLink,
        shared: Arc<CudaSessionShared>,
        waiting: Option<FrameHead>,
    ) -> Result<Self, SessionError> {
        let (sender, frames) = channel();
        let budget = Arc::new(RelayBudget::default());
        let mut reader = ReaderEnd { shared, executors: Executors::default(), sender, budget: Arc::clone(&budget) };
        if let Some(head) = waiting {
            link.link_control().inspect(LinkControl::expect_reply);
            let task = crate::handlers::upcall_task(&reader.shared, head, kdUpcallNext { done: 0 });
            reader.executors.run(&reader.shared, head.thread, Cuda::NO_CONTEXT, task)?;
        }
        start_thread("relay".into(), move || reader.run(link))?;
        Ok(Self { frames, budget })
    }

    /// Handles an event. The session is over if the outcome is the end.
    pub(crate) fn take(&mut self, session: &mut Session, item: RelayEvent) -> Result<PumpOutcome, SessionError> {
        match item {
            RelayEvent::Frame(head, payload) => {
                execute(session, &head, &payload)?;
                self.budget.give(payload.len());
                Ok(PumpOutcome::Frames(1))
            }
            RelayEvent::Interrupted => execute_orders(session, &mut |session| self.pump(session)),
            RelayEvent::End(outcome) => outcome.map(|()| PumpOutcome::End),
        }
    }

    /// Executes what has come while the session is brought to rest.
    fn pump(&mut self, session: &mut Session) -> Result<PumpOutcome, SessionError> {
        let mut frames = 0;
        while let Ok(item) = self.frames.try_recv() {
            // A repeated interrupt, for the order that is being executed.
            if matches!(item, RelayEvent::Interrupted) {
                continue;
            }
            if self.take(session, item)? == PumpOutcome::End {
                return Ok(PumpOutcome::End);
            }
            frames += 1;
        }
        Ok(PumpOutcome::Frames(frames))
    }
}

/// The reading thread's side.
struct ReaderEnd {
    shared: Arc<CudaSessionShared>,
    /// Executors for the program's upcall thread.
    executors: Executors,
    sender: Sender<RelayEvent>,
    budget: Arc<RelayBudget>,
}

impl ReaderEnd {
    fn run(mut self, link: &mut dyn WorkerLink) {
        let outcome = self.read(link);
        // If the main loop is gone, the session has ended already.
        let _ = self.sender.send(RelayEvent::End(outcome));
    }

    /// Handles messages of the program's upcall thread, and pages of pinned memory, which that needs too: it must not wait
    /// for any other thread.
    fn is_for_upcalls(&mut self, head: &FrameHead, payload: &[u8]) -> Result<bool, SessionError> {
        let task = match head.opcode {
            kdUpcallNext::OPCODE if head.wants_reply => {
                crate::handlers::upcall_task(&self.shared, *head, kdUpcallNext::decode(payload)?)
            }
            kdUpcallBytes::OPCODE if head.wants_reply => {
                match crate::handlers::bytes_task(&self.shared, *head, kdUpcallBytes::decode(payload)?) {
                    Ok(task) => task,
                    Err(Fault::Fatal(error)) => return Err(error),
                    Err(Fault::Cuda(_)) => return Ok(false),
                }
            }
            kdUpcallData::OPCODE => {
                self.shared.usage.count_call();
                let status = crate::handlers::fill_staging_block(&self.shared, kdUpcallData::decode(payload)?);
                if status != CUresult::SUCCESS {
                    self.shared.replies.defer(status.0);
                }
                return Ok(true);
            }
            kdHostPush::OPCODE | kdHostPushWords::OPCODE => return self.is_pushed(head, payload),
            kdHostPull::OPCODE if head.wants_reply => {
                match crate::handlers::pull_task(&self.shared, *head, &kdHostPull::decode(payload)?)? {
                    Some(task) => task,
                    None => return Ok(false),
                }
            }
            _ => return Ok(false),
        };
        self.shared.usage.count_call();
        self.executors.run(&self.shared, head.thread, Cuda::NO_CONTEXT, task)?;
        Ok(true)
    }

    /// Applies the program's writes to pinned memory, ahead of all frames on their way to the main loop: the writes of a
    /// host function must be there when the stream goes on. Work that was sent before does not need the old bytes: if it
    /// did, the program has waited for it.
    fn is_pushed(&self, head: &FrameHead, payload: &[u8]) -> Result<bool, SessionError> {
        let is_pushed = match head.opcode {
            kdHostPush::OPCODE => crate::handlers::push_now(&self.shared, &kdHostPush::decode(payload)?),
            _ => crate::handlers::push_words_now(&self.shared, &kdHostPushWords::decode(payload)?)?,
        };
        if is_pushed {
            self.shared.usage.count_call();
        }
        Ok(is_pushed)
    }

    fn read(&mut self, link: &mut dyn WorkerLink) -> Result<(), SessionError> {
        loop {
            let item = match link.next()? {
                LinkEvent::Frame(frame) if self.is_for_upcalls(&frame.head, frame.payload)? => continue,
                LinkEvent::Frame(frame) => {
                    self.budget.take(frame.payload.len(), || self.shared.upcalls.is_busy());
                    RelayEvent::Frame(frame.head, frame.payload.to_vec())
                }
                LinkEvent::Interrupted => RelayEvent::Interrupted,
                LinkEvent::Closed => return Ok(()),
            };
            if self.sender.send(item).is_err() {
                return Ok(());
            }
        }
    }
}

/// Bytes on their way to the main loop.
#[derive(Default)]
struct RelayBudget {
    in_use: Mutex<usize>,
    released: Condvar,
}

impl RelayBudget {
    /// Waits until the budget has `bytes` for a frame; returns at once if no frame is in flight.
    fn take(&self, bytes: usize, is_due: impl Fn() -> bool) {
        let most = || if is_due() { MAX_BYTES_BEFORE_END } else { MAX_RELAYED_BYTES };
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        while *in_use > 0 && *in_use + bytes + FRAME_COST_BYTES > most() {
            in_use = self.released.wait_timeout(in_use, UPCALL_POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        *in_use += bytes + FRAME_COST_BYTES;
    }

    fn give(&self, bytes: usize) {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        *in_use -= bytes + FRAME_COST_BYTES;
        self.released.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn a_budget_lets_one_frame_of_any_size_pass() {
        let budget = RelayBudget::default();
        budget.take(2 * MAX_RELAYED_BYTES, || false);
        budget.give(2 * MAX_RELAYED_BYTES);
        budget.take(MAX_RELAYED_BYTES, || false);
        budget.give(MAX_RELAYED_BYTES);
    }

    #[test]
    fn relay_beyond_the_budget_blocks() {
        let budget = Arc::new(RelayBudget::default());
        budget.take(MAX_RELAYED_BYTES, || false);
        let waiting = thread::spawn({
            let budget = Arc::clone(&budget);
            move || budget.take(1, || false)
        });
        assert!(!waiting.is_finished());
        budget.give(MAX_RELAYED_BYTES);
        waiting.join().unwrap();
        assert_eq!(*budget.in_use.lock().unwrap(), 1 + FRAME_COST_BYTES);
    }

    #[test]
    fn the_end_of_a_function_is_found_behind_a_thousand_thousand_frames() {
        let (budget, is_due) = (Arc::new(RelayBudget::default()), Arc::new(AtomicBool::new(false)));
        (0..MAX_RELAYED_BYTES / FRAME_COST_BYTES).for_each(|_| budget.take(0, || false));
        let waiting = thread::spawn({
            let (budget, is_due) = (Arc::clone(&budget), Arc::clone(&is_due));
            move || {
                (0..1_000_000 - MAX_RELAYED_BYTES / FRAME_COST_BYTES)
                    .for_each(|_| budget.take(0, || is_due.load(Ordering::Relaxed)))
            }
        });
        assert!(!waiting.is_finished());
        is_due.store(true, Ordering::Relaxed);
        waiting.join().unwrap();
    }
}
