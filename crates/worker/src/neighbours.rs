//! Sessions beside this one: pleas for memory go to them by way of the daemon, and theirs come the same way.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use katydid_session::{Neighbours, Plea, Shortage};
use katydid_transport::LinkControl;
use katydid_wire::facts::Facts;

use crate::control::{self, Word};

/// What a session has to do with the others.
#[derive(Default)]
pub(crate) struct Neighbourhood {
    /// None of a session that holds nothing idle.
    shortage: Option<Arc<Shortage>>,
    /// PCI addresses by ordinal: ordinals may mean other devices to other workers.
    devices: Arc<[String]>,
}

/// The daemon, as the session pleads with it.
struct Daemon {
    control: OwnedFd,
    devices: Arc<[String]>,
}

impl Neighbours for Daemon {
    fn plead(&self, device: u32, number: u64) {
        if let Some(device) = self.devices.get(device as usize) {
            control::short(self.control.as_fd(), number, device);
        }
    }

    fn given(&self, plea: Plea) {
        control::given(self.control.as_fd(), plea);
    }
}

impl Neighbourhood {
    /// The addresses of a worker's devices.
    pub(crate) fn addresses(facts: &Facts) -> Arc<[String]> {
        facts.devices.iter().map(|device| device.pci_bus_id.clone()).collect()
    }

    /// Of a session whose devices have these addresses.
    pub(crate) fn new(shortage: Arc<Shortage>, devices: Arc<[String]>) -> Self {
        Self { shortage: Some(shortage), devices }
    }

    /// The session can plead from here on.
    pub(crate) fn connect(&self, control: OwnedFd) {
        if let Some(shortage) = &self.shortage {
            shortage.connect(Box::new(Daemon { control, devices: Arc::clone(&self.devices) }));
        }
    }

    /// Does what the daemon says.
    pub(crate) fn hear(&self, line: &[u8], control: &OwnedFd, link_control: &LinkControl) {
        let Some(word) = control::hear(line) else { return };
        match (word, &self.shortage) {
            (Word::Answered(number), Some(shortage)) => shortage.answered(number),
            (Word::Answered(_), None) => {}
            (Word::Give(plea, device), shortage) => {
                let ordinal = self.devices.iter().position(|known| *known == device);
                match shortage.as_ref().zip(ordinal) {
                    Some((shortage, ordinal)) => {
                        shortage.asked(plea, ordinal as u32, || link_control.request_reclaim())
                    }
                    None => control::given(control.as_fd(), plea),
                }
            }
        }
    }
}
