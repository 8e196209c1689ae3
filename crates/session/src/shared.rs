//! What the main loop and the executors of one session share: the driver, the way back, errors not yet reported.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use katydid_cuda_sys::CUresult;
use katydid_driver::Driver;
use katydid_transport::{Answer, LinkError, Replier};
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD, Output};

use crate::graphs::Stages;
use crate::output::{Capture, Printed};
use crate::upcalls::Upcalls;
use crate::usage::Usage;

/// Shared by all threads of a session.
pub(crate) struct Shared {
    /// The driver.
    pub(crate) driver: Arc<Driver>,
    /// Host functions that are due.
    pub(crate) upcalls: Upcalls,
    /// Memory that graphs copy from or to for the program.
    pub(crate) stages: Stages,
    /// What the session uses.
    pub(crate) usage: Arc<Usage>,
    replier: Arc<dyn Replier>,
    capture: Mutex<Capture>,
    /// First code of an enqueued call that failed since the last reply; 0: none.
    deferred: AtomicU32,
}

impl Shared {
    pub(crate) fn new(driver: Arc<Driver>, replier: Arc<dyn Replier>, capture: Capture, usage: Arc<Usage>) -> Self {
        let (upcalls, stages, deferred) = (Upcalls::default(), Stages::default(), AtomicU32::new(0));
        Self { driver, upcalls, stages, usage, replier, capture: Mutex::new(capture), deferred }
    }

    /// Keeps the code of a failed call that nobody waits for, unless one is kept already.
    pub(crate) fn defer(&self, code: CUresult) {
        // A lost race means that another thread's code was first: the loser's is dropped, as any later one is.
        let _ = self.deferred.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Answers a call. With `synchronised`, what the driver printed meanwhile goes with it.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub(crate) fn answer(
        &self,
        head: &FrameHead,
        status: CUresult,
        payload: &[u8],
        synchronised: bool,
    ) -> Result<(), LinkError> {
        // What does not fit a reply at all (the names of tens of thousands of kernels) is refused, not cut.
        let (status, payload) =
            if payload.len() > MAX_PAYLOAD { (CUresult::ERROR_NOT_SUPPORTED, &[][..]) } else { (status, payload) };
        let printed = if synchronised { self.printed(payload.len()) } else { Printed::default() };
        self.replier.reply(&Answer {
            thread: head.thread,
            sequence: head.sequence,
            status: status.0,
            deferred: self.deferred.swap(0, Ordering::AcqRel),
            payload,
            output: Output { stdout: &printed.stdout, stderr: &printed.stderr },
        })
    }

    /// What fits beside `payload` bytes, with four for the length that stands before it.
    fn printed(&self, payload: usize) -> Printed {
        let room = MAX_PAYLOAD.saturating_sub(payload + 4);
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).take(room)
    }
}
