//! The program's thread that listens for reclaim notices of its worker. It leaves replies to those who wait for them, and sleeps meanwhile.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::link::error::LinkError;
use crate::stream::frame_reader::FrameReader;
use crate::stream::program::StreamProgram;

/// How long a thread that listens for reclaim notices leaves what has come to others: the longer, the longer they have read all of it.
/// A worker that waits for the program's idle memory waits longer than this.
const LISTEN_DELAY: Duration = Duration::from_millis(20);
const MAX_LISTEN_DELAY: Duration = Duration::from_millis(320);

impl StreamProgram {
    /// The next reclaim notice, once there is one.
    pub(super) fn listen(&self) -> Result<u32, LinkError> {
        self.reclaim_requests.install().map_err(LinkError::system("listen for the worker"))?;
        let mut lag = LISTEN_DELAY;
        loop {
            let (reclaim_notice, is_left) = self.take_notice();
            if let Some(number) = reclaim_notice {
                return Ok(number);
            }
            let generation = self.socket.generation();
            if !is_left {
                self.wait_for_word(None)?;
            }
            if self.stop_listening() {
                continue;
            }
            // A thread that waits for a reply reads all that comes, reclaim notices too, and rings then; what is left is for this thread, which
            // is not to wake for each reply of a busy program.
            let received = self.received.load(Ordering::Relaxed);
            self.wait_for_word(Some(lag))?;
            let is_busy = self.received.load(Ordering::Relaxed) != received;
            lag = if is_busy { (2 * lag).min(MAX_LISTEN_DELAY) } else { LISTEN_DELAY };
            if self.socket.is_connected() && self.read_if_idle(self.socket.get()?) {
                self.ended(generation)?;
            }
            if let Err(error) = self.socket.get() {
                self.break_off();
                return Err(error);
            }
        }
    }

    /// Waits until something has come or a reclaim notice was signalled; or for a notice alone, so long at most.
    fn wait_for_word(&self, limit: Option<Duration>) -> Result<(), LinkError> {
        let notify_fd = self.reclaim_requests.fd().ok_or(LinkError::Closed)?;
        let has_socket = limit.is_none() && self.socket.is_connected();
        let socket = if has_socket { self.socket.get()? } else { notify_fd };
        let mut both = [socket, notify_fd].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut both, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LinkError::system("listen for the worker")(error)),
        }
        // A program may close what is not its own.
        if both.iter().any(|fd| fd.revents().contains(PollFlags::NVAL)) {
            return Err(LinkError::Closed);
        }
        drain_notifications(notify_fd);
        Ok(())
    }

    /// Readers report no more of what they leave, and their reports are known. Whether there is a reclaim notice.
    fn stop_listening(&self) -> bool {
        let mut replies = self.replies();
        replies.is_listened = false;
        // A thread that has put a reclaim notice there rings afterwards.
        if let Some(notify_fd) = self.reclaim_requests.fd() {
            drain_notifications(notify_fd);
        }
        replies.reclaim_notice.is_some()
    }

    /// A reclaim notice that was received. If there is none, readers tell from now on of what they leave; that a reader has left something
    /// before is found here.
    fn take_notice(&self) -> (Option<u32>, bool) {
        let mut replies = self.replies();
        let is_left = replies.frames.as_deref().is_some_and(FrameReader::has_buffered);
        replies.is_listened = replies.reclaim_notice.is_none() && !is_left;
        (replies.reclaim_notice.take(), is_left)
    }
}

/// Resets a notification; one that was not is as good.
fn drain_notifications(bell: BorrowedFd<'_>) {
    let _ = rustix::io::read(bell, &mut [0; 8]);
}
