//! Attaching to a running session: the server passes on connections that know its key.
//!
//! A program reconnects the link that it left, or adds a bulk connection to it; a supervisor becomes the session's companion. A
//! process that cannot be admitted receives the reason, and the session is not disturbed. The server's own lines arrive here as
//! well.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use katydid_session_core::Control;
use katydid_transport::{Delivery, Pending};
use katydid_wire::handshake::{Build, ConnectionRole, Ready, RefusalCode, Refused};

use crate::companion::{self, CompanionSlot, suspended};
use crate::control;
use crate::os::exit::leave;
use crate::os::log::Log;
use crate::peers::SessionPeers;

/// What connections need of a session.
pub(crate) struct AttachPoint {
    /// Socket to the server.
    pub(crate) control: OwnedFd,
    pub(crate) build: Build,
    /// The facts that connections received when the session began.
    pub(crate) ready: Ready,
    pub(crate) session: Control,
    pub(crate) slot: CompanionSlot,
    pub(crate) peers: SessionPeers,
    pub(crate) log: Arc<Log>,
}

impl AttachPoint {
    /// Admits connections until the process ends.
    ///
    /// # Errors
    ///
    /// The system refuses a thread.
    pub(crate) fn open(self) -> std::io::Result<()> {
        thread::Builder::new().name("attach".into()).spawn(move || self.serve())?;
        Ok(())
    }

    fn serve(&self) {
        loop {
            match Pending::receive_any(self.control.as_fd(), &self.build) {
                Ok(Some(Delivery::Program(connection, _))) => {
                    control::connection_accepted(self.control.as_fd());
                    self.let_in(*connection);
                }
                Ok(Some(Delivery::Text(line))) => {
                    let link = self.session.link_control();
                    let (is_over, notify) = (|| link.is_over(), || link.request_reclaim());
                    self.peers.handle_line(&line, self.control.as_fd(), is_over, notify);
                }
                // The server is gone, so the session ends.
                Ok(None) => leave(0),
                Err(error) => {
                    control::connection_accepted(self.control.as_fd());
                    self.log.line(format_args!("a connection of the session was lost: {error}"));
                }
            }
        }
    }

    fn let_in(&self, connection: Pending) {
        match connection.hello().claim.role {
            ConnectionRole::PROGRAM => self.take_back(connection),
            ConnectionRole::COMPANION => {
                companion::admit(connection, &self.build, &self.ready(), &self.slot, &self.session)
            }
            ConnectionRole::BULK => {
                if let Err(error) = self.session.link_control().join(connection, &self.build, &self.ready()) {
                    self.log.line(format_args!("a connection for bulk was not let in: {error}"));
                }
            }
            _ => connection.refuse(&self.build, &Refused::new(RefusalCode::BAD_HELLO, "this build knows no such role")),
        }
    }

    fn take_back(&self, program: Pending) {
        let link_control = self.session.link_control();
        let no_session = |reason: &str| Refused::new(RefusalCode::NO_SESSION, reason);
        if self.slot.suspension.is_on() {
            return program.refuse(&self.build, &no_session("the session is suspended"));
        }
        if link_control.takes_any_memory()
            && let Err(reason) = suspended::rejoin(&self.session, &program)
        {
            self.log.line(format_args!("a program was not taken back: {reason}"));
            return program.refuse(&self.build, &no_session(&reason));
        }
        match link_control.attach(program, &self.build, &self.ready()) {
            Ok(()) => self.slot.program_is_back(),
            Err(error) => self.log.line(format_args!("a program was not taken back: {error}")),
        }
    }

    /// Returns the current facts for connections.
    fn ready(&self) -> Ready {
        self.slot.suspension.ready(&self.ready)
    }
}
