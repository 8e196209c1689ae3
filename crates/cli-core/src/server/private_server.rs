//! A private server: inside this process, on a socket in a private folder, for one program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use katydid_job::supervisor::registry::ServerRegistration;
use katydid_scratch::Scratch;
use katydid_server::{Server, ServerConfig, Verbosity, WorkersView};
use katydid_transport::Address;

use crate::output::failure::Failure;
use crate::server::isolation::confine_to_user;
use crate::server::mps::Mps;
use crate::server::start;

/// Variables that choose among devices; the only program of a private server applies them itself.
const DEVICE_CHOICE_VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];
/// How long the workers of a private server wait for a hello: its only program is trusted, and may be on a busy machine.
const PRIVATE_HELLO_TIMEOUT: Duration = Duration::from_secs(30);

/// Names of its sockets in its folder.
const SERVER_SOCKET: &str = "sock";
const ADMIN_SOCKET: &str = "admin";

/// A server that lives as long as this value.
#[derive(Debug)]
pub struct PrivateServer {
    server: Server,
    /// Note by which `katydid ps` finds it; without one it is not listed.
    _registered: Option<ServerRegistration>,
    /// Mode 0700; removed after the server, whose sockets are in it.
    _folder: Scratch,
}

impl PrivateServer {
    /// Starts a server on a unix socket; its first worker warms up while the caller goes on. If a library is named, or a GPU
    /// required, this waits for the worker, and reports a failure before a program starts.
    pub fn start(driver: &str, requires_gpu: bool) -> Result<Self, Failure> {
        Self::start_as(driver, &[], requires_gpu, |config| config.needs_driver = start::names_library(driver))
    }

    /// Starts a server that listens on further addresses too, with `warm` workers ready if that is given.
    pub fn start_with(driver: &str, further: &[Address], warm: Option<usize>) -> Result<Self, Failure> {
        Self::start_as(driver, further, false, |config| config.warm = warm.unwrap_or(config.warm))
    }

    /// Starts a server whose workers keep no journal, for measurements.
    pub fn start_without_journal(driver: &str) -> Result<Self, Failure> {
        Self::start_as(driver, &[], false, |config| config.worker.arguments.push("--no-journal".into()))
    }

    /// Starts a server whose workers find `service`, which must live longer.
    pub fn start_with_mps(driver: &str, service: &Mps) -> Result<Self, Failure> {
        Self::start_as(driver, &[], false, |config| config.worker.set.extend(service.variables()))
    }

    /// The admin socket of the private server that listens on `socket`; `None` if that is not a private server's name.
    pub fn admin_beside(socket: &Path) -> Option<PathBuf> {
        (socket.file_name()? == SERVER_SOCKET).then(|| socket.with_file_name(ADMIN_SOCKET))
    }

    fn start_as(
        driver: &str,
        further: &[Address],
        requires_gpu: bool,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Result<Self, Failure> {
        let folder = Scratch::for_sockets("private").map_err(|error| {
            Failure::server(format!("cannot make a private folder: {error}; set TMPDIR to one with free space"))
        })?;
        let listen =
            [Address::Unix(folder.path().join(SERVER_SOCKET))].into_iter().chain(further.iter().cloned()).collect();
        let mut config = start::config(listen, folder.path().join(ADMIN_SOCKET), driver)?;
        // The program receives the error and prints it.
        config.verbosity = Verbosity::Private;
        config.hello_timeout = PRIVATE_HELLO_TIMEOUT;
        // The program's side applies its own settings, so they must not be applied twice.
        config.worker.unset.extend(DEVICE_CHOICE_VARIABLES.map(OsString::from));
        confine_to_user(&mut config.worker);
        change(&mut config);
        let server = start::start(config, requires_gpu, &|| false)?;
        let registered = ServerRegistration::new(server.admin()).ok();
        Ok(Self { server, _registered: registered, _folder: folder })
    }

    /// Address of the server's unix socket.
    pub fn address(&self) -> &Address {
        &self.addresses()[0]
    }

    /// All addresses: the unix socket, then the further ones.
    pub fn addresses(&self) -> &[Address] {
        self.server.addresses()
    }

    /// Workers that wait for a program, or start.
    pub fn workers(&self) -> WorkersView {
        self.server.workers()
    }

    /// Number of sessions that have a worker.
    pub fn sessions(&self) -> usize {
        self.server.sessions()
    }

    /// Process ids of the sessions' workers.
    pub fn worker_pids(&self) -> Vec<u32> {
        self.server.worker_pids()
    }

    /// Ends the session, if one still runs, and returns when everything is cleaned up.
    pub fn stop(self) {
        drop(self);
    }
}
