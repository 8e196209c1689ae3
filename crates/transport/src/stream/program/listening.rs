//! The program's thread that listens for its worker's reclaim notices. It leaves replies to the threads that wait for them, and
//! sleeps meanwhile.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::link::error::LinkError;
use crate::stream::frame_reader::FrameReader;
use crate::stream::program::StreamProgram;

/// How long the listening thread leaves received bytes to other threads. It doubles while they keep reading. A worker that waits
/// for the program's idle memory waits longer than this.
const LISTEN_DELAY: Duration = Duration::from_millis(20);
const MAX_LISTEN_DELAY: Duration = Duration::from_millis(320);

impl StreamProgram {
    /// Waits for the next reclaim notice and returns its number.
    pub(super) fn listen(&self) -> Result<u32, LinkError> {
        self.reclaim_notices.install().map_err(LinkError::system("listen for the worker"))?;
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
            // A thread that waits for a reply reads everything, reclaim notices too, and signals this thread then. This thread
            // reads the rest, without waking for each reply of a busy program.
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

    /// Waits until bytes have come or a reclaim notice was signalled. With a limit, waits only for a notice, and at most that
    /// long.
    fn wait_for_word(&self, limit: Option<Duration>) -> Result<(), LinkError> {
        let notify_fd = self.reclaim_notices.fd().ok_or(LinkError::Closed)?;
        let has_socket = limit.is_none() && self.socket.is_connected();
        let socket = if has_socket { self.socket.get()? } else { notify_fd };
        let mut both = [socket, notify_fd].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut both, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(LinkError::system("listen for the worker")(error)),
        }
        // A program may close descriptors that are not its own.
        if both.iter().any(|fd| fd.revents().contains(PollFlags::NVAL)) {
            return Err(LinkError::Closed);
        }
        drain_notifications(notify_fd);
        Ok(())
    }

    /// Keeps readers from reporting what they leave, and clears their reports. Returns whether there is a reclaim notice.
    fn stop_listening(&self) -> bool {
        let mut replies = self.replies();
        replies.is_listened = false;
        // A thread that leaves a reclaim notice signals afterwards.
        if let Some(notify_fd) = self.reclaim_notices.fd() {
            drain_notifications(notify_fd);
        }
        replies.reclaim_notice.is_some()
    }

    /// Takes a received reclaim notice. If there is none, readers report from now on what they leave. Also returns whether a
    /// reader has left something before.
    fn take_notice(&self) -> (Option<u32>, bool) {
        let mut replies = self.replies();
        let is_left = replies.frames.as_deref().is_some_and(FrameReader::has_buffered);
        replies.is_listened = replies.reclaim_notice.is_none() && !is_left;
        (replies.reclaim_notice.take(), is_left)
    }
}

/// Resets a notification. One that was not signalled does no harm.
fn drain_notifications(notify_fd: BorrowedFd<'_>) {
    let _ = rustix::io::read(notify_fd, &mut [0; 8]);
}
