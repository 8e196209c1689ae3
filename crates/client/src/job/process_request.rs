//! Requests to lock, checkpoint, restore or unlock another program by its process id, as `cuCheckpointProcess*` does.
//!
//! The request goes to the supervisor of the process's job. It is found by the environment that the process began with:
//! `KATYDID_JOB` names the job socket, as seen from the process's own root folder. So ids are those that the requesting process
//! sees, whatever namespaces the two are in. A process that may not inspect another one cannot send requests about it. The
//! session's server and its host do not matter.
//!
//! The rule: nothing is sent over a session, so the requesting program needs none, and may name itself.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use katydid_cuda_sys::CUresult;
use katydid_transport::{ControlError, MAX_SOCKET_PATH_BYTES};
use katydid_wire::job::{FromProgram, JOB_PROTOCOL_VERSION, JOB_VARIABLE, ToProgram, ask};

use crate::job::{JOB_THREAD_NAME, is_abandoned, reach};

/// How long the device may take to come to rest: at the first request, and at most. In between the time doubles with each
/// attempt. A program runs between two attempts.
const REST_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));
/// Pause between attempts to reach a supervisor that is busy.
const SUPERVISOR_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Why a request about a process failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No process has this id; ids of threads do not count.
    #[error("there is no process {0}; name a running one")]
    NoProcess(i32),
    /// The process belongs to another user.
    #[error("process {0} belongs to another user: run this as that user or as root")]
    Denied(i32),
    /// The process has no CUDA session.
    #[error("process {0} does not use CUDA")]
    WithoutCuda(i32),
    /// The process has a session that no supervisor controls.
    #[error("process {0} belongs to no job: only programs that `katydid run` has started can be locked")]
    NoJob(i32),
    /// The supervisor of the process has ended.
    #[error("the supervisor of process {0}'s job has ended; start the job again with `katydid run`")]
    SupervisorGone(i32),
    /// The supervisor refuses. The text may be empty where the code says everything.
    #[error("{text}")]
    Refused {
        /// The result of the CUDA call.
        code: CUresult,
        /// Why it is refused; may be empty.
        text: String,
    },
    /// The connection to the supervisor failed.
    #[error("the supervisor of process {process}'s job: {source}")]
    ControlChannel {
        /// The process that the request named.
        process: i32,
        /// The failure of the connection.
        source: ControlError,
    },
    /// The operating system refused.
    #[error("process {process}: {source}")]
    System {
        /// The process that the request named.
        process: i32,
        /// Error that the system returned.
        source: io::Error,
    },
}

impl AskError {
    /// Returns the code for the requesting program.
    pub fn code(&self) -> CUresult {
        match self {
            Self::NoProcess(_) => CUresult::ERROR_INVALID_VALUE,
            Self::Denied(_) => CUresult::ERROR_NOT_PERMITTED,
            Self::WithoutCuda(_) => CUresult::ERROR_NOT_INITIALIZED,
            Self::NoJob(_) => CUresult::ERROR_NOT_SUPPORTED,
            Self::Refused { code, .. } => *code,
            Self::SupervisorGone(_) | Self::ControlChannel { .. } | Self::System { .. } => {
                CUresult::ERROR_OPERATING_SYSTEM
            }
        }
    }
}

/// A process of a job, by its id in the requesting process.
#[derive(Debug)]
pub struct TargetProcess {
    process: i32,
    /// Its id in its own namespace.
    own_id: u32,
    /// Path of the job socket, as the requesting process reaches it.
    socket: PathBuf,
}

impl TargetProcess {
    /// Finds the process `process`.
    ///
    /// # Errors
    ///
    /// [`AskError`] if requests about it are impossible.
    pub fn find(process: i32) -> Result<Self, AskError> {
        let folder = PathBuf::from(format!("/proc/{process}"));
        let own_id = if process > 0 { own_id(&folder, process) } else { None };
        let own_id = own_id.ok_or(AskError::NoProcess(process))?;
        let environment = fs::read(folder.join("environ")).map_err(|error| of_system(process, error))?;
        let Some(job) = value_of(&environment, JOB_VARIABLE) else {
            return Err(if uses_cuda(&folder) { AskError::NoJob(process) } else { AskError::WithoutCuda(process) });
        };
        let within = folder.join("root").join(job.trim_start_matches('/'));
        let fits = within.as_os_str().len() + ".hidden".len() <= MAX_SOCKET_PATH_BYTES;
        Ok(Self { process, own_id, socket: if fits { within } else { job.into() } })
    }

    /// Returns its state: one of `katydid_wire::job::state`.
    ///
    /// # Errors
    ///
    /// [`AskError`].
    pub fn state(&self) -> Result<u32, AskError> {
        self.persist(ask::STATE, Vec::new(), None)
    }

    /// Locks it, within `limit` if there is one.
    ///
    /// # Errors
    ///
    /// [`AskError`]; the process runs then.
    pub fn lock(&self, limit: Option<Duration>) -> Result<u32, AskError> {
        self.persist(ask::LOCK, Vec::new(), limit)
    }

    /// Sends another request of [`ask`]. `gpus` are as in [`FromProgram::Ask`].
    ///
    /// # Errors
    ///
    /// [`AskError`]; the process is unchanged then.
    pub fn order(&self, what: u32, gpus: Vec<u8>) -> Result<u32, AskError> {
        self.persist(what, gpus, None)
    }

