//! The way back to the program: replies, errors that no thread waited for, and text that devices print.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use katydid_transport::{LinkError, OutgoingReply, Replier};
use katydid_wire::frame::{FrameHead, MAX_PAYLOAD_BYTES, Output};

use crate::output::{Capture, PrintedText};

/// Shared by all threads of a session that answer. Codes are as replies carry them; 0 is success in every API.
pub struct Replies {
    /// None before a rebuilt session has its program.
    replier: OnceLock<Arc<dyn Replier>>,
    /// First code of a call that failed since the last reply, and that no thread waited for; 0: none.
    deferred: AtomicU32,
    capture: Mutex<Capture>,
    /// The status in place of an answer that no frame can hold.
    too_large: u32,
}

impl Replies {
    /// Creates the sender of replies, without a deferred error.
    #[must_use]
    pub fn new(capture: Capture, too_large: u32) -> Self {
        Self { replier: OnceLock::new(), deferred: AtomicU32::new(0), capture: Mutex::new(capture), too_large }
    }

    /// The way back to the program, once there is one.
    pub fn connect(&self, replier: Arc<dyn Replier>) {
        self.replier.get_or_init(|| replier);
    }

    /// Keeps the code of a failed call that no thread waits for, unless one is kept already.
    pub fn defer(&self, code: u32) {
        // A lost race means that another thread's code was first: the loser's is dropped, as any later one is.
        let _ = self.deferred.compare_exchange(0, code, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Takes the deferred code; 0 if there is none. That is the common case, which needs no atomic exchange.
    pub fn take_deferred(&self) -> u32 {
        match self.deferred() {
            0 => 0,
            _ => self.deferred.swap(0, Ordering::AcqRel),
        }
    }

    /// The code that waits for the next reply.
    #[must_use]
    pub fn deferred(&self) -> u32 {
        self.deferred.load(Ordering::Acquire)
    }

    /// What was printed and has not been sent, which stays so.
    #[must_use]
    pub fn unread(&self) -> PrintedText {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).unread()
    }

    /// Goes on where another worker stopped.
    pub fn resume(&self, deferred: u32, printed: PrintedText) {
        self.deferred.store(deferred, Ordering::Release);
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).begin_with(printed);
    }

    /// Answers a call, the message being in two parts. With `brings_output`, what the device printed meanwhile goes with it.
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
        // What does not fit a reply at all (the names of tens of thousands of kernels) is refused, not cut.
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

    /// What fits beside `payload` bytes, with four for the length that stands before it.
    fn printed(&self, payload: usize) -> PrintedText {
        let room = MAX_PAYLOAD_BYTES.saturating_sub(payload + 4);
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).take(room)
    }
}
