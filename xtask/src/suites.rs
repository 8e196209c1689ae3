//! The test binaries of the workspace: `cargo test --no-run` builds them, and several run at a time.
//!
//! Cargo would run one after the other. Many of them wait more than they compute, so processors would be idle.

mod report;

use std::io::{self, BufRead, BufReader, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::report::{Outcome, Report};
use crate::failures::Failure;
use crate::output::line;
use crate::tree::Tree;
use crate::{jobs, shell};

/// Number of suites at a time. Each runs several tests at a time. A third suite makes all take longer: programs that spin for each
/// other then wait for a processor.
const AT_A_TIME: usize = 2;
/// Interval of checks whether a silent suite has ended.
const SUITE_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time in which a suite prints nothing: many times the longest test. A test that hangs would otherwise hold up the others'
/// results for ever.
const MAX_SILENCE: Duration = Duration::from_secs(20 * 60);
/// Folder of the package whose suites test the whole system.
const SYSTEM_PACKAGE: &str = "tests";
/// The suite that takes longest, and comes first. The suites that mostly wait run beside it.
const LONGEST_SUITE: &str = "checkpoint";
/// Suites that keep all processors busy by themselves, and come last.
const BUSY_SUITES: [&str; 3] = ["opencl", "apps", "frameworks"];

/// A test binary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suite {
    /// Name of the target, behind that of the package if another package may have such a target.
    name: String,
    binary: PathBuf,
    /// Folder of its package, in which it runs.
    folder: PathBuf,
    /// Filter for the tests to run; all if it is empty.
    filter: &'static str,
}

