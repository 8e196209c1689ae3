//! Ranges of this process's address space that nothing else can take.

#![expect(unsafe_code, reason = "mapping memory at chosen addresses has no safe interface")]

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use thiserror::Error;

/// Mappings consist of pages of this size.
const PAGE_BYTES: u64 = katydid_wire::PAGE_BYTES as u64;

/// Why a range could not be reserved or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReserveError {
    /// The range contains a mapping already.
    #[error("addresses {start:#x}..{end:#x} are in use already")]
    InUse {
        /// First address of the range.
        start: u64,
        /// First address after it.
        end: u64,
    },
    /// The part is not inside the reservation, or does not consist of whole pages.
    #[error("{length} bytes at offset {offset:#x} are not whole pages of the reserved range")]
    Outside {
        /// Offset from the reservation's start, in bytes.
        offset: u64,
        /// Length of the part, in bytes.
        length: u64,
    },
    /// The operating system refused.
    #[error("cannot map {length} bytes at {start:#x}; is a limit on address space set (ulimit -v)?")]
    System {
        /// First address of the range.
        start: u64,
        /// Length of the range in bytes.
        length: u64,
        /// Error that the system returned.
        source: io::Error,
    },
}

/// A range without memory, until some is mapped into it. Dropping this unmaps the range with everything mapped there.
#[derive(Debug)]
pub struct Reservation {
    range: Range<u64>,
}

impl Reservation {
    /// Reserves the range if nothing is mapped in it.
    ///
    /// # Errors
    /// [`ReserveError::InUse`], [`ReserveError::System`].
    pub fn at(base: u64, length: u64) -> Result<Self, ReserveError> {
        let in_use_error = ReserveError::InUse { start: base, end: base.saturating_add(length) };
        let reserved = hold(base, length as usize);
        let reserved =
            reserved.map_err(|error| if error == Errno::EXIST { in_use_error } else { failed(base, length)(error) })?;
        let reservation = Self { range: reserved.addr() as u64..reserved.addr() as u64 + length };
        if reservation.range.start == base {
            reservation.keep_from_children();
            return Ok(reservation);
        }
        // Dropping it unmaps what an old kernel mapped elsewhere.
        Err(ReserveError::InUse { start: base, end: base.saturating_add(length) })
    }

