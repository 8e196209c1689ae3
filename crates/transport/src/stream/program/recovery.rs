//! Recovery after `longjmp`: a thread's next call takes back what its abandoned call was reading.
//!
//! A signal handler may jump out of a waiting call; natively that does no harm. The next call of such a thread takes back what
//! the thread held: the reading half of the connection, and its entry among the waiting threads. The rule: until then no other
//! thread touches what it reads, and nothing more is written to memory that the call named.

use std::sync::PoisonError;
use std::time::Duration;

use crate::stream::program::StreamProgram;

/// Interval between checks whether another thread still writes to the memory of an abandoned call.
const WRITER_POLL_INTERVAL: Duration = Duration::from_millis(1);

impl StreamProgram {
    /// Recovers from a call that the thread with this id has abandoned. Returns true: the thread id can be used again, as replies
    /// differ by their request's number.
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
            // The call has lost a part of a reply, so nothing that follows can be read.
            self.let_go();
        }
        true
    }
}