/// Builds the suites that `arguments` of `cargo test` name, to run the tests whose names contain `filter`. They come in the order
/// in which they keep the processors busy best.
pub(crate) fn build(tree: &Tree, arguments: &[&str], filter: &'static str) -> Result<Vec<Suite>> {
    let mut cargo = shell::cargo(&tree.root, &["test", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("cannot start cargo test")?;
    if !output.status.success() {
        bail!("failed ({}): {}", output.status, shell::show_command(&cargo));
    }
    let messages = String::from_utf8(output.stdout).context("cargo's messages are not text")?;
    let mut suites =
        messages.lines().filter_map(|message| built_suite(message, filter)).collect::<Result<Vec<Suite>>>()?;
    suites.sort_by_key(|suite| {
        let busy = BUSY_SUITES.iter().position(|name| *name == suite.name);
        (suite.name != LONGEST_SUITE, busy, !suite.folder.ends_with(SYSTEM_PACKAGE), suite.name.clone())
    });
    Ok(suites)
}

/// Returns the suite that one of cargo's messages reports.
fn built_suite(message: &str, filter: &'static str) -> Option<Result<Suite>> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let binary = PathBuf::from(message["executable"].as_str().filter(|_| is_test)?);
    let count_jobs = || {
        let manifest = message["manifest_path"].as_str().context("cargo named no manifest")?;
        let folder = Path::new(manifest).parent().context("a manifest in no folder")?.to_owned();
        let target = message["target"]["name"].as_str().context("cargo named no target")?;
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        let is_unique = message["target"]["kind"][0] != "test" || package == SYSTEM_PACKAGE;
        let name = if is_unique { target.to_owned() } else { format!("{package} {target}") };
        Ok(Suite { name, binary, folder, filter })
    };
    Some(count_jobs())
}

/// Runs all suites, and shows their output as it comes. `prepare` sets the variables of each.
pub(crate) fn run(suites: Vec<Suite>, prepare: impl Fn(&mut Command) + Sync) -> Vec<Outcome> {
    jobs::each(suites, AT_A_TIME, |suite| {
        let mut command = Command::new(&suite.binary);
        command.args(Some(suite.filter).filter(|filter| !filter.is_empty()));
        command.current_dir(&suite.folder).env("CARGO_MANIFEST_DIR", &suite.folder);
        prepare(&mut command);
        let start = Instant::now();
        let mut outcome = run_one(&suite.name, &mut command, MAX_SILENCE).unwrap_or_else(|error| {
            let failure = Failure { name: "did not run".to_owned(), output: format!("{error:#}") };
            Outcome { passed: 0, failed: 1, failures: vec![failure] }
        });
        let seconds = start.elapsed().as_secs();
        line(&format!("{} | {} passed, {} failed, {seconds} s", suite.name, outcome.passed, outcome.failed));
        outcome.failures.iter_mut().for_each(|failure| failure.name.insert_str(0, &format!("{} ", suite.name)));
        outcome
    })
}

/// Runs a suite to its end. One that prints nothing for `max_silence` is killed, which is a failure.
fn run_one(name: &str, command: &mut Command, max_silence: Duration) -> Result<Outcome> {
    // Standard output and standard error share one pipe, which keeps their order.
    let (output, input) = io::pipe().context("cannot make a pipe")?;
    let copy = input.try_clone().context("cannot copy a pipe")?;
    let child = command.stdin(Stdio::null()).stdout(input).stderr(copy).spawn();
    // The command still holds the writing ends; without this, the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.with_context(|| format!("cannot start {}", shell::show_command(command)))?;
    let (lines, mut report) = (lines_of(output), Report::default());
    let (mut has_ended, mut last_line) = (false, Instant::now());
    loop {
        match lines.recv_timeout(SUITE_POLL_INTERVAL) {
            Ok(text) => {
                last_line = Instant::now();
                report.read(&text);
                line(&format!("{name} | {text}"));
            }
            // Processes that a suite left behind may hold the pipe open forever. The suite's last lines may still be in the pipe.
            Err(RecvTimeoutError::Timeout) if has_ended => break,
            Err(RecvTimeoutError::Timeout) => {
                has_ended = child.try_wait().context("a suite was lost")?.is_some();
                if !has_ended && last_line.elapsed() > max_silence {
                    report.read(&format!("ended by xtask: it printed nothing for {} s", max_silence.as_secs()));
                    child.kill().context("a suite was lost")?;
                    last_line = Instant::now();
                }
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait().context("a suite was lost")?;
    Ok(report.finish(status.success(), status))
}

/// Returns the lines that come through a pipe.
fn lines_of(output: PipeReader) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        let texts = BufReader::new(output).split(b'\n').map_while(Result::ok);
        texts.map(|text| String::from_utf8_lossy(&text).into_owned()).try_for_each(|text| sender.send(text))
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_taken_from_the_messages_of_cargo() {
        let message = |kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/t/crates/wire/Cargo.toml","target":{{"kind":["{kind}"],
                "name":"all"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let found = |text: &str| built_suite(text, "").map(|suite| suite.unwrap().name);
        assert_eq!(found(&message("test", true, r#""/t/all""#)).as_deref(), Some("wire all"));
        assert_eq!(found(&message("lib", true, r#""/t/all""#)).as_deref(), Some("all"));
        assert_eq!(found(&message("bin", false, r#""/t/all""#)), None);
        assert_eq!(found(&message("lib", true, "null")), None);
        assert_eq!(found("Compiling katydid-wire"), None);
    }

    #[test]
    fn orphan_of_a_suite_does_not_block_its_end() {
        let script = "echo 'test result: ok. 3 passed; 0 failed'; sleep 600 & exit 0";
        let outcome = run_one("left", Command::new("sh").args(["-c", script]), MAX_SILENCE).unwrap();
        assert_eq!((outcome.passed, outcome.failed), (3, 0));
        let script = "echo said; kill -9 $$";
        let outcome = run_one("dead", Command::new("sh").args(["-c", script]), MAX_SILENCE).unwrap();
        assert_eq!((outcome.failed, outcome.failures[0].output.as_str()), (1, "said"));
    }

    #[test]
    fn a_suite_that_hangs_is_a_failure_with_what_it_had_said() {
        let script = "echo running 1 test; exec sleep 600";
        let outcome = run_one("hung", Command::new("sh").args(["-c", script]), Duration::from_secs(1)).unwrap();
        assert_eq!((outcome.passed, outcome.failed), (0, 1));
        let output = &outcome.failures[0].output;
        assert!(output.starts_with("running 1 test") && output.ends_with("printed nothing for 1 s"), "{output}");
    }
}
