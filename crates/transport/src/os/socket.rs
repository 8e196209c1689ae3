//! Bytes over a connected socket: whole transfers, without signals, and by a deadline where one is given.

#![expect(unsafe_code, reason = "received bytes fill memory without its being zeroed first")]

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg, sockopt};

/// Seconds without a sign of life before TCP probes the peer, and between two probes; less where the link's limit is shorter.
const KEEPALIVE_IDLE_SECONDS: u32 = 10;
const KEEPALIVE_INTERVAL_SECONDS: u32 = 5;
/// Probes before the peer counts as gone: the most that Linux accepts.
const MAX_KEEPALIVE_PROBES: u32 = 127;
/// Milliseconds that sent bytes may stay unacknowledged on a link without a limit: 24 days. By itself Linux gives up after
/// about 15 minutes.
const NO_USER_TIMEOUT_MS: u32 = i32::MAX.unsigned_abs();
/// Requested size of a unix socket's buffers; the system may give less.
const SOCKET_BUFFER_BYTES: usize = 1 << 20;

/// A point in time by which something has to happen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        Self(Instant::now() + timeout)
    }

    /// Returns the time left, at least a millisecond, so that a last check is always made.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
    }

    pub(crate) fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }
}

/// Prepares a connection for frames: calls block, and small packets are not delayed. A peer that has been silent for
/// `link_timeout` seconds counts as gone; 0 is never.
pub(crate) fn tune(fd: impl AsFd, link_timeout: u32) -> io::Result<()> {
    let fd = fd.as_fd();
    rustix::io::ioctl_fionbio(fd, false)?;
    if sockopt::socket_domain(fd)? == rustix::net::AddressFamily::UNIX {
        // Larger buffers are faster, but not required.
        let _ = sockopt::set_socket_send_buffer_size(fd, SOCKET_BUFFER_BYTES);
        return Ok(());
    }
    if sockopt::socket_domain(fd)? == rustix::net::AddressFamily::VSOCK {
        // Vsock delays nothing, and the system knows when the other machine is gone.
        return Ok(());
    }
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, link_timeout != 0)?;
    if link_timeout == 0 {
        sockopt::set_tcp_user_timeout(fd, NO_USER_TIMEOUT_MS)?;
        return Ok(());
    }
    let (idle, interval, probes) = probing(link_timeout);
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(u64::from(idle)))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(u64::from(interval)))?;
    sockopt::set_tcp_keepcnt(fd, probes)?;
    Ok(())
}

/// Returns the seconds until the first probe, the seconds between probes, and their number. Together they last `limit` seconds,
/// or up to one interval more.
fn probing(limit: u32) -> (u32, u32, u32) {
    let idle = (limit / 3).clamp(1, KEEPALIVE_IDLE_SECONDS);
    let left = limit.saturating_sub(idle).max(1);
    let interval = (left / 4)
        .clamp(1, KEEPALIVE_INTERVAL_SECONDS)
        .max(left.div_ceil(MAX_KEEPALIVE_PROBES))
        .min(i16::MAX.unsigned_abs().into());
    (idle, interval, left.div_ceil(interval).min(MAX_KEEPALIVE_PROBES))
}

/// Sends all parts, one after the other, in as few system calls as possible.
pub(crate) fn send_all(fd: BorrowedFd<'_>, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    send_while(fd, parts, &mut || false)
}

