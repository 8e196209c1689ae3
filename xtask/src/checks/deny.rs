//! Checks dependencies against `deny.toml`: licences, banned crates, sources, and advisories against versions in use.
//!
//! cargo-deny is not part of the toolchain, and the advisories are a repository on the net. A check that lacks one of them is
//! named and left out, so that the other checks still run.

use anyhow::{Result, bail};

use crate::output::{line, step};
use crate::shell;
use crate::tree::Tree;

/// Checks that need no network.
const OFFLINE_CHECKS: [&str; 3] = ["licenses", "bans", "sources"];

/// Runs the checks that are possible on this machine.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    step("dependencies: cargo deny");
    if !shell::works("cargo", &["deny", "--version"]) {
        line("    skipped: cargo-deny is not installed (`cargo install --locked cargo-deny`)");
        return Ok(());
    }
    let check =
        |what: &[&str]| shell::read(&mut shell::cargo(&tree.root, &[&["deny", "check"], what].concat())).map(drop);
    check(&OFFLINE_CHECKS)?;
    if let Err(error) = shell::read(&mut shell::cargo(&tree.root, &["deny", "fetch", "db"])) {
        let reason = format!("{error:#}");
        let last = reason.lines().rev().find(|text| !text.trim().is_empty()).unwrap_or_default();
        line(&format!("    advisories skipped: their database cannot be fetched ({})", last.trim()));
        return Ok(());
    }
    if let Err(error) = check(&["advisories"]) {
        bail!("an advisory is against a version in use: update it (`cargo update -p CRATE`)\n{error:#}");
    }
    Ok(())
}
