//! Checks that refuse a checkpoint or a move while the programs still run: the image would lack a part of the job, or CRIU could
//! not make it.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::thread;
use std::time::{Duration, Instant};

use crate::checkpoint::error::{CheckpointError, Obstacle};
use crate::process::memory::maps;
use crate::process::tree::Process;
use crate::process::{losses, tree, unknown_sessions};
use crate::supervisor::state::JobState;

/// How long a process whose environment names the job socket may be without a connection to it. A process that closed all
/// descriptors is back after a second.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks whether it is back.
const RECONNECT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How long a process may use its parent's memory (vfork): most execute another program at once.
const EXEC_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks whether it has executed one.
const EXEC_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Namespaces that CRIU dumps but does not restore unless the first process has one: the name below `/proc/PID/ns`, the kind in
/// words, and the option of `unshare`. Other kinds make the dump fail.
const NESTED_NAMESPACES: [(&str, &str, &str); 2] = [("mnt", "mount", "mount"), ("net", "network", "net")];
/// Prefix by which the kernel names System V segments in a memory map.
const SYSV_PREFIX: &[u8] = b"/SYSV";

/// Refuses a job with a session that its supervisor does not know.
///
/// # Errors
///
/// [`Obstacle::Unknown`]; or programs that have connected and said no hello stay silent.
pub(crate) fn check_all_known(job: &JobState, root: u32) -> Result<(), CheckpointError> {
    let deadline = Instant::now() + RECONNECT_TIMEOUT;
    loop {
        let tree = tree(root)?;
        let Some(unknown) = unknown_sessions::find(&tree, &job.members.list()) else { return Ok(()) };
        // It may have joined since the members were listed.
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

/// Refuses stopped processes if one has a session that their supervisor does not know. The list of members dates from before the
/// stop.
pub(crate) fn check_still_all_known(job: &JobState, tree: &[Process]) -> Result<(), Obstacle> {
    unknown_sessions::find_besides(tree, &job.members.list()).map_or(Ok(()), |unknown| Err(of_unknown(unknown)))
}

fn of_unknown(unknown: unknown_sessions::UnknownSession) -> Obstacle {
    let unknown_sessions::UnknownSession { pid, has_socket } = unknown;
    Obstacle::Unknown { program: tree::name(pid), pid, has_socket }
}

/// Refuses a job that is one of several tasks.
pub(crate) fn check_whole(job: &JobState) -> Result<(), Obstacle> {
    job.task.clone().map_or(Ok(()), |task| Err(Obstacle::Task { task }))
}

/// Refuses processes with System V segments, unless they have an IPC namespace other than the supervisor's.
pub(crate) fn check_segments(tree: &[Process]) -> Result<(), Obstacle> {
    let own_namespace = namespace("self", "ipc");
    let is_ours = |process: &&Process| namespace(&process.pid.to_string(), "ipc") == own_namespace;
    match tree.iter().filter(is_ours).find(|process| has_segment(process.pid)) {
        Some(Process { pid, .. }) => Err(Obstacle::Segment { program: tree::name(*pid), pid: *pid }),
        None => Ok(()),
    }
}

/// Refuses processes that would lose a resource.
pub(crate) fn check_losses(tree: &[Process]) -> Result<(), Obstacle> {
    let lost = losses::find(tree).or_else(|| losses::undumpable::find(tree)).or_else(|| memory_shared_for_long(tree));
    lost.map_or(Ok(()), |(pid, losses::Loss { what, remedy })| {
        Err(Obstacle::Lost { program: tree::name(pid), pid, what, remedy })
    })
}

/// Finds a process that shares its parent's memory and does not execute another program soon.
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

/// Refuses processes with namespaces that CRIU would not restore: namespaces other than those of the first process, if that one
/// has the supervisor's.
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
    maps::of(pid).iter().any(|mapping| mapping.name().as_bytes().starts_with(SYSV_PREFIX))
}

fn tree(root: u32) -> Result<Vec<Process>, CheckpointError> {
    tree::tree(root).map_err(|source| CheckpointError::System { doing: "list the processes", source })
}
