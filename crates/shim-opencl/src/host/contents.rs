//! What is known here of a memory object's contents, so that a map need not read what never was there, or what the program
//! has already.
//!
//! Commands are counted that may have changed them: those that name the object, and launches once it was a kernel's argument.
//! Each is counted when it is enqueued, before the call returns. Equal counts say that contents are equal, if nothing that was
//! enqueued before the first count came after it: so in the only queue of a context, one that keeps its order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A state of an object's contents. Those of equal states are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentsVersion {
    writes: u64,
    /// Launches in its context; 0: no kernel can write to it.
    launches: u64,
}

impl ContentsVersion {
    /// The state after one more write.
    pub(crate) fn after_write(self) -> Self {
        Self { writes: self.writes + 1, ..self }
    }
}

/// What may have changed an object's contents.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The object's own among all that the process has had.
    pub(crate) number: u64,
    /// Commands that wrote to it, one of them for what it began with.
    writes: AtomicU64,
    /// It has been an argument of a kernel.
    is_argument: AtomicBool,
    /// Others see its memory: a part, the whole, or the program.
    is_shared: AtomicBool,
}

impl Contents {
    /// The contents of a new object; `is_given` tells whether the program gave some.
    pub(crate) fn new(is_given: bool) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            writes: AtomicU64::new(is_given.into()),
            is_argument: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
        }
    }

    /// A command that writes to it was enqueued.
    pub(crate) fn written(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// It is about to be an argument of a kernel.
    pub(crate) fn be_argument(&self) {
        if !self.is_argument.load(Ordering::Relaxed) {
            self.is_argument.store(true, Ordering::SeqCst);
        }
    }

    /// Whether a kernel has had it as an argument.
    pub(crate) fn is_argument(&self) -> bool {
        self.is_argument.load(Ordering::SeqCst)
    }

    /// Its memory has another name from now on, so that no thread knows what is there.
    pub(crate) fn share(&self) {
        self.is_shared.store(true, Ordering::SeqCst);
    }

    /// Whether no command and no program has given it any: a read of it brings anything.
    pub(crate) fn are_undefined(&self) -> bool {
        self.version(0) == Some(ContentsVersion { writes: 0, launches: 0 }) && !self.is_argument()
    }

    /// What they are now, after `launches` launches of the context; none if no thread can know.
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
