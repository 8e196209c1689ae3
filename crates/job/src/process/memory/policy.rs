//! Memory policies of threads (`set_mempolicy`) and of mappings (`mbind`), as the kernel words them in `numa_maps`.
//!
//! A mapping without a policy of its own is shown with the policy of the thread whose file is read. The rule: if both are the
//! same, the mapping counts as one without a policy. For `MPOL_F_STATIC_NODES` and `MPOL_F_RELATIVE_NODES` the kernel shows the
//! nodes in effect, and for `set_mempolicy_home_node` nothing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read as _;

use serde::{Deserialize, Serialize};

use crate::process::memory::maps;

/// Policies in the kernel's words and numbers; none begins with one above it.
const POLICY_MODES: [(&str, u64); 7] = [
    ("weighted interleave", 6),
    ("prefer (many)", 5),
    ("local", 4),
    ("interleave", 3),
    ("bind", 2),
    ("prefer", 1),
    ("default", 0),
];
/// `MPOL_F_STATIC_NODES`, `MPOL_F_RELATIVE_NODES`, `MPOL_F_NUMA_BALANCING`.
const POLICY_FLAGS: [(&str, u64); 3] = [("static", 1 << 15), ("relative", 1 << 14), ("balancing", 1 << 13)];
const DEFAULT_POLICY: &str = "default";
const LOCAL_POLICY: &str = "local";
/// Bytes that hold the policy in the first mapping's line. For so few the kernel visits no further mapping.
const FIRST_MAPPING_LINE_BYTES: usize = 128;
/// Most nodes in a mask, which is the most that kernels have.
const MAX_POLICY_NODES: usize = 1024;

/// A policy in the kernel's words, such as `bind=static:0-1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Policy(String);

/// A policy as arguments of system calls.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Arguments {
    /// Mode of set_mempolicy(2), its flags included.
    pub(crate) mode: u64,
    /// Mask of nodes, bit n for node n; empty if the mode takes none.
    pub(crate) nodes: Vec<u64>,
}

/// A range of memory with a policy of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) policy: Policy,
}

impl Policy {
    /// The policy of a thread; `None` on machines with one kind of memory only.
    pub(crate) fn of_thread(pid: u32, tid: u32) -> Option<Self> {
        let mut begin = [0; FIRST_MAPPING_LINE_BYTES];
        let length = File::open(format!("/proc/{pid}/task/{tid}/numa_maps")).ok()?.read(&mut begin).ok()?;
        Self::at_begin(std::str::from_utf8(begin.get(..length)?).ok()?)
    }

    fn of_line(line: &str) -> Option<Self> {
        Self::at_begin(&format!("{line}\n"))
    }

    /// Reads `7f1000000000 prefer (many):0 anon=1 N0=1`: an address, the policy, and the pages. `None` if the end of the policy
    /// is missing.
    fn at_begin(text: &str) -> Option<Self> {
        let (_, rest) = text.split_once(' ')?;
        let (mode, _) = POLICY_MODES.iter().find(|(mode, _)| rest.starts_with(mode))?;
        let more = rest.get(mode.len()..)?.find([' ', '\n'])?;
        rest.get(..mode.len() + more).map(|policy| Self(policy.to_owned()))
    }

    /// Whether it allocates memory as a thread without a policy does.
    fn is_default(&self) -> bool {
        // PyTorch and JAX have a mapping with the second.
        [DEFAULT_POLICY, LOCAL_POLICY].contains(&self.0.as_str())
    }

    /// The arguments for system calls; `None` for a policy that this build does not know.
    pub(crate) fn arguments(&self) -> Option<Arguments> {
        let (mode, number) = POLICY_MODES.iter().find(|(mode, _)| self.0.starts_with(mode))?;
        let rest = self.0.get(mode.len()..)?;
        let (flags, nodes) = rest.split_once(':').unwrap_or((rest, ""));
        let flag = |name: &str| POLICY_FLAGS.iter().find(|(known, _)| *known == name).map(|(_, flag)| *flag);
        let flags = match flags.strip_prefix('=') {
            Some(flags) => flags.split('|').try_fold(0, |all, name| Some(all | flag(name)?))?,
            None if flags.is_empty() => 0,
            None => return None,
        };
        Some(Arguments { mode: number | flags, nodes: mask(nodes)? })
    }
}

