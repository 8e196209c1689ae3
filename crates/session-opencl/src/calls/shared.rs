//! What the main loop, the executors, the lookout and the drivers' callbacks of one session share.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_opencl_sys::Code;
use katydid_session_core::{Calls, Capture, Printed};
use katydid_transport::{Answer, LinkError, Replier};
use katydid_wire::codec::Reply;
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD, Output};

use crate::calls::callbacks::Callbacks;
use crate::calls::pending_reads::PendingReads;
use crate::calls::upcalls::Upcalls;
use crate::calls::usage::Usage;
use crate::journal::State;
use crate::objects::table::Objects;

/// Shared by all threads of a session.
pub(crate) struct Shared {
    /// Objects by id.
    pub(crate) objects: Objects,
    /// Callbacks that are due.
    pub(crate) upcalls: Upcalls,
    /// Data that was read and not fetched yet.
    pub(crate) pending_reads: PendingReads,
    /// What the session uses.
    pub(crate) usage: Arc<Usage>,
    /// Callbacks of events that have not come.
    pub(crate) callbacks: Callbacks,
    /// Calls that are executed beside the main loop.
    pub(crate) calls: Calls,
    /// None before a rebuilt session has its program.
    replier: OnceLock<Arc<dyn Replier>>,
    /// First code of a call that failed and that no thread waited for; 0: none.
    deferred: AtomicI32,
    /// What kernels print.
    capture: Mutex<Capture>,
}

impl Shared {
    pub(crate) fn new(usage: Arc<Usage>, capture: Capture) -> Self {
        Self {
            objects: Objects::default(),
            upcalls: Upcalls::default(),
            pending_reads: PendingReads::default(),
            usage,
            callbacks: Callbacks::default(),
            calls: Calls::default(),
            replier: OnceLock::new(),
            deferred: AtomicI32::new(0),
            capture: Mutex::new(capture),
        }
    }

    /// The way back to the program, once there is one.
    pub(crate) fn connect(&self, replier: Arc<dyn Replier>) {
        self.replier.get_or_init(|| replier);
    }

    /// Goes on where another worker stopped.
    pub(crate) fn resume(&self, state: &mut State) {
        self.deferred.store(state.deferred, Ordering::Release);
        self.usage.resume_calls(state.calls);
        state.due.drain(..).for_each(|due| self.upcalls.push(due));
        let (stdout, stderr) = (std::mem::take(&mut state.stdout), std::mem::take(&mut state.stderr));
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).begin_with(Printed { stdout, stderr });
    }

    /// What was printed and has not been sent, which stays so.
    pub(crate) fn unread(&self) -> (Vec<u8>, Vec<u8>) {
        let printed = self.capture.lock().unwrap_or_else(PoisonError::into_inner).unread();
        (printed.stdout, printed.stderr)
    }

    /// The code that waits for the next reply.
    pub(crate) fn deferred(&self) -> i32 {
        self.deferred.load(Ordering::Acquire)
    }

    /// Keeps the code of a failed call that no thread waits for, unless one is kept already.
    pub(crate) fn defer(&self, code: Code) {
        // A lost race means that another's code was first: the loser's is dropped, as any later one is.
        let _ = self.deferred.compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The code that is kept, which then is kept no more.
    pub(crate) fn take_deferred(&self) -> Code {
        Code(self.deferred.swap(0, Ordering::AcqRel))
    }

    /// Answers a call. With `waited`, what kernels printed meanwhile goes with it.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub(crate) fn answer(
        &self,
        head: &FrameHead,
        code: Code,
        reply: &impl Reply,
        waited: bool,
    ) -> Result<(), LinkError> {
        let mut payload = Vec::new();
        if code == Code::SUCCESS {
            reply.encode(&mut payload);
        }
        let tail = if code == Code::SUCCESS { reply.tail() } else { &[] };
        // What does not fit a reply at all is refused, not cut.
        let (code, [payload, tail]) = match payload.len() + tail.len() > MAX_PAYLOAD {
            true => (Code::OUT_OF_RESOURCES, [&[][..]; 2]),
            false => (code, [&payload[..], tail]),
        };
        let printed = if waited { self.printed(payload.len() + tail.len()) } else { Printed::default() };
        self.replier.get().ok_or(LinkError::Closed)?.reply(&Answer {
            thread: head.thread,
            sequence: head.sequence,
            status: code.0.cast_unsigned(),
            deferred: self.take_deferred().0.cast_unsigned(),
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