    /// Returns the id of the thread that restores its session, as the requesting process sees it.
    ///
    /// # Errors
    ///
    /// [`AskError::WithoutCuda`] when there is none.
    pub fn restore_thread(&self) -> Result<i32, AskError> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process));
        let tasks = tasks.map_err(|error| of_system(self.process, error))?.flatten();
        let is_it = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim_end() == JOB_THREAD_NAME)
        };
        let own_pid = tasks.filter(is_it).find_map(|task| task.file_name().to_str()?.parse().ok());
        own_pid.ok_or(AskError::WithoutCuda(self.process))
    }

    /// Repeats the request until the answer is not "not now", or the time is up.
    fn persist(&self, what: u32, gpus: Vec<u8>, limit: Option<Duration>) -> Result<u32, AskError> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut timeout = REST_TIMEOUTS.0;
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let time = left.map_or(timeout, |left| timeout.min(left));
            let answer = self.ask(what, &gpus, time);
            let is_over = left.is_some_and(|left| left <= time);
            match answer {
                Err(AskError::Refused { code: CUresult::ERROR_NOT_READY, .. }) if !is_over => {
                    thread::sleep(SUPERVISOR_RETRY_INTERVAL)
                }
                other => return other,
            }
            timeout = (timeout * 2).min(REST_TIMEOUTS.1);
        }
    }

    /// Sends one request. The socket is hidden at times, while the job's processes are being dumped.
    fn ask(&self, what: u32, gpus: &[u8], timeout: Duration) -> Result<u32, AskError> {
        let broken = |source| AskError::ControlChannel { process: self.process, source };
        let channel = match reach(&self.socket) {
            Ok(channel) => channel,
            Err(_) if is_abandoned(&self.socket) => return Err(AskError::SupervisorGone(self.process)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                return Err(AskError::Refused { code: CUresult::ERROR_NOT_READY, text: String::new() });
            }
            Err(error) => return Err(of_system(self.process, error)),
        };
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let message = FromProgram::Ask {
            protocol: JOB_PROTOCOL_VERSION,
            process: self.own_id,
            what,
            timeout_ms,
            gpus: gpus.to_vec(),
        };
        let sent = message.encode().map_err(ControlError::from).and_then(|bytes| channel.send(&bytes, &[]));
        let received = sent.and_then(|()| channel.listen());
        let answer = received.and_then(|message| Ok(ToProgram::decode(&message.bytes)?)).map_err(broken)?;
        match answer {
            ToProgram::Answer { code: 0, state, .. } => Ok(state),
            ToProgram::Answer { code, text, .. } => Err(AskError::Refused { code: CUresult(code), text }),
            _ => Err(AskError::SupervisorGone(self.process)),
        }
    }
}

/// Returns the process's id in its own namespace; none for threads, and where there is no such process.
fn own_id(folder: &Path, process: i32) -> Option<u32> {
    let status = fs::read_to_string(folder.join("status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    (field("Tgid:")?.parse() == Ok(process)).then_some(())?;
    field("NSpid:")?.split_whitespace().last()?.parse().ok()
}

/// Returns the value of a variable in an environment as `/proc` shows it.
fn value_of<'e>(environment: &'e [u8], name: &str) -> Option<&'e str> {
    let entries = environment.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    entries.filter_map(|entry| entry.split_once('=')).find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Returns whether a process has loaded a CUDA driver.
fn uses_cuda(folder: &Path) -> bool {
    fs::read_to_string(folder.join("maps")).is_ok_and(|maps| maps.contains("/libcuda.so"))
}

fn of_system(process: i32, source: io::Error) -> AskError {
    match source.kind() {
        ErrorKind::PermissionDenied => AskError::Denied(process),
        ErrorKind::NotFound => AskError::NoProcess(process),
        _ => AskError::System { process, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let environment = b"X_KATYDID_JOB=/a\0KATYDID_JOB=/run/jobs/a=b/shims\0\xff=1\0EMPTY\0";
        assert_eq!(value_of(environment, JOB_VARIABLE), Some("/run/jobs/a=b/shims"));
        assert_eq!(value_of(environment, "EMPTY"), None);
        assert_eq!(value_of(b"", JOB_VARIABLE), None);
    }

    #[test]
    fn an_absent_process_is_distinguished_from_one_without_cuda() {
        for process in [0, -1, i32::MAX] {
            assert!(matches!(TargetProcess::find(process), Err(AskError::NoProcess(_))), "{process}");
        }
        let us = i32::try_from(std::process::id()).unwrap();
        assert_eq!(own_id(Path::new("/proc/self"), us), Some(std::process::id()));
        let other = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get()).join();
        assert!(matches!(TargetProcess::find(other.unwrap()), Err(AskError::NoProcess(_))));
    }

    #[test]
    fn a_supervisor_that_is_gone_is_no_reason_to_wait() {
        let folder = tempfile::tempdir().unwrap();
        let target = TargetProcess { process: 1, own_id: 1, socket: folder.path().join("gone/shims") };
        assert!(matches!(target.state(), Err(AskError::SupervisorGone(1))));
    }
}
