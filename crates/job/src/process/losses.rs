//! Resources of a process that CRIU does not dump, or does not restore as they were. They refuse a checkpoint while the programs
//! run.
//!
//! | what | read from |
//! |---|---|
//! | a file without a name on a read-only mount | `/proc/PID/fd` |
//! | a session whose leader has ended, below a process of another one | `/proc/PID/stat` |
//! | a child of the first process that has ended in such a session, and was not waited for | `/proc/PID/stat` |
//! | credentials of a socket's peer | `SO_PEERCRED` |
//! | a tracer | `/proc/PID/task/TID/status` |
//! | memory that is shared with its parent | `kcmp` |
//! | memory that is its parent's too | `kcmp` |
//!
//! The rule: what this process may not inspect counts for nothing; CRIU checks it again.

#![expect(unsafe_code, reason = "kcmp and credentials of peers have no safe interface")]

pub(crate) mod undumpable;

use std::collections::BTreeMap;
use std::fs;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{getegid, geteuid};

use crate::process::descriptors::remote::descriptor;
use crate::process::tree;
use crate::process::tree::Process;

/// Suffix that the kernel appends to a name that is gone.
const NO_NAME: &str = " (deleted)";

/// The kernel's name of fanotify, and the prefix of a line about a mark of a whole file system.
const FANOTIFY_LINK: &str = "anon_inode:[fanotify]";
const OF_FILE_SYSTEM: &str = "fanotify sdev:";

/// Prefix of the line of `status` that names a tracer.
const TRACER_LINE: &str = "TracerPid:";
/// `KCMP_VM` of Linux.
const KCMP_VM: i32 = 1;

/// A resource that would be lost, and the remedy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) what: &'static str,
    pub(crate) remedy: &'static str,
}

const READ_ONLY: Loss =
    Loss { what: "has a file open that has no name any more, on a read-only mount", remedy: "close the file" };
const SESSION_LOSS: Loss = Loss {
    what: "is in a session whose leader has ended, and its parent is in another one",
    remedy: "end the process, or keep the leader of its session",
};
const ENDED_LOSS: Loss = Loss {
    what: "has ended in a session whose leader has ended too, and its parent has not waited for it",
    remedy: "have its parent wait for it (waitpid)",
};
const PEER_LOSS: Loss = Loss {
    what: "has a unix socket whose peer was another user or group (SO_PEERCRED)",
    remedy: "close the socket, or make it as the user of `katydid run`",
};

const TRACED: Loss =
    Loss { what: "is traced by another process (ptrace)", remedy: "detach the debugger (gdb, strace)" };
const SHARED_MEMORY: Loss = Loss {
    what: "shares memory with its parent (vfork, or clone with CLONE_VM)",
    remedy: "end it, or have it begin another program (exec)",
};
const FILE_SYSTEM: Loss = Loss {
    what: "watches a whole file system (FAN_MARK_FILESYSTEM)",
    remedy: "remove the mark, or use FAN_MARK_MOUNT",
};

/// Finds the first process that would lose a resource.
pub(crate) fn find(tree: &[Process]) -> Option<(u32, Loss)> {
    without_leader(tree)
        .or_else(|| tree.iter().find(|process| is_traced(process.pid)).map(|process| (process.pid, TRACED)))
        .or_else(|| tree.iter().find_map(|process| Some((process.pid, of_descriptors(process.pid, tree)?))))
}

/// Finds the first process that shares its parent's memory. Each process does so for a moment before it executes another program.
pub(crate) fn find_shared_memory(tree: &[Process]) -> Option<(u32, Loss)> {
    tree.iter().find(|process| has_memory_of(process.parent, process.pid)).map(|process| (process.pid, SHARED_MEMORY))
}

/// Whether two processes share their memory, as far as this process may know.
fn has_memory_of(parent: u32, pid: u32) -> bool {
    // SAFETY: it takes numbers only.
    unsafe { libc::syscall(libc::SYS_kcmp, parent, pid, KCMP_VM, 0, 0) == 0 }
}

