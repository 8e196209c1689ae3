//! The connection of a keeper to its supervisor, the arguments of a keeper, and why it fails.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use katydid_transport::{ControlChannel, ControlError};
use katydid_wire::companion::{FromWorker, ToWorker};

/// How long the supervisor may take to answer.
const KEEPER_ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// The command line of a keeper.
#[derive(Debug)]
pub struct KeeperOptions {
    /// The worker's end of a socket pair to the server.
    pub control: OwnedFd,
    /// For a keeper that saves: the process that the server knows as the session's worker.
    pub saves: Option<u32>,
    /// The driver that workers open, as the command line spells it.
    pub driver: String,
    /// The `katydid` executable that runs hidden commands.
    pub katydid: PathBuf,
    /// Folder of Katydid's own CRIU.
    pub private_criu: PathBuf,
}

/// Why a keeper cannot carry out an order, as text for the user.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct OrderError(pub(super) String);

impl OrderError {
    pub(super) fn new(text: impl std::fmt::Display) -> Self {
        Self(text.to_string())
    }
}

/// Describes an error of the system during the step `doing`.
pub(super) fn system(doing: &'static str) -> impl Fn(std::io::Error) -> OrderError {
    move |source| OrderError(format!("cannot {doing}: {source}"))
}

/// The connection to the supervisor.
pub(super) struct SupervisorConnection {
    channel: ControlChannel,
}

impl SupervisorConnection {
    pub(super) fn over(channel: ControlChannel) -> Self {
        Self { channel }
    }

    /// Waits for the next order.
    pub(super) fn receive(&self) -> Result<ToWorker, ControlError> {
        Ok(ToWorker::decode(&self.channel.listen()?.bytes)?)
    }

    pub(super) fn send(&self, message: &FromWorker) -> Result<(), ControlError> {
        self.channel.send(&message.encode()?, &[])
    }

    /// Asks about the image.
    pub(super) fn ask(&self, question: &FromWorker) -> Result<ToWorker, OrderError> {
        self.send(question).map_err(OrderError::new)?;
        let answer = self.channel.receive(KEEPER_ANSWER_TIMEOUT).map_err(OrderError::new)?;
        match ToWorker::decode(&answer.bytes).map_err(OrderError::new)? {
            ToWorker::StoreFailed { text } => Err(OrderError(text)),
            answer => Ok(answer),
        }
    }
}
