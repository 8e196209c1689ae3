//! Tracks whether a memory object's contents may have changed. A map need not read bytes that were never written, or that the
//! program has already.
//!
//! It counts commands that may have changed the contents: those that name the object, and launches once it was a kernel's
//! argument. Each is counted when it is enqueued, before the call returns. Equal counts prove equal contents only if nothing that
//! was enqueued before the first count runs after it. That holds in the only queue of a context, if it is in order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A state of an object's contents. Equal versions mean equal contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentsVersion {
    writes: u64,
    /// Launches in its context, plus 1; 0: no kernel can write to it.
    launches: u64,
}

impl ContentsVersion {
    /// Returns the version after one more write.
    pub(crate) fn after_write(self) -> Self {
        Self { writes: self.writes + 1, ..self }
    }
}

/// The changes that an object's contents may have had.
#[derive(Debug)]
pub(crate) struct Contents {
    /// Number of the object, unique in the process.
    pub(crate) number: u64,
    /// Number of commands that wrote to it; initial contents count as one.
    writes: AtomicU64,
    /// Whether it was an argument of a kernel.
    is_argument: AtomicBool,
    /// Whether its memory can be reached otherwise: by a part, the whole, or the program.
    is_shared: AtomicBool,
}

impl Contents {
    /// Returns the contents of a new object; `is_given` tells whether the program gave initial data.
    pub(crate) fn new(is_given: bool) -> Self {
        static LAST_CONTENTS_NUMBER: AtomicU64 = AtomicU64::new(0);
        Self {
            number: LAST_CONTENTS_NUMBER.fetch_add(1, Ordering::Relaxed) + 1,
            writes: AtomicU64::new(is_given.into()),
            is_argument: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Counts a write command that was enqueued.
    pub(crate) fn written(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that it is about to be an argument of a kernel.
    pub(crate) fn be_argument(&self) {
        if !self.is_argument.load(Ordering::Relaxed) {
            self.is_argument.store(true, Ordering::SeqCst);
        }
    }

    /// Returns whether it was an argument of a kernel.
    pub(crate) fn is_argument(&self) -> bool {
        self.is_argument.load(Ordering::SeqCst)
    }

    /// Notes that its memory can be reached otherwise, so that its contents are unknown from then on.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::SeqCst);
    }

    /// Returns whether no command and no initial data has written it: a read may return any bytes.
    pub(crate) fn are_undefined(&self) -> bool {
        self.version(0) == Some(ContentsVersion { writes: 0, launches: 0 }) && !self.is_argument()
    }

    /// Returns the present version, after `launches` launches of the context; `None` if it cannot be known.
    pub(crate) fn version(&self, launches: u64) -> Option<ContentsVersion> {
        if self.is_shared.load(Ordering::SeqCst) {
            return None;
        }
        let launches = if self.is_argument() { launches + 1 } else { 0 };
        Some(ContentsVersion { writes: self.writes.load(Ordering::Acquire), launches })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_undefined_until_they_may_have_been_written() {
        assert!(Contents::new(false).are_undefined() && !Contents::new(true).are_undefined());
        let changes: [fn(&Contents); 3] = [Contents::written, Contents::be_argument, Contents::share];
        for change in changes {
            let contents = Contents::new(false);
            change(&contents);
            assert!(!contents.are_undefined());
        }
    }

    #[test]
    fn launches_count_for_what_was_an_argument() {
        let contents = Contents::new(true);
        let first = contents.version(0);
        assert_eq!(contents.version(5), first, "no kernel has it");
        contents.written();
        assert_eq!(contents.version(5), first.map(ContentsVersion::after_write));
        let old_version = contents.version(5);
        contents.be_argument();
        assert_ne!(contents.version(5), old_version);
        let old_version = contents.version(5);
        assert_ne!(contents.version(6), old_version);
        assert_eq!(contents.version(5), old_version);
        contents.share();
        assert_eq!(contents.version(5), None);
    }
}
