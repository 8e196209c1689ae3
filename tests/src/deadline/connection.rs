//! A socket whose peer may take any time, as long as it makes progress.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{Deadline, Limit};

/// Interval between two checks of a silent peer.
const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Sockets with a read timeout.
pub trait Socket: Read + Write + Send {
    /// Sets the read timeout, as the standard library's sockets do.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    fn limit_reads(&self, limit: Duration) -> io::Result<()>;
}

impl Socket for UnixStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

impl Socket for TcpStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

/// A connection whose reads wait as long as the test's processes make progress within a limit.
#[derive(Debug)]
pub struct PatientStream<S> {
    socket: S,
    limit: Limit,
}

impl<S: Socket> PatientStream<S> {
    /// Wraps `socket`, whose reads then have this limit.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn new(socket: S, limit: impl Into<Limit>) -> io::Result<Self> {
        socket.limit_reads(SOCKET_POLL_INTERVAL)?;
        Ok(Self { socket, limit: limit.into() })
    }

    /// Returns the socket, without a limit.
    pub fn socket(&self) -> &S {
        &self.socket
    }
}

impl<S: Socket> Read for PatientStream<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // Created by the first read that finds no data: most reads find some.
        let mut deadline = None;
        loop {
            match self.socket.read(bytes) {
                Err(error) if is_silence(&error) => {}
                result => return result,
            }
            let deadline = deadline.get_or_insert_with(|| Deadline::after(self.limit));
            if let Some(why) = deadline.over() {
                let message = format!("a peer says nothing; its processes {why}\n--- processes\n{}", deadline.stacks());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
    }
}

impl<S: Socket> Write for PatientStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn slow_peer_is_read_and_silent_peer_times_out() {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let mut stream = PatientStream::new(socket, Duration::from_secs(60)).unwrap();
        let speaker = thread::spawn(move || {
            thread::sleep(SOCKET_POLL_INTERVAL * 3);
            peer.write_all(b"word").unwrap();
            peer
        });
        let mut word = [0; 4];
        stream.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"word");
        let mut stream = PatientStream::new(stream.socket, Duration::from_millis(1)).unwrap();
        assert_eq!(stream.read(&mut word).unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(speaker.join().unwrap());
    }
}
