//! The supervisor's end of a connection to a keeper (`crate::keeper`), which saves a session's worker as a process, or restores
//! one.

use std::time::Duration;

use katydid_image::{Session, WorkerImage, Writer};
use katydid_transport::{Address, keeper};
use katydid_wire::companion::{FromWorker, ToWorker};
use katydid_wire::key::SessionKey;

use crate::supervisor::companion::{Catalogue, Companion, CompanionError, Progress, Questions};

/// How long a server may take to start a keeper.
const KEEPER_CONNECT_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a keeper may take for an order, besides questions about the image: it ends a driver or CRIU that hangs before that.
const KEEPER_ORDER_TIMEOUT: Duration = Duration::from_secs(600);

impl Companion {
    /// Connects to a keeper of the server, which saves the worker of the session `key`, or, without a key, restores a worker. Its
    /// orders are those below.
    ///
    /// # Errors
    ///
    /// [`CompanionError::Connect`]: the server has no keepers, or does not have that session.
    pub(crate) fn keeper(address: &Address, key: SessionKey, session: &str) -> Result<Self, CompanionError> {
        let (channel, ready) = keeper(address, key, KEEPER_CONNECT_TIMEOUT)?;
        Ok(Self::over(channel, &ready, address, session))
    }

    /// Has the keeper save the worker, which stays stopped as long as this connection lasts.
    ///
    /// # Errors
    ///
    /// The keeper's refusal, or a failed connection; the worker goes on.
    pub(crate) fn keep(&mut self, writer: &Writer) -> Result<WorkerImage, CompanionError> {
        match self.order(&ToWorker::SaveProcess {}, None, KEEPER_ORDER_TIMEOUT, Questions::Write(writer), None)? {
            FromWorker::ProcessSaved { part } => serde_json::from_slice(&part)
                .map_err(|error| CompanionError::Breach { session: self.session.clone(), what: error.to_string() }),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the keeper let the worker go on.
    ///
    /// # Errors
    ///
    /// The keeper's refusal, or a failed connection.
    pub(crate) fn free(&mut self) -> Result<(), CompanionError> {
        match self.order(&ToWorker::ResumeProcess {}, None, KEEPER_ORDER_TIMEOUT, Questions::Refused, None)? {
            FromWorker::ProcessResumed {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the keeper end the worker.
    ///
    /// # Errors
    ///
    /// The keeper's refusal, or a failed connection.
    pub(crate) fn end(&mut self) -> Result<(), CompanionError> {
        match self.order(&ToWorker::End {}, None, KEEPER_ORDER_TIMEOUT, Questions::Refused, None)? {
            FromWorker::Ended {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Has the keeper restore the worker of a session.
    ///
    /// # Errors
    ///
    /// The keeper's refusal, or a failed connection; nothing of the worker remains.
    pub(crate) fn revive(
        &mut self,
        catalogue: &Catalogue<'_>,
        session: &Session,
        worker: &WorkerImage,
        progress: &Progress,
    ) -> Result<(), CompanionError> {
        let part = serde_json::to_vec(worker)
            .map_err(|error| CompanionError::Breach { session: self.session.clone(), what: error.to_string() })?;
        let devices: Vec<&str> = session.devices.iter().map(|device| device.uuid.as_str()).collect();
        let order = ToWorker::Revive { part, devices: devices.join("\n") };
        match self.order(&order, None, KEEPER_ORDER_TIMEOUT, Questions::Read(catalogue), Some(progress))? {
            FromWorker::Revived {} => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }
}
