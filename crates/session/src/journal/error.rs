//! Why the state of a session cannot be saved, or rebuilt.

use std::time::Duration;

use katydid_session_core::{ReplayError, StateError};

use crate::calls::fault::{Fault, SessionError};

/// How long a rebuild waits for device memory. A process that ends returns its memory a moment later, and so does the
/// session's previous worker.
pub(super) const REPLAY_MEMORY_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the state of a session cannot be saved. The session is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The session keeps no journal, so nothing can be saved.
    #[error("this worker keeps no journal, to measure what one costs: its sessions cannot be saved")]
    Off,
    /// A kernel failed in a context, which cannot be used any more.
    #[error("context {context} of the program is in error {code}: what it held is lost, so it cannot be saved")]
    Faulted {
        /// The program's wire id of the context.
        context: u32,
        /// `CUresult` of the context's error.
        code: u32,
    },
    /// A graph that can still be launched names an event that is gone.
    #[error(
        "the executable graph {exec} of the program uses the event {event}, which was destroyed; destroy the graph too"
    )]
    GraphEvent {
        /// Number that the program gave the executable graph.
        exec: u32,
        /// The program's wire id of the event.
        event: u32,
    },
    /// The driver does not answer a necessary query.
    #[error("the driver answers {code} when asked about {what}")]
    Driver {
        /// The subject of the query.
        what: &'static str,
        /// The `CUresult` that the driver answered.
        code: u32,
    },
}

/// Why a session could not be rebuilt. The worker cannot be used afterwards; the image is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RebuildError {
    /// The state is damaged, or of another build.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// There are fewer devices than the program has seen.
    #[error("the program uses {had} devices, and there are {have} here: name a server that has as many")]
    Devices {
        /// The number of devices that the program has seen.
        had: usize,
        /// The number of devices of the worker.
        have: usize,
    },
    /// An image is missing.
    #[error("image {number} of a module is missing")]
    Image {
        /// The number of the image in the state, from 0.
        number: u32,
    },
    /// The driver refuses to make an object again.
    #[error(
        "the driver here answers {code} to {message}, which succeeded before: restore with the driver and device that the image was made with"
    )]
    Refused {
        /// The name of the message that was replayed.
        message: &'static str,
        /// `CUresult` that the driver answered.
        code: u32,
    },
    /// The device has less free memory than the session held.
    #[error(
        "the device had no memory for {message} for {} s: other processes use it, or it has less than the one before",
        REPLAY_MEMORY_TIMEOUT.as_secs()
    )]
    NoMemory {
        /// The name of the message that was replayed.
        message: &'static str,
    },
    /// The driver refuses code that another driver accepted.
    #[error(
        "the driver here does not take the code of a module (it answers {code} to {message}); \
         restore with the driver and kind of GPU of the image"
    )]
    Code {
        /// The name of the message that was replayed.
        message: &'static str,
        /// `CUresult` that the driver answered.
        code: u32,
    },
    /// The driver chose another number or address, which device memory may hold.
    #[error(
        "{what} was {saved:#x} and would be {current:#x} now: the program's memory may point there, so the session cannot be restored here"
    )]
    Moved {
        /// What moved: a variable, a texture object, a handle.
        what: String,
        /// The number or address that the program received.
        saved: u64,
        /// The number or address that the driver gives now.
        current: u64,
    },
    /// A function takes other parameters.
    #[error("the function {function} has other parameters here than before")]
    Parameters {
        /// The name of the function.
        function: String,
    },
}

impl From<StateError> for RebuildError {
    fn from(error: StateError) -> Self {
        Self::Replay(error.into())
    }
}

impl From<SessionError> for RebuildError {
    fn from(error: SessionError) -> Self {
        Self::Replay(error.into())
    }
}

impl RebuildError {
    pub(super) fn from_export(fault: Fault) -> Self {
        match fault {
            Fault::Cuda(code) => {
                Self::Refused { message: "exporting again what other programs may open", code: code.0 }
            }
            Fault::Fatal(error) => error.into(),
        }
    }

    pub(super) fn from_fault(fault: Fault) -> Self {
        match fault {
            Fault::Cuda(code) => Self::Refused { message: "a context", code: code.0 },
            Fault::Fatal(error) => error.into(),
        }
    }
}
