//! How a detached link reconnects to its worker, or to another worker that was made to be like it.
//!
//! The rule: what the program learned when its session began stays true. So the arenas are the agreed ones and no others, the
//! kind of link is the same, and the memory is the same.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use katydid_wire::handshake::{ArenaKind, Build, ConnectionRole, HandshakeError, Hello, Ready, SessionClaim};
use katydid_wire::key::SessionKey;

use crate::ipc::connection::Connection;
use crate::link::address::Address;
use crate::link::error::ConnectError;
use crate::link::greeting::{AcceptedConnection, greet};

/// How long a worker may take to close its end of a connection that the program has closed.
pub(crate) const LINK_CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a link needs to reconnect.
#[derive(Debug)]
pub(crate) struct Reconnect {
    hello: Hello,
    build: Build,
    key: Mutex<SessionKey>,
    /// The address of the worker's server.
    address: Mutex<Address>,
}

impl Reconnect {
    /// Notes what program and worker have agreed on.
    pub(crate) fn new(address: &Address, hello: &Hello, build: &Build, ready: &Ready) -> Self {
        let hello = Hello { arenas: ready.arenas.clone(), ..hello.clone() };
        Self { hello, build: build.clone(), key: Mutex::new(ready.key), address: Mutex::new(address.clone()) }
    }

    /// Key that names the session at its server.
    pub(crate) fn key(&self) -> SessionKey {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the base address of the pinned arena.
    pub(crate) fn pinned_base(&self) -> Option<u64> {
        self.hello.arenas.iter().find(|arena| arena.kind == ArenaKind::PINNED).map(|arena| arena.base)
    }

    /// Asks for session `key`, having sent `frames` frames. `fds` are the descriptors of the link's memory.
    pub(crate) fn reconnect(
        &self,
        address: &Address,
        key: SessionKey,
        frames: u64,
        fds: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<AcceptedConnection, ConnectError> {
        let claim = SessionClaim { role: ConnectionRole::PROGRAM, key, frames };
        let hello = Hello { claim, ..self.hello.clone() };
        let consent = greet(address, &hello, &self.build, fds, timeout)?;
        if consent.ready.arenas != self.hello.arenas {
            let source = HandshakeError::Damaged { what: "the worker does not have the arenas that were agreed on" };
            return Err(ConnectError::Handshake { address: address.clone(), source });
        }
        *self.key.lock().unwrap_or_else(PoisonError::into_inner) = consent.ready.key;
        *self.address.lock().unwrap_or_else(PoisonError::into_inner) = address.clone();
        Ok(consent)
    }

    /// Opens a further connection of the link: bulk connection `number`.
    pub(crate) fn open_bulk_connection(&self, number: u16, timeout: Duration) -> Result<Connection, ConnectError> {
        let claim = SessionClaim { role: ConnectionRole::BULK, key: self.key(), frames: number.into() };
        let hello = Hello { claim, arenas: Vec::new(), ..self.hello.clone() };
        let address = self.address.lock().unwrap_or_else(PoisonError::into_inner).clone();
        greet(&address, &hello, &self.build, &[], timeout).map(|consent| consent.connection)
    }
}

/// Borrows descriptors, for a message.
pub(crate) fn borrowed<'a>(fds: impl IntoIterator<Item = &'a OwnedFd>) -> Vec<BorrowedFd<'a>> {
    fds.into_iter().map(AsFd::as_fd).collect()
}
