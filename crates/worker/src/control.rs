//! The worker's end of the socket to the server: what it says there, one packet a line.
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

/// Longest packet the server takes.
const MAX_CONTROL_PACKET_BYTES: usize = 4096;

/// Says that a program may come.
pub(crate) fn warm(control: BorrowedFd<'_>, driver: &str) {
    send_line(control, &format!("warm {driver}"));
}

/// Says why `auto` took softcuda.
pub(crate) fn gpu_error(control: BorrowedFd<'_>, reason: &str) {
    send_line(control, &format!("passed-over {reason}"));
}

/// Says why this worker will exit without having served any process.
pub(crate) fn failed(control: BorrowedFd<'_>, reason: &dyn Display) {
    send_line(control, &format!("failed {reason}"));
}

/// Says why the program was turned away.
pub(crate) fn refused(control: BorrowedFd<'_>, reason: &dyn Display) {
    send_line(control, &format!("refused {reason}"));
}

/// Reports that this worker will exit, because it holds `bytes` of the machine's memory.
pub(crate) fn holds(control: BorrowedFd<'_>, bytes: u64) {
    send_line(control, &format!("holds {bytes}"));
}

/// Tells what the session holds and did: bytes of device memory, and calls so far.
pub(crate) fn usage(control: BorrowedFd<'_>, device_memory: u64, calls: u64) {
    send_line(control, &format!("usage {device_memory} {calls}"));
}

/// Says that this worker will exit, because its program is gone.
pub(crate) fn ended(control: BorrowedFd<'_>) {
    send_line(control, "ended");
}

/// Reports that a connection was accepted: the server bounds how many may wait.
pub(crate) fn connection_accepted(control: BorrowedFd<'_>) {
    send_line(control, "accepted");
}

/// Asks that other sessions give back what they hold idle of a device, which is named by its PCI address. Whether the server will
/// hear of it.
pub(crate) fn short(control: BorrowedFd<'_>, number: u64, device: &str) -> bool {
    send_line(control, &format!("short {number} {device}"))
}

/// Says that the program of this session lives, and was asked for what another one's reclaim request wants.
pub(crate) fn send_asked(control: BorrowedFd<'_>, request: ReclaimRequest) {
    send_line(control, &format!("asked {} {}", request.session, request.number));
}

/// Says that this session has done what it could for another one's reclaim request.
pub(crate) fn send_reclaim_done(control: BorrowedFd<'_>, request: ReclaimRequest) {
    send_line(control, &format!("given {} {}", request.session, request.number));
}

/// What the server says to a worker that serves a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerMessage {
    /// `give SESSION N DEVICE`: that session's reclaim request number N.
    Give(ReclaimRequest, String),
    /// `asked N`: only programs that live are waited for any more, for this session's.
    PeersAsked(u64),
    /// `wait N MILLISECONDS`: so long other sessions are waited for at most that have not looked yet or are about to end, for this
    /// session's.
    Wait(u64, u64),
    /// `answered N`: the others have done what they could for this session's.
    Answered(u64),
}

/// Reads a line of the server's; none if it says nothing that is known here.
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

/// Whether it was sent. Where not, the server is gone or busy: no process is left to tell, or it will ask again in a second.
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
