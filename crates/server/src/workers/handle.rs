//! The handle by which the server's threads name one worker and reach it, and the session that it serves.
//!
//! The assignment inside decides, under one lock, whether a program met a living worker or a dead one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use katydid_transport::AcceptError;
use rustix::net::{SendFlags, Shutdown, send, shutdown};

use crate::workers::spawn::Worker;

/// Number of a session, unique while the server runs; counts from 1.
pub(crate) type SessionId = u64;

/// Connections that may wait for a worker to accept them: as many as a program may add to a link for bulk. Each keeps descriptors
/// in flight, which the system limits per user.
const MAX_PENDING_CONNECTIONS: usize = 16;

/// The purpose of a worker that is to be started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct WorkerNeeds {
    /// The pool's epoch when it was started.
    pub(crate) epoch: u64,
    /// Whether it loads the drivers of OpenCL, too, before it is ready.
    pub(crate) loads_opencl: bool,
}

/// Names a supervised worker.
#[derive(Debug, Clone)]
pub(crate) struct WorkerHandle {
    pub(crate) pid: u32,
    pub(crate) control: Arc<OwnedFd>,
    pub(crate) assignment: Arc<Mutex<Assignment>>,
    /// The need that it was started for.
    pub(crate) need: WorkerNeeds,
    /// Set once its driver has started.
    pub(crate) driver: Arc<OnceLock<DriverFound>>,
    /// Connections passed to it that it has not accepted yet.
    pub(crate) pending_connections: Arc<AtomicUsize>,
}

/// The driver that a worker has opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverFound {
    /// The name that the driver reports.
    pub(crate) name: String,
    /// Why it is softcuda although a GPU's driver was tried.
    pub(crate) gpu_error: Option<String>,
}

/// What a worker is assigned to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Assignment {
    Unassigned,
    Session(SessionId),
    /// It may serve no session any more.
    Dismissed,
    Dead,
}

impl WorkerHandle {
    pub(crate) fn new(worker: &Worker, need: WorkerNeeds) -> Self {
        let assignment = Arc::new(Mutex::new(Assignment::Unassigned));
        let control = Arc::clone(&worker.control);
        Self {
            pid: worker.pid(),
            control,
            assignment,
            need,
            driver: Arc::default(),
            pending_connections: Arc::default(),
        }
    }

    /// Creates the handle of a worker that is no process's child, and serves a session.
    #[cfg(test)]
    pub(crate) fn of_session(control: OwnedFd, id: SessionId) -> Self {
        let assignment = Arc::new(Mutex::new(Assignment::Session(id)));
        let control = Arc::new(control);
        Self {
            pid: 1,
            control,
            assignment,
            need: WorkerNeeds::default(),
            driver: Arc::default(),
            pending_connections: Arc::default(),
        }
    }

    /// Returns the worker's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the need that the pool started it for.
    pub(crate) fn need(&self) -> WorkerNeeds {
        self.need
    }

    /// Returns its driver; none before that has started.
    pub(crate) fn driver(&self) -> Option<&DriverFound> {
        self.driver.get()
    }

    /// Ends a worker that serves no program.
    pub(crate) fn dismiss(&self) {
        let mut assignment = self.lock();
        if *assignment == Assignment::Unassigned {
            *assignment = Assignment::Dismissed;
            self.hang_up();
        }
    }

    /// Closes the control socket. The worker sees that and exits; otherwise its supervisor ends it.
    pub(crate) fn hang_up(&self) {
        let _ = shutdown(&self.control, Shutdown::Both);
    }

    /// Assigns the worker to a session: `hand_over` sends the program on the control socket and must not wait.
    ///
    /// # Errors
    ///
    /// The worker is dead, or unusable and about to end. The session has no worker then.
    pub(crate) fn assign(
        &self,
        id: SessionId,
        hand_over: impl FnOnce(BorrowedFd<'_>) -> Result<(), AcceptError>,
    ) -> Result<(), AssignError> {
        let mut assignment = self.lock();
        if *assignment != Assignment::Unassigned {
            return Err(AssignError::Dead);
        }
        hand_over(self.control.as_fd()).map_err(|error| {
            self.hang_up();
            AssignError::HandOver(error)
        })?;
        *assignment = Assignment::Session(id);
        Ok(())
    }

    /// Passes a connection of session `id` to the worker: `hand_over` sends it on the control socket and must not wait.
    ///
    /// # Errors
    ///
    /// The worker is dead, does not serve that session, cannot be reached, or has not accepted earlier connections.
    pub(crate) fn pass_on(
        &self,
        id: SessionId,
        hand_over: impl FnOnce(BorrowedFd<'_>) -> Result<(), AcceptError>,
    ) -> Result<(), AssignError> {
        let assignment = self.lock();
        if *assignment != Assignment::Session(id) {
            return Err(AssignError::Dead);
        }
        let one_more =
            |pending_connections| (pending_connections < MAX_PENDING_CONNECTIONS).then_some(pending_connections + 1);
        self.pending_connections.fetch_update(Relaxed, Relaxed, one_more).map_err(|_| AssignError::Busy)?;
        hand_over(self.control.as_fd()).map_err(|error| {
            self.has_accepted();
            match error {
                AcceptError::System { source, .. } if source.kind() == io::ErrorKind::WouldBlock => AssignError::Busy,
                error => AssignError::HandOver(error),
            }
        })
    }

    /// Notes that the worker has accepted a connection, or will not. Surplus reports do not raise the number that may wait.
    pub(crate) fn has_accepted(&self) {
        let _ = self
            .pending_connections
            .fetch_update(Relaxed, Relaxed, |pending_connections: usize| pending_connections.checked_sub(1));
    }

    /// Sends a line to the worker of session `id`. Returns whether it was sent.
    pub(crate) fn send_line(&self, id: SessionId, line: &str) -> bool {
        let assignment = self.lock();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        *assignment == Assignment::Session(id) && send(&self.control, line.as_bytes(), flags).is_ok()
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        match *self.lock() {
            Assignment::Session(id) => Some(id),
            Assignment::Unassigned | Assignment::Dismissed | Assignment::Dead => None,
        }
    }

    /// Notes that the worker is dead. Returns its last assignment.
    pub(crate) fn take_assignment(&self) -> Assignment {
        std::mem::replace(&mut *self.lock(), Assignment::Dead)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Assignment> {
        self.assignment.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a worker did not accept a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AssignError {
    /// The worker died before the program came.
    #[error("the worker has ended")]
    Dead,
    /// The program could not be sent to the worker.
    #[error("the worker could not be reached: {0}")]
    HandOver(AcceptError),
    /// Too many connections wait to be accepted.
    #[error("the worker has {MAX_PENDING_CONNECTIONS} connections that it has not accepted yet; try again")]
    Busy,
}
