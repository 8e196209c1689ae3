//! The last word of a command that failed: a line, what is left of its document, and the exit code.

use std::io;
use std::process::ExitCode;

use crate::output::document;
use crate::output::failure::{Failure, print_message};

/// Writes the line, completes the document that `--json` owes, and gives the code. A reader that has read enough is no
/// failure.
pub fn report(failure: &Failure) -> ExitCode {
    if let Failure::Output(error) = failure
        && error.kind() == io::ErrorKind::BrokenPipe
    {
        return ExitCode::SUCCESS;
    }
    let line = in_one_line(&failure.to_string());
    print_message(&line);
    document::close(Some(&line), failure.status());
    ExitCode::from(failure.status())
}

/// A text of several lines, such as a library's or one with a name that has them, in one.
fn in_one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line() {
        assert_eq!(in_one_line("cannot open a\nb:\n\n  no such file\n"), "cannot open a b: no such file");
    }
}
