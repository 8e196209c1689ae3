//! The mark of a process that has a session: a page of its address space whose name others can read.
//!
//! A job's supervisor knows the sessions of programs that have connected to its socket. A program that was started without
//! `KATYDID_JOB`, or that cannot reach the socket, also has a session, but no checkpoint would include it. The mark lets the
//! supervisor find such a process before it stops anything (`katydid-job`, `unknown_sessions.rs`).
//!
//! The rule: a process has one mark for each session whose worker it can use. Children do not get the mark, since they have no
//! session of their own.

#![expect(unsafe_code, reason = "maps a page and takes it away again")]

use std::io;
use std::process;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use katydid_wire::job::SESSION_MARK;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Requested address of the page: far from where the system would put it, and from all that programs and drivers place by hand.
const MARK_ADDRESS: usize = 0x4e00_0000_0000;
/// Bytes of the page. It has no contents, and no code may touch it.
const MARK_BYTES: usize = 4096;

static MARK_OF_US: Mutex<Option<MarkPage>> = Mutex::new(None);

/// A page that is mapped, and the process that mapped it.
struct MarkPage {
    address: usize,
    process: u32,
}

/// Marks this process as one with a session.
pub(crate) fn set() {
    // The session works without a mark as well.
    let mark = MarkPage::new().ok();
    *MARK_OF_US.lock().unwrap_or_else(PoisonError::into_inner) = mark;
}

/// Removes the mark: the process's session has ended.
pub fn remove() {
    MARK_OF_US.lock().unwrap_or_else(PoisonError::into_inner).take();
}

impl MarkPage {
    fn new() -> io::Result<Self> {
        let file = memfd_create(SESSION_MARK, MemfdFlags::CLOEXEC)?;
        let (address, access) = (ptr::with_exposed_provenance_mut(MARK_ADDRESS), ProtFlags::empty());
        // SAFETY: a new mapping; where memory is already, the system chooses another place.
        let page = unsafe { mmap(address, MARK_BYTES, access, MapFlags::SHARED, file, 0) }?;
        let mark = Self { address: page.expose_provenance(), process: process::id() };
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is exactly this mapping, which no code uses.
            unsafe { madvise(page, MARK_BYTES, advice) }?;
        }
        Ok(mark)
    }
}

impl Drop for MarkPage {
    fn drop(&mut self) {
        // A child does not have the page, and may have something else there.
        if self.process == process::id() {
            // SAFETY: the mapping is this value's own, and nothing is borrowed from it. An error would mean that it is gone.
            let _ = unsafe { munmap(ptr::with_exposed_provenance_mut(self.address), MARK_BYTES) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_mark_is_seen_as_long_as_it_is_there() {
        let marks = || {
            let maps = fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.contains(&format!("/memfd:{SESSION_MARK} "))).count()
        };
        assert_eq!(marks(), 0);
        set();
        assert_eq!(marks(), 1);
        remove();
        assert_eq!(marks(), 0);
    }
}
