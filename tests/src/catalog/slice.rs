//! Divides large test matrices into slices. A run tests one slice of each, chosen by its commit; `cargo xtask test --all` tests
//! all slices.

use std::env;
use std::fmt;
use std::path::Path;
use std::process::Command;

use crate::paths::PACK_VARIABLE;

/// 1: all slices. `cargo xtask test --all` sets it.
pub const ALL_VARIABLE: &str = "KATYDID_TEST_ALL";

/// A run's choice from each matrix: always the same for one commit.
#[derive(Debug, Clone)]
pub struct Slice {
    commit: String,
    is_whole: bool,
}

impl Slice {
    /// Returns the slices that [`ALL_VARIABLE`] requests, else those of the commit.
    pub fn of_this_test() -> Self {
        let is_whole = env::var(ALL_VARIABLE).is_ok_and(|value| value == "1");
        Self::of_commit(Path::new(env!("CARGO_MANIFEST_DIR")), is_whole)
    }

    /// Returns the slices of a matrix that packs, and runs with named tests, test in full.
    pub fn of_this_run(names_tests: bool) -> Self {
        let slice = Self::of_this_test();
        Self { is_whole: slice.is_whole || names_tests || env::var_os(PACK_VARIABLE).is_some(), ..slice }
    }

    /// Returns all slices, or those of the commit checked out at `folder`. Without a commit in git, its name is empty.
    pub fn of_commit(folder: &Path, is_whole: bool) -> Self {
        let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(folder).output();
        let stdout =
            output.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
        Self { commit: String::from_utf8_lossy(&stdout).trim().to_owned(), is_whole }
    }

    /// Returns whether this run includes the test `name` of a matrix with `count` slices.
    pub fn has(&self, name: &str, count: u64) -> bool {
        self.is_whole || hash(name) % count == self.number(count)
    }

    /// Returns whether the commit selects choice `index` of `count` for the test `name`: each test gets one, in rotation.
    pub fn chooses(&self, name: &str, index: usize, count: usize) -> bool {
        let count = count as u64;
        self.is_whole || (hash(name) % count + self.number(count)) % count == index as u64
    }

    /// Returns which of `count` slices the commit selects, from 0 on.
    pub fn number(&self, count: u64) -> u64 {
        hash(&self.commit) % count
    }
}

impl fmt::Display for Slice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.is_whole, self.commit.as_str()) {
            (true, _) => write!(out, "all slices"),
            (false, "") => write!(out, "the slices of no commit"),
            (false, commit) => write!(out, "the slices of commit {commit}"),
        }
    }
}

/// Returns the 64-bit FNV-1a hash of a text.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(commit: &str) -> Slice {
        Slice { commit: commit.to_owned(), is_whole: false }
    }

    #[test]
    fn each_test_is_in_exactly_one_slice_and_all_slices_come_up() {
        let commits: Vec<Slice> = (0..200).map(|number| of(&format!("{number:040x}"))).collect();
        let of_number = |number| commits.iter().find(|slice| slice.number(4) == number);
        let slices: Vec<&Slice> = (0..4).filter_map(of_number).collect();
        assert_eq!(slices.len(), 4);
        for test in ["clinfo", "hashcat", "shm::opencl::user_events"] {
            assert_eq!(slices.iter().filter(|slice| slice.has(test, 4)).count(), 1, "{test}");
        }
    }

    #[test]
    fn a_commit_makes_one_choice_for_each_test() {
        for number in 0..20 {
            let slice = of(&format!("{number:040x}"));
            let chosen = |test: &str| (0..3).filter(|index| slice.chooses(test, *index, 3)).count();
            assert!(["kept_streams", "kept_arrays", "long_sums"].iter().all(|test| chosen(test) == 1));
        }
    }

    #[test]
    fn a_whole_run_leaves_nothing_out() {
        let whole = Slice { is_whole: true, ..of("abc") };
        assert!(["clinfo", "hashcat", "slice"].iter().all(|test| whole.has(test, 1000)));
    }
}
