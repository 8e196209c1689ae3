//! The memory of this process as it was at one moment.
//!
//! A child shares all private pages with this process until one of the two writes to them (copy-on-write). So a copy of any
//! size takes only the time of its page tables: some 25 ms a GiB. It uses memory only for what changes while the copy is
//! needed. The child has no descriptors and does nothing. It ends with the value that owns it, or with the process.

#![expect(unsafe_code, reason = "makes a child of one thread, and reads its memory")]

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::pipe::{PipeFlags, pipe_with};

/// A child of the worker that keeps the pages as they were.
#[derive(Debug)]
pub(super) struct FrozenPages {
    pid: i32,
    /// The child ends when this end of the pipe closes.
    _life: OwnedFd,
}

impl FrozenPages {
    /// Freezes all private memory except `unwanted`: whole pages at these addresses.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses a child.
    pub(super) fn new(unwanted: &[Range<u64>]) -> io::Result<Self> {
        let (read, life) = pipe_with(PipeFlags::CLOEXEC)?;
        let previous_mask = block_signals();
        // SAFETY: as `fork`, with no signal at the end: the child runs `stay` alone, which takes no lock and no memory.
        let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
        if pid == 0 {
            stay(read.as_raw_fd(), unwanted);
        }
        let failure = io::Error::last_os_error();
        // SAFETY: the set was filled by `block_signals`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const previous_mask, ptr::null_mut()) };
        if pid < 0 { Err(failure) } else { Ok(Self { pid: pid as i32, _life: life }) }
    }

    /// Fills `out` with the bytes that were at `address`.
    ///
    /// # Errors
    ///
    /// The system does not let this process read there, or nothing was mapped there.
    pub(super) fn read(&self, address: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            let rest = &mut out[done..];
            let there = ptr::with_exposed_provenance_mut(address as usize + done);
            let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let from = libc::iovec { iov_base: there, iov_len: rest.len() };
            // SAFETY: writes into `rest` alone; a bad address in the child is an error.
            let count = unsafe { libc::process_vm_readv(self.pid, &raw const to, 1, &raw const from, 1, 0) };
            match count {
                1.. => done += count as usize,
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => return Err(io::Error::last_os_error()),
            }
        }
        Ok(())
    }

    /// Returns whether the first and the last byte of a range can be read.
    pub(super) fn has(&self, range: &Range<u64>) -> bool {
        let is_there = |address| self.read(address, &mut [0]).is_ok();
        range.is_empty() || (is_there(range.start) && is_there(range.end - 1))
    }
}

impl Drop for FrozenPages {
    fn drop(&mut self) {
        // SAFETY: a child of this process that no other code waits for, as its end sends no signal.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), libc::__WALL);
        }
    }
}

/// Blocks all signals of this thread, so that the child never runs a handler. Returns the set that was blocked before.
fn block_signals() -> libc::sigset_t {
    let (mut all_signals, mut previous_mask) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: both sets are locals that the calls fill.
    unsafe {
        libc::sigfillset(all_signals.as_mut_ptr());
        libc::sigemptyset(previous_mask.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all_signals.as_ptr(), previous_mask.as_mut_ptr());
        previous_mask.assume_init()
    }
}

/// The child's code: keeps only `read` open, gives `unwanted` pages back, and waits for the end of the other side.
fn stay(read: i32, unwanted: &[Range<u64>]) -> ! {
    let mut byte = 0u8;
    // SAFETY: system calls alone, on descriptors and pages that no code in this process uses but this thread.
    unsafe {
        if read > 0 {
            libc::syscall(libc::SYS_close_range, 0, read - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, read + 1, u32::MAX, 0);
        for range in unwanted {
            libc::syscall(libc::SYS_munmap, range.start, range.end - range.start);
        }
        while libc::syscall(libc::SYS_read, read, &raw mut byte, 1) < 0 && *libc::__errno_location() == libc::EINTR {}
        libc::_exit(0)
    }
}

/// Mappings that are private to this process: a child does not see their changes.
#[derive(Debug)]
pub(super) struct PrivateMappings(Vec<Range<u64>>);

impl PrivateMappings {
    /// Reads the present mappings; empty if the system does not tell.
    pub(super) fn read() -> Self {
        Self::of(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
    }

    /// Parses mappings, and merges neighbors.
    fn of(maps: &str) -> Self {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in maps.lines().filter_map(private_range) {
            match ranges.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        Self(ranges)
    }

    /// Returns whether a range is fully covered.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        self.0.iter().any(|private| private.start <= range.start && range.end <= private.end)
    }
}

/// Returns the addresses in a line of a process's maps, if they are readable and private.
fn private_range(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let access = words.next()?;
    let is_private = access.starts_with('r') && access.ends_with('p');
    let number = |text| u64::from_str_radix(text, 16).ok();
    is_private.then_some(number(start)?..number(end)?)
}

/// Returns the whole pages inside a range.
pub(super) fn pages(range: &Range<u64>, page: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(page);
    start..(range.end / page * page).max(start)
}

#[cfg(test)]
mod tests {

    use katydid_tests::deadline::hang::until;

    use super::*;

    #[test]
    fn memory_is_read_as_it_was_when_it_was_frozen() {
        let mut memory = vec![7u8; 300_000];
        let start = memory.as_ptr().expose_provenance() as u64;
        let frozen = FrozenPages::new(&[]).unwrap();
        memory.fill(8);
        let mut seen = vec![0; memory.len()];
        frozen.read(start, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| *byte == 7) && memory.iter().all(|byte| *byte == 8));
        assert!(frozen.has(&(start..start + 300_000)) && !frozen.has(&(64..128)));
    }

    #[test]
    fn unwanted_pages_are_released_from_the_fork() {
        let memory = vec![7u8; 1 << 20];
        let start = memory.as_ptr().expose_provenance() as u64;
        let pages = pages(&(start..start + (1 << 20)), 4096);
        let frozen = FrozenPages::new(std::slice::from_ref(&pages)).unwrap();
        // The child gives pages back once it runs.
        until("the pages are gone", || !frozen.has(&pages));
        assert!(frozen.read(pages.start - 1, &mut [0]).is_ok());
    }

    #[test]
    fn a_child_ends_with_its_value() {
        let frozen = FrozenPages::new(&[]).unwrap();
        let pid = frozen.pid;
        drop(frozen);
        // SAFETY: asks whether such a process exists.
        assert_eq!(unsafe { libc::kill(pid, 0) }, -1);
    }

    #[test]
    fn shared_memory_is_not_private() {
        let private = PrivateMappings::of(
            "1000-3000 rw-p 00000000 00:00 0\n3000-4000 r--p 0 00:00 0 [heap]\n4000-5000 rw-s 0 00:01 9 /memfd:x\n\
             5000-6000 ---p 0 00:00 0\n",
        );
        assert!(private.holds(&(0x1800..0x4000)) && !private.holds(&(0x3000..0x4001)));
        assert!(!private.holds(&(0x4000..0x4800)) && !private.holds(&(0x5000..0x5800)));
        assert_eq!(pages(&(1..8192), 4096), 4096..8192);
        assert!(pages(&(1..4095), 4096).is_empty());
    }
}
