//! What the admin API says, as JSON: the types both the server and `katydid ps` use.
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
    /// Addresses it listens on, as programs name them.
    pub listen: Vec<String>,
    /// The driver that its workers open.
    pub driver: String,
    /// The driver a worker reported last; none before the first is warm.
    pub driver_found: Option<String>,
    /// Workers that serve no program yet.
    pub workers: WorkersView,
    /// Number of sessions at present.
    pub sessions: usize,
    /// Places that are reserved for programs to come, which count as sessions; 0 from a server that does not tell it.
    #[serde(default)]
    pub reserved: usize,
    /// Sessions it allows at a time.
    pub max_sessions: usize,
    /// Sessions it allows one peer over a network at a time; none from a server that does not tell it.
    #[serde(default)]
    pub peer_sessions: Option<usize>,
    /// Device memory it allows one session, in bytes; none is no limit.
    pub session_memory: Option<u64>,
}

/// Workers that wait for a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersView {
    /// Ready for a program.
    pub ready: usize,
    /// Number of workers that are starting their driver.
    pub warming: usize,
    /// Why the last worker that died before it was ready did so; none after a success.
    pub last_failure: Option<String>,
}

/// Body of the reply to `GET /v1/sessions` on the admin socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsView {
    /// Sessions at present, oldest first.
    pub sessions: Vec<SessionView>,
    /// Places that are reserved for programs to come, oldest first; none from a server that does not tell them.
    #[serde(default)]
    pub reserved: Vec<ReservedView>,
}

/// A slot that is reserved for the first session of a program, as long as that has not begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedView {
    /// That of the session to come.
    pub id: u64,
    /// As given by `--name`, else the program's name.
    pub name: String,
    /// Process of the command that has it reserved; on its own machine when that comes from elsewhere.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Where the command connects from: `unix` or an address and port.
    pub peer: String,
    /// Since when it is reserved.
    pub started: u64,
}

/// A session with its program, as `katydid ps` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Counts from 1 since the server started.
    pub id: u64,
    /// Name from `--name`; the program's file name if none was given.
    pub name: String,
    /// Process of the program; on its own machine when the link is from elsewhere.
    pub pid: u32,
    /// Name of the program.
    pub program: String,
    /// Where it connects from: `unix` or an address and port.
    pub peer: String,
    /// Transport of the frames: `shm` or `stream`.
    pub link: String,
    /// When it was handed to its worker.
    pub started: u64,
    /// Process of its worker.
    pub worker_pid: u32,
    /// The worker's driver, such as `NVIDIA 580.159.04` or `softcuda`; none from a server that does not tell it.
    #[serde(default)]
    pub driver: Option<String>,
    /// Device memory it holds, in bytes; none until the worker reports.
    pub device_memory: Option<u64>,
    /// CUDA calls that reached the worker; none until the worker reports.
    pub calls: Option<u64>,
}
