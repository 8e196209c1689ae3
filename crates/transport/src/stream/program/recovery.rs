//! A thread that left its call by `longjmp`: its next call takes up again what it was reading.
//!
//! A handler of a signal may jump out of a call that waits; natively nothing comes of that. The next call of such a thread finds
//! again what it had in hand: the reading half of the connection, and its slot among the waiting threads. The rule: until
//! then no other thread touches what it reads; and nothing is written any more to memory that the call named.

use std::sync::PoisonError;
use std::time::Duration;

use crate::stream::program::StreamProgram;

/// Between two looks whether another thread still writes to the memory of a call that was left.
const WRITER_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl StreamProgram {
    /// The calling thread, of this thread id, has left a call. True: the thread id can be used again, as replies differ by the
    /// number of their request.
    pub(super) fn recover(&self, thread: u32) -> bool {
        let mut replies = self.replies();
        for waiter in replies.waiting.values_mut().filter(|waiter| waiter.thread == thread) {
            (waiter.is_left, waiter.buffer) = (true, None);
        }
        while replies.waiting.values().any(|waiter| waiter.thread == thread && waiter.is_filling) {
            replies = self.unread.wait_timeout(replies, WRITER_POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
        replies.waiting.retain(|_, waiter| !(waiter.is_left && waiter.reply.is_some()));
        let Some(frames) = replies.take_back(thread) else { return true };
        let is_whole = frames.is_between_frames();
        replies.frames = Some(frames);
        self.unread.notify_all();
        replies.ring_next();
        drop(replies);
        if !is_whole {
            // A part of a reply is lost with the call, and nothing that follows can be read.
            self.let_go();
        }
        true
    }
}
