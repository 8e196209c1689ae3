//! Settings that only a process itself can make, and that CRIU does not restore: restored threads are made to set them again.
//!
//! | attribute | of | read from |
//! |---|---|---|
//! | `prctl(PR_MCE_KILL)`, `prctl(PR_SET_IO_FLUSHER)` | thread | flags in `/proc/TID/stat` |
//! | `prctl(PR_SET_SPECULATION_CTRL)` | thread | `/proc/TID/status` |
//! | `set_mempolicy` | thread | `/proc/PID/task/TID/numa_maps` |
//! | `prctl(PR_SET_MEMORY_MERGE)` | process | `/proc/PID/ksm_stat` |
//! | `mbind` | process | `/proc/PID/numa_maps` |
//!
//! The rule: restored processes inherit these settings from the supervisor, so a thread that has the right ones already is left
//! alone.

use std::fs;
use std::io;

use libc::c_long;
use serde::{Deserialize, Serialize};

use crate::process::injection::Tracee;
use crate::process::memory::policy::{Arguments, Mapping, Policy, of_mappings};

/// `PF_MCE_PROCESS` and `PF_MCE_EARLY` of Linux.
const PF_MCE_PROCESS: u64 = 0x80;
const PF_MCE_EARLY: u64 = 0x0800_0000;
/// `PF_MEMALLOC_NOIO` and `PF_LOCAL_THROTTLE`: both are set by `PR_SET_IO_FLUSHER` alone.
const PF_IO_FLUSHER: u64 = 0x0008_0000 | 0x0010_0000;
/// `PR_SET_IO_FLUSHER`, which the libc crate lacks.
const SET_IO_FLUSHER: u64 = 57;
/// Lines of `status` about speculation, and the kinds for `PR_SET_SPECULATION_CTRL`.
const SPECULATION_LINES: [(&str, u64); 2] = [("Speculation_Store_Bypass:", 0), ("SpeculationIndirectBranch:", 1)];
/// Texts in such a line for a thread's own choice: `PR_SPEC_ENABLE`, `_DISABLE` and `_FORCE_DISABLE`. Other texts are the
/// machine's default.
const SPECULATION_CHOICES: [(&str, u64); 6] = [
    ("thread vulnerable", 2),
    ("conditional enabled", 2),
    ("thread mitigated", 4),
    ("conditional disabled", 4),
    ("thread force mitigated", 8),
    ("conditional force disabled", 8),
];
/// `MPOL_MF_MOVE`: pages that only this process uses move to the nodes of the policy.
const MPOL_MF_MOVE: u64 = 2;
/// One more than the bits of a mask of nodes, as the kernel counts them.
const MASK_BITS: u64 = 1025;

/// Settings of one thread.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfThread {
    /// [`PF_MCE_PROCESS`], [`PF_MCE_EARLY`] and [`PF_IO_FLUSHER`].
    flags: u64,
    /// Lines of `status`, as the kernel words them.
    speculation: Vec<String>,
    /// Memory policy; `None` on machines with one kind of memory only.
    policy: Option<Policy>,
}

/// Settings that belong to a process as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OfProcess {
    merges_memory: bool,
    /// Mappings with memory policies of their own.
    mappings: Vec<Mapping>,
}

/// A system call that makes a setting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SettingCall {
    what: &'static str,
    number: c_long,
    arguments: [u64; 6],
    /// A mask of nodes, and the index of the argument that points to it.
    nodes: Option<(usize, Vec<u64>)>,
}

impl OfThread {
    pub(crate) fn read(pid: u32, tid: u32) -> Self {
        let text = |name: &str| fs::read_to_string(format!("/proc/{tid}/{name}")).unwrap_or_default();
        let flags = flags(&text("stat"));
        let io_flusher = if flags & PF_IO_FLUSHER == PF_IO_FLUSHER { PF_IO_FLUSHER } else { 0 };
        Self {
            flags: flags & (PF_MCE_PROCESS | PF_MCE_EARLY) | io_flusher,
            speculation: speculation(&text("status")),
            policy: Policy::of_thread(pid, tid),
        }
    }

