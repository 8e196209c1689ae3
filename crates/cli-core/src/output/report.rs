//! Final output of a command that failed: a line, the rest of its document, and the exit code.

use std::io;
use std::process::ExitCode;

use crate::output::document;
use crate::output::failure::{Failure, print_message};

/// Writes the line, completes the document for `--json`, and returns the exit code. A reader that closes its pipe early is no
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

/// Joins the lines of a text, such as of a library's error.
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
