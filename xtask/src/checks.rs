//! The static part of the tests: nothing of it runs a program of ours.

mod attributes;
mod changelog;
mod command_tree;
mod constants;
pub(crate) mod coverage;
pub(crate) mod deny;
mod directories;
mod evidence;
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
use crate::shell;
use crate::tree::Tree;

/// One check and its name in the count.
pub(crate) type Check = (&'static str, fn(&Tree) -> Result<()>);

/// All of them, quickest first.
pub(crate) const CHECKS: [Check; 8] = [
    ("formatting", formatting),
    ("layers", layers::run),
    ("dependencies", deny::run),
    ("style", style::run),
    ("pages", pages::run),
    ("lints", lints),
    ("walk-through", walkthrough::run),
    ("documentation", docs),
];

/// Runs them all; one that fails does not keep the others from showing what they find.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    let failed: Vec<&str> =
        CHECKS.iter().filter(|(name, check)| fails(tree, name, *check)).map(|(name, _)| *name).collect();
    if !failed.is_empty() {
        bail!("{} of {} checks failed: {}", failed.len(), CHECKS.len(), failed.join(", "));
    }
    Ok(())
}

fn fails(tree: &Tree, name: &str, check: fn(&Tree) -> Result<()>) -> bool {
    check(tree).inspect_err(|error| problem(&format!("{name}: {error:#}"))).is_err()
}

fn formatting(tree: &Tree) -> Result<()> {
    step("formatting: cargo fmt --check");
    silent(&mut shell::cargo(&tree.root, &["fmt", "--all", "--check"]))
}

/// Runs a command whose output matters only when it fails: it is part of the error then.
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
    // Private items are documented too, so links to them are good.
    silent(cargo.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links"))
}
