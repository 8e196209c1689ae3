//! The worker's end of the socket to the daemon: what it says there, one packet a line.
//!
//! | packet             | when                                                        |
//! |--------------------|-------------------------------------------------------------|
//! | `warm DRIVER`      | the driver is up; a program may be handed over              |
//! | `failed TEXT`      | before it exits because the driver would not start          |
//! | `refused TEXT`     | it turned the program away after the hand-over              |
//! | `usage BYTES CALLS`| at most once a second, when one of the two changed          |
//! | `ended`            | its program is gone, and so will it be                      |
//!
//! A daemon that does not read never holds up a session: a packet that does not fit the socket is dropped.

use std::fmt::Display;
use std::os::fd::BorrowedFd;

use rustix::net::{SendFlags, send};

/// Longest packet the daemon takes.
const MAX_PACKET: usize = 4096;

/// Says that a program may come.
pub(crate) fn warm(control: BorrowedFd<'_>, driver: &str) {
    say(control, &format!("warm {driver}"));
}

/// Says why this worker will exit without having served anybody.
pub(crate) fn failed(control: BorrowedFd<'_>, reason: &dyn Display) {
    say(control, &format!("failed {reason}"));
}

/// Says why the program was turned away.
pub(crate) fn refused(control: BorrowedFd<'_>, reason: &dyn Display) {
    say(control, &format!("refused {reason}"));
}

/// Tells what the session holds and did: bytes of device memory, and calls so far.
pub(crate) fn usage(control: BorrowedFd<'_>, device_memory: u64, calls: u64) {
    say(control, &format!("usage {device_memory} {calls}"));
}

/// Says that this worker will exit, because its program is gone.
pub(crate) fn ended(control: BorrowedFd<'_>) {
    say(control, "ended");
}

fn say(control: BorrowedFd<'_>, line: &str) {
    let bytes = line.as_bytes();
    let packet = bytes.get(..MAX_PACKET).unwrap_or(bytes);
    // The daemon is gone or busy: nobody is left to tell, or it will ask again in a second.
    let _ = send(control, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    #[test]
    fn each_packet_is_one_line_of_words() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        warm(ours.as_fd(), "softcuda");
        usage(ours.as_fd(), 4096, 17);
        refused(ours.as_fd(), &"x".repeat(2 * MAX_PACKET));
        let mut buffer = [0; 2 * MAX_PACKET];
        for expected in ["warm softcuda", "usage 4096 17", "refused xxx"] {
            let (_, length) = recv(&theirs, &mut buffer, RecvFlags::empty()).unwrap();
            assert!(length <= MAX_PACKET && buffer[..length].starts_with(expected.as_bytes()), "{expected}");
        }
    }

    #[test]
    fn a_daemon_that_does_not_read_or_is_gone_holds_nothing_up() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (0..10_000).for_each(|calls| usage(ours.as_fd(), 0, calls));
        drop(theirs);
        usage(ours.as_fd(), 0, 0);
    }
}
