//! What a checkpoint or a move is refused for while the programs still run: an image that lacks a part of the job, or that CRIU
//! could not make.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::checkpoint::error::{CheckpointError, Obstacle};
use crate::process::tree::Process;
use crate::process::{losses, tree, unknown_sessions};
use crate::supervisor::state::JobState;

/// How long a process whose environment names the job socket may be without a connection to it: one that has closed all
/// descriptors is back after a second.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks whether it is back.
const RECONNECT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a process may have its parent's memory (vfork): most begin another program at once.
const EXEC_TIMEOUT: Duration = Duration::from_secs(1);
/// Between two looks whether it has begun one.
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Namespaces that CRIU dumps and then does not restore where the first process has none: names below `/proc/PID/ns`, in
/// words, and options of `unshare`. Others make the dump fail.
const NESTED_NAMESPACES: [(&str, &str, &str); 2] = [("mnt", "mount", "mount"), ("net", "network", "net")];
/// How the kernel names System V segments in a map of memory.
const SYSV_PREFIX: &str = "/SYSV";

/// Refuses a job with a session that its supervisor does not know.
///
/// # Errors
///
/// [`Obstacle::Unknown`]; or programs that are about to be known stay silent.
pub(crate) fn check_all_known(job: &JobState, root: u32) -> Result<(), CheckpointError> {
    let deadline = Instant::now() + RECONNECT_TIMEOUT;
    loop {
        let tree = tree(root)?;
        let Some(unknown) = unknown_sessions::find(&tree, &job.members.list()) else { return Ok(()) };
        // It may have come since the members were listed.
        let doing = "wait for programs that begin to use the GPU";
        job.members.wait_for_hellos().map_err(|source| CheckpointError::System { doing, source })?;
        if unknown_sessions::find(&tree, &job.members.list()).is_none() {
            return Ok(());
        }
        if !unknown.has_socket || Instant::now() >= deadline {
            return Err(of_unknown(unknown).into());
        }
        thread::sleep(RECONNECT_POLL_INTERVAL);
    }
}

/// Refuses processes that are stopped if one has a session that their supervisor does not know. The members were looked at
/// before.
pub(crate) fn check_still_all_known(job: &JobState, tree: &[Process]) -> Result<(), Obstacle> {
    unknown_sessions::find_besides(tree, &job.members.list()).map_or(Ok(()), |unknown| Err(of_unknown(unknown)))
}

fn of_unknown(unknown: unknown_sessions::UnknownSession) -> Obstacle {
    let unknown_sessions::UnknownSession { pid, has_socket } = unknown;
    Obstacle::Unknown { program: tree::name(pid), pid, has_socket }
}

/// Refuses a job that is one task of several.
pub(crate) fn check_whole(job: &JobState) -> Result<(), Obstacle> {
    job.task.clone().map_or(Ok(()), |task| Err(Obstacle::Task { task }))
}

/// Refuses processes with System V segments, unless they have an IPC namespace other than ours.
pub(crate) fn check_segments(tree: &[Process]) -> Result<(), Obstacle> {
    let own_namespace = namespace("self", "ipc");
    let is_ours = |process: &&Process| namespace(&process.pid.to_string(), "ipc") == own_namespace;
    match tree.iter().filter(is_ours).find(|process| has_segment(process.pid)) {
        Some(Process { pid, .. }) => Err(Obstacle::Segment { program: tree::name(*pid), pid: *pid }),
        None => Ok(()),
    }
}

/// Refuses processes that would lose something.
pub(crate) fn check_losses(tree: &[Process]) -> Result<(), Obstacle> {
    let lost = losses::find(tree).or_else(|| losses::undumpable::find(tree)).or_else(|| memory_shared_for_long(tree));
    lost.map_or(Ok(()), |(pid, losses::Loss { what, remedy })| {
        Err(Obstacle::Lost { program: tree::name(pid), pid, what, remedy })
    })
}

/// A process with its parent's memory that does not begin another program soon.
fn memory_shared_for_long(tree: &[Process]) -> Option<(u32, losses::Loss)> {
    let deadline = Instant::now() + EXEC_TIMEOUT;
    loop {
        let shared = losses::find_shared_memory(tree)?;
        if Instant::now() >= deadline {
            return Some(shared);
        }
        thread::sleep(EXEC_POLL_INTERVAL);
    }
}

/// Refuses processes with namespaces that would not come back: others than those of the first, which is in ours.
pub(crate) fn check_namespaces(tree: &[Process]) -> Result<(), Obstacle> {
    let Some((first, others)) = tree.split_first() else { return Ok(()) };
    for (name, kind, option) in NESTED_NAMESPACES {
        let own_namespace = namespace("self", name);
        // A process that has ended shows none.
        let differs =
            |process: &&Process| namespace(&process.pid.to_string(), name).is_some_and(|it| Some(it) != own_namespace);
        if differs(&first) {
            continue;
        }
        if let Some(Process { pid, .. }) = others.iter().find(differs) {
            return Err(Obstacle::Namespace { program: tree::name(*pid), pid: *pid, kind, option });
        }
    }
    Ok(())
}

fn namespace(pid: &str, name: &str) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{name}")).ok()
}

fn has_segment(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|line| line.split_ascii_whitespace().nth(5).is_some_and(|name| name.starts_with(SYSV_PREFIX)))
}

fn tree(root: u32) -> Result<Vec<Process>, CheckpointError> {
    tree::tree(root).map_err(|source| CheckpointError::System { doing: "list the processes", source })
}
