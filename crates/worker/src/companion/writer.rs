//! The messages of a companion connection: several threads send, one receives.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use katydid_transport::{Connection, ControlChannel, ControlError, ControlMessage};
use katydid_wire::companion::{FromWorker, MAX_COMPANION_MESSAGE_BYTES, ToWorker};

/// A connection on which several threads may send; one receives.
pub(crate) struct CompanionWriter {
    channel: ControlChannel,
    speaking: Mutex<()>,
}

impl CompanionWriter {
    /// Creates a writer over an admitted connection.
    pub(crate) fn new(connection: Connection) -> io::Result<Self> {
        Ok(Self { channel: ControlChannel::over(connection, MAX_COMPANION_MESSAGE_BYTES)?, speaking: Mutex::new(()) })
    }

    /// Sends one message to the supervisor.
    pub(crate) fn send(&self, message: &FromWorker) -> Result<(), ControlError> {
        let bytes = message.encode()?;
        let _guard = self.speaking.lock().unwrap_or_else(PoisonError::into_inner);
        self.channel.send(&bytes, &[])
    }

    /// Waits for the next order, and the descriptor that came with it.
    pub(crate) fn receive(&self) -> Result<(ToWorker, Option<OwnedFd>), ControlError> {
        decode(self.channel.listen()?)
    }

    /// Waits at most `timeout` for the next order.
    pub(crate) fn receive_within(&self, timeout: Duration) -> Result<(ToWorker, Option<OwnedFd>), ControlError> {
        decode(self.channel.receive(timeout)?)
    }

    /// Closes the connection.
    pub(crate) fn close(&self) {
        self.channel.close();
    }
}

fn decode(mut message: ControlMessage) -> Result<(ToWorker, Option<OwnedFd>), ControlError> {
    Ok((ToWorker::decode(&message.bytes)?, message.fds.pop()))
}

/// Returns the answer to an order that cannot be carried out.
pub(crate) fn failed(why: impl std::fmt::Display) -> FromWorker {
    FromWorker::Failed { text: why.to_string() }
}
