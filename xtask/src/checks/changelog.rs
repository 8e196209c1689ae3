//! Checks the form of `CHANGELOG.md`: the form of Keep a Changelog, with short entries in lines of one width.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Path of the page, from the root.
pub(crate) const CHANGELOG_PAGE: &str = "CHANGELOG.md";
/// Allowed names for the sections of a release.
const SECTION_NAMES: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
/// Largest number of lines in an entry.
const MAX_ENTRY_LINES: usize = 2;
/// Largest number of characters in a line of an entry.
const MAX_ENTRY_LINE_CHARS: usize = 140;

/// Returns the faults of the page.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    let text =
        fs::read_to_string(root.join(CHANGELOG_PAGE)).with_context(|| format!("cannot read {CHANGELOG_PAGE}"))?;
    let manifest = fs::read_to_string(root.join("Cargo.toml")).context("cannot read Cargo.toml")?;
    let mut faults = of_text(&text);
    faults.extend(of_version(&text, &manifest));
    Ok(faults)
}

/// Returns a fault if the version of a tree with unreleased changes looks like a release: it must end with `-dev`.
fn of_version(text: &str, manifest: &str) -> Option<String> {
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))?;
    let unreleased = text.split("\n## ").find(|part| part.trim_start_matches("## ").starts_with("[Unreleased]"))?;
    let has_changes = unreleased.lines().any(|line| line.starts_with("- "));
    let is_release = !version.ends_with("-dev");
    (has_changes && is_release)
        .then(|| format!("Cargo.toml: version {version} with entries under [Unreleased]: add -dev"))
}

fn of_text(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut releases = Vec::new();
    let mut entry_lines = 0;
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let mut fault = |what: &str| faults.push(format!("{CHANGELOG_PAGE}:{number}: {what}"));
        if let Some(release) = line.strip_prefix("## ") {
            if !(release == "[Unreleased]" || is_release(release)) {
                fault("a release is [Unreleased] or [X.Y.Z] - YYYY-MM-DD");
            }
            releases.push(release);
        } else if let Some(section) = line.strip_prefix("### ")
            && !SECTION_NAMES.contains(&section)
        {
            fault(&format!("a section is one of {}", SECTION_NAMES.join(", ")));
        }
        entry_lines = match line {
            entry if entry.starts_with("- ") => 1,
            more if more.starts_with("  ") && entry_lines > 0 => entry_lines + 1,
            _ => 0,
        };
        if entry_lines == MAX_ENTRY_LINES + 1 {
            fault(&format!("an entry has {MAX_ENTRY_LINES} lines at most; a page under docs has room for more"));
        }
        if entry_lines > 0 && line.chars().count() > MAX_ENTRY_LINE_CHARS {
            fault(&format!("a line of an entry has {MAX_ENTRY_LINE_CHARS} characters at most"));
        }
    }
    if releases.first() != Some(&"[Unreleased]") {
        faults.push(format!("{CHANGELOG_PAGE}: the first release is not [Unreleased]"));
    }
    faults
}

/// Returns whether a heading is `[X.Y.Z] - YYYY-MM-DD`.
fn is_release(heading: &str) -> bool {
    let Some((version, date)) = heading.strip_prefix('[').and_then(|rest| rest.split_once("] - ")) else {
        return false;
    };
    let are_numbers = |text: &str, separator: char| {
        text.split(separator).filter(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())).count()
    };
    are_numbers(version, '.') == 3 && are_numbers(date, '-') == 3 && date.len() == "YYYY-MM-DD".len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_keep_a_changelog_passes() {
        let text = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-28\n\n### Added\n\n#### Links\n\n- One\n  two.\n- Three.\n";
        assert_eq!(of_text(text), Vec::<String>::new());
    }

    #[test]
    fn other_headings_and_long_entries_are_named() {
        let text = "## [0.1] - 2026-11-28\n### News\n- One\n  two\n  three.\n";
        assert_eq!(of_text(text).len(), 4);
    }

    #[test]
    fn long_lines_of_entries_are_named() {
        let begin = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- ";
        let entry = "x".repeat(MAX_ENTRY_LINE_CHARS - "- ".len());
        assert_eq!(of_text(&format!("{begin}{entry}\n")), Vec::<String>::new());
        assert_eq!(of_text(&format!("{begin}{entry}x\n")).len(), 1);
    }

    #[test]
    fn a_tree_with_unreleased_changes_has_no_version_of_a_release() {
        let changed = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- One.\n\n## [0.1.0] - 2026-11-28\n";
        let cut = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-28\n\n- One.\n";
        let manifest = |version: &str| format!("[workspace.package]\nversion = \"{version}\"\n");
        assert!(of_version(changed, &manifest("0.1.0")).is_some());
        assert_eq!(of_version(changed, &manifest("0.2.0-dev")), None);
        assert_eq!(of_version(cut, &manifest("0.1.0")), None);
    }
}
