//! What the main loop and the executors of one session share: the driver, the way back, errors not yet reported.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_session_core::{Calls, Capture, Printed};
use katydid_transport::{Answer, LinkError, Replier};
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD, Output};

use crate::calls::upcalls::Upcalls;
use crate::graphs::Stages;
use crate::memory::host_memory::Blocks;
use crate::memory::reclaim::Reclaim;
use crate::memory::usage::Usage;

/// Shared by all threads of a session.
pub(crate) struct Shared {
    /// The driver.
    pub(crate) driver: Arc<Driver>,
    /// Host functions that are due.
    pub(crate) upcalls: Upcalls,
    /// Memory that graphs copy from or to for the program.
    pub(crate) stages: Stages,
    /// Memory that programs push and pull: registered memory, variables, mappings that are open.
    pub(crate) blocks: Arc<Blocks>,
    /// What the session uses.
    pub(crate) usage: Arc<Usage>,
    /// None before a rebuilt session has its program.
    replier: OnceLock<Arc<dyn Replier>>,
    /// Memory that this session and others want of each other.
    pub(crate) reclaim: Arc<Reclaim>,
    /// Calls that executors have.
    pub(crate) calls: Calls,
    capture: Mutex<Capture>,
    /// First code of an enqueued call that failed since the last reply; 0: none.
    deferred: AtomicU32,
}

impl Shared {
    pub(crate) fn new(driver: Arc<Driver>, capture: Capture, usage: Arc<Usage>, blocks: Arc<Blocks>) -> Self {
        Self {
            driver,
            upcalls: Upcalls::default(),
            stages: Stages::default(),
            blocks,
            usage,
            replier: OnceLock::new(),
            reclaim: Arc::default(),
            calls: Calls::default(),
            capture: Mutex::new(capture),
            deferred: AtomicU32::new(0),
        }
    }

    /// The way back to the program, once there is one.
    pub(crate) fn connect(&self, replier: Arc<dyn Replier>) {
        self.replier.get_or_init(|| replier);
    }

    /// Keeps the code of a failed call that no thread waits for, unless one is kept already.
    pub(crate) fn defer(&self, code: CUresult) {
        // A lost race means that another thread's code was first: the loser's is dropped, as any later one is.
        let _ = self.deferred.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// What the reply at hand is to tell. That is nothing nearly always, and nothing locks the processor then.
    fn take_deferred(&self) -> u32 {
        match self.deferred() {
            0 => 0,
            _ => self.deferred.swap(0, Ordering::AcqRel),
        }
    }

    /// The code that waits for the next reply.
    pub(crate) fn deferred(&self) -> u32 {
        self.deferred.load(Ordering::Acquire)
    }

    /// What was printed and has not been sent, which stays so.
    pub(crate) fn unread(&self) -> (Vec<u8>, Vec<u8>) {
        let printed = self.capture.lock().unwrap_or_else(PoisonError::into_inner).unread();
        (printed.stdout, printed.stderr)
    }

    /// Goes on where another worker stopped.
    pub(crate) fn resume(&self, deferred: u32, calls: u64, stdout: &[u8], stderr: &[u8]) {
        self.deferred.store(deferred, Ordering::Release);
        self.usage.resume_calls(calls);
        let printed = Printed { stdout: stdout.to_vec(), stderr: stderr.to_vec() };
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).begin_with(printed);
    }

    /// Answers a call, the message being in two parts. With `synchronised`, and with a failure, what the driver printed
    /// meanwhile goes with it: of a failure that may be the reason.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub(crate) fn answer(
        &self,
        head: &FrameHead,
        status: CUresult,
        [payload, tail]: [&[u8]; 2],
        synchronised: bool,
    ) -> Result<(), LinkError> {
        let length = payload.len() + tail.len();
        // What does not fit a reply at all (the names of tens of thousands of kernels) is refused, not cut.
        let (status, [payload, tail]) = match length > MAX_PAYLOAD {
            true => (CUresult::ERROR_NOT_SUPPORTED, [&[][..]; 2]),
            false => (status, [payload, tail]),
        };
        let is_failure = !matches!(status, CUresult::SUCCESS | CUresult::ERROR_NOT_READY);
        let printed =
            if synchronised || is_failure { self.printed(payload.len() + tail.len()) } else { Printed::default() };
        self.replier.get().ok_or(LinkError::Closed)?.reply(&Answer {
            thread: head.thread,
            sequence: head.sequence,
            status: status.0,
            deferred: self.take_deferred(),
            payload,
            tail,
            output: Output { stdout: &printed.stdout, stderr: &printed.stderr },
        })
    }

    /// What fits beside `payload` bytes, with four for the length that stands before it.
    fn printed(&self, payload: usize) -> Printed {
        let room = MAX_PAYLOAD.saturating_sub(payload + 4);
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).take(room)
    }
}
