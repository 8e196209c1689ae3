//! What a process has set for itself, CRIU does not restore, and no other process can set: refused while the programs run.
//!
//! | attribute | read from |
//! |---|---|
//! | `prctl(PR_MCE_KILL)`, `prctl(PR_SET_IO_FLUSHER)` | flags of a thread in `/proc/TID/stat` |
//! | `prctl(PR_SET_MEMORY_MERGE)` | `/proc/PID/ksm_stat` |
//! | `prctl(PR_SET_SPECULATION_CTRL)` | `/proc/TID/status` |
//!
//! The rule: restored processes inherit these from the supervisor, so what is as it has them itself comes back.

use std::fs;

use crate::tree::{self, Process};

/// `PF_MCE_PROCESS` and `PF_MCE_EARLY` of Linux.
const MCE_KILL: u64 = 0x80 | 0x0800_0000;
/// `PF_MEMALLOC_NOIO` and `PF_LOCAL_THROTTLE`: both are set by `PR_SET_IO_FLUSHER` alone.
const IO_FLUSHER: u64 = 0x0008_0000 | 0x0010_0000;
/// Lines of `status` about speculation.
const SPECULATION: [&str; 2] = ["Speculation_Store_Bypass:", "SpeculationIndirectBranch:"];

/// The first process with something that would not come back, and the call that has set it.
pub(crate) fn find(tree: &[Process]) -> Option<(u32, &'static str)> {
    let ours = Attributes::read(std::process::id(), std::process::id());
    tree.iter().find_map(|process| {
        let threads = tree::threads(process.pid).into_iter();
        let mut differing = threads.filter_map(|thread| Attributes::read(process.pid, thread).differs_from(&ours));
        differing.next().map(|call| (process.pid, call))
    })
}

/// Of one thread and its process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attributes {
    flags: u64,
    merges_memory: bool,
    /// As the kernel words it.
    speculation: Vec<String>,
}

impl Attributes {
    fn read(pid: u32, thread: u32) -> Self {
        let text = |id: u32, name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
        Self {
            flags: flags(&text(thread, "stat")),
            merges_memory: text(pid, "ksm_stat").lines().any(|line| line == "ksm_merge_any: yes"),
            speculation: speculation(&text(thread, "status")),
        }
    }

    /// The call by which a thread has set what `ours` has not.
    fn differs_from(&self, ours: &Self) -> Option<&'static str> {
        let has_io_flusher = |flags: u64| flags & IO_FLUSHER == IO_FLUSHER;
        let calls = [
            (self.flags & MCE_KILL != ours.flags & MCE_KILL, "prctl(PR_MCE_KILL)"),
            (has_io_flusher(self.flags) != has_io_flusher(ours.flags), "prctl(PR_SET_IO_FLUSHER)"),
            (self.merges_memory != ours.merges_memory, "prctl(PR_SET_MEMORY_MERGE)"),
            // A thread that has ended meanwhile has no lines.
            (!self.speculation.is_empty() && self.speculation != ours.speculation, "prctl(PR_SET_SPECULATION_CTRL)"),
        ];
        calls.into_iter().find_map(|(differs, call)| differs.then_some(call))
    }
}

/// The ninth word of `stat`; the second, a name in parentheses, may hold anything.
fn flags(stat: &str) -> u64 {
    let words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    words.split(' ').nth(6).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn speculation(status: &str) -> Vec<String> {
    let is_one = |line: &&str| SPECULATION.iter().any(|name| line.starts_with(name));
    status.lines().filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(flags: u64, merges_memory: bool, speculation: &[&str]) -> Attributes {
        Attributes { flags, merges_memory, speculation: speculation.iter().map(|&line| line.to_owned()).collect() }
    }

    #[test]
    fn flags_stand_behind_any_name() {
        assert_eq!(flags("7 (a) b (c) S 1 7 7 0 -1 4194432 150 0"), 0x40_0080);
        assert_eq!(flags("7 (a"), 0);
    }

    #[test]
    fn each_attribute_is_named_by_its_call() {
        let ours = attributes(0x40_0000, false, &["Speculation_Store_Bypass:\tthread vulnerable"]);
        let call = |other: Attributes| other.differs_from(&ours);
        assert_eq!(call(attributes(0x40_0040, false, &["Speculation_Store_Bypass:\tthread vulnerable"])), None);
        assert_eq!(call(attributes(MCE_KILL, false, &[])), Some("prctl(PR_MCE_KILL)"));
        assert_eq!(call(attributes(IO_FLUSHER, false, &[])), Some("prctl(PR_SET_IO_FLUSHER)"));
        assert_eq!(call(attributes(0x8_0000, false, &[])), None, "the kernel sets one of the two by itself");
        assert_eq!(call(attributes(0, true, &[])), Some("prctl(PR_SET_MEMORY_MERGE)"));
        let mitigated = attributes(0, false, &["Speculation_Store_Bypass:\tthread mitigated"]);
        assert_eq!(call(mitigated), Some("prctl(PR_SET_SPECULATION_CTRL)"));
    }

    #[test]
    fn what_children_inherit_is_no_difference() {
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let found = find(&[Process { pid: child.id(), parent: 0, state: 'S' }]);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, None);
    }
}
