//! The socket between server and worker: small packets, one message each.
//!
//! A worker sends lines of text, read here:
//!
//! | message                   | when                                                       |
//! |---------------------------|------------------------------------------------------------|
//! | `passed-over TEXT`        | before `warm`: why that is softcuda, not a GPU's driver    |
//! | `warm DRIVER`             | the driver has started; it can take a program              |
//! | `failed TEXT`             | before it exits because the driver would not start         |
//! | `usage BYTES CALLS`       | at most once a second, for `katydid ps`                    |
//! | `ended`                   | its program is gone, and it will exit                      |
//! | `accepted`                | it has accepted a connection that was passed to it         |
//! | `short N DEVICE`          | its program finds no memory on a device; N counts these    |
//! | `asked SESSION N`         | its program lives, and was asked for that session's N      |
//! | `given SESSION N`         | it has done what it could for that session's N             |
//! | `saved`                   | a keeper has saved a worker, and is about to end it        |
//! | `refused TEXT`            | it turned the program away after the hand-over             |
//! | `holds BYTES`             | before it exits because it may not hold so much            |
//!
//! The server sends programs and other connections of sessions (`katydid_transport`), and lines of text without descriptors:
//!
//! | message                   | when                                                       |
//! |---------------------------|------------------------------------------------------------|
//! | `give SESSION N DEVICE`   | that session needs memory: idle memory must be given back  |
//! | `wait N MILLISECONDS`     | this session's N waits at most so long for other workers   |
//! | `asked N`                 | this session's N waits only for programs that were asked   |
//! | `answered N`              | all others have done what they could for this session's N  |
//!
//! A worker that a program has subverted can write anything here, so messages are bounded and unknown ones are ignored.

use std::os::fd::OwnedFd;

use katydid_wire::printable::is_unprintable;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

/// Longest message accepted from a worker; the rest of a longer one is lost.
const MAX_CONTROL_MESSAGE_BYTES: usize = 4096;

/// Longest name of a device.
const MAX_DEVICE_NAME_BYTES: usize = 64;

/// A worker's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// It is ready for a program, with the named driver.
    Warm(String),
    /// It uses softcuda, since the driver of a GPU failed for this reason.
    GpuError(String),
    /// It will exit, for this reason.
    Failed(String),
    /// Resources that its session uses.
    Usage {
        /// Bytes of device memory held.
        device_memory: u64,
        /// Calls executed since the session began.
        calls: u64,
    },
    /// It will exit, because its program is gone.
    Ended,
    /// It turned its program away, for this reason.
    Refused(String),
    /// It will exit, because it holds this many bytes of the machine's memory.
    Holds(u64),
    /// Its session finds no memory on a device, given by PCI address.
    Short {
        /// Number of the request, counted by the session.
        number: u64,
        /// PCI address of the device, such as `0000:19:00.0`.
        device: String,
    },
    /// Its session has asked its program, which lives, to give back memory for another session.
    ReclaimAsked {
        /// Number of the session that needs memory.
        session: u64,
        /// Number of the request, counted by that session.
        number: u64,
    },
    /// Its session has done what it could for another session.
    ReclaimDone {
        /// Number of the session that needs memory.
        session: u64,
        /// Number of the request, counted by that session.
        number: u64,
    },
    /// It has accepted a connection of its session.
    Accepted,
    /// It has saved a session's worker, and is about to end that worker.
    Saved,
    /// A message of a newer worker.
    Unknown,
}

/// Makes the two ends. Both are closed on exec unless the worker's is passed on purpose.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Receives the next message; `None` when the worker has closed its end.
pub(crate) fn receive(control: &OwnedFd) -> Result<Option<Message>, Errno> {
    let mut buffer = [0; MAX_CONTROL_MESSAGE_BYTES];
    let (_, length) = recv(control, &mut buffer, RecvFlags::DONTWAIT)?;
    Ok(buffer.get(..length.min(MAX_CONTROL_MESSAGE_BYTES)).filter(|bytes| !bytes.is_empty()).map(parse))
}

/// Decodes a message of a worker. Unknown ones become [`Message::Unknown`].
pub(crate) fn parse(bytes: &[u8]) -> Message {
    let text = printable(bytes);
    match text.split_once(' ').unwrap_or((&text, "")) {
        ("warm", driver) => Message::Warm(driver.to_owned()),
        ("passed-over", reason) => Message::GpuError(reason.to_owned()),
        ("failed", reason) => Message::Failed(reason.to_owned()),
        ("refused", reason) => Message::Refused(reason.to_owned()),
        ("holds", bytes) => bytes.parse().map_or(Message::Unknown, Message::Holds),
        ("ended", "") => Message::Ended,
        ("accepted", "") => Message::Accepted,
        ("short", arguments) => parse_short(arguments).unwrap_or(Message::Unknown),
        ("saved", "") => Message::Saved,
        ("asked", arguments) => {
            request(arguments).map_or(Message::Unknown, |(session, number)| Message::ReclaimAsked { session, number })
        }
        ("given", arguments) => {
            request(arguments).map_or(Message::Unknown, |(session, number)| Message::ReclaimDone { session, number })
        }
        ("usage", numbers) => usage(numbers).unwrap_or(Message::Unknown),
        _ => Message::Unknown,
    }
}

fn usage(numbers: &str) -> Option<Message> {
    let (device_memory, calls) = numbers.split_once(' ')?;
    Some(Message::Usage { device_memory: device_memory.parse().ok()?, calls: calls.parse().ok()? })
}

