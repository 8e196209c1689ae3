//! What the server says on standard error: a line for each session begun and ended, and one for each problem.
//!
//! A closed standard error never ends the server.

use std::fmt;
use std::io::{self, Write};

/// How much a server says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// What the user of a program must know: for a server of one program, which is told all else that concerns it.
    Private,
    /// What an operator must know.
    Problems,
    /// Sessions too.
    Everything,
}

/// Where lines go, or do not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter {
    verbosity: Verbosity,
}

impl Reporter {
    /// A reporter that says as much as it is told to.
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        Self { verbosity }
    }

    /// Something the operator may like to know.
    pub(crate) fn note(self, line: fmt::Arguments<'_>) {
        self.say(Verbosity::Everything, line);
    }

    /// Something the operator must know.
    pub(crate) fn problem(self, line: fmt::Arguments<'_>) {
        self.say(Verbosity::Problems, line);
    }

    /// Something the user of the only program must know.
    pub(crate) fn warning(self, line: fmt::Arguments<'_>) {
        if self.verbosity == Verbosity::Private {
            write_line("katydid", line);
        }
    }

    fn say(self, from: Verbosity, line: fmt::Arguments<'_>) {
        if self.verbosity >= from {
            write_line("katydid serve", line);
        }
    }
}

/// One `write` a line, so that lines of several threads do not mix.
fn write_line(who: &str, line: fmt::Arguments<'_>) {
    let text = format!("{who}: {line}\n");
    // A lost line is no reason to stop serving.
    let _ = io::stderr().write_all(text.as_bytes());
}
