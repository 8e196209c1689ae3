//! Whole messages over a connection: the job and companion protocols (`katydid_wire::envelope`). Descriptors go with them where
//! the connection can pass them.
//!
//! The rule: a message is received whole or not at all, and its length is bounded before it sizes anything. A peer that sends
//! half a message has until the deadline to send the rest.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use katydid_wire::envelope::{self, EnvelopeError, HEAD_BYTES};
use katydid_wire::handshake::LINK_TIMEOUT_SECONDS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;

use crate::ipc::connection::Connection;
use crate::os::socket::{Deadline, tune};

/// How long a peer may take to send the rest of a message that it has begun.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why the channel cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The peer said nothing in time.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Deadline(Duration),
    /// The peer has closed the connection.
    #[error("the other side has closed the connection")]
    Closed,
    /// The peer's message breaks the format.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
    /// The operating system refused.
    #[error("the connection failed: {0}")]
    System(io::Error),
}

impl From<io::Error> for ControlError {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match error.kind() {
            UnexpectedEof | BrokenPipe | ConnectionReset => Self::Closed,
            _ => Self::System(error),
        }
    }
}

/// A message and the descriptors that came with it.
#[derive(Debug)]
pub struct ControlMessage {
    /// Head of the message and its encoded fields.
    pub bytes: Vec<u8>,
    /// Descriptors that came with it (`SCM_RIGHTS`), at most four.
    pub fds: Vec<OwnedFd>,
}

/// One end of a connection that carries messages. Sending and receiving are independent; only one thread at a time does either.
#[derive(Debug)]
pub struct ControlChannel {
    connection: Connection,
    /// Bytes of the largest message.
    max_length: usize,
}

impl ControlChannel {
    /// Creates a channel over a connected socket, with messages of at most `max_length` bytes.
    ///
    /// # Errors
    /// [`io::Error`]: the system refused to prepare the socket.
    pub fn new(socket: OwnedFd, max_length: usize) -> io::Result<Self> {
        Self::over(socket.into(), max_length)
    }

    /// Does what [`Self::new`] does, over a connection that may be behind TLS.
    ///
    /// # Errors
    /// As [`ControlChannel::new`].
    pub fn over(connection: Connection, max_length: usize) -> io::Result<Self> {
        tune(&connection, LINK_TIMEOUT_SECONDS)?;
        Ok(Self { connection, max_length })
    }

    /// Sends a whole message; `fds` go with its first byte.
    ///
    /// # Errors
    /// The system's error; [`ControlError::Closed`] after the peer's end, without a signal.
    pub fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        Ok(self.connection.send_with(message, fds)?)
    }

    /// Waits for a message, at most `timeout` until it begins.
    ///
    /// # Errors
    /// No message came; [`ControlError::Deadline`] leaves the channel usable.
    pub fn receive(&self, timeout: Duration) -> Result<ControlMessage, ControlError> {
        if !self.wait(Some(timeout))? {
            return Err(ControlError::Deadline(timeout));
        }
        self.receive_now()
    }

    /// Waits for a message without a time limit.
    ///
    /// # Errors
    /// No message will come.
    pub fn listen(&self) -> Result<ControlMessage, ControlError> {
        self.wait(None)?;
        self.receive_now()
    }

    /// Closes this side for sending, and waits at most `timeout` until the other side closes its end, which shows that it is
    /// done. Messages that still arrive are dropped.
    pub fn part(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        // A connection that is broken has ended on both sides.
        let _ = rustix::net::shutdown(&self.connection, Shutdown::Write);
        while self.receive(end.saturating_duration_since(Instant::now())).is_ok() {}
    }

    /// Closes the connection, even if other processes hold its descriptor.
    pub fn close(&self) {
        // A connection that has ended is closed already.
        let _ = rustix::net::shutdown(&self.connection, Shutdown::Both);
    }

    /// Waits at most `timeout`. Returns whether bytes, or the end, can be read.
    fn wait(&self, timeout: Option<Duration>) -> Result<bool, ControlError> {
        let end = timeout.map(|timeout| Instant::now() + timeout);
        while !self.connection.has_some() {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.connection, PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(ControlError::System(error.into())),
            }
        }
        Ok(true)
    }

    fn receive_now(&self) -> Result<ControlMessage, ControlError> {
        let deadline = Deadline::after(MESSAGE_TIMEOUT);
        let mut head = [0; HEAD_BYTES];
        let (read_length, fds) = self.connection.receive_first(&mut head, deadline)?;
        if read_length == 0 {
            return Err(ControlError::Closed);
        }
        self.connection.receive_by(&mut head[read_length..], deadline)?;
        let mut bytes = head.to_vec();
        bytes.resize(envelope::length(&head, self.max_length)?, 0);
        self.connection.receive_by(&mut bytes[HEAD_BYTES..], deadline)?;
        Ok(ControlMessage { bytes, fds })
    }
}

