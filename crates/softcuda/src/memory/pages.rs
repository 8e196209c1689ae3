//! Pages of the process: reserves address ranges, maps memory, gives it back. The only file that maps memory.

#![expect(unsafe_code, reason = "maps memory")]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::ptr::{self, NonNull};

pub(crate) use katydid_driver_rules::mem_advise::PAGE_BYTES;

/// Permitted accesses to mapped pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// No access: the addresses are only reserved.
    None,
    /// Loads, no stores.
    Read,
    /// Loads and stores.
    ReadWrite,
}

impl Protection {
    /// Returns the flags of `mmap`.
    fn bits(self) -> i32 {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// An address range that this process holds, until it is dropped.
#[derive(Debug)]
pub(crate) struct Range {
    start: u64,
    size: u64,
}

impl Range {
    /// Reserves `size` bytes at exactly `start`, if these addresses are free.
    pub(crate) fn at(start: u64, size: u64, protection: Protection) -> io::Result<Self> {
        let flags = libc::MAP_FIXED_NOREPLACE | ANONYMOUS_MAP_FLAGS;
        let got = map(start, size, protection, flags, -1, 0)?;
        let range = Self { start: got, size };
        // Kernels before 4.17 take the address as a hint only, so the range may lie elsewhere.
        if got == start { Ok(range) } else { Err(io::ErrorKind::AddrInUse.into()) }
    }

    /// Reserves `size` bytes anywhere, at a multiple of `align` (a power of two).
    pub(crate) fn anywhere(size: u64, align: u64, protection: Protection) -> io::Result<Self> {
        let align = align.max(PAGE_BYTES);
        let slack = if align == PAGE_BYTES { 0 } else { align };
        let whole = size.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let got = map(0, whole, protection, ANONYMOUS_MAP_FLAGS, -1, 0)?;
        let start = got.next_multiple_of(align);
        drop(Self { start: got, size: start - got });
        drop(Self { start: start + size, size: got + whole - start - size });
        Ok(Self { start, size })
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Replaces the pages at `start` by those of `file` from `offset` on, without access at first.
    pub(crate) fn attach(&self, start: u64, size: u64, file: &OwnedFd, offset: u64) -> io::Result<()> {
        self.check(start, size)?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        map(start, size, Protection::None, flags, file.as_raw_fd(), offset).map(drop)
    }

    /// Replaces the pages at `start` by those of `file` from `offset` on, accessible at every moment.
    pub(crate) fn replace(&self, start: u64, size: u64, file: &OwnedFd, offset: u64) -> io::Result<()> {
        self.check(start, size)?;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        map(start, size, Protection::ReadWrite, flags, file.as_raw_fd(), offset).map(drop)
    }

    /// Moves the pages of `start..end` into `file` from `offset` on, with their contents. No thread may write to them meanwhile.
    pub(crate) fn move_into(&self, start: u64, end: u64, file: &OwnedFd, offset: u64) -> io::Result<()> {
        /// Pages of zeroes take no room in the file.
        const ZEROES: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        self.check(start, end - start)?;
        let target = File::from(file.try_clone()?);
        for at in (start..end).step_by(PAGE_BYTES as usize) {
            // SAFETY: a page of this range, which is readable and which no thread writes to, by the contract.
            let page =
                unsafe { std::slice::from_raw_parts(address(at).cast::<u8>().cast_const(), PAGE_BYTES as usize) };
            if page != ZEROES {
                target.write_all_at(page, offset + (at - start))?;
            }
        }
        self.replace(start, end - start, file, offset)
    }

    /// Replaces the pages at `start` by zeroes, accessible at every moment.
    pub(crate) fn clear(&self, start: u64, size: u64) -> io::Result<()> {
        self.check(start, size)?;
        map(start, size, Protection::ReadWrite, libc::MAP_FIXED | ANONYMOUS_MAP_FLAGS, -1, 0).map(drop)
    }

    /// Unmaps the pages; the addresses stay reserved.
    pub(crate) fn detach(&self, start: u64, size: u64) -> io::Result<()> {
        self.check(start, size)?;
        map(start, size, Protection::None, libc::MAP_FIXED | ANONYMOUS_MAP_FLAGS, -1, 0).map(drop)
    }

    /// Changes the permitted accesses to pages.
    pub(crate) fn protect(&self, start: u64, size: u64, protection: Protection) -> io::Result<()> {
        self.check(start, size)?;
        // SAFETY: the pages belong to this range, which no Rust reference points into.
        check(unsafe { libc::mprotect(address(start), size as usize, protection.bits()) })
    }

    /// Gives the contents of whole pages inside back to the system. They read as zero afterwards.
    pub(crate) fn discard(&self, start: u64, end: u64) -> io::Result<()> {
        let (first, last) = (start.next_multiple_of(PAGE_BYTES), end / PAGE_BYTES * PAGE_BYTES);
        if first >= last {
            return Ok(());
        }
        self.check(first, last - first)?;
        // SAFETY: the pages belong to this range, which no Rust reference points into.
        check(unsafe { libc::madvise(address(first), (last - first) as usize, libc::MADV_DONTNEED) })
    }

    /// Refuses pages outside of this range: the caller then replaces mappings without further checks.
    fn check(&self, start: u64, size: u64) -> io::Result<()> {
        let inside = start >= self.start && start.checked_add(size).is_some_and(|end| end <= self.start + self.size);
        if inside { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.size > 0 {
            // SAFETY: the range was mapped by this type and nothing refers to it once its owner drops it.
            unsafe { libc::munmap(address(self.start), self.size as usize) };
        }
    }
}

/// A page of a file that other processes map too, unmapped when dropped.
pub(crate) struct SharedPage(NonNull<c_void>);

impl SharedPage {
    /// Maps the first page of a file.
    pub(crate) fn of(file: &OwnedFd) -> io::Result<Self> {
        let start = map(0, PAGE_BYTES, Protection::ReadWrite, libc::MAP_SHARED, file.as_raw_fd(), 0)?;
        NonNull::new(address(start)).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> NonNull<c_void> {
        self.0
    }
}

// SAFETY: the page belongs to no single owner; the code that uses its bytes says how.
unsafe impl Send for SharedPage {}
// SAFETY: as above.
unsafe impl Sync for SharedPage {}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: mapped by this type, and nothing refers to it once its owner drops it.
        unsafe { libc::munmap(self.0.as_ptr(), PAGE_BYTES as usize) };
    }
}

/// Private, unbacked until touched, and not counted against the overcommit limit.
const ANONYMOUS_MAP_FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Returns an address as the system takes it.
fn address(start: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(start as usize)
}

/// Calls `mmap`, and returns the address of the pages.
fn map(start: u64, size: u64, protection: Protection, flags: i32, file: i32, offset: u64) -> io::Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: without MAP_FIXED this replaces nothing; with it, callers have checked that the pages are their own.
    let got = unsafe { libc::mmap(address(start), size as usize, protection.bits(), flags, file, offset) };
    if got == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(got.expose_provenance() as u64) }
}

/// Converts the system's return value to a result.
fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Creates a sparse file in memory of `size` bytes: physical memory that can be mapped at several addresses.
pub(crate) fn memory_file(size: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name is a literal with its NUL.
    let number = unsafe { libc::memfd_create(c"katydid-softcuda".as_ptr(), libc::MFD_CLOEXEC) };
    check(number.min(0))?;
    // SAFETY: a fresh descriptor without another owner.
    let file = unsafe { OwnedFd::from_raw_fd(number) };
    lengthen(&file, size)?;
    Ok(file)
}

/// Extends a memory file to `size` bytes.
pub(crate) fn lengthen(file: &OwnedFd, size: u64) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), size as i64) })
}

