//! Checks the walk-through of `docs/how-to/add-a-function.md`: its changes apply to this tree and compile, the page has the right
//! number of files for each, and code that it shows of the tree is there.
//!
//! All the changes are applied to a copy below cargo's target folder, which is compiled once. The copy has a target folder of its
//! own. In a shared one, cargo would take the copy's crates for those of the tree, and then miss changes there.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Page whose table has a row for each change.
const WALKTHROUGH_PAGE: &str = "docs/how-to/add-a-function.md";
/// Folder of the changes, each as `git diff` writes it. No two of them touch the same lines.
const CHANGES_FOLDER: &str = "docs/how-to/add-a-function";
/// Names of the changes' files.
const CHANGE_NAMES: [&str; 5] = ["local", "call", "structure", "attribute", "handle"];
/// Begins a block of code of the tree on the page; its first line is a comment with the file's path.
const CODE_BLOCK_BEGINNING: &str = "```rust,ignore\n// ";
/// File in which a new line makes `cargo xtask bless` write another coverage page, which no change includes.
const SPEC_FILE: &str = "spec/cuda.api";
/// Target folder of the copy, below cargo's target folder.
const COPY_TARGET: &str = "walkthrough-target";
/// Crates that the changes touch.
const TOUCHED_CRATES: [&str; 6] = ["-p", "katydid-shim-cuda", "-p", "katydid-session", "-p", "katydid-softcuda"];

/// Counts the files of each change, applies them to a copy of the tree, and compiles the copy.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    step("walk-through: the changes of docs/how-to/add-a-function.md compile");
    let page = fs::read_to_string(tree.root.join(WALKTHROUGH_PAGE))
        .with_context(|| format!("cannot read {WALKTHROUGH_PAGE}"))?;
    for name in CHANGE_NAMES {
        let path = change(name);
        let diff = fs::read_to_string(tree.root.join(&path)).with_context(|| format!("cannot read {path}"))?;
        let count = files(&diff);
        line(&format!("{name}: {count} files"));
        match stated_files(&page, name) {
            Some(stated_count) if stated_count == count => {}
            Some(stated_count) => bail!("{WALKTHROUGH_PAGE} says {stated_count} files of {path}, which takes {count}"),
            None => bail!("{WALKTHROUGH_PAGE} has no row that links {path} and ends with its files"),
        }
    }
    check_blocks(&tree.root, &page)?;
    let copy = tree.target.join("walkthrough");
    copy_sources(&tree.root, &copy)?;
    CHANGE_NAMES.iter().try_for_each(|name| apply(tree, &copy, &change(name)))?;
    let mut check = shell::cargo(&copy, &["check", "--quiet"]);
    check.args(TOUCHED_CRATES).env("CARGO_TARGET_DIR", tree.target.join(COPY_TARGET));
    shell::read(&mut check)
        .map(drop)
        .with_context(|| format!("the tree with the changes of {CHANGES_FOLDER} does not compile"))
}

/// Fails if the page shows a line of code that the file lacks.
fn check_blocks(root: &Path, page: &str) -> Result<()> {
    for block in page.split(CODE_BLOCK_BEGINNING).skip(1) {
        let block = block.split("```").next().unwrap_or_default();
        let Some((path, code)) = block.split_once('\n') else { continue };
        let source = fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        let has_line = |shown: &str| source.lines().any(|line| line.trim() == shown);
        if let Some(missing) = code.lines().map(str::trim).find(|shown| !has_line(shown)) {
            bail!("{WALKTHROUGH_PAGE} shows a line that {path} has not: {missing}");
        }
    }
    Ok(())
}

fn change(name: &str) -> String {
    format!("{CHANGES_FOLDER}/{name}.diff")
}

fn apply(tree: &Tree, copy: &Path, change: &str) -> Result<()> {
    let mut apply = Command::new("git");
    // Without this variable, git would take the copy for a part of the surrounding repository.
    apply.arg("apply").arg(tree.root.join(change)).current_dir(copy).env("GIT_CEILING_DIRECTORIES", &tree.target);
    let stale = || format!("{change} does not fit this tree: make the change anew, and write `git diff` there");
    shell::read(&mut apply).map(drop).with_context(stale)
}

/// Returns the number of files that a change touches, including those that `cargo xtask bless` writes for it.
fn files(diff: &str) -> usize {
    let touched = diff.lines().filter_map(|line| line.strip_prefix("diff --git a/"));
    touched.map(|paths| 1 + usize::from(paths.starts_with(SPEC_FILE))).sum()
}

/// Returns the number of files that the page states for a change: the second cell of the row that links it.
fn stated_files(page: &str, name: &str) -> Option<usize> {
    let link = format!("(add-a-function/{name}.diff)");
    let row = page.lines().find(|line| line.starts_with('|') && line.contains(&link))?;
    row.trim_matches('|').split('|').nth(1)?.trim().parse().ok()
}

/// Copies every file that git tracks or would track to a separate folder.
fn copy_sources(root: &Path, copy: &Path) -> Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    }
    let mut listed = Command::new("git");
    listed.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    for name in shell::read(&mut listed)?.split_terminator('\0') {
        let (from, to) = (root.join(name), copy.join(name));
        // A deleted file may still be listed.
        if !from.is_file() {
            continue;
        }
        let folder = to.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_takes_its_files_and_the_page_that_follows_from_the_spec() {
        let diff = "diff --git a/spec/cuda.api b/spec/cuda.api\n--- a/spec/cuda.api\n+cuFoo () call none 13.0\n\
                    diff --git a/tests/apps/foo.cpp b/tests/apps/foo.cpp\n";
        assert_eq!((files(diff), files("")), (3, 0));
    }

    #[test]
    fn code_of_the_tree_is_compared_with_its_file() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("a.rs"), "fn a() {\n    b();\n}\n").unwrap();
        let page = |line: &str| format!("```rust,ignore\n// a.rs\nfn a() {{\n  {line}\n}}\n```\n");
        assert!(check_blocks(root.path(), &page("b();")).is_ok());
        assert!(check_blocks(root.path(), &page("c();")).is_err());
    }

    #[test]
    fn the_page_says_how_many() {
        let page = "| example | files | before |\n| [a call](add-a-function/call.diff) | 5 | 13 |\n";
        assert_eq!((stated_files(page, "call"), stated_files(page, "handle")), (Some(5), None));
    }
}
