//! A connection that carries bytes, in plain text or behind TLS, and its two directions.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv};

use crate::os::fdpass;
use crate::os::socket::{Deadline, send_all, wait_readable};
use crate::tls::record::{Opener, Sealer, Seals};

/// A connection. Sending and receiving are independent of each other.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
    /// Both directions of a connection behind TLS. The first thread to take the receiving one gets it.
    tls: Option<TlsState>,
}

struct TlsState {
    sealer: Mutex<Sealer>,
    opener: Mutex<Option<Opener>>,
}

impl std::fmt::Debug for TlsState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("TlsState")
    }
}

impl TlsState {
    fn sealer(&self) -> MutexGuard<'_, Sealer> {
        // No code under this lock panics.
        self.sealer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opener(&self) -> MutexGuard<'_, Option<Opener>> {
        self.opener.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<OwnedFd> for Connection {
    fn from(fd: OwnedFd) -> Self {
        Self { fd, tls: None }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd, seals: Option<Seals>) -> Self {
        let tls =
            seals.map(|seals| TlsState { sealer: Mutex::new(seals.sealer), opener: Mutex::new(Some(seals.opener)) });
        Self { fd, tls }
    }

    /// Returns the socket and the two directions separately.
    pub(crate) fn into_parts(self) -> (OwnedFd, Option<Sealer>, Option<Opener>) {
        let Some(tls) = self.tls else { return (self.fd, None, None) };
        let sealer = tls.sealer.into_inner().unwrap_or_else(PoisonError::into_inner);
        (self.fd, Some(sealer), tls.opener.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the receiving direction of a connection behind TLS. Returns it once.
    pub(crate) fn take_opener(&self) -> Option<Opener> {
        self.tls.as_ref().and_then(|tls| tls.opener().take())
    }

    /// Returns what another process needs to continue a connection behind TLS. None without TLS, or while received bytes are
    /// unread.
    pub(crate) fn secrets(&self) -> Option<Vec<u8>> {
        let tls = self.tls.as_ref()?;
        let (sealer, opener) = (tls.sealer(), tls.opener());
        Some(Seals::encode(&sealer, opener.as_ref()?))
    }

    /// Whether bytes were received that no caller has taken.
    pub(crate) fn has_some(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.opener().as_ref().is_some_and(Opener::has_some))
    }

    /// Sends all parts as a whole, undivided by what other threads send.
    pub(crate) fn send(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        match &self.tls {
            Some(tls) => tls.sealer().send(self.as_fd(), parts, &mut || false),
            None => send_all(self.as_fd(), parts),
        }
    }

    /// Sends a message, the descriptors with its first byte.
    pub(crate) fn send_with(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.tls.is_some() {
            let message = &mut [IoSlice::new(message)];
            return if fds.is_empty() { self.send(message) } else { Err(io::ErrorKind::InvalidInput.into()) };
        }
        let sent = fdpass::send(self.as_fd(), &[IoSlice::new(message)], fds)?;
        send_all(self.as_fd(), &mut [IoSlice::new(&message[sent..])])
    }

    /// Sends as much of a message as the socket takes without waiting.
    pub(crate) fn send_at_once(&self, message: &[u8]) {
        let message = match &self.tls {
            Some(tls) => tls.sealer().seal(message).unwrap_or_default(),
            None => message.to_vec(),
        };
        let _ = rustix::net::send(&self.fd, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Waits for the first bytes of a message, and the descriptors that came with them; none at the end.
    pub(crate) fn receive_first(&self, bytes: &mut [u8], deadline: Deadline) -> io::Result<(usize, Vec<OwnedFd>)> {
        if self.tls.is_some() {
            return Ok((self.receive_some(bytes, deadline)?, Vec::new()));
        }
        loop {
            wait_readable(self.as_fd(), deadline)?;
            match fdpass::receive(self.as_fd(), bytes, RecvFlags::DONTWAIT) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    /// Receives exactly these bytes before the deadline. An earlier end is [`io::ErrorKind::UnexpectedEof`].
    pub(crate) fn receive_by(&self, bytes: &mut [u8], deadline: Deadline) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match self.receive_some(&mut bytes[done..], deadline)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                received => done += received,
            }
        }
        Ok(())
    }

    /// Waits for some bytes; 0 at the end.
    fn receive_some(&self, bytes: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        loop {
            if !self.has_some() {
                wait_readable(self.as_fd(), deadline)?;
            }
            match self.receive_now(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn receive_now(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return match recv(&self.fd, bytes, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => Err(io::ErrorKind::WouldBlock.into()),
                other => Ok(other?.1),
            };
        };
        let mut opener = tls.opener();
        let Some(opener) = opener.as_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        let some = opener.fill(self.as_fd(), RecvFlags::DONTWAIT)?;
        let length = some.len().min(bytes.len());
        bytes[..length].copy_from_slice(&some[..length]);
        opener.take(length);
        Ok(length)
    }
}
