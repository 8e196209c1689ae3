//! A worker that is saved as a process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use katydid_image::WorkerImage;
use katydid_scratch::{Scratch, private};

use crate::criu::tool::{Criu, Dumper};
use crate::keeper::driver::{Action, WorkerDriver};
use crate::keeper::files;
use crate::keeper::supervisor::{KeeperOptions, OrderError, SupervisorConnection, system};
use crate::process::tree;
use crate::supervisor::{folder, namespace};

/// Flag that gives workers their socket to the server.
const CONTROL_FLAG: &str = "--control-fd";
/// Flag by which a keeper recognizes another keeper.
const KEEPER_FLAG: &str = "--keeper";
/// Name of a worker's process.
const WORKER_NAME: &str = "katydid-worker";

/// A worker that CRIU has frozen.
pub(super) struct SavedWorker {
    pid: u32,
    dumper: Dumper,
    driver: WorkerDriver,
    katydid: PathBuf,
    /// CRIU's files, until CRIU lets go of the worker.
    _folder: Scratch,
}

impl SavedWorker {
    /// Saves the worker that a server knows by `session_pid`, and leaves it stopped. On failure, everything is undone.
    pub(super) fn new(
        options: &KeeperOptions,
        session_pid: u32,
        supervisor: &SupervisorConnection,
    ) -> Result<(Self, Vec<u8>), OrderError> {
        let pid = worker_below(session_pid)?;
        let criu = Criu::find(&options.private_criu, folder::cache().as_deref()).map_err(OrderError::new)?;
        let ends = OutsideEnds::of(pid)?;
        let driver = WorkerDriver::of(&options.driver, pid);
        let scratch = Scratch::new("worker").map_err(system("make a folder for CRIU's files"))?;
        let folder = scratch.path().join("criu");
        private::folder(&folder).map_err(system("make a folder for CRIU's files"))?;
        driver.run(&options.katydid, Action::Checkpoint, pid, "")?;
        let (ids, pid_seen) = (tree::ids(pid), tree::pid_in_own_namespace(pid));
        let criu_version = criu.version.clone();
        let enter = if pid_seen == pid { Vec::new() } else { namespace::entering(&options.katydid, pid) };
        let dumped = criu.through(&enter).prepare_worker(pid_seen, &folder, ends.external()).and_then(Dumper::dump);
        let dumper = match dumped {
            Ok(dumper) => dumper,
            Err(error) => {
                let back = driver.run(&options.katydid, Action::Restore, pid, "");
                return Err(OrderError(match back {
                    Ok(()) => error.to_string(),
                    Err(also) => format!("{error}; then resuming the worker failed: {also}"),
                }));
            }
        };
        let name = driver.name.clone();
        let worker = Self { pid, dumper, driver, katydid: options.katydid.clone(), _folder: scratch };
        let image = files::put(supervisor, &folder).map(|files| WorkerImage {
            criu: criu_version,
            driver: name,
            pid: pid_seen,
            ids,
            control: ends.control,
            outputs: ends.outputs,
            files,
        });
        let part = image.and_then(|image| serde_json::to_vec(&image).map_err(OrderError::new));
        match part {
            Ok(part) => Ok((worker, part)),
            Err(error) => Err(match worker.free() {
                Ok(()) => error,
                Err(also) => OrderError(format!("{error}; then resuming the worker failed: {also}")),
            }),
        }
    }

    /// Lets the worker go on.
    pub(super) fn free(self) -> Result<(), OrderError> {
        let Self { pid, dumper, driver, katydid, .. } = self;
        // Dropping it has CRIU undo the dump.
        drop(dumper);
        driver.run(&katydid, Action::Restore, pid, "")
    }

    /// Ends the worker's process.
    pub(super) fn end(self) -> Result<(), OrderError> {
        let Self { pid, mut dumper, .. } = self;
        let processes = tree::tree(pid).map_err(system("find the worker"))?;
        // A process is gone only once CRIU is done with it.
        tree::kill(&processes, || drop(dumper.let_go())).map_err(system("end the worker"))
    }
}

