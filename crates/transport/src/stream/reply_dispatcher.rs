//! Where replies are handed out: who waits for which reply, and who reads for all.

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

/// Where replies are handed out.
pub(crate) struct ReplyDispatcher {
    /// The reading half; none while a thread reads.
    pub(crate) frames: Option<Box<FrameReader>>,
    /// The thread that reads while it waits for a reply.
    pub(crate) reader: Option<ReplyReader>,
    /// Threads that wait, by the number of their request.
    pub(crate) waiting: HashMap<u64, Waiter>,
    /// Bells of threads that have waited.
    pub(crate) spare_wakeups: Vec<Arc<Condvar>>,
    /// A reclaim notice that no thread has taken yet.
    pub(crate) reclaim_notice: Option<u32>,
    /// Whether the thread that listens for reclaim notices does nothing before something comes, so that it is to be told of what a
    /// reader leaves; else it looks by itself soon.
    pub(crate) is_listened: bool,
}

/// A thread that waits.
pub(crate) struct Waiter {
    /// Its thread id on the link.
    pub(crate) thread: u32,
    /// It has left the call, and the reply is dropped.
    pub(crate) is_left: bool,
    pub(crate) reply: Option<(ArrivedReply, Vec<u8>)>,
    pub(crate) buffer: Option<ReplyBuffer>,
    /// Another thread writes to the buffer: this one must not go before that is done.
    pub(crate) is_filling: bool,
    pub(crate) wakeup: Arc<Condvar>,
}

/// The head of a reply, and whether its data went to the buffer.
pub(crate) type ArrivedReply = (ReplyHead, bool);

/// What the thread that reads waits for itself.
#[derive(Clone, Copy)]
pub(crate) struct AwaitedReply {
    pub(crate) sequence: u64,
    pub(crate) buffer: Option<ReplyBuffer>,
}

impl ReplyDispatcher {
    /// Makes one of those who still wait look up: to read on, or to find that there is nothing to read any more.
    pub(crate) fn ring_next(&self) {
        if let Some(waiter) = self.waiting.values().find(|waiter| waiter.reply.is_none()) {
            waiter.wakeup.notify_one();
        }
    }
}

impl Waiter {
    /// The buffer, if it is for this reply; the thread then waits until [`Waiter::is_filling`] is false again.
    pub(crate) fn begin_filling(&mut self, head: &ReplyHead, length: usize) -> Option<ReplyBuffer> {
        let buffer = self.buffer.filter(|buffer| buffer.fits(head, length));
        self.is_filling = buffer.is_some();
        buffer
    }
}

/// Reads what follows a head, its data to the buffer that waits for it, if there is one.
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

/// Who reads, by its thread id, and what.
pub(crate) struct ReplyReader {
    thread: u32,
    frames: NonNull<FrameReader>,
}

// SAFETY: only the thread with the thread id uses the pointer, and a frame reader may be used by any thread.
unsafe impl Send for ReplyReader {}

/// What the calling thread reads. Dropped by a jump, it is in [`ReplyDispatcher`] still.
pub(crate) struct Reading(NonNull<FrameReader>);

impl Deref for Reading {
    type Target = FrameReader;

    fn deref(&self) -> &FrameReader {
        // SAFETY: made of a box, which `end_reading` takes, and no other code before a later call of this thread.
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
    /// The calling thread, of this thread id, reads from now on.
    pub(crate) fn begin_reading(&mut self, thread: u32, mut frames: Box<FrameReader>) -> Reading {
        frames.end_frame();
        let frames = NonNull::from(Box::leak(frames));
        self.reader = Some(ReplyReader { thread, frames });
        Reading(frames)
    }

    /// It reads no more.
    pub(crate) fn end_reading(&mut self, reading: Reading) -> Box<FrameReader> {
        self.reader = None;
        // SAFETY: leaked by `begin_reading`; the reading is the only one of it, and is gone after this.
        unsafe { Box::from_raw(reading.0.as_ptr()) }
    }

    /// What the thread of this thread id was reading when it left its call.
    pub(crate) fn take_back(&mut self, thread: u32) -> Option<Box<FrameReader>> {
        let reader = self.reader.take_if(|reader| reader.thread == thread)?;
        // SAFETY: leaked by `begin_reading` of this very thread, whose call was left and uses it no more.
        Some(unsafe { Box::from_raw(reader.frames.as_ptr()) })
    }
}
