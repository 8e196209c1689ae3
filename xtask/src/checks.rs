//! The static part of the tests, which runs none of the project's programs.

mod attributes;
mod changelog;
mod command_tree;
mod constants;
pub(crate) mod coverage;
pub(crate) mod deny;
mod directories;
pub(crate) mod evidence;
mod flags;
pub(crate) mod layers;
mod modules;
mod outside;
pub(crate) mod pages;
mod prose;
mod sentences;
mod short_docs;
pub(crate) mod style;
mod symbols;
pub(crate) mod walkthrough;
mod words;
use std::process::Command;

use anyhow::{Result, bail};

use crate::output::{problem, step};
use crate::tree::Tree;
use crate::{jobs, shell};

/// One check, with its name in the summary.
type Check = (&'static str, fn(&Tree) -> Result<()>);

/// All checks, quickest first.
const STATIC_CHECKS: [Check; 8] = [
    ("formatting", formatting),
    ("layers", layers::run),
    ("dependencies", deny::run),
    ("style", style::run),
    ("pages", pages::run),
    ("lints", lints),
    ("walk-through", walkthrough::run),
    ("documentation", docs),
];

/// Number of checks at a time: half of them wait for cargo's lock, the others keep one processor busy.
const CHECKS_AT_A_TIME: usize = 2;

/// Runs all checks, even if one of them fails, and reports every failure.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    let results = results(tree);
    let failures = results.iter().filter_map(|(name, result)| Some((*name, result.as_ref().err()?)));
    let failed: Vec<&str> = failures
        .map(|(name, error)| {
            problem(&format!("{name}: {error:#}"));
            name
        })
        .collect();
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), STATIC_CHECKS.len(), failed.join(", "));
    }
    Ok(())
}

/// Returns the result of each check, in their order.
pub(crate) fn results(tree: &Tree) -> Vec<(&'static str, Result<()>)> {
    jobs::each(STATIC_CHECKS.to_vec(), CHECKS_AT_A_TIME, |(name, check)| (name, check(tree)))
}

fn formatting(tree: &Tree) -> Result<()> {
    step("formatting: cargo fmt --check");
    silent(&mut shell::cargo(&tree.root, &["fmt", "--all", "--check"]))
}

/// Runs a command whose output is shown only if it fails, as part of the error.
fn silent(command: &mut Command) -> Result<()> {
    shell::read(command).map(drop)
}

fn lints(tree: &Tree) -> Result<()> {
    step("lints: cargo clippy, warnings are errors");
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    silent(&mut shell::cargo(&tree.root, &arguments))
}

fn docs(tree: &Tree) -> Result<()> {
    step("documentation: cargo doc, warnings are errors");
    let mut cargo =
        shell::cargo(&tree.root, &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    // Private items are documented too, so links to them are valid.
    silent(cargo.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
}
