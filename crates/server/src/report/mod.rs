//! The server's messages on standard error: a line for each session's beginning and end, and one for each problem.
//!
//! A closed standard error never ends the server, and a full one never holds it up: a line without room is left out. Lines that
//! others provoke are bounded (`limits.rs`).

mod limits;

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use katydid_wire::printable::is_unprintable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::printable_within;
use limits::LineLimits;
pub(crate) use limits::{LineKind, LineSource};

/// Which messages a server writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// What the user of a program must know: for a server of one program, which receives all other messages itself.
    Private,
    /// What an operator must know.
    Problems,
    /// Problems, and each session's beginning and end.
    Everything,
}

/// Writes lines, or leaves them out.
#[derive(Debug)]
pub(crate) struct Reporter {
    verbosity: Verbosity,
    limits: Mutex<LineLimits>,
}

impl Reporter {
    /// Creates a reporter with this verbosity.
    pub(crate) fn new(verbosity: Verbosity) -> Self {
        Self { verbosity, limits: Mutex::default() }
    }

    /// Reports what the operator may like to know.
    pub(crate) fn note(&self, line: fmt::Arguments<'_>) {
        self.write_line(Verbosity::Everything, line);
    }

    /// Reports what the operator must know.
    pub(crate) fn problem(&self, line: fmt::Arguments<'_>) {
        self.write_line(Verbosity::Problems, line);
    }

    /// Writes a line like [`Reporter::note`], within the limits of `source`.
    pub(crate) fn note_of(&self, kind: LineKind, source: LineSource, line: fmt::Arguments<'_>) {
        self.say_of(Verbosity::Everything, (kind, source), line);
    }

    /// Writes a line like [`Reporter::problem`], within the limits of `source`. Returns whether it was written.
    pub(crate) fn problem_of(&self, kind: LineKind, source: LineSource, line: fmt::Arguments<'_>) -> bool {
        self.say_of(Verbosity::Problems, (kind, source), line)
    }

    /// Reports what the user of the only program must know.
    pub(crate) fn warning(&self, line: fmt::Arguments<'_>) {
        if self.verbosity == Verbosity::Private {
            write_line("katydid: ", &printable_within(line.to_string().as_bytes(), MAX_LINE_CHARS));
        }
    }

    /// Reports a bounded line of a worker. Returns whether it was written. The user of the only program sees it unchanged.
    pub(crate) fn of_worker(&self, worker: u32, line: &[u8]) -> bool {
        self.worker_line(LineKind::Worker, worker, line)
    }

    fn worker_line(&self, kind: LineKind, worker: u32, line: &[u8]) -> bool {
        let text = String::from_utf8_lossy(line);
        if self.verbosity == Verbosity::Private {
            let shown = |letter| if is_unprintable(letter) && letter != '\t' { ' ' } else { letter };
            write_line("", &text.chars().map(shown).collect::<String>());
            return true;
        }
        // Workers begin their own lines with this.
        let text = text.strip_prefix(&format!("katydid worker {worker}: ")).unwrap_or(&text);
        self.problem_of(kind, LineSource::Worker(worker), format_args!("worker {worker}: {text}"))
    }

    /// Reports the last lines of a worker that is gone, if they were left out.
    pub(crate) fn last_of_worker(&self, worker: u32, last: &[Vec<u8>]) {
        let left_out = self.limits().forget(LineKind::Worker, LineSource::Worker(worker));
        let before = left_out.saturating_sub(last.len() as u64);
        if before > 0 {
            let line = format_args!("worker {worker}: {before} more lines of it were left out");
            self.problem_of(LineKind::LastWords, LineSource::Worker(worker), line);
        }
        last.iter().for_each(|line| _ = self.worker_line(LineKind::LastWords, worker, line));
        self.limits().forget(LineKind::LastWords, LineSource::Worker(worker));
    }

    /// Returns when [`Reporter::tell_left_out`] may have something to report.
    pub(crate) fn summary_due(&self) -> Instant {
        self.limits().summary_due()
    }

    /// Reports lines that were left out without a later line, if that is due.
    pub(crate) fn tell_left_out(&self) {
        let all = self.limits().summary_at(Instant::now());
        all.iter().for_each(|summary| self.problem(format_args!("{summary}")));
    }

    /// Reports all left-out lines, due or not: the server ends.
    pub(crate) fn tell_all_left_out(&self) {
        let all = self.limits().summary();
        all.iter().for_each(|summary| self.problem(format_args!("{summary}")));
    }

    fn say_of(&self, from: Verbosity, (kind, source): (LineKind, LineSource), line: fmt::Arguments<'_>) -> bool {
        if self.verbosity < from {
            return true;
        }
        let Some(left_out) = self.limits().admit(kind, source, Instant::now()) else { return false };
        if left_out > 0 {
            self.write_line(from, format_args!("{left_out} more lines like the next one were left out"));
        }
        self.write_line(from, line);
        true
    }

    fn write_line(&self, from: Verbosity, line: fmt::Arguments<'_>) {
        if self.verbosity >= from {
            write_line("katydid serve: ", &printable_within(line.to_string().as_bytes(), MAX_LINE_CHARS));
        }
    }

    /// Locks the limits. The counters of a thread that panicked are usable.
    fn limits(&self) -> MutexGuard<'_, LineLimits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Most characters of a line: names and reasons in it come from peers. A pipe that polls as writable has space for this many.
const MAX_LINE_CHARS: usize = 1024;

/// Writes a line with one `write`, so that lines of several threads do not mix. The line has no characters that control a
/// terminal.
fn write_line(who: &str, line: &str) {
    let text = format!("{who}{line}\n");
    let mut error = io::stderr().lock();
    let mut room = [PollFd::from_borrowed_fd(error.as_fd(), PollFlags::OUT)];
    let has_room = poll(&mut room, Some(&Timespec::default())) == Ok(1);
    if has_room {
        // A lost line is no reason to stop serving.
        let _ = error.write_all(text.as_bytes());
    }
}
