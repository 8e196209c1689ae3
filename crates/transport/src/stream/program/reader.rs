//! The thread that reads while it waits, and what becomes of its reading if it leaves the call by `longjmp`.
//!
//! A handler of a signal may jump out of a call that waits; natively nothing comes of that. What such a thread had in its hands
//! is found again by its next call: the reading half of the connection, and its place among those that wait. The rule: until
//! then nobody else touches what it reads; and nothing is written any more to memory that the call named.

#![expect(unsafe_code, reason = "what a thread reads must be found again without that thread's stack")]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::Duration;

use super::{Desk, StreamProgram};
use crate::inlet::Inlet;

/// Between two looks whether another thread still writes to the memory of a call that was left.
const MOMENT: Duration = Duration::from_millis(1);

/// Who reads, by its seat, and what.
pub(super) struct Reader {
    thread: u32,
    inlet: NonNull<Inlet>,
}

// SAFETY: only the thread with the seat uses the pointer, and an inlet may be used by any thread.
unsafe impl Send for Reader {}

/// What the calling thread reads. Dropped by a jump, it is in [`Desk`] still.
pub(super) struct Reading(NonNull<Inlet>);

impl Deref for Reading {
    type Target = Inlet;

    fn deref(&self) -> &Inlet {
        // SAFETY: made of a box, which `end_reading` takes, and nobody else before a later call of this thread.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for Reading {
    fn deref_mut(&mut self) -> &mut Inlet {
        // SAFETY: as above; the value is not shared.
        unsafe { self.0.as_mut() }
    }
}

impl Desk {
    /// The calling thread, of this seat, reads from now on.
    pub(super) fn begin_reading(&mut self, thread: u32, mut inlet: Box<Inlet>) -> Reading {
        inlet.end_frame();
        let inlet = NonNull::from(Box::leak(inlet));
        self.reader = Some(Reader { thread, inlet });
        Reading(inlet)
    }

    /// It reads no more.
    pub(super) fn end_reading(&mut self, reading: Reading) -> Box<Inlet> {
        self.reader = None;
        // SAFETY: leaked by `begin_reading`; the reading is the only one of it, and is gone after this.
        unsafe { Box::from_raw(reading.0.as_ptr()) }
    }

    /// What the thread of this seat was reading when it left its call.
    fn take_back(&mut self, thread: u32) -> Option<Box<Inlet>> {
        let reader = self.reader.take_if(|reader| reader.thread == thread)?;
        // SAFETY: leaked by `begin_reading` of this very thread, whose call was left and uses it no more.
        Some(unsafe { Box::from_raw(reader.inlet.as_ptr()) })
    }
}

impl StreamProgram {
    /// The calling thread, of this seat, has left a call. True: the seat can be used again, as replies are told apart by the
    /// number of their request.
    pub(super) fn recover(&self, thread: u32) -> bool {
        let mut desk = self.desk();
        for waiter in desk.waiting.values_mut().filter(|waiter| waiter.thread == thread) {
            (waiter.is_left, waiter.landing) = (true, None);
        }
        while desk.waiting.values().any(|waiter| waiter.thread == thread && waiter.is_landing) {
            desk = self.unread.wait_timeout(desk, MOMENT).unwrap_or_else(PoisonError::into_inner).0;
        }
        desk.waiting.retain(|_, waiter| !(waiter.is_left && waiter.reply.is_some()));
        let Some(inlet) = desk.take_back(thread) else { return true };
        let is_whole = inlet.is_between_frames();
        desk.inlet = Some(inlet);
        self.unread.notify_all();
        desk.ring_next();
        drop(desk);
        if !is_whole {
            // A part of a reply is lost with the call, and nothing that follows can be read.
            self.let_go();
        }
        true
    }
}
