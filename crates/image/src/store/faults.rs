//! Fault injection: the n-th change of a store fails, as in a crash or on a full disk.
//!
//! A test counts the changes of a whole checkpoint first, then has each of them fail in turn. In a crash the change
//! itself is done by half and nothing after it is done at all; [`Faults::unsynced`] names the files whose contents a
//! machine without power would have lost besides.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Kinds of failure that a test injects into a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectedFault {
    /// The process ends: this change is half done, later ones are not done.
    Crash,
    /// This change and later ones find no room; removing works.
    Full,
}

/// A plan of what goes wrong, shared by all that change one image.
#[derive(Debug)]
pub struct Faults {
    changes: AtomicU64,
    /// Number of the change that fails first.
    first: u64,
    fault: InjectedFault,
    unsynced: Mutex<BTreeSet<String>>,
}

/// What a change is, for the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    /// A file gets contents.
    Write(&'a str),
    /// It is preallocated beyond its end, or cut to its length.
    Preallocation(&'a str),
    /// Its contents become lasting.
    Sync(&'a str),
    /// It gets another name.
    Rename(&'a str, &'a str),
    /// A name appears: an empty file or a folder.
    Make,
    /// A name goes away.
    Remove(&'a str),
}

/// How a change that the plan lets fail is to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As if there were no plan.
    Done,
    /// By half, then an error.
    Half,
    /// Nothing is done; the change fails with this error.
    Refused(io::ErrorKind),
}

impl Faults {
    /// A plan without failures; [`Faults::changes`] counts.
    pub fn none() -> Self {
        Self::at(u64::MAX, InjectedFault::Crash)
    }

    /// Change number `first`, counted from 0, goes wrong.
    pub fn at(first: u64, fault: InjectedFault) -> Self {
        Self { changes: AtomicU64::new(0), first, fault, unsynced: Mutex::default() }
    }

    /// Number of changes made so far.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Files that were written and not made lasting since.
    pub fn unsynced(&self) -> Vec<String> {
        self.names().iter().cloned().collect()
    }

    fn names(&self) -> std::sync::MutexGuard<'_, BTreeSet<String>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change and says what becomes of it.
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
            // A crash in the middle of a renaming is either of its sides: here it took place.
            Change::Rename(from, to) if !matches!(verdict, Verdict::Refused(_)) && names.remove(from) => {
                names.insert(to.to_owned());
            }
            _ => {}
        }
    }
}
