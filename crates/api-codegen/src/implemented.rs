//! Which functions softcuda has: those that its modules declare.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{SourceError, read};

/// Where functions are declared, from the root of the tree: softcuda's own, and those of the graph model that it shares.
pub const DECLARATION_PATHS: [&str; 2] = [SOFTCUDA_API_FOLDER, GRAPH_FUNCTIONS_FILE];
const SOFTCUDA_API_FOLDER: &str = "crates/softcuda/src/api";
const GRAPH_FUNCTIONS_FILE: &str = "crates/graph/src/functions.rs";

fn sources(root: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let mut files = vec![root.join(GRAPH_FUNCTIONS_FILE)];
    files_below(&root.join(SOFTCUDA_API_FOLDER), &mut files)?;
    Ok(files)
}

fn files_below(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), SourceError> {
    let failed = |source| SourceError::File { path: folder.to_owned(), source };
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        match path.is_dir() {
            true => files_below(&path, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

/// The names of all functions that softcuda has.
///
/// # Errors
///
/// A file that cannot be read.
pub fn implemented(root: &Path) -> Result<BTreeSet<String>, SourceError> {
    let mut names = BTreeSet::new();
    for file in sources(root)? {
        let name_in = if file.ends_with(GRAPH_FUNCTIONS_FILE) { listed } else { declared };
        names.extend(read(&file)?.lines().filter_map(name_in).map(str::to_owned));
    }
    Ok(names)
}

/// The function that a line declares: `fn cuInit(…`.
fn declared(line: &str) -> Option<&str> {
    let line = line.trim_start().trim_start_matches("pub(crate) ").trim_start_matches("unsafe ");
    listed(line.strip_prefix("fn ")?)
}

/// The function that a line of a list begins with: `cuGraphCreate(…) create;`.
fn listed(line: &str) -> Option<&str> {
    let (name, _) = line.trim_start().split_once('(')?;
    let after = name.strip_prefix("cu").filter(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))?;
    after.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_').then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_have_names() {
        assert_eq!(declared("    fn cuInit(flags: u32) {"), Some("cuInit"));
        assert_eq!(declared("pub(crate) unsafe fn cuLaunch_v2("), Some("cuLaunch_v2"));
        assert_eq!(listed("            cuGraphDestroy(hGraph: CUgraph) destroy;"), Some("cuGraphDestroy"));
        for line in ["    // fn cuInit(", "        cuInit(0);", "    fn cubes(", "fn resolve(", "//! cuInit"] {
            assert_eq!(declared(line), None, "{line}");
        }
    }
}