    /// The calls that give a thread these settings if it has those of `current`.
    pub(crate) fn calls(&self, current: &Self) -> Vec<SettingCall> {
        let mut calls = Vec::new();
        let changed = self.flags ^ current.flags;
        if changed & (PF_MCE_PROCESS | PF_MCE_EARLY) != 0 {
            let (clear_or_set, early) = (self.flags & PF_MCE_PROCESS != 0, self.flags & PF_MCE_EARLY != 0);
            let arguments = [libc::PR_MCE_KILL as u64, clear_or_set.into(), u64::from(clear_or_set && early), 0, 0, 0];
            calls.push(SettingCall::prctl("PR_MCE_KILL", arguments));
        }
        if changed & PF_IO_FLUSHER != 0 {
            let is_on = u64::from(self.flags & PF_IO_FLUSHER != 0);
            calls.push(SettingCall::prctl("PR_SET_IO_FLUSHER", [SET_IO_FLUSHER, is_on, 0, 0, 0, 0]));
        }
        for line in self.speculation.iter().filter(|line| !current.speculation.contains(line)) {
            if let Some((kind, choice)) = choice(line) {
                let number = libc::PR_SET_SPECULATION_CTRL as u64;
                calls.push(SettingCall::prctl("PR_SET_SPECULATION_CTRL", [number, kind, choice, 0, 0, 0]));
            }
        }
        if let Some(policy) = self.policy.as_ref().filter(|_| self.policy != current.policy) {
            calls.extend(policy.arguments().map(|Arguments { mode, nodes }| SettingCall {
                what: "set_mempolicy",
                number: libc::SYS_set_mempolicy,
                arguments: [mode, 0, if nodes.is_empty() { 0 } else { MASK_BITS }, 0, 0, 0],
                nodes: Some((1, nodes)),
            }));
        }
        calls
    }
}

impl OfProcess {
    /// Reads all settings except memory policies of mappings.
    pub(crate) fn read(pid: u32) -> Self {
        let ksm = fs::read_to_string(format!("/proc/{pid}/ksm_stat")).unwrap_or_default();
        Self { merges_memory: ksm.lines().any(|line| line == "ksm_merge_any: yes"), mappings: Vec::new() }
    }

    /// Reads the memory policies of mappings, which may take long.
    pub(crate) fn read_mappings(&mut self, pid: u32) {
        self.mappings = of_mappings(pid);
    }

    /// The calls that give a restored process these settings if it has those of `current`. None of its mappings has a policy yet.
    pub(crate) fn calls(&self, current: &Self) -> Vec<SettingCall> {
        let mut calls = Vec::new();
        if self.merges_memory != current.merges_memory {
            let arguments = [libc::PR_SET_MEMORY_MERGE as u64, self.merges_memory.into(), 0, 0, 0, 0];
            calls.push(SettingCall::prctl("PR_SET_MEMORY_MERGE", arguments));
        }
        let bound = self.mappings.iter().filter_map(|mapping| Some((mapping, mapping.policy.arguments()?)));
        calls.extend(bound.map(|(mapping, Arguments { mode, nodes })| SettingCall {
            what: "mbind",
            number: libc::SYS_mbind,
            arguments: [
                mapping.start,
                mapping.end.saturating_sub(mapping.start),
                mode,
                0,
                if nodes.is_empty() { 0 } else { MASK_BITS },
                MPOL_MF_MOVE,
            ],
            nodes: Some((3, nodes)),
        }));
        calls
    }
}

impl SettingCall {
    fn prctl(what: &'static str, arguments: [u64; 6]) -> Self {
        Self { what, number: libc::SYS_prctl, arguments, nodes: None }
    }