/// The mask for a list such as `0-1,4`.
fn mask(list: &str) -> Option<Vec<u64>> {
    let mut node_mask = vec![0_u64; MAX_POLICY_NODES / 64];
    for part in list.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        for node in first.parse::<usize>().ok()?..=last.parse::<usize>().ok()? {
            *node_mask.get_mut(node / 64)? |= 1 << (node % 64);
        }
    }
    Some(if list.is_empty() { Vec::new() } else { node_mask })
}

/// Mappings with policies of their own. The kernel visits each page for that, so it is done while the process runs.
pub(crate) fn of_mappings(pid: u32) -> Vec<Mapping> {
    let text = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let Some(thread) = Policy::of_thread(pid, pid) else { return Vec::new() };
    let policies = text("numa_maps");
    if !policies.lines().any(|line| Policy::of_line(line).is_some_and(|policy| policy != thread)) {
        return Vec::new();
    }
    let ends = maps::of(pid).iter().map(|mapping| (mapping.start, mapping.end)).collect();
    own_policies(&policies, &ends, &thread)
}

/// `ends` has the end address of each mapping by its start address.
fn own_policies(policies: &str, ends: &BTreeMap<u64, u64>, thread: &Policy) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in policies.lines() {
        let start = line.split(' ').next().and_then(|address| u64::from_str_radix(address, 16).ok());
        let Some((start, policy)) = start.zip(Policy::of_line(line)) else { continue };
        if policy == *thread || policy.is_default() && thread.is_default() {
            continue;
        }
        let Some(&end) = ends.get(&start) else { continue };
        match mappings.last_mut().filter(|last| last.end == start && last.policy == policy) {
            Some(last) => last.end = end,
            None => mappings.push(Mapping { start, end, policy }),
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(text: &str) -> Option<(u64, u64)> {
        let policy = Policy::of_line(&format!("7f1000 {text} anon=1 N0=1"))?;
        let Arguments { mode, nodes } = policy.arguments()?;
        Some((mode, nodes.first().copied().unwrap_or(0)))
    }

    #[test]
    fn every_policy_is_read_as_the_kernel_writes_it() {
        let known = [
            ("default", 0, 0),
            ("prefer:1", 1, 2),
            ("bind:0", 2, 1),
            ("interleave:0-2,5", 3, 0b10_0111),
            ("local", 4, 0),
            ("prefer (many):0-1", 5, 3),
            ("weighted interleave:0", 6, 1),
            ("bind=static:63", 2 | 1 << 15, 1 << 63),
            ("bind=relative|balancing:0", 2 | 3 << 13, 1),
        ];
        for (text, mode, nodes) in known {
            assert_eq!(arguments(text), Some((mode, nodes)), "{text}");
        }
        for text in ["new:0", "bind=odd:0", "bind:9999", "bind:x", "bindings:0"] {
            assert_eq!(arguments(text), None, "{text}");
        }
        assert_eq!(Policy::at_begin("7f1000 bind:0-"), None, "the end is missing");
        assert_eq!(Policy::of_line("7f1000 bind:0"), Some(Policy("bind:0".to_owned())), "a mapping without pages");
        assert_eq!(mask("70").unwrap()[1], 1 << 6);
    }

    #[test]
    fn a_mapping_with_a_policy_of_its_own_is_found() {
        let ends = BTreeMap::from([(0x1000, 0x2000), (0x2000, 0x3000), (0x3000, 0x4000)]);
        let found = |policies: [&str; 3], thread: &str| {
            let lines = [1, 2, 3].map(|at| format!("{at}000 {} anon=1\n", policies[at - 1])).concat();
            let own = own_policies(&lines, &ends, &Policy(thread.to_owned()));
            own.into_iter().map(|Mapping { start, end, policy: Policy(text) }| (start, end, text)).collect::<Vec<_>>()
        };
        let bound = |start, end| (start, end, "bind:0".to_owned());
        assert_eq!(found(["default", "bind:0", "bind:0"], DEFAULT_POLICY), [bound(0x2000, 0x4000)]);
        assert_eq!(
            found(["bind:0", "default", "bind:0"], DEFAULT_POLICY),
            [bound(0x1000, 0x2000), bound(0x3000, 0x4000)]
        );
        assert_eq!(found(["interleave:0"; 3], "interleave:0"), [], "all is the thread's");
        assert_eq!(found(["default", LOCAL_POLICY, "default"], DEFAULT_POLICY), [], "the same nodes");
        let local = found(["interleave:0", LOCAL_POLICY, "interleave:0"], "interleave:0");
        assert_eq!(local, [(0x2000, 0x3000, LOCAL_POLICY.to_owned())], "the thread's would take its place");
    }
}
