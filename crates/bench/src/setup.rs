//! Ways from the measuring program to the driver, and the setup of a run on one.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use katydid_transport::Address;
use serde::Serialize;

use katydid_cli_core::layout::{self, Layout};
use katydid_cli_core::output::failure::Failure;
use katydid_cli_core::server::address;
use katydid_cli_core::server::private_server::PrivateServer;

/// The variable that selects shared memory or the socket.
const LINK_VARIABLE: &str = "KATYDID_LINK";
/// Time within which a worker must become ready.
const WORKER_READY_TIMEOUT: Duration = Duration::from_secs(120);

/// A way from the measuring program to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// The driver library, without Katydid.
    Native,
    /// Katydid over shared memory.
    Shm,
    /// Katydid over a unix socket.
    Unix,
    /// Katydid over TCP on loopback.
    Tcp,
    /// Katydid over TCP on loopback, behind TLS.
    Tls,
    /// Katydid over vsock of this machine.
    Vsock,
    /// Katydid over shared memory, with concurrent kernels of several sessions.
    Mps,
}

impl Way {
    /// Name of the way in tables.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Shm => "katydid shm",
            Self::Unix => "katydid unix",
            Self::Tcp => "katydid tcp",
            Self::Tls => "katydid tls",
            Self::Vsock => "katydid vsock",
            Self::Mps => "katydid mps",
        }
    }
}

/// A way, with the setup of its measuring program.
pub(super) struct Setup {
    pub(super) way: Way,
    /// The loader's search path; `None` unsets it.
    pub(super) search: Option<OsString>,
    /// The server, except for the native way.
    pub(super) server: Option<Address>,
    /// Whether frames use the socket even where shared memory is possible.
    pub(super) stream: bool,
}

/// Returns the loader's search path for the same driver that the workers opened.
pub(super) fn native_search(layout: &Layout, driver: &Path) -> Option<OsString> {
    let search_path = layout.driver_search();
    match driver.parent().filter(|folder| folder.is_absolute()) {
        Some(folder) => Some(layout::first(folder, search_path.as_deref())),
        None => search_path,
    }
}

/// Waits for a ready worker. Without one, a program would measure the start of the driver.
pub(super) fn wait_until_warm(server: &PrivateServer) -> Result<(), Failure> {
    let deadline = Instant::now() + WORKER_READY_TIMEOUT;
    while server.workers().ready == 0 {
        if let Some(reason) = server.workers().last_failure {
            return Err(Failure::server(format!("cannot measure: no worker starts: {reason}")));
        }
        if Instant::now() > deadline {
            return Err(Failure::server("cannot measure: no worker became ready: see `katydid doctor`"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Returns the command of the measuring program on a way.
pub(super) fn prepared(setup: &Setup) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg("bench-body");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    match &setup.search {
        Some(search) => command.env(layout::SEARCH_PATH_VARIABLE, search),
        None => command.env_remove(layout::SEARCH_PATH_VARIABLE),
    };
    if let Some(server) = &setup.server {
        command.env(address::SERVER_VARIABLE, server.to_string());
        command.env(LINK_VARIABLE, if setup.stream { "stream" } else { "shm" });
    }
    command
}
