//! The walk-through of `docs/how-to/add-a-function.md`: its change applies to this tree, and what it makes compiles.
//!
//! The change is applied to a copy below cargo's target folder. The copy shares that folder's dependencies.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::output::step;
use crate::shell;
use crate::tree::Tree;

/// The change, as `git diff` writes it.
const CHANGE: &str = "docs/how-to/add-a-function.diff";
/// What the change touches.
const CRATES: [&str; 6] = ["-p", "katydid-shim-cuda", "-p", "katydid-session", "-p", "katydid-softcuda"];

/// Applies the change to a copy of the tree, and compiles that.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    step("walk-through: the change of docs/how-to/add-a-function.md compiles");
    let copy = tree.target.join("walkthrough");
    copy_sources(&tree.root, &copy)?;
    let change = tree.root.join(CHANGE);
    let mut apply = Command::new("git");
    // Without this git would take the copy for a part of the repository around it.
    apply.arg("apply").arg(&change).current_dir(&copy).env("GIT_CEILING_DIRECTORIES", &tree.target);
    let stale = || format!("{CHANGE} does not fit this tree: make the change anew, and write `git diff` there");
    shell::read(&mut apply).with_context(stale)?;
    let mut check = shell::cargo(&copy, &["check", "--quiet"]);
    check.args(CRATES).env("CARGO_TARGET_DIR", &tree.target);
    shell::read(&mut check).map(drop).with_context(|| format!("the tree with {CHANGE} does not compile"))
}

/// Every file that git keeps or would keep, in a folder of its own.
fn copy_sources(root: &Path, copy: &Path) -> Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(|| format!("cannot remove {}", copy.display()))?;
    }
    let mut listed = Command::new("git");
    listed.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    for name in shell::read(&mut listed)?.split_terminator('\0') {
        let (from, to) = (root.join(name), copy.join(name));
        // One that was deleted and is listed yet.
        if !from.is_file() {
            continue;
        }
        let folder = to.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        fs::copy(&from, &to).with_context(|| format!("cannot copy {name}"))?;
    }
    Ok(())
}
