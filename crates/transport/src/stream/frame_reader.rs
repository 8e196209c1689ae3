//! Reads frames out of a stream: small ones through a buffer, large ones straight into their target.

#![expect(unsafe_code, reason = "received bytes fill memory without its being zeroed first")]

use std::io;
use std::os::fd::BorrowedFd;

use katydid_wire::frame::HEAD_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::link::error::LinkError;
use crate::link::reply_buffer::ReplyBuffer;
use crate::os::socket::receive_some;
use crate::sync::wait;
use crate::sync::wait::Spin;
use crate::tls::record::Opener;

/// Bytes that one read may receive beyond the requested ones.
const FRAME_READ_AHEAD_BYTES: usize = 64 * 1024;
/// Bytes that one read of a bulk connection may receive beyond the requested ones. What follows a head is received at its target,
/// not copied there.
const BULK_READ_AHEAD_BYTES: usize = 256;
const TRUNCATED_STREAM_FRAME: LinkError = LinkError::Protocol { what: "the connection ended within a frame" };

/// An event on a stream.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// Head of the next frame.
    Head([u8; HEAD_BYTES]),
    /// Another thread wants the reader to check for orders.
    Woken,
    /// The stream has ended.
    End,
}

/// The reading half of a stream link.
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    /// Most bytes that `buffer` holds.
    capacity: usize,
    spin: Spin,
    /// None without TLS.
    opener: Option<Opener>,
    /// Whether no frame was handed out partly.
    is_between: bool,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self::with_capacity(FRAME_READ_AHEAD_BYTES)
    }

    /// Creates a reader for a connection that carries little but bulk.
    pub(crate) fn of_bulk() -> Self {
        Self::with_capacity(BULK_READ_AHEAD_BYTES)
    }

    fn with_capacity(capacity: usize) -> Self {
        let (buffer, spin) = (Vec::with_capacity(capacity), Spin::new(wait::MAX_SYSTEM_SPIN_NS));
        Self { buffer, start: 0, capacity, spin, opener: None, is_between: true }
    }

    /// Switches to another connection, which is behind TLS if it has an opener.
    pub(crate) fn read_from(&mut self, opener: Option<Opener>) {
        (self.start, self.opener) = (0, opener);
        self.buffer.clear();
        if let Some(opener) = &mut self.opener {
            opener.enable_read_ahead();
        }
    }

    /// Returns whether anything has come that was not handed out: bytes, the end, or a failure.
    pub(crate) fn has_bytes(&self, socket: BorrowedFd<'_>) -> bool {
        let mut socket = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        self.has_buffered() || poll(&mut socket, Some(&Timespec::default())) != Ok(0)
    }

    /// Returns whether received bytes were not handed out.
    pub(crate) fn has_buffered(&self) -> bool {
        self.start < self.buffer.len() || self.opener.as_ref().is_some_and(Opener::has_some)
    }

    /// Returns whether the last reader stopped between two frames.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.is_between
    }

    /// Notes that all of a frame was read.
    pub(crate) fn end_frame(&mut self) {
        self.is_between = true;
    }

    /// Waits for the next head. Returns none if the stream ends before it.
    pub(crate) fn head(&mut self, socket: BorrowedFd<'_>) -> Result<Option<[u8; HEAD_BYTES]>, LinkError> {
        match self.head_or_wake(socket, None)? {
            StreamEvent::Head(head) => Ok(Some(head)),
            StreamEvent::Woken | StreamEvent::End => Ok(None),
        }
    }

    /// Waits for the next head, for the end, or until `wake` is readable.
    pub(crate) fn head_or_wake(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<StreamEvent, LinkError> {
        self.is_between = true;
        loop {
            if let Some(head) = self.buffer[self.start..].first_chunk() {
                self.is_between = false;
                self.start += HEAD_BYTES;
                return Ok(StreamEvent::Head(*head));
            }
            self.buffer.drain(..self.start);
            self.start = 0;
            match self.poll_then_receive(socket, wake)? {
                None => return Ok(StreamEvent::Woken),
                Some(0) if self.buffer.is_empty() => return Ok(StreamEvent::End),
                Some(0) => return Err(TRUNCATED_STREAM_FRAME),
                Some(_) => {}
            }
        }
    }

    /// Appends the next `length` bytes, a frame's payload, to `bytes`.
    pub(crate) fn append_to(
        &mut self,
        socket: BorrowedFd<'_>,
        length: usize,
        bytes: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        let ready = length.min(self.buffer.len() - self.start);
        bytes.reserve(length);
        bytes.extend_from_slice(&self.buffer[self.start..self.start + ready]);
        self.start += ready;
        let mut missing = length - ready;
        while missing > 0 {
            // Waking up for each packet would cost more than copying it.
            let received = receive(socket, self.opener.as_mut(), bytes, missing, RecvFlags::WAITALL);
            match received.map_err(failed)? {
                0 => return Err(TRUNCATED_STREAM_FRAME),
                received => missing -= received,
            }
        }
        Ok(())
    }

    /// Fills `bytes` with the next bytes.
    pub(crate) fn fill(&mut self, socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<(), LinkError> {
        let mut done = bytes.len().min(self.buffer.len() - self.start);
        bytes[..done].copy_from_slice(&self.buffer[self.start..self.start + done]);
        self.start += done;
        while done < bytes.len() {
            let unread = &mut bytes[done..];
            let received = match &mut self.opener {
                Some(opener) => receive_opened(socket, opener, unread),
                None => receive_into(socket, unread).map_err(io::Error::from),
            };
            done += received.map_err(failed)?.ok_or(TRUNCATED_STREAM_FRAME)?;
        }
        Ok(())
    }

    /// Reads the payload of a reply, `length` bytes. Its data goes to its destination; the bytes around it are appended to
    /// `bytes`.
    pub(crate) fn read_into(
        &mut self,
        socket: BorrowedFd<'_>,
        length: usize,
        buffer: &mut ReplyBuffer,
        bytes: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        self.append_to(socket, buffer.skip(), bytes)?;
        let mut done = buffer.size().min(self.buffer.len() - self.start);
        buffer.write(0, &self.buffer[self.start..self.start + done]);
        self.start += done;
        while done < buffer.size() {
            let received = match &mut self.opener {
                Some(opener) => fill_opened(socket, opener, buffer, done),
                None => receive_into_buffer(socket, buffer, done),
            };
            done += received.map_err(failed)?.ok_or(TRUNCATED_STREAM_FRAME)?;
        }
        self.append_to(socket, length - buffer.skip() - buffer.size(), bytes)
    }

    /// Spins for a while before it sleeps. 0 is the end of the stream; none is a request to check for orders.
    fn poll_then_receive(
        &mut self,
        socket: BorrowedFd<'_>,
        wake: Option<BorrowedFd<'_>>,
    ) -> Result<Option<usize>, LinkError> {
        let free = self.capacity - self.buffer.len();
        let (buffer, opener) = (&mut self.buffer, &mut self.opener);
        let quick = self.spin.until(|| match receive(socket, opener.as_mut(), buffer, free, RecvFlags::DONTWAIT) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            other => Some(other),
        });
        if let (None, Some(wake)) = (&quick, wake)
            && is_woken(socket, wake).map_err(LinkError::system("wait for a frame"))?
        {
            return Ok(None);
        }
        let received = quick.unwrap_or_else(|| receive(socket, opener.as_mut(), buffer, free, RecvFlags::empty()));
        received.map(Some).map_err(failed)
    }
}

