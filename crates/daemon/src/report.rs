//! What the server says on standard error: a line for each session begun and ended, and one for each problem.
//!
//! A closed standard error never ends the server, and one that no process reads never holds it up: a line for which there is no
//! room is left out.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::shown;

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

/// Most characters of a line: names and reasons in it come from peers. A pipe that can be written to has room for so many.
const MAX_LINE_CHARS: usize = 1024;

/// One `write` a line, so that lines of several threads do not mix. What a terminal would obey is not in it.
fn write_line(who: &str, line: fmt::Arguments<'_>) {
    let text = format!("{who}: {}\n", shown(line.to_string().as_bytes(), MAX_LINE_CHARS));
    let mut error = io::stderr().lock();
    let mut room = [PollFd::from_borrowed_fd(error.as_fd(), PollFlags::OUT)];
    let has_room = poll(&mut room, Some(&Timespec::default())) == Ok(1);
    if has_room {
        // A lost line is no reason to stop serving.
        let _ = error.write_all(text.as_bytes());
    }
}