    /// Excludes the range from forks: a child has no session to use it for. CRIU keeps a bit for each page that a child has
    /// inherited, 512 MiB of bits for 16 TiB, and a restore scans them (0.2 s, measured). Also excludes it from core dumps, which
    /// would walk through all of its pages.
    fn keep_from_children(&self) {
        let length = (self.range.end - self.range.start) as usize;
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the caller has just mapped the range, and the advice changes nothing in this process. On a kernel that
            // refuses it, restores or dumps take longer.
            let _ = unsafe { madvise(pointer(self.range.start), length, advice) };
        }
    }

    /// Returns the range of reserved addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Maps shared memory, readable and writable, at `offset` of the range; `fd_offset` is the offset in the file.
    ///
    /// # Errors
    /// [`ReserveError::Outside`], [`ReserveError::System`].
    pub fn map_shared(&self, offset: u64, length: u64, fd: impl AsFd, fd_offset: u64) -> Result<(), ReserveError> {
        let start = self.part(offset, length)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: replaces pages of this reservation only, by `part`. Users of an arena request addresses here first, so nothing
        // that Rust knows of lies there.
        unsafe { mmap(pointer(start), length as usize, access, flags, fd, fd_offset) }
            .map_err(failed(start, length))?;
        Ok(())
    }

    /// Maps the start of another process's memory over the whole range, in place of its present mappings, and keeps that memory
    /// open.
    ///
    /// # Errors
    /// [`ReserveError::System`].
    pub fn join(&self, memory: BorrowedFd<'_>) -> Result<OwnedFd, ReserveError> {
        let (start, length) = (self.range.start, self.range.end - self.range.start);
        self.map_shared(0, length, memory, 0)?;
        memory.try_clone_to_owned().map_err(|source| ReserveError::System { start, length, source })
    }

    /// Maps private zeroed memory, readable and writable, at `offset` of the range.
    ///
    /// # Errors
    /// [`ReserveError::Outside`], [`ReserveError::System`].
    pub fn map_private(&self, offset: u64, length: u64) -> Result<(), ReserveError> {
        self.map_anonymous(offset, length, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Unmaps a part; the range stays reserved.
    ///
    /// # Errors
    /// [`ReserveError::Outside`], [`ReserveError::System`].
    pub fn unmap(&self, offset: u64, length: u64) -> Result<(), ReserveError> {
        self.map_anonymous(offset, length, ProtFlags::empty())
    }

    fn map_anonymous(&self, offset: u64, length: u64, access: ProtFlags) -> Result<(), ReserveError> {
        let start = self.part(offset, length)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        // SAFETY: as in `map_shared`.
        unsafe { mmap_anonymous(pointer(start), length as usize, access, flags) }.map_err(failed(start, length))?;
        Ok(())
    }

    /// Returns the address of a part that consists of whole pages.
    fn part(&self, offset: u64, length: u64) -> Result<u64, ReserveError> {
        let whole = self.range.end - self.range.start;
        let inside = offset.checked_add(length).is_some_and(|end| end <= whole);
        if inside && length > 0 && offset.is_multiple_of(PAGE_BYTES) && length.is_multiple_of(PAGE_BYTES) {
            return Ok(self.range.start + offset);
        }
        Err(ReserveError::Outside { offset, length })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let length = (self.range.end - self.range.start) as usize;
        // SAFETY: this value owns the range; by dropping it the caller says that no address of it is in use. An error would mean
        // that the range is gone already.
        let _ = unsafe { munmap(pointer(self.range.start), length) };
    }
}

/// Reserves addresses if nothing is mapped there: maps an empty file, shared. Private memory would reserve them too, and does so
/// where memory files are missing. But before Linux 6.7, CRIU queries the state of each page of private memory. It allocates a
/// buffer for the longest mapping: 32 GiB for 16 TiB, which smaller machines refuse.
fn hold(base: u64, length: usize) -> Result<*mut c_void, Errno> {
    let (start, access) = (pointer(base), ProtFlags::empty());
    let flags = MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    match memfd_create("katydid-reserved", MemfdFlags::CLOEXEC) {
        // SAFETY: `FIXED_NOREPLACE` maps only where nothing is mapped, or (kernels before 4.17) elsewhere, or fails.
        Ok(nothing) => unsafe { mmap(start, length, access, flags | MapFlags::SHARED, nothing, 0) },
        // SAFETY: as above.
        Err(_) => unsafe { mmap_anonymous(start, length, access, flags | MapFlags::PRIVATE) },
    }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(address as usize)
}

fn failed(start: u64, length: u64) -> impl FnOnce(Errno) -> ReserveError {
    move |error| ReserveError::System { start, length, source: error.into() }
}

#[cfg(test)]
mod tests {
    use rustix::fs::ftruncate;

    use super::*;

    /// Each test has its own range, since tests run in parallel. The kernel never places mappings that low.
    const AT: u64 = 0x2000_0000_0000;
    const MEBIBYTE: u64 = 1 << 20;

    fn write_byte(address: u64, value: u8) {
        // SAFETY: tests write only to memory that they have mapped.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address as usize).write_volatile(value) }
    }

    fn read_byte(address: u64) -> u8 {
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address as usize).read_volatile() }
    }

    #[test]
    fn a_reserved_range_cannot_be_taken_until_it_is_dropped() {
        let held = Reservation::at(AT, 1 << 40).unwrap();
        assert!(matches!(Reservation::at(AT + MEBIBYTE, MEBIBYTE), Err(ReserveError::InUse { .. })));
        drop(held);
        assert_eq!(Reservation::at(AT + MEBIBYTE, MEBIBYTE).unwrap().range().start, AT + MEBIBYTE);
    }

    #[test]
    fn a_reservation_is_shared_memory_and_neither_forked_nor_dumped() {
        let held = Reservation::at(AT + (6 << 40), 1 << 40).unwrap();
        let start = format!("{:x}-", held.range().start);
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        let line = lines.next().unwrap();
        assert!(line.contains(" ---s ") && line.contains("memfd:katydid-reserved"), "{line}");
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(["dc", "dd"].iter().all(|flag| flags.split(' ').any(|it| it == *flag)), "{flags}");
    }

    #[test]
    fn shared_memory_appears_at_its_offset() {
        let held = Reservation::at(AT + (2 << 40), 4 * MEBIBYTE).unwrap();
        let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 2 * MEBIBYTE).unwrap();
        held.map_shared(MEBIBYTE, MEBIBYTE, &fd, MEBIBYTE).unwrap();
        write_byte(held.range().start + MEBIBYTE + 5, 42);
        let mut byte = [0];
        rustix::io::pread(&fd, &mut byte, MEBIBYTE + 5).unwrap();
        assert_eq!(byte, [42]);
        held.unmap(MEBIBYTE, MEBIBYTE).unwrap();
        assert!(Reservation::at(held.range().start + MEBIBYTE, 4096).is_err());
    }

    #[test]
    fn memory_that_joins_takes_the_place_of_what_was_there() {
        let held = Reservation::at(AT + (5 << 40), MEBIBYTE).unwrap();
        held.map_private(0, MEBIBYTE).unwrap();
        write_byte(held.range().start + 5, 1);
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&memory, MEBIBYTE).unwrap();
        rustix::io::pwrite(&memory, &[7], 5).unwrap();
        let mapping = held.join(memory.as_fd()).unwrap();
        drop(memory);
        assert_eq!(read_byte(held.range().start + 5), 7);
        write_byte(held.range().start + 5, 8);
        let mut byte = [0];
        rustix::io::pread(&mapping, &mut byte, 5).unwrap();
        assert_eq!(byte, [8]);
    }

    #[test]
    fn private_memory_is_zero_each_time() {
        let held = Reservation::at(AT + (3 << 40), MEBIBYTE).unwrap();
        for _ in 0..2 {
            held.map_private(4096, 4096).unwrap();
            assert_eq!(read_byte(held.range().start + 4096), 0);
            write_byte(held.range().start + 4096, 9);
            held.unmap(4096, 4096).unwrap();
        }
    }

    #[test]
    fn parts_outside_the_range_or_its_pages_are_refused() {
        let held = Reservation::at(AT + (4 << 40), MEBIBYTE).unwrap();
        for (offset, length) in [(0, MEBIBYTE + 4096), (MEBIBYTE, 4096), (1, 4096), (0, 100), (0, 0), (u64::MAX, 4096)]
        {
            assert!(matches!(held.map_private(offset, length), Err(ReserveError::Outside { .. })));
        }
    }
}