/// Sends all parts over a socket with a time limit for sending. Each time that passes without space for a byte, `is_alive`
/// decides whether to wait on. [`io::ErrorKind::WouldBlock`] if not.
pub(crate) fn send_while(
    fd: BorrowedFd<'_>,
    parts: &mut [IoSlice<'_>],
    is_alive: &mut dyn FnMut() -> bool,
) -> io::Result<()> {
    let mut parts = parts;
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        match sendmsg(fd, parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
            Ok(sent) => IoSlice::advance_slices(&mut parts, sent),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if is_alive() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns whether a few bytes can be sent without waiting.
pub(crate) fn is_writable(fd: impl AsFd) -> bool {
    let mut poll_fds = [PollFd::new(&fd, PollFlags::OUT)];
    poll(&mut poll_fds, Some(&Timespec::default())) == Ok(1) && poll_fds[0].revents() == PollFlags::OUT
}

/// Receives exactly these bytes before the deadline. An earlier end is [`io::ErrorKind::UnexpectedEof`].
pub(crate) fn receive_by(fd: BorrowedFd<'_>, bytes: &mut [u8], deadline: Deadline) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        wait_readable(fd, deadline)?;
        match recv(fd, &mut bytes[done..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, received)) => done += received,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Waits until bytes (or the end) can be received. [`io::ErrorKind::TimedOut`] after the deadline.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, deadline: Deadline) -> io::Result<()> {
    loop {
        let left = Timespec::try_from(deadline.remaining()).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) if deadline.has_passed() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives up to `most` bytes behind the end of `bytes`; 0 is the end of the stream. A peer that reset the connection, or did
/// not answer TCP's probes, has ended it as well.
pub(crate) fn receive_some(
    socket: BorrowedFd<'_>,
    bytes: &mut Vec<u8>,
    most: usize,
    mut flags: RecvFlags,
) -> io::Result<usize> {
    bytes.reserve(most);
    let length = bytes.len();
    let received = loop {
        match recv(socket, &mut bytes.spare_capacity_mut()[..most], flags) {
            Err(Errno::INTR) => {}
            // Vsock does not wait for more than the memory of its socket holds.
            Err(Errno::NOMEM) if flags.contains(RecvFlags::WAITALL) => flags.remove(RecvFlags::WAITALL),
            Err(Errno::CONNRESET | Errno::TIMEDOUT) => break 0,
            other => break other?.1,
        }
    };
    // SAFETY: the system has written the first `received` bytes of the spare capacity, at most `most` of them.
    unsafe { bytes.set_len(length + received.min(most)) };
    Ok(received.min(most))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use katydid_tests::deadline::hang::hang_limit;

    use super::*;

    #[test]
    fn a_peer_counts_as_gone_after_the_limit() {
        for limit in [1, 3, 10, 30, 60, 600, 86_400, 1_000_000] {
            let (idle, interval, probes) = probing(limit);
            let whole = idle + interval * probes;
            assert!((limit..=limit + interval).contains(&whole), "{limit} s: {idle} + {interval} x {probes}");
            assert!(
                (1..=MAX_KEEPALIVE_PROBES).contains(&probes) && interval < 1 << 15,
                "{limit} s: {interval} x {probes}"
            );
        }
    }

    #[test]
    fn a_link_without_a_limit_is_never_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune(&socket, 3).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        tune(&socket, 0).unwrap();
        assert!(!sockopt::socket_keepalive(&socket).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), NO_USER_TIMEOUT_MS);
    }

    #[test]
    fn a_large_message_in_many_parts_arrives_whole() {
        let (local, mut peer) = UnixStream::pair().unwrap();
        let part: Vec<u8> = (0..1_000_000).map(|at| (at % 251) as u8).collect();
        std::thread::scope(|scope| {
            let expected = part.repeat(3);
            scope.spawn(move || {
                let mut got = Vec::new();
                peer.read_to_end(&mut got).unwrap();
                assert!(got == expected);
            });
            let mut parts = [&part[..], &[], &part, &part].map(IoSlice::new);
            send_all(local.as_fd(), &mut parts).unwrap();
            drop(local);
        });
    }

    #[test]
    fn a_closed_peer_is_an_error_and_no_signal() {
        let (local, peer) = UnixStream::pair().unwrap();
        drop(peer);
        let error = send_all(local.as_fd(), &mut [IoSlice::new(b"x")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_deadline_ends_the_wait_for_the_rest() {
        let (local, mut peer) = UnixStream::pair().unwrap();
        peer.write_all(b"half").unwrap();
        let error = receive_by(local.as_fd(), &mut [0; 8], Deadline::after(Duration::from_millis(20))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(peer);
        let error = receive_by(local.as_fd(), &mut [0; 8], Deadline::after(hang_limit())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
