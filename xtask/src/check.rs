//! The static part of the tests: nothing of it runs a program of ours.

use anyhow::Result;

use crate::output::step;
use crate::shell;
use crate::tree::Tree;
use crate::{layers, style};

/// One check and its name in the count.
pub(crate) type Check = (&'static str, fn(&Tree) -> Result<()>);

/// All of them, quickest first.
pub(crate) const CHECKS: [Check; 5] = [
    ("formatting", formatting),
    ("layers", layers::run),
    ("style", style::run),
    ("lints", lints),
    ("documentation", docs),
];

/// Runs them all, and stops at the first that fails.
pub(crate) fn run(tree: &Tree) -> Result<()> {
    CHECKS.iter().try_for_each(|(_, check)| check(tree))
}

fn formatting(tree: &Tree) -> Result<()> {
    step("formatting: cargo fmt --check");
    shell::run(&mut shell::cargo(&tree.root, &["fmt", "--all", "--check"]))
}

fn lints(tree: &Tree) -> Result<()> {
    step("lints: cargo clippy, warnings are errors");
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"];
    shell::run(&mut shell::cargo(&tree.root, &arguments))
}

fn docs(tree: &Tree) -> Result<()> {
    step("documentation: cargo doc, warnings are errors");
    let mut cargo =
        shell::cargo(&tree.root, &["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
    shell::run(cargo.env("RUSTDOCFLAGS", "-D warnings"))
}
