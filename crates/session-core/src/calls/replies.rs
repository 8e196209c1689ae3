//! Replies to the program, deferred errors, and text that devices print.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_transport::{LinkError, OutgoingReply, Replier};
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD_BYTES, Output};

use crate::output::{Capture, PrintedText};

/// The sender of replies, shared by all answering threads of a session. Codes are those in replies; 0 is success in every
/// API.
pub struct Replies {
    /// None until a rebuilt session has its program.
    replier: OnceLock<Arc<dyn Replier>>,
    /// First code of a failed call since the last reply, if no thread waited for it; 0: none.
    deferred: AtomicU32,
    capture: Mutex<Capture>,
    /// The status in place of a reply that no frame can hold.
    too_large: u32,
}

impl Replies {
    /// Creates the sender of replies, without a deferred error.
    #[must_use]
    pub fn new(capture: Capture, too_large: u32) -> Self {
        Self { replier: OnceLock::new(), deferred: AtomicU32::new(0), capture: Mutex::new(capture), too_large }
    }

    /// Sets the connection to the program, once there is one.
    pub fn connect(&self, replier: Arc<dyn Replier>) {
        self.replier.get_or_init(|| replier);
    }

    /// Defers the code of a failed call that no thread waits for, unless one is deferred already.
    pub fn defer(&self, code: u32) {
        // A lost race means that another thread's code was first: this one is dropped, like any later one.
        let _ = self.deferred.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Takes the deferred code; 0 if there is none. That is the common case, and needs no atomic exchange.
    pub fn take_deferred(&self) -> u32 {
        match self.deferred() {
            0 => 0,
            _ => self.deferred.swap(0, Ordering::AcqRel),
        }
    }

    /// Returns the code that waits for the next reply.
    #[must_use]
    pub fn deferred(&self) -> u32 {
        self.deferred.load(Ordering::Acquire)
    }

    /// Returns printed text that has not been sent, and keeps it.
    #[must_use]
    pub fn unread(&self) -> PrintedText {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).unread()
    }

    /// Continues after another worker.
    pub fn resume(&self, deferred: u32, printed: PrintedText) {
        self.deferred.store(deferred, Ordering::Release);
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).begin_with(printed);
    }

    /// Answers a call with a reply in two parts. With `brings_output` it adds the text that the device printed meanwhile.
    ///
    /// # Errors
    ///
    /// The program is gone.
    pub fn send(
        &self,
        head: &FrameHead,
        status: u32,
        [payload, tail]: [&[u8]; 2],
        brings_output: bool,
    ) -> Result<(), LinkError> {
        // A reply that does not fit a frame (the names of tens of thousands of kernels) is refused, not cut.
        let (status, [payload, tail]) = match payload.len() + tail.len() > MAX_PAYLOAD_BYTES {
            true => (self.too_large, [&[][..]; 2]),
            false => (status, [payload, tail]),
        };
        let printed = if brings_output { self.printed(payload.len() + tail.len()) } else { PrintedText::default() };
        self.replier.get().ok_or(LinkError::Closed)?.reply(&OutgoingReply {
            thread: head.thread,
            sequence: head.sequence,
            status,
            deferred: self.take_deferred(),
            payload,
            tail,
            output: Output { stdout: &printed.stdout, stderr: &printed.stderr },
        })
    }

    /// Takes the printed text that fits beside `payload` bytes, with four for the length before it.
    fn printed(&self, payload: usize) -> PrintedText {
        let room = MAX_PAYLOAD_BYTES.saturating_sub(payload + 4);
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).take(room)
    }
}
