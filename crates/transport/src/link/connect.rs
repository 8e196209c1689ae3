//! How a program connects to a session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use katydid_wire::SPEC_HASH;
use katydid_wire::companion::MAX_COMPANION_MESSAGE_BYTES;
use katydid_wire::handshake::{
    Build, ConnectionRole, Hello, LINK_TIMEOUT_SECONDS, LinkKind, Ready, SessionClaim, SessionKind,
};
use katydid_wire::key::SessionKey;

use crate::ipc::connection::Connection;
use crate::ipc::control_channel::ControlChannel;
use crate::link::address::Address;
use crate::link::error::{ConnectError, LinkError};
use crate::link::greeting::{AcceptedConnection, greet, pinned_length};
use crate::link::program::ProgramLink;
use crate::link::reconnect::Reconnect;
use crate::shm::channel;
use crate::shm::layout::{CHANNEL_BYTES, INITIAL_PINNED_BYTES};
use crate::shm::program::ShmProgram;
use crate::stream::program::StreamProgram;

/// A session that has begun.
pub struct ConnectedLink {
    /// Carries the session's calls.
    pub link: Box<dyn ProgramLink>,
    /// The worker's answer; its arenas are a selection of the hello's.
    pub ready: Ready,
    /// The memory of the pinned arena; none on stream links. Offset 0 is the arena's base.
    /// [`ReclaimLink::lengthen_pinned`](crate::ReclaimLink::lengthen_pinned) makes what the arena has beyond the memory's length.
    pub pinned: Option<OwnedFd>,
}

/// Asks the server at `address` for a session and waits at most `timeout` for the worker's answer.
///
/// `hello.link` says which link to make ([`Address::best_link`]); shared memory is made here.
///
/// # Errors
/// A [`ConnectError`] that names the address and the remedy.
pub fn connect(
    address: &Address,
    hello: &Hello,
    build: &Build,
    timeout: Duration,
) -> Result<ConnectedLink, ConnectError> {
    let memory = Memory::create(address, hello)?;
    let consent = greet(address, hello, build, &memory.descriptors(), timeout)?;
    let ready = consent.ready.clone();
    let failed = |source| ConnectError::Link { address: address.clone(), source };
    let pinned = memory.pinned.as_ref().map(|pinned| pinned.try_clone()).transpose();
    let pinned = pinned.map_err(LinkError::system("keep the shared memory")).map_err(failed)?;
    let link = memory.into_link(consent, address, hello, build).map_err(failed)?;
    Ok(ConnectedLink { link, ready, pinned })
}

/// The shared memory of a link to be made; none for a stream link.
struct Memory {
    channel: Option<OwnedFd>,
    pinned: Option<OwnedFd>,
}

impl Memory {
    fn create(address: &Address, hello: &Hello) -> Result<Self, ConnectError> {
        if hello.link != LinkKind::SHM {
            return Ok(Self { channel: None, pinned: None });
        }
        if !matches!(address, Address::Unix(_)) {
            return Err(ConnectError::NoSharedMemory { address: address.clone() });
        }
        let failed = |source| {
            let source = LinkError::System { doing: "make shared memory", source };
            ConnectError::Link { address: address.clone(), source }
        };
        let channel = channel::create("katydid-channel", CHANNEL_BYTES as u64).map_err(failed)?;
        let pinned = pinned_length(hello).map(|length| length.min(INITIAL_PINNED_BYTES));
        let pinned = pinned.map(|length| channel::create_growing("katydid-pinned", length)).transpose();
        Ok(Self { channel: Some(channel), pinned: pinned.map_err(failed)? })
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.channel.iter().chain(&self.pinned).map(AsFd::as_fd).collect()
    }

    fn into_link(
        self,
        consent: AcceptedConnection,
        address: &Address,
        hello: &Hello,
        build: &Build,
    ) -> Result<Box<dyn ProgramLink>, LinkError> {
        let reconnect = Reconnect::new(address, hello, build, &consent.ready);
        Ok(match (self.channel, consent.pieces) {
            (Some(channel), Some(pieces)) => {
                Box::new(ShmProgram::new(consent.connection.into_parts().0, channel, self.pinned, &pieces, reconnect)?)
            }
            _ => Box::new(StreamProgram::new(consent.connection, reconnect)?),
        })
    }
}

