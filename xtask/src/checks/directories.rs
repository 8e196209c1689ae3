//! Checks that no directory holds more files than a reader can survey.
//!
//! Every tracked file counts, tests, data and pages included; subdirectories do not.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::shell;

/// Largest number of files in one directory.
const MAX_FILES_PER_DIRECTORY: usize = 20;

/// Returns a fault for each directory of the checkout that holds too many files.
pub(crate) fn faults(root: &Path) -> Result<Vec<String>> {
    Ok(full(&shell::git(root, &["ls-files"])?))
}

/// Returns the directories with too many files, from the names of all files.
fn full(names: &str) -> Vec<String> {
    let mut directories: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names.lines() {
        *directories.entry(name.rsplit_once('/').map_or("the root", |(directory, _)| directory)).or_default() += 1;
    }
    directories.retain(|_, count| *count > MAX_FILES_PER_DIRECTORY);
    let faults = directories.into_iter().map(|(directory, count)| {
        format!("{directory} holds {count} files, the limit is {MAX_FILES_PER_DIRECTORY}: group them in directories")
    });
    faults.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_with_too_many_files_is_named_whatever_they_are() {
        let ends = ["rs", "txt", "cu"];
        let mut names: Vec<String> =
            (0..=MAX_FILES_PER_DIRECTORY).map(|number| format!("a/full/f{number}.{}", ends[number % 3])).collect();
        names.push("a/full/deeper/f.rs".to_owned());
        assert_eq!(
            full(&names.join("\n")),
            ["a/full holds 21 files, the limit is 20: group them in directories".to_owned()]
        );
        assert!(full(&names[1..].join("\n")).is_empty());
    }
}
