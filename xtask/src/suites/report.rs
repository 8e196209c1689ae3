//! Output of a suite, line by line: how many tests passed and failed, and the outputs of failed tests.

use std::fmt::Display;
use std::mem::take;

use crate::failures::Failure;

/// Results of a suite.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) failures: Vec<Failure>,
}

/// Part of the output that a line belongs to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum ReportPart {
    /// Between the parts that matter.
    #[default]
    Outside,
    /// Behind the first `failures:`: the outputs of failed tests.
    Outputs,
    /// Behind the second `failures:`: their names again.
    Names,
}

/// Parser of a suite's output.
#[derive(Debug, Default)]
pub(super) struct Report {
    /// All lines except the outputs of failed tests, in case the suite dies.
    stray_lines: Vec<String>,
    part: ReportPart,
    /// Whether it has printed how many tests it runs, but not yet how many passed.
    has_begun: bool,
    outcome: Outcome,
}

impl Report {
    /// Reads one line of a test binary's output.
    pub(super) fn read(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            (self.part, self.has_begun) = (ReportPart::Outside, false);
            self.outcome.passed += number_before(counts, " passed");
            self.outcome.failed += number_before(counts, " failed");
            return;
        }
        self.has_begun |= line.starts_with("running ");
        match self.part {
            ReportPart::Outside if line == "failures:" => self.part = ReportPart::Outputs,
            ReportPart::Outside => self.stray_lines.push(line.to_owned()),
            ReportPart::Outputs if line == "failures:" => self.part = ReportPart::Names,
            ReportPart::Outputs => self.add(line),
            ReportPart::Names => {}
        }
    }

    /// Returns the results. A suite that ended badly, or in the middle of its tests, has failed even if none of its tests has.
    pub(super) fn finish(mut self, ended_well: bool, ending: impl Display) -> Outcome {
        if (!ended_well || self.has_begun) && self.outcome.failed == 0 {
            self.outcome.failed = 1;
            self.outcome
                .failures
                .push(Failure { name: format!("died ({ending})"), output: take(&mut self.stray_lines).join("\n") });
        }
        self.outcome
    }

    fn add(&mut self, line: &str) {
        let failures = &mut self.outcome.failures;
        match (heading(line), failures.last_mut()) {
            (Some(test), _) => failures.push(Failure { name: test.to_owned(), output: String::new() }),
            (None, Some(failure)) => {
                failure.output.push('\n');
                failure.output.push_str(line);
            }
            (None, None) => {}
        }
    }
}

/// Returns the test whose output follows: `---- name stdout ----`, or `---- name ----` from other harnesses.
fn heading(line: &str) -> Option<&str> {
    let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
    Some(name.strip_suffix(" stdout").unwrap_or(name))
}

/// Returns the number right before `word`.
fn number_before(text: &str, word: &str) -> u64 {
    let before = text.split(word).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str, ended_well: bool) -> Outcome {
        let mut report = Report::default();
        text.lines().for_each(|line| report.read(line));
        report.finish(ended_well, "signal: 6")
    }

    #[test]
    fn closing_lines_are_counted_and_nothing_that_looks_like_one() {
        let text = "test a_test_about_3_passed_things ... ok\n\
            test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n\
            test says_error ... ok\n    error: indented\ntest result: ok. 7 passed; 0 failed\n";
        assert_eq!(outcome(text, true), Outcome { passed: 19, ..Outcome::default() });
    }

    #[test]
    fn a_failed_test_is_named_with_its_output() {
        let text = "running 2 tests\ntest a ... FAILED\ntest b ... ok\n\nfailures:\n\n---- a stdout ----\n\
            thread 'a' panicked\nleft: 1\n\n---- shm::static::scan ----\nexit status 1\n\n\nfailures:\n    a\n\n\
            test result: FAILED. 1 passed; 2 failed\n";
        let failures = [("a", "\nthread 'a' panicked\nleft: 1\n"), ("shm::static::scan", "\nexit status 1\n\n")];
        let failures = failures.map(|(name, output)| Failure { name: name.to_owned(), output: output.to_owned() });
        assert_eq!(outcome(text, false), Outcome { passed: 1, failed: 2, failures: failures.into() });
    }

    #[test]
    fn a_suite_that_ends_among_its_tests_is_a_failure() {
        assert_eq!(outcome("running 1 test\ntest a ... ok\n", true).failed, 1);
        assert_eq!(outcome("a grid moved through 15 processes\n", true), Outcome::default());
    }

    #[test]
    fn a_suite_that_dies_is_a_failure_with_what_it_had_said() {
        let found = outcome("running 1 test\n", false);
        let failure = Failure { name: "died (signal: 6)".to_owned(), output: "running 1 test".to_owned() };
        assert_eq!(found, Outcome { passed: 0, failed: 1, failures: vec![failure] });
    }
}
