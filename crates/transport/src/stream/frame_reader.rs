//! Frames out of a stream: a buffer for small ones, straight into the target for large ones.

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

/// Bytes that one read may receive beyond the wanted ones.
const FRAME_READ_AHEAD_BYTES: usize = 64 * 1024;
/// Bytes that one read of a bulk connection may receive beyond the wanted ones: what follows a head is received where it
/// belongs, not copied there.
const BULK_READ_AHEAD_BYTES: usize = 256;
const TRUNCATED_STREAM_FRAME: LinkError = LinkError::Protocol { what: "the connection ended within a frame" };

/// What a stream has come to.
#[derive(Debug)]
pub(crate) enum StreamEvent {
    /// Head of the next frame.
    Head([u8; HEAD_BYTES]),
    /// Another thread wants the reader to look up.
    Woken,
    /// The stream has ended.
    End,
}

/// The reading half of a stream link.
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    /// Bytes that `buffer` is to hold at most.
    capacity: usize,
    spin: Spin,
    /// None without TLS.
    opener: Option<Opener>,
    /// Nothing of a frame was handed out that is not read to its end.
    is_between: bool,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self::with_capacity(FRAME_READ_AHEAD_BYTES)
    }

    /// A reader of a connection that carries little but bulk.
    pub(crate) fn of_bulk() -> Self {
        Self::with_capacity(BULK_READ_AHEAD_BYTES)
    }

    fn with_capacity(capacity: usize) -> Self {
        let (buffer, spin) = (Vec::with_capacity(capacity), Spin::new(wait::MAX_SYSTEM_SPIN_NS));
        Self { buffer, start: 0, capacity, spin, opener: None, is_between: true }
    }

    /// Reads another connection from here on, which is behind TLS if it has an opener.
    pub(crate) fn read_from(&mut self, opener: Option<Opener>) {
        (self.start, self.opener) = (0, opener);
        self.buffer.clear();
        if let Some(opener) = &mut self.opener {
            opener.enable_read_ahead();
        }
    }

    /// Whether something has come and was not handed out: bytes, the end, or a failure.
    pub(crate) fn has_bytes(&self, socket: BorrowedFd<'_>) -> bool {
        let mut socket = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        self.has_buffered() || poll(&mut socket, Some(&Timespec::default())) != Ok(0)
    }

    /// Whether bytes have been received that were not handed out.
    pub(crate) fn has_buffered(&self) -> bool {
        self.start < self.buffer.len() || self.opener.as_ref().is_some_and(Opener::has_some)
    }

    /// Whether a reader that is gone has left it between two frames.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.is_between
    }

    /// All of a frame was read.
    pub(crate) fn end_frame(&mut self) {
        self.is_between = true;
    }

    /// Waits for the next head; none if the stream ends before it.
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

    /// Fills `bytes` with what comes next.
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

    /// Reads the payload of a reply, `length` bytes, its data to where it is to land; what lies around that is appended to
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

    /// Looks for a while before it sleeps; 0 is the end of the stream, none a request that the reader look up.
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

/// Why nothing was received: a socket with a time limit has reached it, or the system refused.
fn failed(source: io::Error) -> LinkError {
    match source.kind() {
        io::ErrorKind::WouldBlock => LinkError::Stalled { seconds: 0 },
        _ => LinkError::System { doing: "receive a frame", source },
    }
}

/// Receives up to `most` bytes behind the end of `bytes`, out of their seals if there are any; 0 is the end of the stream.
fn receive(
    socket: BorrowedFd<'_>,
    opener: Option<&mut Opener>,
    bytes: &mut Vec<u8>,
    most: usize,
    flags: RecvFlags,
) -> io::Result<usize> {
    let Some(opener) = opener else { return receive_some(socket, bytes, most, flags) };
    // A part of a record is of no use, so that there is nothing to be gained by waiting for all.
    let some = opener.fill(socket, flags.difference(RecvFlags::WAITALL))?;
    let some = &some[..some.len().min(most)];
    bytes.extend_from_slice(some);
    let received = some.len();
    opener.take(received);
    Ok(received)
}

/// Receives some of what a buffer misses, out of its seals; none is the end of the stream.
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

/// Receives some of what a buffer misses when its first part has `done` bytes; none is the end of the stream.
fn receive_into_buffer(socket: BorrowedFd<'_>, buffer: &mut ReplyBuffer, done: usize) -> io::Result<Option<usize>> {
    // SAFETY: it is only written to, here; the thread that waits for the reply waits for the end of this as well.
    let unread = unsafe { buffer.remaining(done) };
    match receive_into(socket, unread) {
        Err(Errno::FAULT) => {
            // The program may have protected its memory to catch writes; those of the system raise no signal.
            let mut aside = Vec::new();
            let received =
                receive_some(socket, &mut aside, FRAME_READ_AHEAD_BYTES.min(buffer.size() - done), RecvFlags::empty())?;
            buffer.write(done, &aside);
            Ok((received > 0).then_some(received))
        }
        other => Ok(other?),
    }
}

/// Receives as much of `bytes` as comes before something disturbs that; none is the end of the stream.
fn receive_into(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Option<usize>, Errno> {
    let received = match recv(socket, &mut *bytes, RecvFlags::WAITALL) {
        // Vsock does not wait for more than the memory of its socket holds: what is there has to do.
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

/// Receives some of `bytes`, out of its seals; none is the end of the stream.
fn receive_opened(socket: BorrowedFd<'_>, opener: &mut Opener, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    let some = opener.fill(socket, RecvFlags::empty())?;
    let received = some.len().min(bytes.len());
    bytes[..received].copy_from_slice(&some[..received]);
    opener.take(received);
    Ok((received > 0).then_some(received))
}

/// Waits until something can be received, or until `wake` is readable.
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
