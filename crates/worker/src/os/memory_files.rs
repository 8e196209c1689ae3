//! Memory files that this process holds open. The kernel counts only their mapped parts.
//!
//! The rule: nothing here allocates or maps memory (`host_memory.rs`).

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    AtFlags, CWD, MemfdFlags, Mode, OFlags, RawDir, Stat, fstat, major, memfd_create, minor, openat, statat,
};
use rustix::process::geteuid;

/// Most files that are counted separately: more than a process may have open unless it raises its limit.
const MAX_COUNTED_FILES: usize = 4096;
/// Bytes of folder entries, or text, that one read takes.
const PROC_PIECE_BYTES: usize = 4096;
/// Bytes of a block, as `stat` counts them.
const STAT_BLOCK_BYTES: u64 = 512;

/// A file's inode number, and its bytes that are not known to be mapped.
type OpenFile = (u64, u64);

/// The open memory files.
pub(super) struct OpenFiles {
    files: [OpenFile; MAX_COUNTED_FILES],
    count: usize,
    /// Bytes of further files.
    unlisted_bytes: u64,
}

/// Recognizes memory files by their device.
#[derive(Debug)]
pub(super) struct MemoryFiles {
    device: u64,
}

/// Locks the list of open files.
pub(super) fn table() -> MutexGuard<'static, OpenFiles> {
    static TABLE: Mutex<OpenFiles> =
        Mutex::new(OpenFiles { files: [(0, 0); MAX_COUNTED_FILES], count: 0, unlisted_bytes: 0 });
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFiles {
    fn clear(&mut self) {
        (self.count, self.unlisted_bytes) = (0, 0);
    }

    fn add(&mut self, file: u64, bytes: u64) {
        if self.files[..self.count].iter().any(|(known, _)| *known == file) {
            return;
        }
        match self.files.get_mut(self.count) {
            Some(free) => {
                *free = (file, bytes);
                self.count += 1;
            }
            None => self.unlisted_bytes = self.unlisted_bytes.saturating_add(bytes),
        }
    }

    /// Notes that bytes of a file are mapped.
    fn subtract(&mut self, file: u64, bytes: u64) {
        if let Some((_, left)) = self.files[..self.count].iter_mut().find(|(known, _)| *known == file) {
            *left = left.saturating_sub(bytes);
        }
    }

    fn bytes(&self) -> u64 {
        self.files[..self.count].iter().fold(self.unlisted_bytes, |all, (_, bytes)| all.saturating_add(*bytes))
    }
}

impl MemoryFiles {
    /// Returns none where the system has no memory files.
    pub(super) fn find() -> Option<Self> {
        let file = memfd_create(c"katydid-probe", MemfdFlags::CLOEXEC).ok()?;
        Some(Self { device: fstat(file).ok()?.st_dev })
    }

    /// Lists the open memory files, each once. Returns the bytes of all.
    pub(super) fn list(&self, open: &mut OpenFiles) -> u64 {
        open.clear();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else { return 0 };
        let mut piece = [MaybeUninit::uninit(); PROC_PIECE_BYTES];
        let mut entries = RawDir::new(&folder, &mut piece);
        while let Some(Ok(entry)) = entries.next() {
            // The link resolves to the open file.
            if let Some(found) = stat_of(&folder, entry.file_name()).filter(|found| self.is_own(found)) {
                open.add(found.st_ino, found.st_blocks.cast_unsigned() * STAT_BLOCK_BYTES);
            }
        }
        open.bytes()
    }

    /// Returns whether it is a memory file that this user has made, not one that a program of another user has passed.
    fn is_own(&self, stat: &Stat) -> bool {
        stat.st_dev == self.device && stat.st_uid == geteuid().as_raw()
    }

    /// Returns the bytes of the listed files that are not mapped.
    pub(super) fn unmapped(&self, open: &mut OpenFiles) -> u64 {
        let Ok(maps) = openat(CWD, c"/proc/self/smaps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
            return open.bytes();
        };
        let (mut piece, mut held, mut file) = ([0; PROC_PIECE_BYTES], 0, None);
        while let Ok(read @ 1..) = rustix::io::read(&maps, &mut piece[held..]) {
            let all = held + read;
            let mut done = 0;
            while let Some(length) = piece[done..all].iter().position(|byte| *byte == b'\n') {
                self.read_line(&piece[done..done + length], &mut file, open);
                done += length + 1;
            }
            piece.copy_within(done..all, 0);
            held = all - done;
            // A line longer than the buffer is a path, whose beginning was read already.
            if held == PROC_PIECE_BYTES {
                self.read_line(&piece, &mut file, open);
                held = 0;
            }
        }
        open.bytes()
    }

    /// Reads a line about a mapping: the first one names the file, and a later one gives its resident bytes.
    fn read_line(&self, line: &[u8], file: &mut Option<u64>, open: &mut OpenFiles) {
        let line = line.get(..line.len().min(200)).and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
        if let Some(rest) = line.strip_prefix("Rss:") {
            let kibibytes = rest.trim().strip_suffix(" kB").and_then(|number| number.trim().parse::<u64>().ok());
            if let (Some(file), Some(kibibytes)) = (*file, kibibytes) {
                open.subtract(file, kibibytes << 10);
            }
            return;
        }
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(device), Some(number)) = (words.next(), words.nth(2), words.next()) else { return };
        if range.contains('-') {
            *file = number.parse().ok().filter(|_| self.is_device(device));
        }
    }

    fn is_device(&self, spelled: &str) -> bool {
        let parts = spelled.split_once(':');
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        let parts = parts.and_then(|(one, other)| Some((number(one)?, number(other)?)));
        parts == Some((major(self.device), minor(self.device)))
    }
}

fn stat_of(folder: impl std::os::fd::AsFd, name: &CStr) -> Option<Stat> {
    statat(folder, name, AtFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::ftruncate;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    const FILE_BYTES: u64 = 8 << 20;

    fn file() -> OwnedFd {
        let file = memfd_create(c"test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, FILE_BYTES).unwrap();
        let bytes = vec![1; FILE_BYTES as usize];
        assert_eq!(rustix::io::pwrite(&file, &bytes, 0).unwrap(), bytes.len());
        file
    }

    /// Other tests of this process may hold some as well, but none as large.
    #[test]
    #[expect(unsafe_code, reason = "maps a file")]
    fn open_memory_files_count_once_and_mapped_ones_do_not() {
        let files = MemoryFiles::find().unwrap();
        let mut open = table();
        let before = files.list(&mut open);
        let one = file();
        let _again = one.try_clone().unwrap();
        let held = files.list(&mut open) - before;
        assert!((FILE_BYTES..FILE_BYTES + FILE_BYTES / 2).contains(&held), "{held}");
        let unmapped = files.unmapped(&mut open);
        assert!(unmapped >= FILE_BYTES, "{unmapped}");
        // SAFETY: a new mapping, which is read as bytes and removed afterwards.
        let mapped = unsafe {
            let mapped =
                mmap(std::ptr::null_mut(), FILE_BYTES as usize, ProtFlags::READ, MapFlags::SHARED, &one, 0).unwrap();
            (0..FILE_BYTES as usize).step_by(4096).for_each(|at| assert_eq!(mapped.cast::<u8>().add(at).read(), 1));
            mapped
        };
        files.list(&mut open);
        let left = files.unmapped(&mut open);
        assert!(left + FILE_BYTES / 2 < unmapped, "{left} of {unmapped}");
        // SAFETY: the mapping from above.
        unsafe { munmap(mapped, FILE_BYTES as usize).unwrap() };
        drop(one);
    }
}
