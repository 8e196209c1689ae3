//! Control channel to a CRIU that was started to serve (`criu … swrk FD`): one message a packet, encoded as protocol buffers.
//!
//! CRIU receives what to dump, and then asks for permission at each of its steps, where it would otherwise run its user's
//! scripts. Two of them matter here. At `pre-dump` it knows all that it needs, and has stopped nothing yet. At `post-dump` it has
//! written everything, and still holds the processes.
//!
//! | message | fields |
//! |---|---|
//! | request `criu_req` | 1 type; 2 options; 3 whether the step may be taken |
//! | options `criu_opts` | 1 descriptor of the folder, −1: none; 2 process; 12 whether it asks at its steps; 68 folder |
//! | response `criu_resp` | 1 type; 2 whether it succeeded; 5 the step that it asks about, whose field 1 is its name |

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::criu::protobuf::{FieldValue, Fields, Message};

/// Types of a request, `criu_req_type`.
const DUMP_REQUEST: u64 = 1;
const NOTIFY_REQUEST: u64 = 6;
/// The `int32` −1 as a varint.
const NO_PROCESS: u64 = u64::MAX;
/// Largest response: those that are read here are a name, or the text of an error.
const MAX_RPC_PACKET_BYTES: usize = 1 << 16;

/// A message that CRIU sends to its RPC client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RpcEvent {
    /// CRIU waits for an answer before this step.
    Asks(String),
    /// CRIU has carried out the request, or has failed.
    Ended {
        /// Value of `success` in CRIU's response.
        succeeded: bool,
    },
    /// CRIU is gone.
    Gone,
}

/// Katydid's end of the connection. If it is dropped, CRIU notices, and undoes the dump.
#[derive(Debug)]
pub(crate) struct CriuRpc(OwnedFd);

impl CriuRpc {
    /// Returns a connection, and CRIU's end of it.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (connection, criu_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(connection), criu_end))
    }

    /// Orders CRIU to dump the tree below `root` into `folder`, by the options of its command line, and to ask at each step.
    pub(crate) fn order_dump(&self, root: u32, folder: &Path) -> io::Result<()> {
        let options = Message::default().number(1, NO_PROCESS).number(2, root.into()).number(12, 1);
        let options = options.bytes(68, folder.as_os_str().as_bytes());
        self.send(Message::default().number(1, DUMP_REQUEST).bytes(2, &options.encoded()))
    }

    /// Allows or refuses the step that CRIU asked about.
    pub(crate) fn answer(&self, may: bool) -> io::Result<()> {
        self.send(Message::default().number(1, NOTIFY_REQUEST).number(3, may.into()))
    }

    /// Waits for CRIU's next event; `None` if none comes before `deadline`.
    pub(crate) fn receive(&self, deadline: Instant) -> io::Result<Option<RpcEvent>> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
                Ok(0) if left > Duration::ZERO => {}
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut packet = vec![0; MAX_RPC_PACKET_BYTES];
        match recv(&self.0, packet.as_mut_slice(), RecvFlags::empty()) {
            Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => Ok(Some(RpcEvent::Gone)),
            Ok((length, _)) => Ok(Some(decoded(packet.get(..length).unwrap_or_default()))),
            Err(error) => Err(error.into()),
        }
    }

    fn send(&self, message: Message) -> io::Result<()> {
        send(&self.0, &message.encoded(), SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// Decodes a response. A malformed one counts as the failure of CRIU.
fn decoded(packet: &[u8]) -> RpcEvent {
    let (mut kind, mut succeeded, mut step) = (0, false, String::new());
    for (field, value) in Fields(packet) {
        match (field, value) {
            (1, FieldValue::Number(number)) => kind = number,
            (2, FieldValue::Number(number)) => succeeded = number != 0,
            (5, FieldValue::Bytes(notify)) => step = name(notify).unwrap_or_default(),
            _ => {}
        }
    }
    if kind == NOTIFY_REQUEST {
        RpcEvent::Asks(step)
    } else {
        RpcEvent::Ended { succeeded: succeeded && kind == DUMP_REQUEST }
    }
}

fn name(notify: &[u8]) -> Option<String> {
    Fields(notify).bytes_in(1).map(|name| String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
mod tests {
    use katydid_tests::deadline::hang::hang_limit;

    use super::*;

    fn at_once() -> Instant {
        Instant::now()
    }

    #[test]
    fn rpc_steps_and_ends_are_distinguished() {
        let (katydid_end, criu_end) = CriuRpc::pair().unwrap();
        let criu_end = CriuRpc(criu_end);
        assert_eq!(katydid_end.receive(at_once()).unwrap(), None);
        let notify = Message::default().bytes(1, b"pre-dump").encoded();
        criu_end.send(Message::default().number(1, NOTIFY_REQUEST).number(2, 1).bytes(5, &notify)).unwrap();
        criu_end.send(Message::default().number(1, DUMP_REQUEST).number(2, 1)).unwrap();
        criu_end.send(Message::default().number(1, DUMP_REQUEST).number(2, 0)).unwrap();
        criu_end.send(Message::default().bytes(1, b"nonsense")).unwrap();
        assert_eq!(katydid_end.receive(at_once()).unwrap(), Some(RpcEvent::Asks("pre-dump".to_owned())));
        assert_eq!(katydid_end.receive(at_once()).unwrap(), Some(RpcEvent::Ended { succeeded: true }));
        assert_eq!(katydid_end.receive(at_once()).unwrap(), Some(RpcEvent::Ended { succeeded: false }));
        assert_eq!(katydid_end.receive(at_once()).unwrap(), Some(RpcEvent::Ended { succeeded: false }));
        drop(criu_end);
        // A child that another test has just forked has a copy of that end, for a moment.
        let soon = Instant::now() + hang_limit();
        assert_eq!(katydid_end.receive(soon).unwrap(), Some(RpcEvent::Gone));
        assert!(katydid_end.answer(true).is_err());
    }
}