/// Gives the pages of a part of a memory file back to the system, if it can.
pub(crate) fn punch(file: &OwnedFd, offset: u64, size: u64) {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open; only contents of the file change.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, size as i64) };
}

/// Returns the bytes from `offset` on for which a memory file has no pages, neither in memory nor swapped out; 0 if unknown.
pub(crate) fn hole(file: &OwnedFd, offset: u64) -> u64 {
    // SAFETY: the descriptor is open; no code uses its position.
    let data = unsafe { libc::lseek(file.as_raw_fd(), offset as i64, libc::SEEK_DATA) };
    match u64::try_from(data) {
        Ok(data) => data.saturating_sub(offset),
        // Only a hole up to the end.
        Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO) => u64::MAX,
        Err(_) => 0,
    }
}

/// Returns whether every page of `start..start + size` is mapped in this process.
pub(crate) fn is_mapped(start: u64, size: u64) -> bool {
    const CHUNK: u64 = 1 << 30;
    let Some(end) = start.checked_add(size) else { return false };
    let mut residency = vec![0_u8; (CHUNK.min(size) / PAGE_BYTES + 2) as usize];
    let mut at = start / PAGE_BYTES * PAGE_BYTES;
    while at < end {
        let step = CHUNK.min((end - at).next_multiple_of(PAGE_BYTES));
        // SAFETY: the vector has a byte for each page of a chunk; the kernel only looks at the addresses.
        if unsafe { libc::mincore(address(at), step as usize, residency.as_mut_ptr()) } != 0 {
            return false;
        }
        at += step;
    }
    true
}

