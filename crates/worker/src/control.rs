//! The worker's end of the socket to the server: its messages, one line in a packet.
//!
//! | packet             | when                                                        |
//! |--------------------|-------------------------------------------------------------|
//! | `passed-over TEXT` | before `warm`: why that is softcuda and not a GPU's driver  |
//! | `warm DRIVER`      | drivers are up and loaded; a program may be handed over     |
//! | `failed TEXT`      | before it exits because the driver would not start          |
//! | `refused TEXT`     | it turned the program away after the hand-over              |
//! | `holds BYTES`      | before it exits because that is more than it may hold       |
//! | `usage BYTES CALLS`| at most once a second, when one of the two changed          |
//! | `ended`            | its program is gone, and so will it be                      |
//! | `accepted`         | it has accepted a connection that was passed on to it       |
//! | `short N DEVICE`   | its program finds no memory; N counts such packets          |
//! | `asked SESSION N`  | its program lives, and was asked for that session's N       |
//! | `given SESSION N`  | its program has done what it could for that session's N     |
//!
//! A server that does not read never holds up a session: a packet that does not fit the socket is dropped.

use std::fmt::Display;
use std::os::fd::BorrowedFd;

use katydid_session::ReclaimRequest;
use rustix::net::{SendFlags, send};

/// Longest packet that the server accepts.
const MAX_CONTROL_PACKET_BYTES: usize = 4096;

/// Reports that the worker can take a program.
pub(crate) fn warm(control: BorrowedFd<'_>, driver: &str) {
    send_line(control, &format!("warm {driver}"));
}

/// Reports why `auto` chose softcuda.
pub(crate) fn gpu_error(control: BorrowedFd<'_>, reason: &str) {
    send_line(control, &format!("passed-over {reason}"));
}

/// Reports why this worker will exit without having served a program.
pub(crate) fn failed(control: BorrowedFd<'_>, reason: &dyn Display) {
    send_line(control, &format!("failed {reason}"));
}

/// Reports why the program was turned away.
pub(crate) fn refused(control: BorrowedFd<'_>, reason: &dyn Display) {
    send_line(control, &format!("refused {reason}"));
}

/// Reports that this worker will exit, because it holds `bytes` of the machine's memory.
pub(crate) fn holds(control: BorrowedFd<'_>, bytes: u64) {
    send_line(control, &format!("holds {bytes}"));
}

/// Reports the session's usage: bytes of device memory, and calls so far.
pub(crate) fn usage(control: BorrowedFd<'_>, device_memory: u64, calls: u64) {
    send_line(control, &format!("usage {device_memory} {calls}"));
}

/// Reports that this worker will exit, because its program is gone.
pub(crate) fn ended(control: BorrowedFd<'_>) {
    send_line(control, "ended");
}

/// Reports an accepted connection: the server bounds how many may wait.
pub(crate) fn connection_accepted(control: BorrowedFd<'_>) {
    send_line(control, "accepted");
}

/// Requests the idle memory of other sessions on a device, given by PCI address. Returns whether the request was sent.
pub(crate) fn short(control: BorrowedFd<'_>, number: u64, device: &str) -> bool {
    send_line(control, &format!("short {number} {device}"))
}

/// Reports that this session's program lives, and was asked for another session's reclaim request.
pub(crate) fn send_asked(control: BorrowedFd<'_>, request: ReclaimRequest) {
    send_line(control, &format!("asked {} {}", request.session, request.number));
}

/// Reports that this session has done what it could for another one's reclaim request.
pub(crate) fn send_reclaim_done(control: BorrowedFd<'_>, request: ReclaimRequest) {
    send_line(control, &format!("given {} {}", request.session, request.number));
}

/// The server's messages to a worker that serves a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage {
    /// `give SESSION N DEVICE`: reclaim request N of that session.
    Give(ReclaimRequest, String),
    /// `asked N`: this session's request N waits only for programs that live.
    PeersAsked(u64),
    /// `wait N MILLISECONDS`: how long this session's request N waits at most for sessions that have not answered yet or are
    /// about to end.
    Wait(u64, u64),
    /// `answered N`: the others have done what they could for this session's request N.
    Answered(u64),
}

/// Parses a line of the server. Returns none for unknown ones.
pub(crate) fn parse(line: &[u8]) -> Option<ServerMessage> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let kind = words.next()?;
    let mut number = || words.next()?.parse().ok();
    match kind {
        "give" => {
            let request = ReclaimRequest { session: number()?, number: number()? };
            Some(ServerMessage::Give(request, words.next()?.to_owned()))
        }
        "asked" => Some(ServerMessage::PeersAsked(number()?)),
        "wait" => Some(ServerMessage::Wait(number()?, number()?)),
        "answered" => Some(ServerMessage::Answered(number()?)),
        _ => None,
    }
}

/// Sends a line. Returns whether it was sent. Otherwise the server is gone, or so busy that a later report must do.
fn send_line(control: BorrowedFd<'_>, line: &str) -> bool {
    let bytes = line.as_bytes();
    let packet = bytes.get(..MAX_CONTROL_PACKET_BYTES).unwrap_or(bytes);
    send(control, packet, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    #[test]
    fn each_packet_is_one_line_of_words() {
        let (worker_end, server_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        warm(worker_end.as_fd(), "softcuda");
        usage(worker_end.as_fd(), 4096, 17);
        holds(worker_end.as_fd(), 8192);
        refused(worker_end.as_fd(), &"x".repeat(2 * MAX_CONTROL_PACKET_BYTES));
        let mut buffer = [0; 2 * MAX_CONTROL_PACKET_BYTES];
        for expected in ["warm softcuda", "usage 4096 17", "holds 8192", "refused xxx"] {
            let (_, length) = recv(&server_end, &mut buffer, RecvFlags::empty()).unwrap();
            assert!(
                length <= MAX_CONTROL_PACKET_BYTES && buffer[..length].starts_with(expected.as_bytes()),
                "{expected}"
            );
        }
    }

    #[test]
    fn server_messages_parse_and_malformed_ones_do_not() {
        let request = ReclaimRequest { session: 3, number: 7 };
        assert_eq!(parse(b"give 3 7 0000:01:00.0"), Some(ServerMessage::Give(request, "0000:01:00.0".to_owned())));
        assert_eq!(parse(b"asked 8"), Some(ServerMessage::PeersAsked(8)));
        assert_eq!(parse(b"wait 8 500"), Some(ServerMessage::Wait(8, 500)));
        assert_eq!(parse(b"answered 9"), Some(ServerMessage::Answered(9)));
        for line in [
            &b"give 3 7"[..],
            b"give 3 x 0",
            b"answered",
            b"answered -1",
            b"wait 8",
            b"wait 8 x",
            b"",
            b"\xff",
            b"take 1 2 3",
        ] {
            assert_eq!(parse(line), None);
        }
    }

    #[test]
    fn a_server_that_does_not_read_or_is_gone_holds_nothing_up() {
        let (worker_end, server_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (0..10_000).for_each(|calls| usage(worker_end.as_fd(), 0, calls));
        drop(server_end);
        usage(worker_end.as_fd(), 0, 0);
    }
}
