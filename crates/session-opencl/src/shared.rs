//! What the main loop, the executors and the drivers' callbacks of one session share.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use katydid_opencl_sys::Code;
use katydid_session::{Capture, Printed};
use katydid_transport::{Answer, LinkError, Replier};
use katydid_wire::codec::Reply;
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD, Output};

use crate::landing::Landings;
use crate::objects::Objects;
use crate::upcalls::Upcalls;
use crate::usage::Usage;

/// Shared by all threads of a session.
pub(crate) struct Shared {
    /// Objects by id.
    pub(crate) objects: Objects,
    /// Callbacks that are due.
    pub(crate) upcalls: Upcalls,
    /// Data that was read and not fetched yet.
    pub(crate) landings: Landings,
    /// What the session uses.
    pub(crate) usage: Arc<Usage>,
    replier: Arc<dyn Replier>,
    /// First code of a call that failed and that nobody waited for; 0: none.
    deferred: AtomicI32,
    /// What kernels print.
    capture: Mutex<Capture>,
}

impl Shared {
    pub(crate) fn new(replier: Arc<dyn Replier>, usage: Arc<Usage>, capture: Capture) -> Self {
        let (objects, upcalls, landings) = (Objects::default(), Upcalls::default(), Landings::default());
        Self { objects, upcalls, landings, usage, replier, deferred: AtomicI32::new(0), capture: Mutex::new(capture) }
    }

    /// Keeps the code of a failed call that nobody waits for, unless one is kept already.
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
        // What does not fit a reply at all is refused, not cut.
        let (code, payload) =
            if payload.len() > MAX_PAYLOAD { (Code::OUT_OF_RESOURCES, &[][..]) } else { (code, &payload[..]) };
        let printed = if waited { self.printed(payload.len()) } else { Printed::default() };
        self.replier.reply(&Answer {
            thread: head.thread,
            sequence: head.sequence,
            status: code.0.cast_unsigned(),
            deferred: self.take_deferred().0.cast_unsigned(),
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