/// The worker's process: `session_pid` itself, or, if that is a keeper, the worker that it has restored.
fn worker_below(session_pid: u32) -> Result<u32, OrderError> {
    let arguments = fs::read(format!("/proc/{session_pid}/cmdline")).map_err(system("find the worker"))?;
    if !arguments.split(|byte| *byte == 0).any(|argument| argument == KEEPER_FLAG.as_bytes()) {
        return Ok(session_pid);
    }
    let below = tree::tree(session_pid).map_err(system("find the worker"))?;
    let found =
        below.iter().map(|process| process.pid).find(|pid| *pid != session_pid && tree::name(*pid) == WORKER_NAME);
    found.ok_or_else(|| OrderError::new("the session's worker is not there any more"))
}

/// A worker's descriptors that lead to other processes, as `/proc/PID/fd` names them.
struct OutsideEnds {
    /// Its socket to the server.
    control: String,
    /// Pipes of which the worker has only one end.
    outputs: Vec<String>,
}

impl OutsideEnds {
    fn of(pid: u32) -> Result<Self, OrderError> {
        let failed = system("look at the worker's descriptors");
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).map_err(&failed)?;
        let arguments: Vec<&[u8]> = arguments.split(|byte| *byte == 0).collect();
        let number = arguments.iter().position(|argument| *argument == CONTROL_FLAG.as_bytes());
        let number = number.and_then(|at| arguments.get(at + 1)).map(|number| String::from_utf8_lossy(number));
        let number = number.ok_or_else(|| OrderError::new("the session's worker was not started by a server"))?;
        let control = fs::read_link(format!("/proc/{pid}/fd/{number}")).map_err(&failed)?;
        let control = control.to_string_lossy().into_owned();
        if !control.starts_with("socket:[") {
            return Err(OrderError::new("the session's worker has no socket to its server"));
        }
        Ok(Self { control, outputs: half_pipes(pid)? })
    }

    /// As arguments of CRIU's `--external`: `unix[INODE]`, `pipe[INODE]`.
    fn external(&self) -> Vec<String> {
        let sockets = self.control.strip_prefix("socket:").map(|inode| format!("unix{inode}"));
        sockets.into_iter().chain(self.outputs.iter().map(|pipe| pipe.replacen("pipe:", "pipe", 1))).collect()
    }
}

/// Pipes of which a process has only one end.
fn half_pipes(pid: u32) -> Result<Vec<String>, OrderError> {
    let failed = system("look at the worker's descriptors");
    let mut ends: BTreeMap<String, [bool; 2]> = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).map_err(&failed)?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if target.starts_with("pipe:[") {
            let number = entry.file_name();
            let writes = is_writable(&Path::new("/proc").join(pid.to_string()).join("fdinfo").join(number));
            ends.entry(target).or_default()[usize::from(writes)] = true;
        }
    }
    Ok(ends.into_iter().filter(|(_, ends)| *ends != [true, true]).map(|(pipe, _)| pipe).collect())
}

/// Whether a descriptor was opened for writing.
fn is_writable(fdinfo: &Path) -> bool {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn external_pipes_differ_from_pipes_of_the_process() {
        let (own_reads, own_writes) = std::io::pipe().unwrap();
        let (reads, writes) = std::io::pipe().unwrap();
        let name = |fd: i32| fs::read_link(format!("/proc/self/fd/{fd}")).unwrap().to_string_lossy().into_owned();
        let (own, half) = (name(own_reads.as_raw_fd()), name(writes.as_raw_fd()));
        drop(reads);
        let found = half_pipes(std::process::id()).unwrap();
        assert!(found.contains(&half) && !found.contains(&own), "{found:?}");
        drop((own_writes, writes));
    }

    #[test]
    fn ends_are_named_as_criu_takes_them() {
        let ends = OutsideEnds { control: "socket:[17]".to_owned(), outputs: vec!["pipe:[23]".to_owned()] };
        assert_eq!(ends.external(), ["unix[17]", "pipe[23]"]);
    }
}
