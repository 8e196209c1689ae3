//! Whether a program did what it must: exit status 0, and exactly the text that is kept for it.
//!
//! Every program prints the same on every driver and on every way, so that one text serves for all of them.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::places::Places;
use crate::program::Outcome;

/// What was wrong with a run.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It did not end well.
    #[error("{ending}\n--- stdout\n{stdout}--- stderr\n{stderr}")]
    Failed {
        /// Exit status or signal.
        ending: String,
        /// What it said.
        stdout: String,
        /// What it said.
        stderr: String,
    },
    /// It ended well, but said something else.
    #[error(
        "the output differs from {path}, first in line {line}\n  kept: {kept}\n  came: {came}\n--- stderr\n{stderr}"
    )]
    Differs {
        /// The text that is kept.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The line of the kept text.
        kept: String,
        /// The line that came instead.
        came: String,
        /// What it said there.
        stderr: String,
    },
    /// No text is kept for it.
    #[error("{path}: {source}; `cargo xtask bless` writes the texts")]
    NothingKept {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Where the text of a program is kept.
pub fn kept_path(places: &Places, name: &str) -> PathBuf {
    places.expected.join(format!("{name}.txt"))
}

/// Judges one run of the program `name`.
///
/// # Errors
///
/// See [`Fault`].
pub fn judge(places: &Places, name: &str, outcome: &Outcome) -> Result<(), Fault> {
    if !outcome.status.success() {
        let (ending, stdout, stderr) = (outcome.ending(), outcome.text(), outcome.errors());
        return Err(Fault::Failed { ending, stdout, stderr });
    }
    let path = kept_path(places, name);
    let kept = fs::read(&path).map_err(|source| Fault::NothingKept { path: path.clone(), source })?;
    if kept == outcome.stdout {
        return Ok(());
    }
    let (line, kept, came) = first_difference(&String::from_utf8_lossy(&kept), &outcome.text());
    Err(Fault::Differs { path, line, kept, came, stderr: outcome.errors() })
}

/// Judges one run of the program `name` beside another of it, on the same driver without Katydid: each line has to be the
/// one that is kept, or the one of that run. For drivers on which not all is known that they answer.
///
/// # Errors
///
/// See [`Fault`].
pub fn judge_beside(places: &Places, name: &str, outcome: &Outcome, direct: &Outcome) -> Result<(), Fault> {
    let Err(fault) = judge(places, name, outcome) else { return Ok(()) };
    let Fault::Differs { path, .. } = &fault else { return Err(fault) };
    let kept = fs::read_to_string(path).unwrap_or_default();
    if is_one_of(&outcome.text(), &kept, &direct.text()) { Ok(()) } else { Err(fault) }
}

/// Whether a text has as many lines as one of two, each of them in one of these in its place.
fn is_one_of(text: &str, first: &str, second: &str) -> bool {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (text, first, second) = (lines(text), lines(first), lines(second));
    let is_known = |(index, line): (usize, &String)| first.get(index) == Some(line) || second.get(index) == Some(line);
    (text.len() == first.len() || text.len() == second.len()) && text.iter().enumerate().all(is_known)
}

/// The first line that differs, counted from 1, in both texts. Texts that differ in the last newline only differ in
/// the line after their last.
fn first_difference(kept: &str, came: &str) -> (usize, String, String) {
    let (mut kept, mut came) = (kept.split('\n'), came.split('\n'));
    for line in 1.. {
        let (ours, theirs) = (kept.next(), came.next());
        if ours != theirs || ours.is_none() {
            let show = |text: Option<&str>| text.map_or("(the end)".to_owned(), |text| format!("{text:?}"));
            return (line, show(ours), show(theirs));
        }
    }
    (0, String::new(), String::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_of_either_text_in_its_place() {
        assert!(is_one_of("a\ny\nc\n", "a\nb\nc\n", "x\ny\nz\n"));
        assert!(!is_one_of("b\na\nc\n", "a\nb\nc\n", "x\ny\nz\n") && !is_one_of("a\n", "a\nb\n", "x\ny\n"));
    }

    #[test]
    fn the_first_line_that_differs_is_shown() {
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), (2, "\"b\"".into(), "\"x\"".into()));
        assert_eq!(first_difference("a\n", "a"), (2, "\"\"".into(), "(the end)".into()));
    }
}
