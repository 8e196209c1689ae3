//! The memory mappings of a process, as `/proc/PID/maps` lists them (proc_pid_maps(5)):
//!
//! ```text
//! 7f2a8c000000-7f2a92400000 r-xp 00401000 fe:00 1835041                    /usr/lib/libprogram.so (deleted)
//! ```
//!
//! Names are bytes: one that is not UTF-8 hides neither its mapping nor the others.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the kernel appends to the name of a file that has lost its name.
const DELETED_SUFFIX: &[u8] = b" (deleted)";
/// Fields of a line before the name.
const FIELDS_BEFORE_NAME: usize = 5;

/// One line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryMapping {
    /// Address of the first byte.
    pub(crate) start: u64,
    /// Address behind the last byte.
    pub(crate) end: u64,
    /// The rights and kind, such as `rw-p` for private and `rw-s` for shared memory.
    pub(crate) rights: String,
    /// Inode of the file; 0 without one.
    pub(crate) inode: u64,
    /// The path of a file, with the kernel's suffix if it was deleted; a name in brackets; or empty.
    name: OsString,
}

/// Returns the mappings of a process, by address.
///
/// # Errors
///
/// The process has ended, or is another user's.
pub(crate) fn read(pid: u32) -> io::Result<Vec<MemoryMapping>> {
    let text = fs::read(format!("/proc/{pid}/maps"))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(MemoryMapping::parse).collect())
}

/// Returns the mappings of a process, by address; none of a process that has ended.
pub(crate) fn of(pid: u32) -> Vec<MemoryMapping> {
    read(pid).unwrap_or_default()
}

impl MemoryMapping {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(FIELDS_BEFORE_NAME + 1, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let (start, end) = text()?.split_once('-')?;
        let address = |digits| u64::from_str_radix(digits, 16).ok();
        let (start, end, rights) = (address(start)?, address(end)?, text()?.to_owned());
        let inode = text().and(text()).and_then(|_| text())?.parse().ok()?;
        // Blanks align the names.
        let name = fields.next().unwrap_or_default().trim_ascii_start().to_vec();
        Some(Self { start, end, rights, inode, name: OsString::from_vec(name) })
    }

    /// The name of memory without a file, such as `[vdso]`; or the path of its file.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// The path of the mapped file; `None` for other memory. Memory files and System V segments have such a path too.
    pub(crate) fn path(&self) -> Option<&Path> {
        let name = self.name.as_bytes();
        name.starts_with(b"/").then(|| Path::new(OsStr::from_bytes(without_suffix(name).unwrap_or(name))))
    }

    /// Whether the mapped file has lost its name.
    pub(crate) fn is_deleted(&self) -> bool {
        without_suffix(self.name.as_bytes()).is_some()
    }

    /// Whether other processes see what this one writes, or it sees what they write.
    pub(crate) fn is_shared(&self) -> bool {
        self.rights.ends_with('s')
    }

    /// The kernel's link to the mapped file. To open it takes CAP_CHECKPOINT_RESTORE.
    pub(crate) fn link(&self, pid: u32) -> PathBuf {
        format!("/proc/{pid}/map_files/{:x}-{:x}", self.start, self.end).into()
    }
}

/// A name in the kernel's lists of files without the suffix of deleted ones; `None` for one without that suffix.
fn without_suffix(name: &[u8]) -> Option<&[u8]> {
    name.strip_suffix(DELETED_SUFFIX)
}

/// A name as `readlink` gives it, without the suffix of deleted files; `None` for one without that suffix.
pub(crate) fn deleted_name(name: &OsStr) -> Option<&OsStr> {
    without_suffix(name.as_bytes()).map(OsStr::from_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The mapping of a line that the kernel could write.
    pub(crate) fn mapping(line: &str) -> MemoryMapping {
        MemoryMapping::parse(line.as_bytes()).unwrap()
    }

    #[test]
    fn lines_are_read_as_the_kernel_writes_them() {
        let library = mapping("7f00-00007f10 r-xp 00001000 fe:00 12                      /l/a b (deleted)");
        assert_eq!((library.start, library.end, library.inode), (0x7f00, 0x7f10, 12));
        assert_eq!((library.rights.as_str(), library.is_shared(), library.is_deleted()), ("r-xp", false, true));
        assert_eq!(library.path(), Some(Path::new("/l/a b")));
        assert_eq!(library.link(7), Path::new("/proc/7/map_files/7f00-7f10"));
        let vdso = mapping("7ffd1000-7ffd3000 r-xp 00000000 00:00 0                          [vdso]");
        assert_eq!((vdso.name(), vdso.path(), vdso.is_deleted()), (OsStr::new("[vdso]"), None, false));
        assert_eq!(mapping("7ffd1000-7ffd3000 rw-s 00000000 00:00 0 ").name(), "");
        for line in ["", "7ffd1000", "7ffd1000-7ffd3000", "7ffd1000-x r-xp 00000000 00:00 0", "1-2 r-xp 0 0"] {
            assert_eq!(MemoryMapping::parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_no_mapping() {
        let line = b"1000-2000 rw-s 00000000 00:1a 5 /dev/shm/\xe9t\xe9";
        let mapping = MemoryMapping::parse(line).unwrap();
        assert_eq!(mapping.path(), Some(Path::new(OsStr::from_bytes(b"/dev/shm/\xe9t\xe9"))));
        let own = of(std::process::id());
        assert!(own.iter().any(|mapping| mapping.name() == "[stack]") && own.is_sorted_by_key(|mapping| mapping.start));
        assert!(of(u32::MAX).is_empty() && read(u32::MAX).is_err());
    }
}
