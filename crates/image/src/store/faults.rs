//! Fault injection: the n-th change of a store fails, as in a crash or on a full disk.
//!
//! A test first counts the changes of a whole checkpoint, and then makes each of them fail in turn. In a crash the change itself
//! is half done, and later changes do not happen. [`Faults::unsynced`] names the files whose contents a power cut would have lost
//! too.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Kinds of failure that a test injects into a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// The process ends: this change is half done, later ones do not happen.
    Crash,
    /// This change and later ones find no space; removals work.
    Full,
}

/// The fault plan, shared by all writers of one image.
#[derive(Debug)]
pub struct Faults {
    changes: AtomicU64,
    /// Number of the change that fails first.
    first: u64,
    fault: InjectedFault,
    unsynced: Mutex<BTreeSet<String>>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// A file gets contents.
    Write(&'a str),
    /// A file is preallocated past its end, or cut to its length.
    Preallocation(&'a str),
    /// The contents of a file are synced.
    Sync(&'a str),
    /// A file is renamed.
    Rename(&'a str, &'a str),
    /// A name is created: an empty file or a folder.
    Make,
    /// A name is removed.
    Remove(&'a str),
}

/// How to carry out a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Normally.
    Done,
    /// By half, then with an error.
    Half,
    /// Not at all; the change fails with this error.
    Refused(io::ErrorKind),
}

impl Faults {
    /// Makes a plan without failures; [`Faults::changes`] counts.
    pub fn none() -> Self {
        Self::at(u64::MAX, InjectedFault::Crash)
    }

    /// Makes a plan in which change number `first`, counted from 0, fails.
    pub fn at(first: u64, fault: InjectedFault) -> Self {
        Self { changes: AtomicU64::new(0), first, fault, unsynced: Mutex::default() }
    }

    /// Returns the number of changes made so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Returns the files that were written and not synced since.
    pub fn unsynced(&self) -> Vec<String> {
        self.names().iter().cloned().collect()
    }

    fn names(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change and returns how to carry it out.
    pub(crate) fn next(&self, change: Change<'_>) -> Verdict {
        let number = self.changes.fetch_add(1, Ordering::SeqCst);
        let verdict = match (self.fault, change) {
            _ if number < self.first => Verdict::Done,
            (InjectedFault::Crash, _) if number == self.first => Verdict::Half,
            (InjectedFault::Crash, _) => Verdict::Refused(io::ErrorKind::BrokenPipe),
            (InjectedFault::Full, Change::Remove(_)) => Verdict::Done,
            (InjectedFault::Full, _) => Verdict::Refused(io::ErrorKind::StorageFull),
        };
        self.note(change, verdict);
        verdict
    }

    fn note(&self, change: Change<'_>, verdict: Verdict) {
        let mut names = self.names();
        match change {
            Change::Write(name) if !matches!(verdict, Verdict::Refused(_)) => drop(names.insert(name.to_owned())),
            Change::Sync(name) if verdict == Verdict::Done => drop(names.remove(name)),
            Change::Remove(name) if !matches!(verdict, Verdict::Refused(_)) => drop(names.remove(name)),
            // A crash during a rename leaves its state before or after: here, after.
            Change::Rename(from, to) if !matches!(verdict, Verdict::Refused(_)) && names.remove(from) => {
                names.insert(to.to_owned());
            }
            _ => {}
        }
    }
}
