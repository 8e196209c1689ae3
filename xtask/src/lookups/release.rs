//! The releases that are tried: the lines of `xtask/releases.txt`.

/// Releases, oldest first.
const RELEASE_PINS: &str = include_str!("../../releases.txt");

/// A release: the program of `tests/releases` that runs with it, and the requirement for pip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Release {
    pub(super) program: &'static str,
    pub(super) requirement: &'static str,
}

impl Release {
    /// Returns the package and its version.
    pub(super) fn parts(&self) -> (&'static str, &'static str) {
        self.requirement.split_once("==").unwrap_or((self.requirement, ""))
    }
}

/// Returns all releases.
pub(super) fn releases() -> Vec<Release> {
    let lines = RELEASE_PINS.lines().filter(|line| !line.starts_with('#'));
    let release = |line: &'static str| {
        let (program, requirement) = line.split_once(' ')?;
        Some(Release { program, requirement })
    };
    lines.filter_map(release).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_release_has_a_program_and_one_line() {
        let all = releases();
        assert!(all.len() > 30);
        for (at, release) in all.iter().enumerate() {
            let program = format!("{}/../tests/releases/with_{}.py", env!("CARGO_MANIFEST_DIR"), release.program);
            assert!(fs::exists(&program).unwrap(), "{program}");
            assert!(!release.parts().1.is_empty() && !all[..at].contains(release), "{release:?}");
        }
    }
}
