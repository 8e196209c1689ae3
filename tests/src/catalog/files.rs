//! Lists files of a folder and its subfolders: sources and texts lie in one folder per topic, and are found by name alone.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Returns every file in or below `folder`, sorted.
///
/// # Errors
///
/// A folder cannot be read; the error names it.
pub fn below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    collect(folder, &mut files)?;
    files.sort();
    Ok(files)
}

/// Refuses duplicate file names, of which the first would stand for both.
///
/// # Errors
///
/// Two files have the same name; the error names them.
pub fn check_names(files: &[PathBuf]) -> io::Result<()> {
    let mut names = BTreeMap::new();
    for path in files {
        if let Some(duplicate) = names.insert(path.file_name(), path) {
            let text = format!("{} has the name of {}; rename one of them", path.display(), duplicate.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
    }
    Ok(())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", folder.display()));
    for entry in fs::read_dir(folder).map_err(named)? {
        let path = entry.map_err(named)?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_all_depths_are_found_and_a_missing_folder_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("b/c");
        fs::create_dir_all(&deep).unwrap();
        for path in [folder.path().join("a"), deep.join("d")] {
            fs::write(path, "").unwrap();
        }
        assert_eq!(below(folder.path()).unwrap(), [folder.path().join("a"), deep.join("d")]);
        assert!(below(&deep.join("no")).unwrap_err().to_string().contains("b/c/no"));
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        assert!(check_names(&["a/one.c", "a/two.c", "b/one.txt"].map(PathBuf::from)).is_ok());
        let refused = check_names(&["a/one.c", "a/two.c", "b/c/one.c"].map(PathBuf::from)).unwrap_err().to_string();
        assert!(refused.contains("a/one.c") && refused.contains("b/c/one.c"), "{refused}");
    }
}
