//! What the server says on standard error: a line for each session begun and ended, and one for each problem.
//!
//! A closed standard error never ends the server.

use std::fmt;
use std::io::{self, Write};

/// Where lines go, or do not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter {
    quiet: bool,
}

impl Reporter {
    /// `quiet` keeps problems only.
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet }
    }

    /// Something the operator may like to know.
    pub(crate) fn note(self, line: fmt::Arguments<'_>) {
        if !self.quiet {
            write_line(line);
        }
    }

    /// Something the operator must know.
    pub(crate) fn problem(self, line: fmt::Arguments<'_>) {
        write_line(line);
    }
}

/// One `write` a line, so that lines of several threads do not mix.
fn write_line(line: fmt::Arguments<'_>) {
    let text = format!("katydid serve: {line}\n");
    // A lost line is no reason to stop serving.
    let _ = io::stderr().write_all(text.as_bytes());
}