/// Translates a failure to receive: a socket has reached its time limit, or the system refused.
fn failed(source: io::Error) -> LinkError {
    match source.kind() {
        io::ErrorKind::WouldBlock => LinkError::Stalled { seconds: 0 },
        _ => LinkError::System { doing: "receive a frame", source },
    }
}

/// Receives up to `most` bytes behind the end of `bytes`, decrypted where there is TLS. 0 is the end of the stream.
fn receive(
    socket: BorrowedFd<'_>,
    opener: Option<&mut Opener>,
    bytes: &mut Vec<u8>,
    most: usize,
    flags: RecvFlags,
) -> io::Result<usize> {
    let Some(opener) = opener else { return receive_some(socket, bytes, most, flags) };
    // A part of a record is of no use, so waiting for everything gains nothing.
    let some = opener.fill(socket, flags.difference(RecvFlags::WAITALL))?;
    let some = &some[..some.len().min(most)];
    bytes.extend_from_slice(some);
    let received = some.len();
    opener.take(received);
    Ok(received)
}

/// Receives and decrypts some of a buffer's missing bytes. None is the end of the stream.
fn fill_opened(
    socket: BorrowedFd<'_>,
    opener: &mut Opener,
    buffer: &ReplyBuffer,
    done: usize,
) -> io::Result<Option<usize>> {
    let some = opener.fill(socket, RecvFlags::empty())?;
    let some = &some[..some.len().min(buffer.size() - done)];
    buffer.write(done, some);
    let received = some.len();
    opener.take(received);
    Ok((received > 0).then_some(received))
}

/// Receives some of a buffer's missing bytes, behind the first `done`. None is the end of the stream.
fn receive_into_buffer(socket: BorrowedFd<'_>, buffer: &mut ReplyBuffer, done: usize) -> io::Result<Option<usize>> {
    // SAFETY: the bytes are only written to, here; the thread that waits for the reply also waits for the end of this.
    let unread = unsafe { buffer.remaining(done) };
    match receive_into(socket, unread) {
        Err(Errno::FAULT) => {
            // The program may have write-protected its memory to catch writes. Writes by the system raise no signal.
            let mut aside = Vec::new();
            let received =
                receive_some(socket, &mut aside, FRAME_READ_AHEAD_BYTES.min(buffer.size() - done), RecvFlags::empty())?;
            buffer.write(done, &aside);
            Ok((received > 0).then_some(received))
        }
        other => Ok(other?),
    }
}

/// Receives into `bytes` until they are full or something interrupts that. None is the end of the stream.
fn receive_into(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Option<usize>, Errno> {
    let received = match recv(socket, &mut *bytes, RecvFlags::WAITALL) {
        // Vsock does not wait for more than its socket's memory holds, so take what is there.
        Err(Errno::NOMEM) => recv(socket, bytes, RecvFlags::empty()),
        other => other,
    };
    match received {
        Ok((_, 0)) | Err(Errno::CONNRESET | Errno::TIMEDOUT) => Ok(None),
        Ok((_, received)) => Ok(Some(received)),
        Err(Errno::INTR) => Ok(Some(0)),
        Err(error) => Err(error),
    }
}

/// Receives and decrypts some of `bytes`. None is the end of the stream.
fn receive_opened(socket: BorrowedFd<'_>, opener: &mut Opener, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    let some = opener.fill(socket, RecvFlags::empty())?;
    let received = some.len().min(bytes.len());
    bytes[..received].copy_from_slice(&some[..received]);
    opener.take(received);
    Ok((received > 0).then_some(received))
}

/// Waits until bytes can be received, or until `wake` is readable. Returns whether `wake` is.
fn is_woken(socket: BorrowedFd<'_>, wake: BorrowedFd<'_>) -> io::Result<bool> {
    loop {
        let mut both = [socket, wake].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut both, None) {
            Ok(_) => return Ok(!both[1].revents().is_empty()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
