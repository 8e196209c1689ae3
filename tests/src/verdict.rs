//! Checks a program's result: exit status 0, and exactly its expected output.
//!
//! Every program prints the same with every driver and on every way, so one text serves for all of them.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::paths::Paths;
use crate::program::Outcome;

/// The fault of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunFault {
    /// The program failed: a status other than 0, or a signal.
    #[error("{ending}\n--- stdout\n{stdout}--- stderr\n{stderr}")]
    Failed {
        /// Exit status or signal.
        ending: String,
        /// Standard output of the program.
        stdout: String,
        /// Standard error of the program.
        stderr: String,
    },
    /// It succeeded with different output.
    #[error(
        "the output differs from {path}, first in line {line}\n  kept: {expected}\n  came: {came}\n--- stderr\n{stderr}"
    )]
    Differs {
        /// Path of the expected output.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: usize,
        /// The expected line.
        expected: String,
        /// The actual line.
        came: String,
        /// Its standard error.
        stderr: String,
    },
    /// A line is neither the expected one nor the one without Katydid.
    #[error(
        "the output differs from {path} and from the one without Katydid, first in line {line}\n  kept:   {}\n  \
         native: {}\n  came:   {}\n--- stderr\n{stderr}", lines[0], lines[1], lines[2]
    )]
    DiffersFromBoth {
        /// Path of the expected output.
        path: PathBuf,
        /// Number of the line, counted from 1.
        line: usize,
        /// The expected line, the one without Katydid, and the actual one.
        lines: Box<[String; 3]>,
        /// Its standard error.
        stderr: String,
    },
    /// It has no expected output.
    #[error("{path}: {source}; `cargo xtask bless` writes the texts")]
    NothingKept {
        /// Path at which the text should be.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The folders of texts cannot be read, or two texts have one name.
    #[error(transparent)]
    Texts(#[from] io::Error),
}

/// Returns the path of a program's expected output.
///
/// # Errors
///
/// A folder cannot be read, or two texts have one name.
pub fn expected_path(paths: &Paths, name: &str) -> io::Result<PathBuf> {
    paths.expected.path(name)
}

/// Checks one run of the program `name`.
///
/// # Errors
///
/// See [`RunFault`].
pub fn judge(paths: &Paths, name: &str, outcome: &Outcome) -> Result<(), RunFault> {
    if !outcome.status.success() {
        let (ending, stdout, stderr) = (outcome.ending(), outcome.text(), outcome.errors());
        return Err(RunFault::Failed { ending, stdout, stderr });
    }
    let path = expected_path(paths, name)?;
    let expected = fs::read(&path).map_err(|source| RunFault::NothingKept { path: path.clone(), source })?;
    if expected == outcome.stdout {
        return Ok(());
    }
    let (line, expected, came) = first_difference(&String::from_utf8_lossy(&expected), &outcome.text());
    Err(RunFault::Differs { path, line, expected, came, stderr: outcome.errors() })
}

/// Checks one run of the program `name` against a second run on the same driver without Katydid. Each line must be the expected
/// one, or that of the second run. For drivers whose answers are not all known.
///
/// # Errors
///
/// See [`RunFault`].
pub fn judge_beside(paths: &Paths, name: &str, outcome: &Outcome, direct: &Outcome) -> Result<(), RunFault> {
    let Err(fault) = judge(paths, name, outcome) else { return Ok(()) };
    let RunFault::Differs { path, stderr, .. } = fault else { return Err(fault) };
    let expected = fs::read(&path).map_err(|source| RunFault::NothingKept { path: path.clone(), source })?;
    match first_unknown(&outcome.text(), &String::from_utf8_lossy(&expected), &direct.text()) {
        None => Ok(()),
        Some((line, lines)) => Err(RunFault::DiffersFromBoth { path, line, lines: Box::new(lines), stderr }),
    }
}

/// Returns the first line of a text that neither of two others has in its place, counted from 1, with the lines of all three. If
/// the text is too short or too long for both, it is the end, or the first extra line.
fn first_unknown(text: &str, first: &str, second: &str) -> Option<(usize, [String; 3])> {
    let lines = |text| str::lines(text).map(Some).chain([None]).collect::<Vec<Option<&str>>>();
    let [came, first, second] = [text, first, second].map(lines);
    let is_unknown = |index: &usize| ![first.get(*index), second.get(*index)].contains(&came.get(*index));
    let index = (0..came.len()).find(is_unknown)?;
    Some((index + 1, [&first, &second, &came].map(|lines| show_line(lines.get(index).copied().flatten()))))
}

/// Formats a line for reports.
fn show_line(line: Option<&str>) -> String {
    line.map_or_else(|| "(the end)".to_owned(), |line| format!("{line:?}"))
}

/// Returns the first line that differs, counted from 1, in both texts. Texts that differ only in the last newline differ in the
/// line after their last.
fn first_difference(expected: &str, output: &str) -> (usize, String, String) {
    let (mut expected, mut output) = (expected.split('\n'), output.split('\n'));
    for line in 1.. {
        let (expected_line, output_line) = (expected.next(), output.next());
        if expected_line != output_line || expected_line.is_none() {
            return (line, show_line(expected_line), show_line(output_line));
        }
    }
    (0, String::new(), String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_either_text_in_its_place() {
        let (expected, native) = ("a\nb\nc\n", "x\ny\nz\n");
        assert_eq!(first_unknown("a\ny\nc\n", expected, native), None);
        let unknown = |text| first_unknown(text, expected, native);
        let line = |line: usize, lines: [&str; 3]| Some((line, lines.map(str::to_owned)));
        assert_eq!(unknown("a\ny\n"), line(3, ["\"c\"", "\"z\"", "(the end)"]));
        assert_eq!(unknown("a\nb\nc\nd\n"), line(4, ["(the end)", "(the end)", "\"d\""]));
        assert!(first_unknown("a\nb\n", "a\n", "a\nb\nc\n").is_some(), "neither ends there");
    }

    #[test]
    fn first_line_in_neither_expected_text_is_shown() {
        let found = first_unknown("x\nb\nq\nr\n", "a\nb\nc\nd\n", "x\ny\nz\nd\n");
        assert_eq!(found, Some((3, ["\"c\"", "\"z\"", "\"q\""].map(str::to_owned))));
    }

    #[test]
    fn the_first_line_that_differs_is_shown() {
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), (2, "\"b\"".into(), "\"x\"".into()));
        assert_eq!(first_difference("a\n", "a"), (2, "\"\"".into(), "(the end)".into()));
    }
}
