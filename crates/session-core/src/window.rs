//! A mapped window on a memory file, which shows new bytes without a system call.
//!
//! Every call that waits for the GPU has to know whether text was printed. A system call for that takes 0.1 µs on bare metal
//! and up to 2 µs on virtual machines, as long as the rest of such a call.

#![expect(unsafe_code, reason = "maps a file that others write")]

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};

use rustix::fs::ftruncate;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Resource, getrlimit};

/// Bytes that are mapped at a time: a multiple of the page size.
const WINDOW_BYTES: u64 = 64 << 10;
/// Bytes that are checked.
const WINDOW_PROBE_BYTES: u64 = 8;
/// Size of the file from the start, so that every mapping lies inside it. After the written bytes it is empty.
const WINDOW_FILE_BYTES: u64 = 1 << 40;

/// The mapped part, at its position, of a file that others write to.
#[derive(Debug)]
pub(crate) struct Window {
    start: NonNull<u8>,
    /// Offset of its start in the file.
    base: u64,
}

// SAFETY: it is memory of the process, unmapped by the thread that drops the value, and read with any number of writers.
unsafe impl Send for Window {}

impl Window {
    /// Extends the file to [`WINDOW_FILE_BYTES`] and maps its beginning; `None` if `RLIMIT_FSIZE` forbids that.
    pub(crate) fn open(file: &File) -> Option<Self> {
        // Beyond its limit, writing the file would end the process by a signal.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < WINDOW_FILE_BYTES) {
            return None;
        }
        ftruncate(file, WINDOW_FILE_BYTES).ok()?;
        Self::map(file, 0)
    }

    fn map(file: &File, base: u64) -> Option<Self> {
        // SAFETY: a mapping at an address of the system's choice takes no code's memory.
        let start =
            unsafe { mmap(null_mut(), WINDOW_BYTES as usize, ProtFlags::READ, MapFlags::SHARED, file.as_fd(), base) };
        Some(Self { start: NonNull::new(start.ok()?.cast())?, base })
    }

    /// Returns the window at `offset`, moved there if it does not contain that; none if the system refuses the mapping.
    pub(crate) fn moved(self, file: &File, offset: u64) -> Option<Self> {
        let is_in_it = offset >= self.base && offset + WINDOW_PROBE_BYTES <= self.base + WINDOW_BYTES;
        if is_in_it { Some(self) } else { Self::map(file, offset - offset % (WINDOW_BYTES / 2)) }
    }

    /// Returns whether the bytes at `offset`, which lies in the window, are as if never written.
    pub(crate) fn is_blank_at(&self, offset: u64) -> bool {
        let within = (offset - self.base) as usize;
        // SAFETY: inside the mapping, which is inside the file; read as memory that another thread may write meanwhile.
        (within..within + WINDOW_PROBE_BYTES as usize).all(|at| unsafe { self.start.add(at).read_volatile() } == 0)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, which no code reads any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), WINDOW_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, SeekFrom, Write as _};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn writes_are_detected_at_any_offset() {
        let mut file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        let mut window = Window::open(&file).unwrap();
        for offset in
            [0, 5, WINDOW_BYTES - 9, WINDOW_BYTES - 8, WINDOW_BYTES - 7, WINDOW_BYTES, 5 * WINDOW_BYTES + 1, 1 << 33]
        {
            window = window.moved(&file, offset).unwrap();
            assert!(window.is_blank_at(offset), "{offset}");
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(b"\0x").unwrap();
            assert!(!window.is_blank_at(offset), "{offset}");
            file.seek(SeekFrom::Start(offset)).unwrap();
            file.write_all(b"\0\0").unwrap();
        }
    }
}