/// Asks the server at `address` for its driver, and waits for one at most `timeout`. `reservation` is the key of a slot already
/// reserved there, so that a full server has room, or [`SessionKey::NONE`].
///
/// # Errors
/// As [`connect`]; a server without a driver refuses with the reason.
pub fn driver_at(address: &Address, reservation: SessionKey, timeout: Duration) -> Result<String, ConnectError> {
    let hello = Hello { reservation, ..hello_without_session(ConnectionRole::INQUIRY, SessionKey::NONE) };
    greet(address, &hello, &Build::current(SPEC_HASH), &[], timeout).map(|consent| consent.ready.driver)
}

/// A slot at a server for the session of a program to come. It lasts until that session begins, or this is dropped.
pub struct Reservation {
    /// The name that the server's driver reports.
    pub driver: String,
    /// The key by which the program claims the slot.
    pub key: SessionKey,
    /// Closing it ends the reservation.
    _connection: Connection,
}

/// The program that a slot is reserved for, as lists of sessions show it.
#[derive(Debug, Clone, Default)]
pub struct ExpectedProgram {
    /// Its file name.
    pub program: String,
    /// The name of its session; empty if it has none.
    pub name: String,
}

/// Asks the server at `address` for a slot for a session of `expected`, and waits for a driver there at most `timeout`. If
/// `reservation` is the key of a slot held there, the server keeps that slot.
///
/// # Errors
/// As [`driver_at`]; a server that is full refuses.
pub fn reserve(
    address: &Address,
    expected: ExpectedProgram,
    reservation: SessionKey,
    timeout: Duration,
) -> Result<Reservation, ConnectError> {
    let ExpectedProgram { program, name } = expected;
    let hello =
        Hello { reservation, program, name, ..hello_without_session(ConnectionRole::RESERVATION, SessionKey::NONE) };
    let AcceptedConnection { connection, ready, .. } =
        greet(address, &hello, &Build::current(SPEC_HASH), &[], timeout)?;
    Ok(Reservation { driver: ready.driver, key: ready.key, _connection: connection })
}

/// Makes the hello of a peer that is not a program.
fn hello_without_session(role: ConnectionRole, key: SessionKey) -> Hello {
    Hello {
        session: SessionKind::CUDA,
        claim: SessionClaim { role, key, frames: 0 },
        link: LinkKind::STREAM,
        pid: std::process::id(),
        memory_limit: None,
        program: "katydid".to_owned(),
        name: String::new(),
        arenas: Vec::new(),
        link_timeout: LINK_TIMEOUT_SECONDS,
        reservation: SessionKey::NONE,
    }
}

/// Asks the server at `address` for the companion connection to session `key`. Without a key, connects to a worker that will
/// rebuild a session, whose new key is in the answer.
///
/// # Errors
/// As [`connect`].
pub fn companion(
    address: &Address,
    key: SessionKey,
    timeout: Duration,
) -> Result<(ControlChannel, Ready), ConnectError> {
    control_channel(address, ConnectionRole::COMPANION, key, timeout)
}

/// Asks the server at `address` for a process that saves the worker of session `key`. Without a key, the process restores a
/// worker, whose session's key is in the answer.
///
/// # Errors
/// As [`connect`].
pub fn keeper(address: &Address, key: SessionKey, timeout: Duration) -> Result<(ControlChannel, Ready), ConnectError> {
    control_channel(address, ConnectionRole::KEEPER, key, timeout)
}

fn control_channel(
    address: &Address,
    role: ConnectionRole,
    key: SessionKey,
    timeout: Duration,
) -> Result<(ControlChannel, Ready), ConnectError> {
    let hello = hello_without_session(role, key);
    let AcceptedConnection { connection, ready, .. } =
        greet(address, &hello, &Build::current(SPEC_HASH), &[], timeout)?;
    let channel = ControlChannel::over(connection, MAX_COMPANION_MESSAGE_BYTES).map_err(|source| {
        let source = LinkError::System { doing: "prepare the connection", source };
        ConnectError::Link { address: address.clone(), source }
    })?;
    Ok((channel, ready))
}