    fn make(&self, tracee: &mut Tracee) -> io::Result<()> {
        let mut arguments = self.arguments;
        if let Some((at, nodes)) = self.nodes.as_ref().filter(|(_, nodes)| !nodes.is_empty()) {
            let bytes: Vec<u8> = nodes.iter().flat_map(|word| word.to_le_bytes()).collect();
            arguments[*at] = tracee.copy_in(&bytes)?;
        }
        tracee.call(self.number, arguments).map(drop)
    }
}

/// Makes a thread of a process execute calls; `note` gets the outcome of each.
pub(crate) fn make(pid: u32, tid: u32, calls: &[SettingCall], note: &mut dyn FnMut(&str, io::Result<()>)) {
    if calls.is_empty() {
        return;
    }
    let mut tracee = Tracee::attach(pid, tid);
    for call in calls {
        match &mut tracee {
            Ok(tracee) => note(call.what, call.make(tracee)),
            Err(error) => note(call.what, Err(io::Error::new(error.kind(), error.to_string()))),
        }
    }
}

/// Returns the ninth word of `stat`; the second, a name in parentheses, may hold anything.
fn flags(stat: &str) -> u64 {
    let words = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    words.split(' ').nth(6).and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn speculation(status: &str) -> Vec<String> {
    let is_one = |line: &&str| SPECULATION_LINES.iter().any(|(name, _)| line.starts_with(name));
    status.lines().filter(is_one).map(str::to_owned).collect()
}

/// The kind of speculation in a line of `status`, and the thread's choice; `None` if the machine chose.
fn choice(line: &str) -> Option<(u64, u64)> {
    let (name, kind) = SPECULATION_LINES.iter().find(|(name, _)| line.starts_with(name))?;
    let words = line.get(name.len()..)?.trim();
    SPECULATION_CHOICES.iter().find(|(known, _)| *known == words).map(|(_, choice)| (*kind, *choice))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORES: &str = "Speculation_Store_Bypass:\t";

    fn of_thread(flags: u64, speculation: &str) -> OfThread {
        OfThread { flags, speculation: vec![format!("{STORES}{speculation}")], policy: None }
    }

    #[test]
    fn flags_stand_behind_any_name() {
        assert_eq!(flags("7 (a) b (c) S 1 7 7 0 -1 4194432 150 0"), 0x40_0080);
        assert_eq!(flags("7 (a"), 0);
    }

    #[test]
    fn each_attribute_has_its_call_where_it_differs() {
        let calls = |target: OfThread, now: OfThread| -> Vec<(&str, u64, u64)> {
            target.calls(&now).iter().map(|call| (call.what, call.arguments[1], call.arguments[2])).collect()
        };
        let plain = || of_thread(0, "thread vulnerable");
        assert_eq!(calls(plain(), plain()), []);
        let early = of_thread(PF_MCE_PROCESS | PF_MCE_EARLY, "thread vulnerable");
        assert_eq!(calls(early.clone(), plain()), [("PR_MCE_KILL", 1, 1)]);
        assert_eq!(calls(of_thread(PF_MCE_PROCESS, "thread vulnerable"), early.clone()), [("PR_MCE_KILL", 1, 0)]);
        assert_eq!(calls(plain(), early), [("PR_MCE_KILL", 0, 0)]);
        assert_eq!(calls(of_thread(PF_IO_FLUSHER, "thread vulnerable"), plain()), [("PR_SET_IO_FLUSHER", 1, 0)]);
        let mitigated = of_thread(0, "thread force mitigated");
        assert_eq!(calls(mitigated, plain()), [("PR_SET_SPECULATION_CTRL", 0, 8)]);
        assert_eq!(calls(of_thread(0, "not vulnerable"), plain()), [], "another processor");
    }

    #[test]
    fn a_process_merges_memory_as_before() {
        let merging = OfProcess { merges_memory: true, mappings: Vec::new() };
        assert_eq!(merging.calls(&OfProcess::default())[0].arguments[..2], [libc::PR_SET_MEMORY_MERGE as u64, 1]);
        assert_eq!(merging.calls(&merging), []);
    }
}
