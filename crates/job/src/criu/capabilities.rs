//! The capabilities that a program has once this process has executed it, computed as the kernel does (capabilities(7)).
//!
//! CRIU's own check passes without a right that only a restore needs, and the restore then dies silently. So Katydid compares the
//! capabilities before anything stops.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::getxattr;
use rustix::process::geteuid;

use crate::process::tree;

/// A set of capabilities, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capabilities(u64);

/// Name in `setcap`'s words, and bit number.
const SETPCAP: (&str, u32) = ("cap_setpcap", 8);
const SYS_PTRACE: (&str, u32) = ("cap_sys_ptrace", 19);
const SYS_ADMIN: (&str, u32) = ("cap_sys_admin", 21);
const CAP_SYS_TIME: u32 = 25;
const CHECKPOINT_RESTORE: (&str, u32) = ("cap_checkpoint_restore", 40);
/// Capabilities that CRIU needs as an ordinary user, and the one that it needs only if processes of the same user may not trace
/// each other.
const NEEDED_CAPABILITIES: [(&str, u32); 2] = [CHECKPOINT_RESTORE, SETPCAP];
const TO_TRACE: (&str, u32) = SYS_PTRACE;
/// File in which a kernel with Yama says whether tracing is restricted: 0 is no.
const PTRACE_SCOPE_FILE: &str = "/proc/sys/kernel/yama/ptrace_scope";
/// All of them, in `setcap`'s words.
pub(crate) const SETCAP_TEXT: &str = "cap_checkpoint_restore,cap_sys_ptrace,cap_setpcap=ep";
/// The set-user-id bit, `S_ISUID`.
const SET_USER_ID_MODE: u32 = 0o4000;
/// Extended attribute that holds the capabilities of a file.
const CAPABILITY_ATTRIBUTE: &str = "security.capability";

impl Capabilities {
    /// Returns the capabilities of `program` once it is executed, or `None` if they are unknown: a script, or a set-user-id
    /// program, may get rights in its own way.
    pub(crate) fn of(program: &Path) -> Option<Self> {
        let (mut file, mut magic) = (File::open(program).ok()?, [0; 4]);
        let is_own = file.metadata().is_ok_and(|stat| stat.mode() & SET_USER_ID_MODE == 0);
        let is_script = file.read_exact(&mut magic).is_ok() && magic != *b"\x7fELF";
        (is_own && !is_script).then(|| Self::of_program(program))
    }

    fn of_program(program: &Path) -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut attribute = [0; 64];
        let length = getxattr(program, CAPABILITY_ATTRIBUTE, &mut attribute).unwrap_or(0);
        Self::reckoned(&status, attribute.get(..length).unwrap_or_default(), geteuid().is_root())
    }

    /// Computes them from this process's status, and from the attribute of the file, if it has one.
    fn reckoned(status: &str, attribute: &[u8], is_root: bool) -> Self {
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0)
        };
        let (inheritable, bounding) = (set("CapInh"), set("CapBnd"));
        if is_root {
            return Self(inheritable | bounding);
        }
        let may_gain = set("NoNewPrivs") == 0;
        match of_file(attribute).filter(|_| may_gain) {
            Some((permitted, file_inheritable)) => Self((permitted & bounding) | (inheritable & file_inheritable)),
            None => Self(set("CapAmb")),
        }
    }

    /// Whether an administrator's capabilities are among them: for namespaces, and for their clocks, which a restore sets.
    pub(crate) fn are_administrators(self) -> bool {
        self.has(SYS_ADMIN.1) && self.has(CAP_SYS_TIME)
    }

    /// Returns what CRIU would lack as an ordinary user.
    pub(crate) fn lacking(self) -> Option<MissingCapabilities> {
        let scope = fs::read_to_string(PTRACE_SCOPE_FILE).unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        self.lacking_where(!matches!(scope.trim(), "" | "0"), is_filtered(&status))
    }

    /// Returns what CRIU would lack as an ordinary user, given whether tracing `is_restricted`, and whether CRIU has to suspend a
    /// seccomp filter.
    fn lacking_where(self, is_restricted: bool, is_filtered: bool) -> Option<MissingCapabilities> {
        let further = [is_restricted.then_some(TO_TRACE), is_filtered.then_some(SYS_ADMIN)];
        let needed = NEEDED_CAPABILITIES.into_iter().chain(further.into_iter().flatten());
        let names: Vec<&'static str> = needed.filter(|(_, bit)| !self.has(*bit)).map(|(name, _)| name).collect();
        let for_a_filter = names.contains(&SYS_ADMIN.0);
        (!names.is_empty()).then_some(MissingCapabilities { names, for_a_filter })
    }

    fn has(self, bit: u32) -> bool {
        self.0 >> bit & 1 != 0
    }
}

