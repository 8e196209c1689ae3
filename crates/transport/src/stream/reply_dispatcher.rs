//! Hands out replies: which thread waits for which reply, and which thread reads for all.

#![expect(unsafe_code, reason = "what a thread reads must be found again without that thread's stack")]

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar};

use katydid_wire::frame::ReplyHead;

use crate::link::error::LinkError;
use crate::link::reply_buffer::ReplyBuffer;
use crate::stream::frame_reader::FrameReader;

pub(crate) const UNASKED_REPLY_ERROR: LinkError = LinkError::Protocol { what: "a reply came that no thread waits for" };

/// Hands out replies.
pub(crate) struct ReplyDispatcher {
    /// The reading half; none while a thread reads.
    pub(crate) frames: Option<Box<FrameReader>>,
    /// The thread that reads while it waits for a reply.
    pub(crate) reader: Option<ReplyReader>,
    /// Waiting threads, by the number of their request.
    pub(crate) waiting: HashMap<u64, Waiter>,
    /// Condition variables of threads that have waited.
    pub(crate) spare_wakeups: Vec<Arc<Condvar>>,
    /// A reclaim notice that no thread has taken yet.
    pub(crate) reclaim_notice: Option<u32>,
    /// Whether the listening thread sleeps until something comes, so that a reader must tell it what is left. Otherwise it soon
    /// checks by itself.
    pub(crate) is_listened: bool,
}

/// A waiting thread.
pub(crate) struct Waiter {
    /// Its thread id on the link.
    pub(crate) thread: u32,
    /// The thread has abandoned the call, and the reply is dropped.
    pub(crate) is_left: bool,
    pub(crate) reply: Option<(ArrivedReply, Vec<u8>)>,
    pub(crate) buffer: Option<ReplyBuffer>,
    /// Another thread writes to the buffer. This one must not return before that is done.
    pub(crate) is_filling: bool,
    pub(crate) wakeup: Arc<Condvar>,
}

/// The head of a reply, and whether its data went to the buffer.
pub(crate) type ArrivedReply = (ReplyHead, bool);

/// The reply that the reading thread waits for itself.
#[derive(Clone, Copy)]
pub(crate) struct AwaitedReply {
    pub(crate) sequence: u64,
    pub(crate) buffer: Option<ReplyBuffer>,
}

impl ReplyDispatcher {
    /// Wakes one of the threads that still wait: to read on, or to find that nothing more comes.
    pub(crate) fn ring_next(&self) {
        if let Some(waiter) = self.waiting.values().find(|waiter| waiter.reply.is_none()) {
            waiter.wakeup.notify_one();
        }
    }
}

impl Waiter {
    /// Returns the buffer, if it is for this reply. The thread then waits until [`Waiter::is_filling`] is false again.
    pub(crate) fn begin_filling(&mut self, head: &ReplyHead, length: usize) -> Option<ReplyBuffer> {
        let buffer = self.buffer.filter(|buffer| buffer.fits(head, length));
        self.is_filling = buffer.is_some();
        buffer
    }
}

/// Reads the bytes behind a head. The data goes to the buffer that waits for it, if there is one.
pub(crate) fn read_body(
    frames: &mut FrameReader,
    socket: BorrowedFd<'_>,
    length: usize,
    buffer: Option<ReplyBuffer>,
    other_data: &mut Vec<u8>,
) -> Result<(), LinkError> {
    match buffer {
        Some(mut buffer) => frames.read_into(socket, length, &mut buffer, other_data),
        None => frames.append_to(socket, length, other_data),
    }
}

/// The thread that reads, by its thread id, and its reader.
pub(crate) struct ReplyReader {
    thread: u32,
    frames: NonNull<FrameReader>,
}

// SAFETY: only the thread with this thread id uses the pointer, and any thread may use a frame reader.
unsafe impl Send for ReplyReader {}

/// The calling thread's reader. After a `longjmp`, [`ReplyDispatcher`] still has it.
pub(crate) struct Reading(NonNull<FrameReader>);

impl Deref for Reading {
    type Target = FrameReader;

    fn deref(&self) -> &FrameReader {
        // SAFETY: made from a box that only `end_reading`, or a later call of this thread, takes back.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for Reading {
    fn deref_mut(&mut self) -> &mut FrameReader {
        // SAFETY: as above; the value is not shared.
        unsafe { self.0.as_mut() }
    }
}

impl ReplyDispatcher {
    /// Makes the calling thread, which has this thread id, the reader.
    pub(crate) fn begin_reading(&mut self, thread: u32, mut frames: Box<FrameReader>) -> Reading {
        frames.end_frame();
        let frames = NonNull::from(Box::leak(frames));
        self.reader = Some(ReplyReader { thread, frames });
        Reading(frames)
    }

    /// Ends the calling thread's reading.
    pub(crate) fn end_reading(&mut self, reading: Reading) -> Box<FrameReader> {
        self.reader = None;
        // SAFETY: leaked by `begin_reading`; `reading` is its only user, and is gone after this.
        unsafe { Box::from_raw(reading.0.as_ptr()) }
    }

    /// Takes back the reader of an abandoned call of the thread with this id.
    pub(crate) fn take_back(&mut self, thread: u32) -> Option<Box<FrameReader>> {
        let reader = self.reader.take_if(|reader| reader.thread == thread)?;
        // SAFETY: leaked by `begin_reading` in this same thread, whose abandoned call no longer uses it.
        Some(unsafe { Box::from_raw(reader.frames.as_ptr()) })
    }
}
