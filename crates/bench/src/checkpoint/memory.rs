//! Host memory that a checkpoint takes: the largest growth of the resident memory of the processes around it.
//!
//! The kernel keeps a high-water mark of each process and resets it on demand. So this needs no samples and disturbs nothing. The
//! memory of CRIU is not included, because CRIU has ended when the marks are read. It moves pages without holding them.

use std::collections::BTreeMap;
use std::fs;

use katydid_job::process::tree;

/// Resident bytes of every process below this one, by its id, when the marks were reset.
pub(super) struct ResidentMarks(BTreeMap<u32, u64>);

impl ResidentMarks {
    /// Resets the marks.
    pub(super) fn set() -> Self {
        let processes = tree::tree(std::process::id()).unwrap_or_default();
        let mark = |pid: u32| {
            fs::write(format!("/proc/{pid}/clear_refs"), "5").ok()?;
            Some((pid, resident(pid, "VmRSS:")?))
        };
        Self(processes.iter().filter_map(|process| mark(process.pid)).collect())
    }

    /// Returns the largest growth of all processes that still exist, since the reset.
    pub(super) fn growth(&self) -> u64 {
        let grown = |(pid, before): (&u32, &u64)| Some(resident(*pid, "VmHWM:")?.saturating_sub(*before));
        self.0.iter().filter_map(grown).sum()
    }
}

/// Returns a line of `/proc/PID/status`, in bytes.
fn resident(pid: u32, line: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status.lines().find_map(|found| found.strip_prefix(line))?.trim().strip_suffix("kB")?.trim();
    Some(kib.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_taken_and_given_back_counts() {
        let growth = || {
            let marks = ResidentMarks::set();
            let block = vec![1_u8; 64 << 20];
            assert_eq!(std::hint::black_box(&block).len(), 64 << 20);
            drop(block);
            marks.growth()
        };
        // Other tests of this process free memory at times.
        assert!((0..100).any(|_| growth() >= 60 << 20), "{}", growth());
    }
}
