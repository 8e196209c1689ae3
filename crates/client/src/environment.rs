//! Settings of a session from the environment, and the reason where there is no session.

use katydid_arena::ArenaError;
use katydid_cuda_sys::CUresult;
use katydid_driver_rules::state::settings;
use katydid_transport::{Address, AddressError, ConnectError};

/// Why this program has no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The environment names no server.
    #[error(
        "no server is known: start the program with `katydid run`, or set KATYDID_SERVER to unix:/path, tcp://host:port or \
         tls://host:port"
    )]
    NoServer,
    /// The configured address of the server cannot be parsed.
    #[error("KATYDID_SERVER: {0}")]
    Address(#[from] AddressError),
    /// A setting of the session cannot be read.
    #[error("{0}")]
    Setting(String),
    /// The address ranges for device memory are taken.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The server has no GPU, and the program requires one.
    #[error(
        "{address}: its driver is softcuda, and KATYDID_REQUIRE_GPU=1 (--require-gpu) wants a GPU's; use a server that has one"
    )]
    NoGpu {
        /// Address of the server, from `KATYDID_SERVER` or the default.
        address: Address,
    },
    /// The server could not be reached, or refused.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

impl OpenError {
    /// Returns the code for `cuInit`: without a server there is no device; with a failing server the device is not ready.
    pub fn code(&self) -> CUresult {
        match self {
            Self::NoServer | Self::NoGpu { .. } => CUresult::ERROR_NO_DEVICE,
            _ => CUresult::ERROR_SYSTEM_NOT_READY,
        }
    }
}

/// Returns the file name of the running program, truncated for the handshake.
pub fn program_name() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.chars().take(64).collect()
}

/// Returns an environment variable that is set and not empty.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the value of one of Katydid's own variables.
///
/// # Errors
///
/// [`OpenError::Setting`]: the value is invalid.
pub(crate) fn setting(name: &str) -> Result<Option<String>, OpenError> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let problem = value.as_deref().and_then(|value| settings::problem_of(name, value));
    problem.map_or(Ok(value.and_then(|value| value.into_string().ok())), |problem| Err(OpenError::Setting(problem)))
}
