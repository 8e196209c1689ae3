//! The JSON types of the admin API, for the server and for `katydid ps`.
//!
//! Fields are only ever added, so that an older `ps` reads a newer server. Times are seconds since 1970.

use serde::{Deserialize, Serialize};

/// Body of the reply to `GET /v1/server` on the admin socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerView {
    /// Version of the `katydid` that serves.
    pub version: String,
    /// Process id of the server.
    pub pid: u32,
    /// Start of the server, in seconds since 1970.
    pub started: u64,
    /// Addresses that it listens on, as programs name them.
    pub listen: Vec<String>,
    /// The driver that its workers open.
    pub driver: String,
    /// The driver a worker reported last; none before the first is warm.
    pub driver_found: Option<String>,
    /// Workers that serve no program yet.
    pub workers: WorkersView,
    /// Number of sessions at present.
    pub sessions: usize,
    /// Slots reserved for programs to come, which count as sessions; 0 from a server that does not report them.
    #[serde(default)]
    pub reserved: usize,
    /// Most sessions at a time.
    pub max_sessions: usize,
    /// Most sessions of one peer over a network at a time; none from a server that does not report it.
    #[serde(default)]
    pub peer_sessions: Option<usize>,
    /// Most device memory of one session, in bytes; none is no limit.
    pub session_memory: Option<u64>,
}

/// Workers that wait for a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersView {
    /// Number of workers that are ready for a program.
    pub ready: usize,
    /// Number of workers that are starting their driver.
    pub warming: usize,
    /// Why the last worker died before it was ready; none after a success.
    pub last_failure: Option<String>,
}

/// Body of the reply to `GET /v1/sessions` on the admin socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsView {
    /// Sessions at present, oldest first.
    pub sessions: Vec<SessionView>,
    /// Slots reserved for programs to come, oldest first; none from a server that does not report them.
    #[serde(default)]
    pub reserved: Vec<ReservedView>,
}

/// A slot reserved for the first session of a program, until that session begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedView {
    /// Number of the session to come.
    pub id: u64,
    /// Name from `--name`; the program's name if none was given.
    pub name: String,
    /// Process id of the command that holds the reservation, on its own machine.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Peer of the command's connection: `unix`, or an address and port.
    pub peer: String,
    /// Start of the reservation, in seconds since 1970.
    pub started: u64,
}

/// A session with its program, as `katydid ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Number of the session, from 1 since the server's start.
    pub id: u64,
    /// Name from `--name`; the program's file name if none was given.
    pub name: String,
    /// Process id of the program, on its own machine.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Peer of the program's connection: `unix`, or an address and port.
    pub peer: String,
    /// Kind of link: `shm` or `stream`.
    pub link: String,
    /// Time of the hand-over to the worker, in seconds since 1970.
    pub started: u64,
    /// Process id of the worker.
    pub worker_pid: u32,
    /// The worker's driver, such as `NVIDIA 580.159.04` or `softcuda`; none from a server that does not report it.
    #[serde(default)]
    pub driver: Option<String>,
    /// Device memory that the session holds, in bytes; none until the worker reports.
    pub device_memory: Option<u64>,
    /// Calls that reached the worker; none until the worker reports.
    pub calls: Option<u64>,
}
