//! What is shown on a terminal only: progress of long work, on standard error.

use std::io::{self, IsTerminal, Write};

/// One line that is replaced by the next and wiped at the end; nothing at all when standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    shown: bool,
}

impl Progress {
    /// Progress on standard error.
    pub(crate) fn new() -> Self {
        Self { shown: io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub(crate) fn show(&self, line: &str) {
        if self.shown {
            // A terminal that went away is no reason to stop the work.
            let _ = write!(io::stderr(), "\r\x1b[K{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
