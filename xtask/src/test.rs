//! Everything that must pass, in one command; the last line counts: `N passed, N failed`.
//!
//! All parts run even when one fails, so that one run shows everything that is wrong; what failed is said once more,
//! name and output, right before the last line. Parts that wait for the network or for processes run beside others.

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

/// 1: that no checkpoint can be tested is a failure (`tests/tests/checkpoint`). Set to 0 by a user without the rights.
const CHECKPOINTS_WANTED: &str = "KATYDID_CHECKPOINTS_WANTED";
/// All test binaries. Examples in doc comments are not among them: there are none, and rustdoc takes a minute to find that out.
const WORKSPACE_FLAGS: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];
/// The shared-memory ring's own tests, built against loom's atomics: every interleaving.
const LOOM_FLAGS: [&str; 5] = ["--package", "katydid-transport", "--features", "loom", "--lib"];

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
                problem(&format!("{name}: {error:#}"));
                self.failed += 1;
                self.failures.push(Failure { name: name.to_owned(), output: format!("{error:#}") });
            }
        }
    }
}

/// Runs everything and counts; of long matrices all slices, or those that the commit chooses.
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

/// The static checks, while the network is waited for. Before the binaries: CRIU is placed beside them.
fn check(tree: &Tree, count: &mut Count) {
    thread::scope(|scope| {
        let fetching = scope.spawn(|| setup::run(tree));
        for (name, result) in checks::results(tree) {
            count.note(name, result);
        }
        count.note("toolkit, Open MPI and CRIU", joined(fetching));
    });
}

/// The installed binaries beside the programs under test, of which some are linked with ours and come behind.
fn build_programs(tree: &Tree, count: &mut Count) {
    thread::scope(|scope| {
        let compiling = scope.spawn(|| apps::run_unlinked(tree).and_then(|()| build::apps(tree)));
        count.note("binaries", dist::run(tree, false));
        count.note("programs of CUDA and OpenCL", joined(compiling));
    });
    count.note("programs that link with our library", apps::run(tree));
}

/// The test binaries, built and run while what needs only the installed ones runs: that leaves processors idle too.
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

/// What a thread that works beside us has come to.
fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread.join().unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> Error {
    anyhow!("its thread panicked")
}

/// The variables of this run for the tests.
fn prepare(command: &mut Command, runs_everything: bool) {
    if env::var_os(CHECKPOINTS_WANTED).is_none() {
        command.env(CHECKPOINTS_WANTED, "1");
    }
    if runs_everything {
        command.env(ALL_VARIABLE, "1");
    }
}
