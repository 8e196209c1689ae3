//! Reading on while a call blocks: what a session does from its first host function on.
//!
//! A driver's queue holds some thousand launches. When it is full, a launch waits for the GPU, and a stream that is blocked by a
//! host function makes it wait for the program, whose acknowledgement would come through the very loop that waits. So from then
//! on a thread of its own reads the link: acknowledgements, and the pages of the program's memory that the function reads and
//! writes, are handled there, everything else goes on to the main loop in order. While a function is due, the thread reads on
//! where it would leave frames in the link otherwise. Programs without host functions do not pay for the detour.

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

/// Bytes that may wait for the main loop; the frame that passes this waits in the link.
const MAX_RELAYED_BYTES: usize = 64 << 20;
/// Bytes that may wait for the main loop while a function is due, the end of which may lie in the link behind the frame
/// that passes [`MAX_RELAYED_BYTES`].
const MAX_BYTES_BEFORE_END: usize = 1 << 30;
/// What a frame counts for beside its payload, so that there are not too many.
const FRAME_COST_BYTES: usize = 1 << 10;
/// Between two polls for functions that have become due.
const UPCALL_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Whether a message makes a stream wait for the program.
pub(crate) fn begins_with(opcode: u16) -> bool {
    matches!(opcode, kdHostFunction::OPCODE | kdStreamCallback::OPCODE | kdUpcallsBegin::OPCODE)
}

/// What comes from the reading thread.
pub(crate) enum RelayEvent {
    /// A frame for the main loop.
    Frame(FrameHead, Vec<u8>),
    /// A companion has an order for the main loop.
    Interrupted,
    /// The link has closed or failed; nothing follows.
    End(Result<(), SessionError>),
}

/// The main loop's end.
pub(crate) struct Relay {
    /// In the order of the link.
    pub(crate) frames: Receiver<RelayEvent>,
    budget: Arc<RelayBudget>,
}

impl Relay {
    /// Has a thread read `link` from here on. `waiting` is the frame in which the program's upcall thread waited when
    /// the session was kept.
    ///
    /// # Errors
    ///
    /// The system has no thread left.
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

    /// Does what an item asks for. The session is over when the answer is the end.
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
            // Told again for an order that is being obeyed.
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

/// The reading thread's end.
struct ReaderEnd {
    shared: Arc<CudaSessionShared>,
    /// Of the program's upcall thread.
    executors: Executors,
    sender: Sender<RelayEvent>,
    budget: Arc<RelayBudget>,
}

impl ReaderEnd {
    fn run(mut self, link: &mut dyn WorkerLink) {
        let outcome = self.read(link);
        // A main loop that is gone has ended the session already.
        let _ = self.sender.send(RelayEvent::End(outcome));
    }

    /// Handles what the program's upcall thread sends, and pages of pinned memory, which it wants too: no other thread may have to
    /// wait for it.
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

    /// Takes what the program wrote into pinned memory, ahead of all that is on its way to the main loop: a host function
    /// must have written when the stream goes on. Work that was sent before has no use for other bytes: where it has, the
    /// program has waited for it.
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
