//! Everything that must pass, in one command; the last line counts: `N passed, N failed`.
//!
//! All parts run even when one fails, so that one run shows everything that is wrong; what failed is said once more,
//! name and output, right before the last line.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use anyhow::{Context, Error, Result, anyhow, bail};
use katydid_tests::catalog::slice::ALL_VARIABLE;

use crate::checks::CHECKS;
use crate::checks::coverage;
use crate::failures::{Failure, Reader};
use crate::fetch::setup;
use crate::opencl::{build, third_party};
use crate::output::{line, problem, step};
use crate::tree::Tree;
use crate::{apps, dist, shell};

/// 1: that no checkpoint can be tested is a failure (`tests/tests/checkpoint`). Set to 0 by a user without the rights.
const CHECKPOINTS_WANTED: &str = "KATYDID_CHECKPOINTS_WANTED";

/// How many tests and checks did what.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    failures: Vec<Failure>,
}

impl Count {
    /// One more; a failure is shown at once.
    fn note(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                self.keep(name, &error);
            }
        }
    }

    /// Shows a failure, and keeps it to be shown once more.
    fn keep(&mut self, name: &str, error: &Error) {
        problem(&format!("{name}: {error:#}"));
        self.failures.push(Failure { name: name.to_owned(), output: format!("{error:#}") });
    }

    /// Adds what a closing line of a test binary says; other lines say nothing.
    fn add_closing_line(&mut self, text: &str) {
        if let Some(rest) = text.trim_start().strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
        }
    }
}

/// The number that stands right before `word`.
fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

/// Runs everything and counts; of long matrices all slices, or those that the commit chooses.
pub(crate) fn run(tree: &Tree, all: bool) -> Result<ExitCode> {
    let mut count = Count::default();
    thread::scope(|scope| {
        // The network is waited for beside the checks. Before the binaries: CRIU is placed beside them.
        let fetching = scope.spawn(|| setup::run(tree));
        for (name, check) in CHECKS {
            count.note(name, check(tree));
        }
        let fetched = fetching.join().unwrap_or_else(|_| Err(anyhow!("the thread that fetches panicked")));
        count.note("toolkit, Open MPI and CRIU", fetched);
    });
    count.note("binaries", dist::run(tree, false));
    count.note("programs under test", apps::run(tree));
    count.note("programs of OpenCL", build::apps(tree));
    count.note("programs of other people with OpenCL", third_party::test(tree, all));
    count.note("every function of the driver API is called", coverage::check(tree));
    step("tests of the workspace, and every program on every way");
    // Examples in doc comments are not among them: there are none, and rustdoc takes a minute to say so.
    let arguments = ["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"];
    let mut workspace = shell::cargo(&tree.root, &arguments);
    if env::var_os(CHECKPOINTS_WANTED).is_none() {
        workspace.env(CHECKPOINTS_WANTED, "1");
    }
    if all {
        workspace.env(ALL_VARIABLE, "1");
    }
    cargo_test(&mut workspace, &mut count);
    step("every interleaving of the shared-memory ring, by loom");
    cargo_test(&mut loom(tree), &mut count);
    if count.failed > 0 {
        step("what failed, once more");
        count.failures.iter().for_each(|failure| line(&format!("{}\n", failure.shown())));
    }
    line("");
    line(&format!("{} passed, {} failed", count.passed, count.failed));
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The ring's own tests, built against loom's atomics.
fn loom(tree: &Tree) -> Command {
    shell::cargo(&tree.root, &["test", "--package", "katydid-transport", "--features", "loom", "--lib", "loom"])
}

/// Runs a `cargo test` and counts its tests; its output is shown as it comes.
fn cargo_test(cargo: &mut Command, count: &mut Count) {
    let before = count.failed;
    let mut reader = Reader::default();
    let result = counted(cargo, count, &mut reader);
    let (failures, died) = reader.finish();
    count.failures.extend(failures);
    count.failed += died;
    if let Err(error) = result {
        // Failed tests have been counted one by one; anything else, such as code that does not compile, counts once.
        if count.failed == before {
            count.failed += 1;
        }
        count.keep(&shell::shown(cargo), &error);
    }
}

fn counted(cargo: &mut Command, count: &mut Count, reader: &mut Reader) -> Result<()> {
    // One pipe for both, so that cargo's naming of a binary stands before what the binary says.
    let (output, input) = io::pipe().context("cannot make a pipe")?;
    let copy = input.try_clone().context("cannot copy a pipe")?;
    let child = cargo.stdin(Stdio::null()).stdout(input).stderr(copy).spawn();
    // The command still holds the writing ends; without this the end of the output would never come.
    cargo.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.context("cannot start cargo test")?;
    for text in BufReader::new(output).split(b'\n') {
        let text = text.context("cannot read what cargo test says")?;
        let text = String::from_utf8_lossy(&text);
        count.add_closing_line(&text);
        reader.read(&text);
        line(&text);
    }
    let status = child.wait().context("cargo test was lost")?;
    if !status.success() {
        bail!("cargo test failed ({status})");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_test_binaries_are_added_up() {
        let mut count = Count::default();
        count.add_closing_line("test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out");
        count.add_closing_line("test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        count.add_closing_line("test a_test_about_3_passed_things ... ok");
        assert_eq!((count.passed, count.failed), (19, 2));
    }
}
