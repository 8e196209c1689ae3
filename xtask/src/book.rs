//! The documentation as a book, where mdbook is installed: `docs/SUMMARY.md` has the order of its pages.

use std::process::Command;

use anyhow::{Result, bail};

use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Builds it into `target/book`.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    if !shell::works("mdbook", &["--version"]) {
        bail!("mdbook is not installed: `cargo install mdbook` installs it; docs/SUMMARY.md lists the same pages");
    }
    step("building the book");
    let place = tree.target.join("book");
    shell::run(Command::new("mdbook").arg("build").arg(&tree.root).arg("--dest-dir").arg(&place))?;
    line(&format!("{} is its first page", place.join("index.html").display()));
    Ok(())
}
