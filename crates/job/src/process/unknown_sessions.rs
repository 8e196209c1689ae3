//! Processes of a job that use a GPU through Katydid and that the job's supervisor does not know. A checkpoint would lack their
//! sessions, which would end with the job.
//!
//! Such a process was started without `KATYDID_JOB`, or cannot reach the job socket: another user, another `/tmp`, another
//! root directory. It has a mark (`katydid_client::session::session_mark`), and no member of the job has its id.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use katydid_wire::job::{JOB_VARIABLE, SESSION_MARK};

use crate::process::memory::maps::{self, MemoryMapping};
use crate::process::tree;
use crate::process::tree::Process;
use crate::supervisor::members::Member;

/// A process that uses a GPU and is no member of its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnknownSession {
    /// Process id, in this process's namespace.
    pub(crate) pid: u32,
    /// Whether its environment names a job socket.
    pub(crate) has_socket: bool,
}

/// Finds the first such process of a tree. Processes that end meanwhile are skipped.
pub(crate) fn find(tree: &[Process], members: &[Member]) -> Option<UnknownSession> {
    find_by(
        tree.iter().map(|process| (process.pid, tree::pid_in_own_namespace(process.pid), marks(process.pid))),
        members,
    )
}

/// Finds the first such process among the stopped processes that are no members.
pub(crate) fn find_besides(tree: &[Process], members: &[Member]) -> Option<UnknownSession> {
    let ids: BTreeSet<u32> = members.iter().map(|member| member.pid).collect();
    let others = tree.iter().map(|process| (process.pid, tree::pid_in_own_namespace(process.pid)));
    let others = others.filter(|(_, itself)| !ids.contains(itself));
    find_by(others.map(|(pid, itself)| (pid, itself, marks(pid))), members)
}

/// Finds it among processes given by id in this process's namespace, id in their own, and marks. Parents come before their
/// children.
fn find_by(processes: impl Iterator<Item = (u32, u32, BTreeSet<u64>)>, members: &[Member]) -> Option<UnknownSession> {
    let (mut seen, mut sessions) = (BTreeSet::new(), BTreeMap::<u32, usize>::new());
    for (pid, itself, marks) in processes {
        // A child that shares its parent's memory shows its parent's marks.
        let own = marks.into_iter().filter(|mark| seen.insert(*mark)).count();
        let count = sessions.entry(itself).or_default();
        *count += own;
        if own > 0 && *count > members.iter().filter(|member| member.pid == itself).count() {
            return Some(UnknownSession { pid, has_socket: has_socket(pid) });
        }
    }
    None
}

/// Inodes of the marks of a process.
fn marks(pid: u32) -> BTreeSet<u64> {
    maps::of(pid).iter().filter_map(mark).collect()
}

/// The inode of a mark, a memory file of that name; `None` for other mappings.
fn mark(mapping: &MemoryMapping) -> Option<u64> {
    let name = mapping.path()?.to_str()?.strip_prefix("/memfd:")?;
    (name == SESSION_MARK).then_some(mapping.inode)
}

/// Whether a process was started with the job socket in its environment.
fn has_socket(pid: u32) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| variable.strip_prefix(JOB_VARIABLE.as_bytes()).is_some_and(|rest| rest.starts_with(b"=/")))
}

#[cfg(test)]
mod tests {
    use katydid_wire::handshake::SessionKind;
    use katydid_wire::key::SessionKey;

    use super::*;
    use crate::process::memory::maps::tests::mapping;
    use crate::supervisor::members::MemberState;

    fn member(pid: u32) -> Member {
        Member {
            id: 1,
            pid,
            session: SessionKind::CUDA,
            key: SessionKey::NONE,
            address: String::new(),
            link: 1,
            program: String::new(),
            state: MemberState::Present,
            frames: 0,
            reached: None,
        }
    }

    /// The unknown process, if any, among processes with marks, whose own ids begin at 1.
    fn unknown(processes: &[(u32, &[u64])], members: &[u32]) -> Option<u32> {
        let members: Vec<Member> = members.iter().copied().map(member).collect();
        let processes =
            processes.iter().map(|(itself, marks)| (itself + 100, *itself, marks.iter().copied().collect()));
        find_by(processes, &members).map(|unknown| unknown.pid)
    }

    #[test]
    fn sessions_are_counted_against_members() {
        assert_eq!(unknown(&[(1, &[]), (2, &[7])], &[2]), None);
        assert_eq!(unknown(&[(1, &[]), (2, &[7])], &[]), Some(102));
        assert_eq!(unknown(&[(2, &[7, 8])], &[2, 2]), None, "CUDA and OpenCL");
        assert_eq!(unknown(&[(2, &[7, 8])], &[2]), Some(102));
        assert_eq!(unknown(&[(2, &[7]), (2, &[8])], &[2]), Some(102), "the same id in two namespaces");
        assert_eq!(unknown(&[(2, &[7]), (3, &[7])], &[2]), None, "a child in its parent's memory");
    }

    #[test]
    fn marks_are_found_by_their_name() {
        let line =
            "4e0000000000-4e0000001000 ---s 00000000 00:01 1027                       /memfd:katydid-session (deleted)";
        assert_eq!(mark(&mapping(line)), Some(1027));
        for other in ["", "/memfd:katydid-sessions (deleted)", "/memfd:", "/katydid-session"] {
            assert_eq!(mark(&mapping(&format!("4e0000000000-4e0000001000 ---s 0 00:01 7 {other}"))), None, "{other}");
        }
        assert!(marks(std::process::id()).is_empty() && marks(u32::MAX).is_empty());
    }
}