fn parse_short(arguments: &str) -> Option<Message> {
    let (number, device) = arguments.split_once(' ')?;
    let is_address = device.len() <= MAX_DEVICE_NAME_BYTES && device.bytes().all(|byte| byte.is_ascii_graphic());
    (is_address && !device.is_empty())
        .then_some(Message::Short { number: number.parse().ok()?, device: device.to_owned() })
}

/// Parses a session's number, and the number of its request.
fn request(arguments: &str) -> Option<(u64, u64)> {
    let (session, number) = arguments.split_once(' ')?;
    Some((session.parse().ok()?, number.parse().ok()?))
}

/// Most characters of a peer's text that are shown.
const MAX_PEER_TEXT_CHARS: usize = 512;
/// Most characters of a name in the table of sessions.
const MAX_SHOWN_NAME_CHARS: usize = 256;

/// Returns a peer's name for the table of sessions, made printable like [`printable`] does.
pub(crate) fn name(text: &str) -> String {
    printable_within(text.as_bytes(), MAX_SHOWN_NAME_CHARS)
}

/// Makes text safe for a terminal: control characters become spaces, and long text is cut.
pub(crate) fn printable(bytes: &[u8]) -> String {
    printable_within(bytes, MAX_PEER_TEXT_CHARS)
}

/// Returns a name, made printable as one short part of a line.
pub(crate) fn printable_name(name: &str) -> String {
    printable_within(name.as_bytes(), MAX_PRINTED_NAME_CHARS)
}

/// Most characters of a name in a line.
const MAX_PRINTED_NAME_CHARS: usize = 64;

/// Makes text safe for a terminal, and cuts it to at most `most` characters.
pub(crate) fn printable_within(bytes: &[u8], most: usize) -> String {
    // Decodes no more than can be shown.
    let text = String::from_utf8_lossy(bytes.get(..4 * most + 4).unwrap_or(bytes));
    let mut letters = text.trim().chars().map(|c| if is_unprintable(c) { ' ' } else { c });
    let mut shown: String = letters.by_ref().take(most).collect();
    if letters.next().is_some() {
        shown.pop();
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {

    use katydid_tests::deadline::hang::until;
    use rustix::net::{SendFlags, send};

    use super::*;

    #[test]
    fn peer_text_is_truncated_and_stripped_of_control_characters() {
        assert_eq!(printable(b" a\x1b[2Jb\nc "), "a [2Jb c");
        assert_eq!(printable("a\u{202e}b\u{9b}c".as_bytes()), "a b c");
        assert_eq!(printable_name("short"), "short");
        let long = "ü".repeat(4096);
        assert_eq!(printable_name(&long).chars().count(), MAX_PRINTED_NAME_CHARS);
        assert!(printable_name(&long).ends_with('…'));
        assert_eq!(name(&"n\n".repeat(2048)).chars().count(), MAX_SHOWN_NAME_CHARS);
        assert_eq!(printable(long.as_bytes()).chars().count(), MAX_PEER_TEXT_CHARS);
    }

    #[test]
    fn each_message_is_read_back() {
        assert_eq!(parse(b"warm softcuda\n"), Message::Warm("softcuda".into()));
        assert_eq!(parse(b"passed-over no GPU"), Message::GpuError("no GPU".into()));
        assert_eq!(parse(b"failed no GPU here"), Message::Failed("no GPU here".into()));
        assert_eq!(parse(b"usage 4096 17"), Message::Usage { device_memory: 4096, calls: 17 });
        assert_eq!(parse(b"ended"), Message::Ended);
        assert_eq!(parse(b"accepted"), Message::Accepted);
        assert_eq!(parse(b"refused spec differs"), Message::Refused("spec differs".into()));
        assert_eq!(parse(b"holds 4096"), Message::Holds(4096));
        assert_eq!(parse(b"short 3 0000:01:00.0"), Message::Short { number: 3, device: "0000:01:00.0".into() });
        assert_eq!(parse(b"given 2 3"), Message::ReclaimDone { session: 2, number: 3 });
        assert_eq!(parse(b"asked 2 3"), Message::ReclaimAsked { session: 2, number: 3 });
        assert_eq!(parse(b"saved"), Message::Saved);
    }

    #[test]
    fn hostile_messages_are_harmless() {
        for bytes in [
            &b"usage 1"[..],
            b"short 1",
            b"short x 0",
            b"short 1 a b",
            b"short 1 ",
            b"given 1",
            b"holds much",
            b"given 1 x",
            b"usage -1 x",
            b"",
            b"\xff\xfe",
            b"shutdown now",
            b"usage 99999999999999999999 1",
        ] {
            assert_eq!(parse(bytes), Message::Unknown);
        }
        assert_eq!(parse(b"failed \x1b[2Jgone"), Message::Failed(" [2Jgone".into()));
    }

    #[test]
    fn a_closed_end_is_the_end() {
        let (server_end, worker_end) = pair().unwrap();
        send(&worker_end, b"warm x", SendFlags::empty()).unwrap();
        drop(worker_end);
        assert_eq!(receive(&server_end), Ok(Some(Message::Warm("x".into()))));
        // A child that another test has just forked has a copy of that end, for a moment.
        until("the end of the child's copy", || receive(&server_end) != Err(Errno::AGAIN));
        assert_eq!(receive(&server_end), Ok(None));
    }

    #[test]
    fn silence_is_not_an_end() {
        let (server_end, _worker_end) = pair().unwrap();
        assert_eq!(receive(&server_end), Err(Errno::AGAIN));
    }
}