/// Returns whether this process may write every page of `start..start + size`; true if unknown.
pub(crate) fn is_writable(start: u64, size: u64) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    let end = start.saturating_add(size);
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    maps.lines().all(|line| {
        let mut columns = line.split_whitespace();
        let ends = columns.next().and_then(|range| range.split_once('-'));
        let ends = ends.and_then(|(first, last)| Some((hexadecimal(first)?, hexadecimal(last)?)));
        let apart = ends.is_none_or(|(first, last)| last <= start || first >= end);
        apart || columns.next().is_some_and(|rights| rights.as_bytes().get(1) == Some(&b'w'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_reserved_once_and_free_after_its_drop() {
        let taken_twice = || {
            let range = Range::anywhere(1 << 30, 2 << 20, Protection::None).unwrap();
            assert_eq!(range.start() % (2 << 20), 0);
            assert!(Range::at(range.start(), PAGE_BYTES, Protection::None).is_err());
            let start = range.start();
            drop(range);
            Range::at(start, PAGE_BYTES, Protection::ReadWrite).ok()
        };
        // Other tests of this process occupy free addresses at times.
        let again = (0..100).find_map(|_| taken_twice()).unwrap();
        assert!(is_mapped(again.start(), PAGE_BYTES));
        assert!(again.protect(again.start() + PAGE_BYTES, PAGE_BYTES, Protection::Read).is_err());
    }

    #[test]
    fn pages_that_cannot_be_written_are_recognized() {
        let range = Range::anywhere(4 * PAGE_BYTES, PAGE_BYTES, Protection::ReadWrite).unwrap();
        range.protect(range.start() + PAGE_BYTES, PAGE_BYTES, Protection::Read).unwrap();
        assert!(is_writable(range.start(), PAGE_BYTES) && is_writable(range.start() + 2 * PAGE_BYTES, 10));
        assert!(!is_writable(range.start(), 2 * PAGE_BYTES) && !is_writable(range.start() + PAGE_BYTES + 5, 1));
    }

    #[test]
    fn file_pages_are_the_same_at_two_places() {
        let file = memory_file(1 << 21).unwrap();
        let range = Range::anywhere(2 << 21, PAGE_BYTES, Protection::None).unwrap();
        let (first, second) = (range.start(), range.start() + (1 << 21));
        for address in [first, second] {
            range.attach(address, 1 << 21, &file, 0).unwrap();
            range.protect(address, 1 << 21, Protection::ReadWrite).unwrap();
        }
        // SAFETY: both places are mapped read-write above.
        unsafe {
            address(first).cast::<u32>().write_volatile(77);
            assert_eq!(address(second).cast::<u32>().read_volatile(), 77);
        }
        range.detach(first, 1 << 21).unwrap();
        punch(&file, 0, 1 << 21);
        // SAFETY: still mapped; the hole reads as zero.
        assert_eq!(unsafe { address(second).cast::<u32>().read_volatile() }, 0);
    }
}