/// Whether a thread of the process has a tracer in this process's PID namespace.
fn is_traced(pid: u32) -> bool {
    let has_tracer = |tid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        tree::proc_field(&status, TRACER_LINE).is_some_and(|tracer| tracer != "0")
    };
    tree::threads(pid).into_iter().any(has_tracer)
}

fn of_descriptors(pid: u32, tree: &[Process]) -> Option<Loss> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.into_iter().find_map(|entry| {
        let (link, number) = (entry.path(), entry.file_name().into_string().ok()?);
        let target = fs::read_link(&link).ok()?.into_os_string().into_string().ok()?;
        if target.starts_with("socket:") {
            return has_other_peer(pid, number.parse().ok()?, tree).then_some(PEER_LOSS);
        }
        if target.starts_with(FANOTIFY_LINK) {
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
            return info.lines().any(|line| line.starts_with(OF_FILE_SYSTEM)).then_some(FILE_SYSTEM);
        }
        if !target.starts_with('/') {
            return None;
        }
        let is_read_only = || statvfs(&link).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
        let has_no_name = || fs::metadata(&link).is_ok_and(|found| std::os::unix::fs::MetadataExt::nlink(&found) == 0);
        (target.ends_with(NO_NAME) && has_no_name() && is_read_only()).then_some(READ_ONLY)
    })
}

/// Whether a socket's peer belonged to the job, and had another user or group than this process, as which CRIU makes sockets.
/// Peers outside the job stay what they are.
fn has_other_peer(pid: u32, number: i32, tree: &[Process]) -> bool {
    let Some(peer) = descriptor(pid, number).and_then(|socket| peer(&socket)) else { return false };
    let is_other = (peer.uid, peer.gid) != (geteuid().as_raw(), getegid().as_raw());
    let Some(of) = u32::try_from(peer.pid).ok().filter(|of| *of != 0 && is_other) else { return false };
    !tree::exists(of) || tree.iter().any(|process| process.pid == of)
}

/// Returns the credentials of a unix socket's peer; `None` for another socket. A peer that never existed, or is of another
/// namespace, has no id.
pub(crate) fn peer(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes as many bytes as are said to be there at most.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    (done == 0).then_some(credentials)
}

/// Finds a process that CRIU cannot put into its session. In the tree, parents come before children.
fn without_leader(tree: &[Process]) -> Option<(u32, Loss)> {
    let session = |process: &Process| Some((process.pid, tree::group_and_session(process.pid)?.1));
    let sessions: BTreeMap<u32, u32> = tree.iter().filter_map(session).collect();
    let ended = ended_without_leader(tree, &sessions).map(|pid| (pid, ENDED_LOSS));
    ended.or_else(|| outside_ancestor_sessions(tree, &sessions).map(|pid| (pid, SESSION_LOSS)))
}

/// Finds an ended child of the first process whose session has lost its leader. Below the first process CRIU makes leaders that
/// end at once. The ended child falls with them to another process, and CRIU waits for it for ever.
fn ended_without_leader(tree: &[Process], sessions: &BTreeMap<u32, u32>) -> Option<u32> {
    let first = tree.first()?.pid;
    let is_lost = |process: &&Process| {
        let session = sessions.get(&process.pid).filter(|session| Some(*session) != sessions.get(&first));
        process.state == 'Z' && process.parent == first && session.is_some_and(|leader| !sessions.contains_key(leader))
    };
    tree.iter().find(is_lost).map(|process| process.pid)
}

/// Finds a process whose session is that of no ancestor, and has no ancestor as its leader. CRIU's `prepare_pstree_ids` does the
/// same. A process forks a child before or after it makes a session. So each ancestor up to the leader was in the child's
/// session, and in one only.
fn outside_ancestor_sessions(tree: &[Process], sessions: &BTreeMap<u32, u32>) -> Option<u32> {
    let parents: BTreeMap<u32, u32> = tree.iter().map(|process| (process.pid, process.parent)).collect();
    let first = tree.first()?.pid;
    let mut born: BTreeMap<u32, u32> = BTreeMap::new();
    tree.iter().skip(1).map(|process| process.pid).find(|pid| {
        let (Some(session), Some(parent)) = (sessions.get(pid), parents.get(pid)) else { return false };
        let has_place = session == pid || *parent == first || sessions.get(parent) == Some(session);
        !has_place && !was_in(*session, *parent, (first, &parents), &mut born)
    })
}