impl AsFd for ControlChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use katydid_tests::deadline::hang::hang_limit;
    use katydid_wire::job::{FromProgram, MAX_JOB_MESSAGE_BYTES, ToProgram};

    use super::*;

    fn pair() -> (ControlChannel, ControlChannel) {
        let (local, peer) = UnixStream::pair().unwrap();
        (
            ControlChannel::new(local.into(), MAX_JOB_MESSAGE_BYTES).unwrap(),
            ControlChannel::new(peer.into(), MAX_JOB_MESSAGE_BYTES).unwrap(),
        )
    }

    #[test]
    fn messages_arrive_whole_and_in_order_with_their_descriptors() {
        let (local, peer) = pair();
        let file = std::fs::File::open("/dev/null").unwrap();
        local.send(&ToProgram::Hold {}.encode().unwrap(), &[file.as_fd()]).unwrap();
        local.send(&ToProgram::GiveUp { text: "x".repeat(40_000) }.encode().unwrap(), &[]).unwrap();
        let first = peer.receive(hang_limit()).unwrap();
        assert_eq!((ToProgram::decode(&first.bytes), first.fds.len()), (Ok(ToProgram::Hold {}), 1));
        let second = peer.listen().unwrap();
        assert!(matches!(ToProgram::decode(&second.bytes), Ok(ToProgram::GiveUp { text }) if text.len() == 40_000));
        drop(local);
        assert!(matches!(peer.listen(), Err(ControlError::Closed)));
        assert!(matches!(peer.send(&FromProgram::Resumed {}.encode().unwrap(), &[]), Err(ControlError::Closed)));
    }

    #[test]
    fn silence_ends_with_the_timeout_and_changes_nothing() {
        let (local, peer) = pair();
        assert!(matches!(peer.receive(Duration::from_millis(5)), Err(ControlError::Deadline(_))));
        local.send(&ToProgram::Release {}.encode().unwrap(), &[]).unwrap();
        assert_eq!(ToProgram::decode(&peer.receive(hang_limit()).unwrap().bytes), Ok(ToProgram::Release {}));
    }

    #[test]
    fn a_side_that_parts_waits_until_the_other_side_is_done() {
        let (local, peer) = pair();
        let other = std::thread::spawn(move || {
            peer.send(&FromProgram::Released {}.encode().unwrap(), &[]).unwrap();
            assert!(matches!(peer.listen(), Err(ControlError::Closed)));
            peer.close();
            peer
        });
        local.part(hang_limit());
        assert!(matches!(local.receive(Duration::ZERO), Err(ControlError::Closed)));
        drop(other.join().unwrap());
    }

    #[test]
    fn a_message_that_breaks_off_or_is_too_long_is_refused() {
        let (local, peer) = UnixStream::pair().unwrap();
        let channel = ControlChannel::new(peer.into(), MAX_JOB_MESSAGE_BYTES).unwrap();
        (&local).write_all(&[100, 0, 0, 0, 1, 0]).unwrap();
        drop(local);
        assert!(matches!(channel.listen(), Err(ControlError::Closed)));
        let (local, peer) = UnixStream::pair().unwrap();
        let channel = ControlChannel::new(peer.into(), MAX_JOB_MESSAGE_BYTES).unwrap();
        (&local).write_all(&[0xff; 8]).unwrap();
        assert!(matches!(channel.listen(), Err(ControlError::Envelope(EnvelopeError::Length { .. }))));
    }
}
