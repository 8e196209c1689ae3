//! The other sessions of the server: reclaim requests travel to and from them through the server.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use katydid_session::{Reclaim, ReclaimPeers, ReclaimRequest};
use katydid_wire::facts::Facts;

use crate::control::{self, ServerMessage};

/// A session's connection to the other sessions.
#[derive(Default)]
pub(crate) struct SessionPeers {
    /// None for a session that holds nothing idle.
    reclaim: Option<Arc<Reclaim>>,
    /// PCI addresses by ordinal: ordinals may mean other devices to other workers.
    devices: Arc<[String]>,
}

/// The server, as the session requests memory from it.
struct ServerConnection {
    control: OwnedFd,
    devices: Arc<[String]>,
}

impl ReclaimPeers for ServerConnection {
    fn send_request(&self, device: u32, number: u64) -> bool {
        let device = self.devices.get(device as usize);
        device.is_some_and(|device| control::short(self.control.as_fd(), number, device))
    }

    fn send_reclaim_done(&self, request: ReclaimRequest) {
        control::send_reclaim_done(self.control.as_fd(), request);
    }
}

impl SessionPeers {
    /// Returns the addresses of a worker's devices.
    pub(crate) fn addresses(facts: &Facts) -> Arc<[String]> {
        facts.devices.iter().map(|device| device.pci_bus_id.clone()).collect()
    }

    /// Creates the peers of a session whose devices have these addresses.
    pub(crate) fn new(reclaim: Arc<Reclaim>, devices: Arc<[String]>) -> Self {
        Self { reclaim: Some(reclaim), devices }
    }

    /// Lets the session send reclaim requests.
    pub(crate) fn connect(&self, control: OwnedFd) {
        if let Some(reclaim) = &self.reclaim {
            reclaim.connect(Box::new(ServerConnection { control, devices: Arc::clone(&self.devices) }));
        }
    }

    /// Handles a line of the server. `is_over` returns whether the program has ended, so that the worker will free everything.
    /// `notify` sends the program a reclaim notice and returns its number, or none if the program cannot be reached.
    pub(crate) fn handle_line(
        &self,
        line: &[u8],
        control: BorrowedFd<'_>,
        is_over: impl FnOnce() -> bool,
        notify: impl FnOnce() -> Option<u32>,
    ) {
        let Some(message) = control::parse(line) else { return };
        match (message, &self.reclaim) {
            (ServerMessage::PeersAsked(number), Some(reclaim)) => reclaim.are_asked(number),
            (ServerMessage::Answered(number), Some(reclaim)) => reclaim.note_answer(number),
            (ServerMessage::Wait(number, millis), Some(reclaim)) => {
                reclaim.limit_wait(number, Duration::from_millis(millis));
            }
            (ServerMessage::PeersAsked(_) | ServerMessage::Wait(..) | ServerMessage::Answered(_), None) => {}
            // On a busy machine the monitor may not have noticed that yet.
            (ServerMessage::Give(..), _) if is_over() => control::ended(control),
            (ServerMessage::Give(request, device), reclaim) => {
                let ordinal = self.devices.iter().position(|known| *known == device);
                match reclaim.as_ref().zip(ordinal) {
                    Some((reclaim, ordinal)) if reclaim.ask(request, ordinal as u32, notify) => {
                        control::send_asked(control, request);
                    }
                    Some(_) => {}
                    None => control::send_reclaim_done(control, request),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;

    /// The worker's lines when the server requests memory of a session's only device.
    fn answers(peers: &SessionPeers, is_over: bool, notice: Option<u32>) -> Vec<String> {
        let (worker_end, server_end) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        peers.connect(worker_end.try_clone().unwrap());
        peers.handle_line(b"give 7 1 0000:01:00.0", worker_end.as_fd(), || is_over, || notice);
        let mut buffer = [0; 64];
        let next = || recv(&server_end, &mut buffer[..], RecvFlags::DONTWAIT).ok();
        let lengths: Vec<usize> = std::iter::from_fn(next).map(|(_, length)| length).collect();
        assert!(lengths.len() <= 1);
        lengths.iter().map(|length| String::from_utf8_lossy(&buffer[..*length]).into_owned()).collect()
    }

    #[test]
    fn a_session_whose_program_has_ended_says_so_and_not_that_it_has_given() {
        let devices: Arc<[String]> = Arc::from(["0000:01:00.0".to_owned()]);
        let with_idle = || SessionPeers::new(Arc::default(), Arc::clone(&devices));
        assert_eq!(answers(&with_idle(), true, Some(1)), ["ended"]);
        assert_eq!(answers(&SessionPeers::default(), true, None), ["ended"]);
        // Nothing is idle there.
        assert_eq!(answers(&with_idle(), false, Some(1)), ["given 7 1"]);
        assert_eq!(answers(&SessionPeers::default(), false, None), ["given 7 1"]);
    }
}
