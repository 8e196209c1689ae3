//! Sessions beside this one: reclaim requests go to them by way of the daemon, and theirs come the same way.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use katydid_session::{Reclaim, ReclaimPeers, ReclaimRequest};
use katydid_wire::facts::Facts;

use crate::control::{self, DaemonMessage};

/// What a session has to do with the others.
#[derive(Default)]
pub(crate) struct SessionPeers {
    /// None of a session that holds nothing idle.
    reclaim: Option<Arc<Reclaim>>,
    /// PCI addresses by ordinal: ordinals may mean other devices to other workers.
    devices: Arc<[String]>,
}

/// The daemon, as the session asks it for memory.
struct Daemon {
    control: OwnedFd,
    devices: Arc<[String]>,
}

impl ReclaimPeers for Daemon {
    fn send_request(&self, device: u32, number: u64) {
        if let Some(device) = self.devices.get(device as usize) {
            control::short(self.control.as_fd(), number, device);
        }
    }

    fn given(&self, request: ReclaimRequest) {
        control::given(self.control.as_fd(), request);
    }
}

impl SessionPeers {
    /// The addresses of a worker's devices.
    pub(crate) fn addresses(facts: &Facts) -> Arc<[String]> {
        facts.devices.iter().map(|device| device.pci_bus_id.clone()).collect()
    }

    /// Of a session whose devices have these addresses.
    pub(crate) fn new(reclaim: Arc<Reclaim>, devices: Arc<[String]>) -> Self {
        Self { reclaim: Some(reclaim), devices }
    }

    /// The session can send reclaim requests from here on.
    pub(crate) fn connect(&self, control: OwnedFd) {
        if let Some(reclaim) = &self.reclaim {
            reclaim.connect(Box::new(Daemon { control, devices: Arc::clone(&self.devices) }));
        }
    }

    /// Does what the daemon says. `notify` notifies the program of a reclaim request and gives the notice's number, none if there is no
    /// program to reach.
    pub(crate) fn hear(&self, line: &[u8], control: BorrowedFd<'_>, notify: impl FnOnce() -> Option<u32>) {
        let Some(word) = control::hear(line) else { return };
        match (word, &self.reclaim) {
            (DaemonMessage::Answered(number), Some(reclaim)) => reclaim.answered(number),
            (DaemonMessage::Answered(_), None) => {}
            (DaemonMessage::Give(request, device), reclaim) => {
                let ordinal = self.devices.iter().position(|known| *known == device);
                match reclaim.as_ref().zip(ordinal) {
                    Some((reclaim, ordinal)) => reclaim.asked(request, ordinal as u32, notify),
                    None => control::given(control, request),
                }
            }
        }
    }
}
