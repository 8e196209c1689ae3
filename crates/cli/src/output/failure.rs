//! How a command ends: success, a status of its own, or one line on standard error and an exit code.
//!
//! A command returns its module's error; here it becomes a [`Failure`] of one of few kinds. The text of every error
//! says what failed, on what, and what to do, so that nothing needs to be added here.

use std::fmt::Display;
use std::io;
use std::process::ExitCode;

use crate::commands::run::RunError;
use crate::output::document;

/// What the shell learns from a command that did its work.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Why a command did not do its work; the codes are those of `katydid --help`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A check or a measurement failed.
    #[error("{0}")]
    CommandWork(String),
    /// The command line, the environment or the config file is wrong.
    #[error("{0}")]
    Usage(String),
    /// A server cannot be reached or started.
    #[error("{0}")]
    Server(String),
    /// The program of `run` or `trace` cannot be executed.
    #[error(transparent)]
    Program(#[from] RunError),
    /// Our own output went nowhere.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl Failure {
    /// A failure of a check or measurement.
    pub(crate) fn work(error: impl Display) -> Self {
        Self::CommandWork(error.to_string())
    }

    /// A mistake of the caller.
    pub(crate) fn usage(error: impl Display) -> Self {
        Self::Usage(error.to_string())
    }

    /// No server.
    pub(crate) fn server(error: impl Display) -> Self {
        Self::Server(error.to_string())
    }

    /// Writes the line, completes the document that `--json` owes, and gives the code. A reader that has read enough is no
    /// failure.
    pub(crate) fn report(&self) -> ExitCode {
        if let Self::Output(error) = self
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            return ExitCode::SUCCESS;
        }
        let line = in_one_line(&self.to_string());
        say(&line);
        document::close(Some(&line), self.status());
        ExitCode::from(self.status())
    }

    /// The exit status.
    fn status(&self) -> u8 {
        match self {
            Self::CommandWork(_) | Self::Output(_) => 1,
            Self::Usage(_) => 2,
            Self::Server(_) => 3,
            Self::Program(error) => error.exit_code(),
        }
    }
}

/// A text of several lines, such as a library's or one with a name that has them, in one.
fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Writes one line for the user; a closed standard error loses it. Names in it come from elsewhere: what a terminal would obey
/// is replaced.
pub(crate) fn say(line: impl Display) {
    use io::Write;
    let text = line.to_string();
    let shown = text.chars().map(|letter| if letter.is_control() && letter != '\n' { ' ' } else { letter });
    let text: String = shown.collect();
    let _ = io::stderr().write_all(format!("katydid: {text}\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(in_one_line("cannot open a\nb:\n\n  no such file\n"), "cannot open a b: no such file");
    }
}