/// Whether all processes from `at` up to the leader can have been in a session; notes for each the session in which it was.
fn was_in(
    session: u32,
    mut at: u32,
    (first, parents): (u32, &BTreeMap<u32, u32>),
    born: &mut BTreeMap<u32, u32>,
) -> bool {
    while at != session {
        let is_first_time = born.insert(at, session).is_none_or(|before| before == session);
        match parents.get(&at).filter(|_| is_first_time && at != first) {
            Some(above) => at = *above,
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;
    use crate::process::injection::Tracee;

    fn process(pid: u32, parent: u32) -> Process {
        Process { pid, parent, state: 'S' }
    }

    #[test]
    fn a_session_is_placed_where_an_ancestor_was_in_it() {
        // 1 leads its session. 2 was forked, and made a session of its own; 3 was forked by 2 before that. 4 lost the leader of
        // its session.
        let tree = [process(1, 0), process(2, 1), process(3, 2), process(4, 2)];
        let sessions = |fourth| BTreeMap::from([(1, 1), (2, 2), (3, 1), (4, fourth)]);
        assert_eq!(outside_ancestor_sessions(&tree, &sessions(2)), None);
        assert_eq!(outside_ancestor_sessions(&tree, &sessions(9)), Some(4));
        // Below the first process CRIU makes a leader for the moment.
        assert_eq!(outside_ancestor_sessions(&[process(1, 0), process(2, 1)], &BTreeMap::from([(1, 1), (2, 9)])), None);
    }

    #[test]
    fn zombie_without_session_leader_is_found() {
        let tree = |state| [process(1, 0), Process { state, ..process(2, 1) }];
        let sessions = |second| BTreeMap::from([(1, 1), (2, second)]);
        assert_eq!(ended_without_leader(&tree('Z'), &sessions(9)), Some(2));
        assert_eq!(ended_without_leader(&tree('S'), &sessions(9)), None);
        assert_eq!(
            (ended_without_leader(&tree('Z'), &sessions(1)), ended_without_leader(&tree('Z'), &sessions(2))),
            (None, None)
        );
    }

    #[test]
    fn a_file_without_a_name_on_a_read_only_mount_is_found() {
        let script = "mount -t tmpfs none /mnt && echo a > /mnt/file && exec 3< /mnt/file && rm /mnt/file \
                      && echo writable && read _ && mount -o remount,bind,ro /mnt && echo read-only && read _";
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut input = child.stdin.take().unwrap();
        let us = |pid| [process(pid, std::process::id())];
        // Without the right to mount, there is no loss to find.
        if lines.next().is_some_and(|line| line.unwrap() == "writable") {
            assert_eq!(find(&us(child.id())), None);
            std::io::Write::write_all(&mut input, b"\n").unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "read-only");
            assert_eq!(find(&us(child.id())), Some((child.id(), READ_ONLY)));
        }
        drop(input);
        child.wait().unwrap();
    }

    #[test]
    fn tracer_of_a_process_is_found() {
        let mut traced = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        assert!(!is_traced(traced.id()));
        let tracee = Tracee::attach(traced.id(), traced.id()).unwrap();
        assert!(is_traced(traced.id()));
        drop(tracee);
        assert!(!is_traced(traced.id()));
        traced.kill().unwrap();
        traced.wait().unwrap();
    }

    #[test]
    fn process_of_its_own_memory_shares_none() {
        let mut child = Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let us = std::process::id();
        assert!(find_shared_memory(&[process(us, 0), process(child.id(), us)]).is_none());
        assert!(has_memory_of(us, us));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn peers_of_the_same_user_are_not_a_loss() {
        let _pair = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(of_descriptors(std::process::id(), &[process(std::process::id(), 0)]), None);
    }
}
