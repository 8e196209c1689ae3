//! Opening the link of a program whose hello was accepted.

use katydid_wire::handshake::{Build, Ready};

use crate::link::link_control::LinkControl;
use crate::link::pending::{AcceptError, Pending, check_link, refusal};
use crate::link::worker::WorkerLink;
use crate::os::socket::tune;
use crate::shm::worker::ShmWorker;
use crate::stream::worker::StreamWorker;

impl Pending {
    /// Worker: opens the link, then tells the program that its session begins, or continues with frame number `sequence`.
    ///
    /// # Errors
    /// The reason, which the program has got as well, if it is still connected.
    pub fn open(self, build: &Build, ready: &Ready, sequence: u64) -> Result<Box<dyn WorkerLink>, AcceptError> {
        let failed = |source| AcceptError::System { doing: "answer the program", source };
        if let Err(error) = check_link(self.hello(), self.fds()) {
            self.refuse(build, &refusal(&error));
            return Err(error);
        }
        let (socket, hello, fds) = self.into_parts();
        tune(&socket, hello.link_timeout).map_err(failed)?;
        // The link is open before the program hears of it, so the program's first frame finds a reader.
        let link: Box<dyn WorkerLink> = if fds.is_empty() {
            Box::new(StreamWorker::new(socket, sequence)?)
        } else {
            Box::new(ShmWorker::new(socket, &fds, sequence)?)
        };
        let link_control = link.link_control();
        let pieces = link_control.as_ref().and_then(LinkControl::pieces);
        if let Some(connection) = link_control.as_ref().and_then(LinkControl::socket) {
            connection.send_with(&ready.encode(build)?, pieces.as_slice()).map_err(failed)?;
        }
        Ok(link)
    }
}
