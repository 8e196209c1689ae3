//! Everything that must pass, in one command; the last line has the counts: `N passed, N failed`.
//!
//! All parts run even if one fails, so that one run shows all errors. The name and output of each failure are repeated right
//! before the last line. Parts that wait for the network or for processes run beside others.

use std::env;
use std::process::{Command, ExitCode};
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Error, Result, anyhow};
use katydid_tests::catalog::slice::ALL_VARIABLE;

use crate::checks::{self, coverage};
use crate::failures::Failure;
use crate::fetch::setup;
use crate::opencl::{build, third_party};
use crate::output::{line, problem, step};
use crate::suites::{self, Suite};
use crate::tree::Tree;
use crate::{apps, dist};

/// Variable that is 1 if it is a failure that no checkpoint can be tested (`tests/tests/checkpoint`). Users without the rights
/// set it to 0.
const CHECKPOINTS_WANTED: &str = "KATYDID_CHECKPOINTS_WANTED";
/// Flags for all test binaries. Examples in doc comments are left out: there are none, and rustdoc takes a minute to find that
/// out.
const WORKSPACE_FLAGS: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];
/// Flags for the shared-memory ring's own tests, built against loom's atomics: every interleaving.
const LOOM_FLAGS: [&str; 5] = ["--package", "katydid-transport", "--features", "loom", "--lib"];

/// Numbers of tests and checks by result.
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    failures: Vec<Failure>,
}

impl Count {
    /// Adds one result; a failure is shown at once.
    fn note(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                problem(&format!("{name}: {error:#}"));
                self.failed += 1;
                self.failures.push(Failure { name: name.to_owned(), output: format!("{error:#}") });
            }
        }
    }
}

/// Runs everything and counts the results; of long matrices all slices, or those that the commit chooses.
pub(crate) fn run(tree: &Tree, runs_everything: bool) -> Result<ExitCode> {
    let mut count = Count::default();
    check(tree, &mut count);
    build_programs(tree, &mut count);
    run_suites(tree, runs_everything, &mut count);
    if count.failed > 0 {
        step("what failed, once more");
        count.failures.iter().for_each(|failure| line(&format!("{}\n", failure.show())));
    }
    line("");
    line(&format!("{} passed, {} failed", count.passed, count.failed));
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the static checks during the downloads. They come before the binaries, since CRIU is placed beside those.
fn check(tree: &Tree, count: &mut Count) {
    thread::scope(|scope| {
        let fetching = scope.spawn(|| setup::run(tree));
        for (name, result) in checks::results(tree) {
            count.note(name, result);
        }
        count.note("toolkit, Open MPI and CRIU", joined(fetching));
    });
}

/// Builds the installed binaries and the programs under test at once. Programs that are linked with Katydid come afterwards.
fn build_programs(tree: &Tree, count: &mut Count) {
    thread::scope(|scope| {
        let compiling = scope.spawn(|| apps::run_unlinked(tree).and_then(|()| build::apps(tree)));
        count.note("binaries", dist::run(tree, false));
        count.note("programs of CUDA and OpenCL", joined(compiling));
    });
    count.note("programs that link with our library", apps::run(tree));
}

/// Builds and runs the test binaries beside the parts that need only the installed ones, since those leave processors idle.
fn run_suites(tree: &Tree, runs_everything: bool, count: &mut Count) {
    thread::scope(|scope| {
        let others = scope.spawn(|| (third_party::test(tree, runs_everything), coverage::check(tree)));
        let suites = build_suites(tree, count);
        step("tests of the workspace, and every program on every way");
        for outcome in suites::run(suites, |command| prepare(command, runs_everything)) {
            count.passed += outcome.passed;
            count.failed += outcome.failed;
            count.failures.extend(outcome.failures);
        }
        let (programs, calls) = others.join().unwrap_or_else(|_| (Err(panicked()), Err(panicked())));
        count.note("programs of other people with OpenCL", programs);
        count.note("every function of the driver API is called", calls);
    });
}

fn build_suites(tree: &Tree, count: &mut Count) -> Vec<Suite> {
    let mut suites = Vec::new();
    for (name, arguments, filter) in
        [("test binaries", &WORKSPACE_FLAGS[..], ""), ("tests by loom", &LOOM_FLAGS, "loom")]
    {
        let built = suites::build(tree, arguments, filter);
        count.note(name, built.map(|built| suites.extend(built)));
    }
    suites
}

/// Returns the result of a thread that works beside this one.
fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    anyhow!("its thread panicked")
}

/// Sets the variables of this run for the tests.
fn prepare(command: &mut Command, runs_everything: bool) {
    if env::var_os(CHECKPOINTS_WANTED).is_none() {
        command.env(CHECKPOINTS_WANTED, "1");
    }
    if runs_everything {
        command.env(ALL_VARIABLE, "1");
    }
}