/// Names of missing capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MissingCapabilities {
    names: Vec<&'static str>,
    /// Whether one of them is needed only because of a seccomp filter.
    for_a_filter: bool,
}

impl fmt::Display for MissingCapabilities {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "it lacks {}", self.names.join(", ").to_uppercase())?;
        if self.for_a_filter {
            out.write_str(", the last one to suspend the seccomp profile of this container or service; start it without one (`--security-opt seccomp=unconfined`)")?;
        }
        Ok(())
    }
}

/// Whether a seccomp filter applies to the process with this status, and so to its children.
fn is_filtered(status: &str) -> bool {
    tree::proc_field(status, "Seccomp:") == Some("2")
}

/// Permitted and inheritable capabilities of a file, from revision 2 or 3 of the attribute.
fn of_file(attribute: &[u8]) -> Option<(u64, u64)> {
    let word = |index: usize| attribute.get(4 * index..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    let set = |low: usize, high: usize| Some(u64::from(word(low)?) | u64::from(word(high)?) << 32);
    let revision = word(0)? >> 24;
    if !(2..=3).contains(&revision) {
        return None;
    }
    Some((set(1, 3)?, set(2, 4)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: &str = "Uid:\t5\nCapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t0\n";

    /// `cap_setpcap,cap_sys_ptrace,cap_checkpoint_restore=ep`, as `setcap` writes it.
    fn attribute() -> Vec<u8> {
        [0x0200_0001_u32, 1 << 8 | 1 << 19, 0, 1 << 8, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn an_ordinary_user_has_what_the_file_gives() {
        assert_eq!(Capabilities::reckoned(ORDINARY, &attribute(), false).lacking_where(true, false), None);
        let lacking = Capabilities::reckoned(ORDINARY, &[], false).lacking_where(true, false).unwrap().to_string();
        assert_eq!(lacking, "it lacks CAP_CHECKPOINT_RESTORE, CAP_SETPCAP, CAP_SYS_PTRACE");
        let no_new = ORDINARY.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1");
        assert!(Capabilities::reckoned(&no_new, &attribute(), false).lacking_where(true, false).is_some());
        let bounded = ORDINARY.replace("000001ffffffffff", "000001fffffffeff");
        let lacking =
            Capabilities::reckoned(&bounded, &attribute(), false).lacking_where(true, false).unwrap().to_string();
        assert_eq!(lacking, "it lacks CAP_SETPCAP");
    }

    #[test]
    fn ambient_capabilities_are_passed_on_and_root_has_what_is_not_taken_away() {
        let ambient = ORDINARY.replace("CapAmb:\t0000000000000000", "CapAmb:\t0000010000080100");
        assert_eq!(Capabilities::reckoned(&ambient, &[], false).lacking_where(true, false), None);
        assert!(!Capabilities::reckoned(&ambient, &[], false).are_administrators());
        assert!(Capabilities::reckoned(ORDINARY, &[], true).are_administrators());
        let container = ORDINARY.replace("000001ffffffffff", "00000000a80425fb");
        assert!(!Capabilities::reckoned(&container, &[], true).are_administrators());
        let added = ORDINARY.replace("000001ffffffffff", "00000100800405fb");
        let added = Capabilities::reckoned(&added, &[], true);
        assert_eq!(added.lacking_where(false, false), None);
        assert_eq!(added.lacking_where(true, false).unwrap().to_string(), "it lacks CAP_SYS_PTRACE");
    }

    #[test]
    fn a_seccomp_profile_takes_an_administrator_to_suspend() {
        assert!(is_filtered("A:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n") && !is_filtered("Seccomp:\t0\n"));
        let file = Capabilities::reckoned(ORDINARY, &attribute(), false);
        let lacking = file.lacking_where(true, true).unwrap().to_string();
        assert!(lacking.starts_with("it lacks CAP_SYS_ADMIN, ") && lacking.contains("seccomp=unconfined"), "{lacking}");
        assert_eq!(Capabilities::reckoned(ORDINARY, &[], true).lacking_where(true, true), None);
    }

    #[test]
    fn capabilities_of_a_script_are_unknown() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("criu");
        fs::write(&script, "#!/bin/sh\nexec sudo criu \"$@\"\n").unwrap();
        assert_eq!(Capabilities::of(&script), None);
        assert!(Capabilities::of(&std::env::current_exe().unwrap()).is_some());
    }

    #[test]
    fn an_attribute_that_is_not_understood_gives_nothing() {
        for length in 0..attribute().len() {
            assert_eq!(of_file(&attribute()[..length]), None, "{length}");
        }
        assert_eq!(of_file(&[0xff; 20]), None);
    }
}
