//! A server for tests: `katydid serve` on a unix socket and on loopback TCP, stopped when its value is dropped.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::certs::{Certs, CertsError};
use crate::deadline::watched_processes::{ProcessRole, WatchedChild};
use crate::deadline::{Deadline, PatientStream};
use crate::gate::lasting_port;
use crate::paths::Paths;
use crate::watch::{self, NeverCame, WAIT_TIMEOUT};

/// Interval between two checks of a server.
const SERVER_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It could not be started or reached.
    #[error("katydid serve: {what}: {source}")]
    System {
        /// Operation that failed, in the infinitive.
        what: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// It ended, or did not answer and made no progress.
    #[error("katydid serve does not answer; it said:\n{log}--- processes\n{stacks}")]
    Silent {
        /// Text that the server wrote to standard error.
        log: String,
        /// What it was doing.
        stacks: String,
    },
    /// There are no certificates for it.
    #[error(transparent)]
    Certs(#[from] CertsError),
    /// The admin API's answer is not JSON.
    #[error("the admin API answered {request} with: {answer}")]
    Nonsense {
        /// Path of the request.
        request: String,
        /// Answer that the server gave.
        answer: String,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> ServerError {
    move |source| ServerError::System { what, source }
}

/// A running `katydid serve`, stopped when this is dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    _known: WatchedChild,
    folder: Arc<TempDir>,
    tcp: String,
    /// The TLS address, if there is one, with the certificates of a program that it accepts.
    tls: Option<String>,
}

impl Server {
    /// Flag among further arguments: programs that connect over TCP see no processors as OpenCL devices.
    pub const STRICT: &'static str = "strict";
    /// Another such flag: `auto` may fall back to softcuda if no GPU is usable.
    pub const FALLS_BACK: &'static str = "falls back";

    /// Starts a server whose workers open `driver` (`auto`, `soft` or a path), and waits until it answers.
    ///
    /// # Errors
    ///
    /// See [`ServerError`].
    pub fn start(paths: &Paths, driver: &str, further: &[&str]) -> Result<Self, ServerError> {
        Self::start_with(paths, driver, further, &[])
    }

    /// Starts a server with a third address, behind TLS, with certificates of its own authority. `variables` are added to its
    /// environment, which its workers inherit.
    ///
    /// # Errors
    ///
    /// See [`ServerError`].
    pub fn start_tls(paths: &Paths, driver: &str, variables: &[(&str, OsString)]) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new().prefix("katydid-test-").tempdir().map_err(system("make a folder"))?;
        let certs = Certs::make(paths, folder.path())?;
        let listen = ["--listen", "tls://127.0.0.1:0", "--certs", &certs.server().display().to_string()];
        let mut server = Self::start_in(folder, paths, driver, &listen, variables)?;
        let view = server.admin("/v1/server")?;
        let nonsense = || ServerError::Nonsense { request: "/v1/server".to_owned(), answer: view.to_string() };
        let tls = address_of(&view, "tls://").ok_or_else(nonsense)?;
        server.tls = Some(format!("{tls}?certs={}", certs.client().display()));
        Ok(server)
    }

    /// Starts a server as [`Server::start`] does, with additional variables, which its workers inherit.
    ///
    /// # Errors
    ///
    /// See [`ServerError`].
    pub fn start_with(
        paths: &Paths,
        driver: &str,
        further: &[&str],
        variables: &[(&str, OsString)],
    ) -> Result<Self, ServerError> {
        let folder = tempfile::Builder::new().prefix("katydid-test-").tempdir().map_err(system("make a folder"))?;
        Self::start_in(folder, paths, driver, further, variables)
    }

    fn start_in(
        folder: TempDir,
        paths: &Paths,
        driver: &str,
        further: &[&str],
        variables: &[(&str, OsString)],
    ) -> Result<Self, ServerError> {
        // The port must also be free after the server's end, for a successor.
        let tcp = format!("tcp://127.0.0.1:{}", lasting_port());
        Self::start_at((Arc::new(folder), &tcp), paths, driver, further, variables)
    }

    /// Starts another server at the addresses of this one, which must have ended.
    ///
    /// # Errors
    ///
    /// See [`ServerError`].
    pub fn successor(
        &self,
        paths: &Paths,
        driver: &str,
        further: &[&str],
        variables: &[(&str, OsString)],
    ) -> Result<Self, ServerError> {
        Self::start_at((Arc::clone(&self.folder), &self.tcp), paths, driver, further, variables)
    }

    fn start_at(
        (folder, tcp): (Arc<TempDir>, &str),
        paths: &Paths,
        driver: &str,
        further: &[&str],
        variables: &[(&str, OsString)],
    ) -> Result<Self, ServerError> {
        let log = fs::File::create(folder.path().join("log")).map_err(system("make a log"))?;
        let mut command = Command::new(paths.katydid());
        command.args(["serve", "--listen", &unix_address(folder.path()), "--listen", tcp]);
        command
            .arg("--admin")
            .arg(admin_socket(folder.path()))
            .args(["--driver", driver])
            .args(further.iter().filter(|it| ![Self::STRICT, Self::FALLS_BACK].contains(it)));
        if !further.contains(&Self::STRICT) {
            command.arg("--allow-cpu-opencl");
        }
        // softcuda would otherwise stand in for a GPU whose driver is unusable.
        if driver == "auto" && !further.contains(&Self::FALLS_BACK) {
            command.arg("--require-gpu");
        }
        // A module cache of its own, unlike other servers of this user; a successor finds its contents.
        command.arg("--module-cache").arg(images(folder.path()));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().map_err(system("start"))?;
        let known = WatchedChild::remember(child.id(), ProcessRole::Server);
        let mut server = Self { child, _known: known, folder, tcp: String::new(), tls: None };
        server.tcp = server.wait_until_it_answers()?;
        Ok(server)
    }

    fn wait_until_it_answers(&mut self) -> Result<String, ServerError> {
        let mut deadline = Deadline::of_process(self.pid(), WAIT_TIMEOUT);
        loop {
            if let Ok(view) = self.admin("/v1/server")
                && let Some(tcp) = address_of(&view, "tcp://")
            {
                return Ok(tcp);
            }
            if deadline.is_over() || self.child.try_wait().map_err(system("wait"))?.is_some() {
                return Err(ServerError::Silent { log: self.log(), stacks: deadline.stacks() });
            }
            deadline.pause(SERVER_POLL_INTERVAL);
        }
    }

    /// Returns the address for shared memory.
    pub fn unix(&self) -> String {
        unix_address(self.folder.path())
    }

    /// Returns the address on loopback.
    pub fn tcp(&self) -> &str {
        &self.tcp
    }

    /// Returns the address behind TLS, with accepted certificates, if there is one.
    pub fn tls(&self) -> Option<&str> {
        self.tls.as_deref()
    }

    /// Returns the process id of the server.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the folder of module images that programs have sent.
    pub fn images(&self) -> PathBuf {
        images(self.folder.path())
    }

    /// Returns the path of the admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        admin_socket(self.folder.path())
    }

    /// Returns its standard error so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Returns the admin API's answer to `GET path`.
    ///
    /// # Errors
    ///
    /// [`ServerError::System`] if no process listens, [`ServerError::Nonsense`] for anything but JSON.
    pub fn admin(&self, path: &str) -> Result<Value, ServerError> {
        ask(&self.admin_socket(), "GET", path)
    }

    /// Returns its present sessions.
    ///
    /// # Errors
    ///
    /// As [`Server::admin`].
    pub fn sessions(&self) -> Result<Vec<Value>, ServerError> {
        let view = self.admin("/v1/sessions")?;
        let sessions = view.get("sessions").and_then(Value::as_array).cloned();
        sessions.ok_or_else(|| ServerError::Nonsense { request: "/v1/sessions".to_owned(), answer: view.to_string() })
    }

    /// Stops it as an operator does, and returns whether it ended by itself. If not, standard error shows what it was doing.
    ///
    /// # Errors
    ///
    /// [`ServerError::System`] if it cannot be waited for.
    pub fn stop(&mut self) -> Result<bool, ServerError> {
        self.signal(Signal::TERM);
        let mut deadline = Deadline::of_process(self.pid(), WAIT_TIMEOUT);
        while !deadline.is_over() {
            if self.child.try_wait().map_err(system("wait"))?.is_some() {
                return Ok(true);
            }
            deadline.pause(SERVER_POLL_INTERVAL);
        }
        eprintln!("katydid serve does not end; its processes:\n{}", deadline.stacks());
        Ok(false)
    }

    /// Waits until it has `count` sessions, and returns their workers' process ids, oldest session first.
    ///
    /// # Errors
    ///
    /// [`NeverCame`] after [`WAIT_TIMEOUT`].
    pub fn workers_of(&self, count: usize) -> Result<Vec<u32>, NeverCame> {
        let mut workers = Vec::new();
        watch::until(&format!("a server with {count} sessions"), || {
            let pids = self.sessions().map(|sessions| sessions.iter().filter_map(worker_pid).collect::<Vec<u32>>());
            workers = pids.unwrap_or_default();
            workers.len() == count && self.sessions().is_ok_and(|sessions| sessions.len() == count)
        })?;
        Ok(workers)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // A server that is gone needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) && !matches!(self.stop(), Ok(true)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Returns the answer of one of Katydid's HTTP/JSON sockets to a request without a body.
///
/// # Errors
///
/// [`ServerError::System`] if no process listens, [`ServerError::Nonsense`] for anything but JSON.
pub fn ask(socket: &Path, method: &str, path: &str) -> Result<Value, ServerError> {
    let connection = UnixStream::connect(socket).map_err(system("reach the socket"))?;
    let mut connection = PatientStream::new(connection, WAIT_TIMEOUT).map_err(system("set a time limit"))?;
    let request = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    connection.write_all(request.as_bytes()).map_err(system("ask the socket"))?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).map_err(system("hear the socket"))?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(|_| ServerError::Nonsense { request: path.to_owned(), answer })
}

fn unix_address(folder: &Path) -> String {
    format!("unix:{}", folder.join("katydid.sock").display())
}

fn admin_socket(folder: &Path) -> PathBuf {
    folder.join("admin.sock")
}

fn images(folder: &Path) -> PathBuf {
    folder.join("images")
}

fn worker_pid(session: &Value) -> Option<u32> {
    u32::try_from(session.get("worker_pid")?.as_u64()?).ok()
}

fn address_of(view: &Value, form: &str) -> Option<String> {
    let listen = view.get("listen")?.as_array()?;
    listen.iter().filter_map(Value::as_str).find(|address| address.starts_with(form)).map(str::to_owned)
}
