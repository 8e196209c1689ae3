//! What a process has set for itself, CRIU does not restore, and no other process can set: refused while the programs run.
//!
//! | attribute | read from |
//! |---|---|
//! | `prctl(PR_MCE_KILL)`, `prctl(PR_SET_IO_FLUSHER)` | flags of a thread in `/proc/TID/stat` |
//! | `prctl(PR_SET_MEMORY_MERGE)` | `/proc/PID/ksm_stat` |
//! | `prctl(PR_SET_SPECULATION_CTRL)` | `/proc/TID/status` |
//! | `set_mempolicy` | `/proc/PID/task/TID/numa_maps`: a mapping without a policy of its own has that of the thread |
//! | `mbind` | `/proc/PID/numa_maps` |
//!
//! The rule: restored processes inherit these from the supervisor, so what is as it has them itself comes back.

use std::fs::{self, File};
use std::io::Read as _;

use crate::process::tree;
use crate::process::tree::Process;

/// `PF_MCE_PROCESS` and `PF_MCE_EARLY` of Linux.
const MCE_KILL: u64 = 0x80 | 0x0800_0000;
/// `PF_MEMALLOC_NOIO` and `PF_LOCAL_THROTTLE`: both are set by `PR_SET_IO_FLUSHER` alone.
const IO_FLUSHER: u64 = 0x0008_0000 | 0x0010_0000;
/// Lines of `status` about speculation.
const SPECULATION: [&str; 2] = ["Speculation_Store_Bypass:", "SpeculationIndirectBranch:"];

/// Policies, in the kernel's words.
const DEFAULT: &str = "default";
const LOCAL: &str = "local";
/// Bytes of the first mapping's line that hold its policy: the kernel looks at no further mapping for them.
const FIRST_MAPPING: usize = 64;

/// The first process with something that would not come back, and the call that has set it.
pub(crate) fn find(tree: &[Process]) -> Option<(u32, &'static str)> {
    let ours = Attributes::read(std::process::id(), std::process::id());
    tree.iter().find_map(|process| {
        let threads = tree::threads(process.pid).into_iter();
        let mut differing = threads.filter_map(|thread| Attributes::read(process.pid, thread).differs_from(&ours));
        let call = differing.next().or_else(|| has_policies_of_mappings(process.pid).then_some("mbind"));
        call.map(|call| (process.pid, call))
    })
}

/// Of one thread and its process.
#[derive(Debug, Default, PartialEq, Eq)]
struct Attributes {
    flags: u64,
    merges_memory: bool,
    /// As the kernel words it.
    speculation: Vec<String>,
    /// Which memory it takes (`set_mempolicy`), in the kernel's words; none where there is one kind of memory only.
    policy: Option<String>,
}

impl Attributes {
    fn read(pid: u32, thread: u32) -> Self {
        let text = |id: u32, name: &str| fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
        Self {
            flags: flags(&text(thread, "stat")),
            merges_memory: text(pid, "ksm_stat").lines().any(|line| line == "ksm_merge_any: yes"),
            speculation: speculation(&text(thread, "status")),
            policy: first_policy(pid, thread),
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
            (self.policy.is_some() && self.policy != ours.policy, "set_mempolicy"),
        ];
        calls.into_iter().find_map(|(differs, call)| differs.then_some(call))
    }
}

/// The policy of a thread, by its first mapping, which is of the program's file.
fn first_policy(pid: u32, thread: u32) -> Option<String> {
    let mut begin = [0; FIRST_MAPPING];
    let length = File::open(format!("/proc/{pid}/task/{thread}/numa_maps")).ok()?.read(&mut begin).ok()?;
    policy(std::str::from_utf8(begin.get(..length)?).ok()?).map(str::to_owned)
}

/// Whether a process has mappings with policies of their own. The kernel looks at each page for that, beside the running process.
fn has_policies_of_mappings(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap_or_default();
    has_several_policies(&maps)
}

fn has_several_policies(maps: &str) -> bool {
    let mut policies = maps.lines().filter_map(policy);
    policies.next().is_some_and(|first| policies.any(|policy| policy != first))
}

/// `7f1000000000 bind:0 anon=1 N0=1`: an address, the policy, and what there is.
///
/// `local` is what the default policy does where a thread has none of its own. PyTorch and JAX have such a mapping.
fn policy(line: &str) -> Option<&str> {
    line.split_ascii_whitespace().nth(1).map(|policy| if policy == LOCAL { DEFAULT } else { policy })
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
        let speculation = speculation.iter().map(|&line| line.to_owned()).collect();
        Attributes { flags, merges_memory, speculation, policy: Some("default".to_owned()) }
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
        let with_policy =
            |policy: Option<&str>| Attributes { policy: policy.map(str::to_owned), ..attributes(0, false, &[]) };
        assert_eq!(call(with_policy(Some("interleave:0-1"))), Some("set_mempolicy"));
        assert_eq!(call(with_policy(None)), None, "a kernel without kinds of memory");
    }

    #[test]
    fn a_mapping_with_a_policy_of_its_own_is_found() {
        let maps = |policies: [&str; 2]| policies.map(|policy| format!("7f1000 {policy} anon=1 N0=1\n")).concat();
        assert!(has_several_policies(&maps(["default", "bind:0"])));
        assert!(!has_several_policies(&maps(["interleave:0", "interleave:0"])), "all is the thread's");
        assert!(!has_several_policies(&maps(["default", "local"])), "the same nodes");
        assert!(has_several_policies(&maps(["interleave:0", "local"])), "the thread's would take its place");
        assert!(!has_several_policies(""));
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
