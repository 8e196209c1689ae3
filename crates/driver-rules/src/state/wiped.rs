//! A byte that is 0 again in every child with a copy of the process's memory: made by `fork`, or by `_Fork`, `clone` or the
//! bare system call, for which no handler runs.
//!
//! The system empties the page ([`MADV_WIPEONFORK`](libc::MADV_WIPEONFORK), Linux 4.14), so that a check costs one load. A
//! child that shares the memory (`vfork`) sees the same as its parent.
#![expect(unsafe_code, reason = "advises the system about a page")]

use std::sync::atomic::AtomicU8;

/// Bytes of a page.
const PAGE_BYTES: usize = crate::mem_advise::PAGE_BYTES as usize;

/// The byte, and padding that keeps other data off its page.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct WipedByte {
    byte: AtomicU8,
    _rest: [u8; PAGE_BYTES - 1],
}

impl WipedByte {
    /// Makes a byte of 0, for a static.
    #[must_use]
    pub const fn new() -> Self {
        Self { byte: AtomicU8::new(0), _rest: [0; PAGE_BYTES - 1] }
    }

    /// Makes children find 0 from now on. Returns whether the system does that.
    pub fn wipe_in_children(&'static self) -> bool {
        let page = std::ptr::from_ref(self).cast_mut().cast();
        // SAFETY: the page belongs to this value alone, and the zeros in a child are a valid value too.
        unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) == 0 }
    }

    /// Returns the byte; it reads 0 in a child with a copy of the memory.
    #[inline]
    pub fn get(&self) -> &AtomicU8 {
        &self.byte
    }
}

impl Default for WipedByte {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn a_child_without_fork_handlers_finds_wiped_memory() {
        static BYTE: WipedByte = WipedByte::new();
        assert!(BYTE.wipe_in_children());
        BYTE.get().store(7, Relaxed);
        // SAFETY: the child reads the byte and ends.
        let child = unsafe { libc::syscall(libc::SYS_fork) };
        if child == 0 {
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(BYTE.get().load(Relaxed).into()) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above, into a local.
        unsafe { libc::waitpid(child as libc::pid_t, &raw mut status, 0) };
        assert_eq!((status, BYTE.get().load(Relaxed)), (0, 7));
    }
}
