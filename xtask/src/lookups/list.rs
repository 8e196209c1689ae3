//! `spec/lookups.txt`: a line for each function and version that releases look up in the driver, with these releases.
//!
//! `cuMemAlloc 3.2 torch:2.1.2-2.15.0` stands for `cuGetProcAddress`, `cuInit - torch:2.1.2` for `dlsym`, and `table NAME (ID) -
//! torch:2.1.2` for `cuGetExportTable`. A range has all releases of the package from one to the other in the order of
//! `xtask/releases.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::lookups::release::Release;

/// Path of the list in the checkout.
pub(super) const LOOKUPS_FILE: &str = "spec/lookups.txt";

const LOOKUPS_HEAD: &str = "\
# What releases of CUDA's runtime, NCCL and PyTorch ask the driver for: a function, the version of CUDA that they name (none: by
# dlsym) or a private table, and the releases. Made by `cargo xtask lookups`; a test of the shim holds the driver API to it.
";

/// A function or table, and the version as `cuGetProcAddress` takes it; 0 if none is named.
pub(super) type Lookup = (String, u32);

/// Releases for each lookup, by the requirements for pip.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lookups(BTreeMap<Lookup, BTreeSet<String>>);

impl Lookups {
    /// Reads the list; releases that are not in `known` are left out.
    pub(super) fn parse(text: &str, known: &[Release]) -> Result<Self> {
        let mut lookups = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (lookup, releases) =
                entry(line, known).with_context(|| format!("{LOOKUPS_FILE}: {line}: no such line"))?;
            lookups.0.entry(lookup).or_default().extend(releases);
        }
        Ok(lookups)
    }

    /// Replaces the lookups of a release.
    pub(super) fn replace(&mut self, release: &str, lookups: &BTreeSet<Lookup>) {
        for releases in self.0.values_mut() {
            releases.remove(release);
        }
        for lookup in lookups {
            self.0.entry(lookup.clone()).or_default().insert(release.to_owned());
        }
        self.0.retain(|_, releases| !releases.is_empty());
    }

    /// Returns the list as the text of the file.
    pub(super) fn text(&self, known: &[Release]) -> String {
        let mut text = LOOKUPS_HEAD.to_owned();
        for ((name, version), releases) in &self.0 {
            let _ = writeln!(text, "{name} {}{}", describe_version(*version), ranges(releases, known));
        }
        text
    }
}

/// Returns a version as people write it: 13.2 for 13020, and - for none.
fn describe_version(version: u32) -> String {
    if version == 0 { "-".to_owned() } else { format!("{}.{}", version / 1000, version % 1000 / 10) }
}

fn version_of(words: &str) -> Option<u32> {
    if words == "-" {
        return Some(0);
    }
    let (major, minor) = words.split_once('.')?;
    Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
}

/// Returns the releases as ranges, one package after the other.
fn ranges(releases: &BTreeSet<String>, known: &[Release]) -> String {
    let mut text = String::new();
    let mut packages: Vec<&str> = known.iter().map(|release| release.parts().0).collect();
    packages.dedup();
    for package in packages {
        let of_package: Vec<&Release> = known.iter().filter(|release| release.parts().0 == package).collect();
        let has = |release: &&Release| releases.contains(release.requirement);
        let runs = of_package.chunk_by(|one, other| has(one) == has(other)).filter(|run| has(&run[0]));
        let run = |run: &[&Release]| match run {
            [one] => one.parts().1.to_owned(),
            [first, .., last] => format!("{}-{}", first.parts().1, last.parts().1),
            [] => String::new(),
        };
        let runs: Vec<String> = runs.map(run).collect();
        if !runs.is_empty() {
            let _ = write!(text, " {package}:{}", runs.join(","));
        }
    }
    text
}

/// Parses a line of the list.
fn entry(line: &str, known: &[Release]) -> Option<(Lookup, Vec<String>)> {
    let mut words = line.split(' ');
    let mut name = words.next()?.to_owned();
    if name == "table" {
        name = [name.as_str(), words.next()?, words.next()?].join(" ");
    }
    let version = version_of(words.next()?)?;
    let mut releases = Vec::new();
    for word in words {
        let (package, runs) = word.split_once(':')?;
        for run in runs.split(',') {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            let of_package = known.iter().filter(|release| release.parts().0 == package);
            let from = of_package.skip_while(|release| release.parts().1 != first);
            for release in from {
                releases.push(release.requirement.to_owned());
                if release.parts().1 == last {
                    break;
                }
            }
        }
    }
    Some(((name, version), releases))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Release; 4] = [
        Release { program: "nccl", requirement: "nccl==2.1" },
        Release { program: "torch", requirement: "torch==1.0" },
        Release { program: "torch", requirement: "torch==1.1" },
        Release { program: "torch", requirement: "torch==1.2" },
    ];

    fn set(lookups: &[(&str, u32)]) -> BTreeSet<Lookup> {
        lookups.iter().map(|(name, version)| ((*name).to_owned(), *version)).collect()
    }

    #[test]
    fn releases_that_follow_each_other_are_a_range_and_are_read_back() {
        let mut lookups = Lookups::default();
        lookups.replace("nccl==2.1", &set(&[("cuInit", 2000), ("table ONE (0-1)", 0)]));
        lookups.replace("torch==1.0", &set(&[("cuInit", 2000), ("cuInit", 0), ("cuNew", 13_020)]));
        lookups.replace("torch==1.1", &set(&[("cuInit", 2000)]));
        lookups.replace("torch==1.2", &set(&[("cuInit", 2000), ("cuNew", 13_020)]));
        let text = lookups.text(&ALL);
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "cuInit - torch:1.0",
            "cuInit 2.0 nccl:2.1 torch:1.0-1.2",
            "cuNew 13.2 torch:1.0,1.2",
            "table ONE (0-1) - nccl:2.1",
        ];
        assert_eq!(lines, expected);
        assert_eq!(Lookups::parse(&text, &ALL).unwrap(), lookups);
        lookups.replace("torch==1.2", &set(&[]));
        assert!(lookups.text(&ALL).contains("cuNew 13.2 torch:1.0\n"));
        assert!(Lookups::parse("cuInit two torch:1.0", &ALL).is_err());
    }
}
