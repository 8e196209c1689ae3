//! Files that have lost the name under which a process opened them, and have others: semaphores of POSIX, which the C
//! library makes under a name of the moment before they get the one that was asked for.
//!
//! For the time of a dump CRIU gives such a file a name beside the lost one (`link_remap.7`), and wants to find it by that
//! when it restores, after which it takes the name away. The rule: there is such a name only while a process dumps or
//! restores. The file is in the image under all its names (`process/shared_memory.rs`); a dump that is killed leaves none behind for
//! longer than until the next one there. Since CRIU counts anew each time, dumps and restores with such files in a folder
//! lock each other out (`criu/link_remap_lock.rs`).

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::process::file_id::FileId;
use crate::process::tree::Process;

/// Begin of the names that CRIU gives; a number follows.
pub(crate) const LINK_REMAP_PREFIX: &[u8] = b"link_remap.";
/// What the kernel writes behind a name that is gone.
const DELETED_SUFFIX: &[u8] = b" (deleted)";

/// A file that has lost the name under which a process has it.
#[derive(Debug)]
pub(crate) struct UnlinkedFile {
    pub(crate) id: FileId,
    /// A process can write to it through a mapping that others see.
    pub(crate) is_written: bool,
    /// One that has it.
    pid: u32,
    /// The name that is gone.
    name: PathBuf,
    /// By which it is found nevertheless: a link of the kernel's.
    pub(crate) link: PathBuf,
}

/// The unlinked files that the processes of a tree have open or mapped. What ends meanwhile is passed over.
pub(crate) fn lost(tree: &[Process]) -> Vec<UnlinkedFile> {
    tree.iter().flat_map(|process| open(process.pid).into_iter().chain(mapped(process.pid))).collect()
}

fn open(pid: u32) -> Vec<UnlinkedFile> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let lost = entries
        .filter_map(|entry| UnlinkedFile::new(pid, fs::read_link(entry.path()).ok()?.as_os_str(), &entry.path()));
    lost.collect()
}

fn mapped(pid: u32) -> Vec<UnlinkedFile> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').filter_map(|line| of_mapping(pid, line)).collect()
}

/// `7f00-7f10 rw-s 00000000 00:1a 12   /dev/shm/name (deleted)`.
fn of_mapping(pid: u32, line: &[u8]) -> Option<UnlinkedFile> {
    let name = line.iter().position(|byte| *byte == b'/').map(|at| OsStr::from_bytes(&line[at..]))?;
    without_mark(name)?;
    let mut words = line.split(|byte| *byte == b' ');
    let (range, rights) = (std::str::from_utf8(words.next()?).ok()?, words.next()?);
    // Without the zeros that make up the lines' columns.
    let (from, to) = range.split_once('-')?;
    let range = format!("{}-{}", from.trim_start_matches('0'), to.trim_start_matches('0'));
    let lost = UnlinkedFile::new(pid, name, Path::new(&format!("/proc/{pid}/map_files/{range}")))?;
    Some(UnlinkedFile { is_written: rights.starts_with(b"rw") && rights.ends_with(b"s"), ..lost })
}

fn without_mark(name: &OsStr) -> Option<&OsStr> {
    name.as_bytes().strip_suffix(DELETED_SUFFIX).map(OsStr::from_bytes)
}

impl UnlinkedFile {
    /// What `link` leads to, if the kernel says that its name is gone, and it has another.
    fn new(pid: u32, name: &OsStr, link: &Path) -> Option<Self> {
        let name = PathBuf::from(without_mark(name)?);
        let stat = fs::metadata(link).ok()?;
        let is_lost = name.is_absolute() && stat.is_file() && stat.nlink() > 0;
        is_lost.then(|| Self { id: FileId::of(&stat), is_written: false, pid, name, link: link.to_owned() })
    }

    /// Where CRIU gives it a name: the folder of the lost one, or where that is gone too, one above.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.name.ancestors().skip(1).map(|folder| rooted(self.pid, folder)).find(|folder| folder.is_dir())
    }
}

/// A path as a process sees it, which may be in a namespace of its own.
pub(crate) fn rooted(pid: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Names that the file has in the folder of `name`, as the process sees them, but for those that CRIU gives.
pub(crate) fn names_beside(pid: u32, name: &Path, id: FileId) -> Vec<PathBuf> {
    let Some(folder) = name.parent() else { return Vec::new() };
    names_in(&rooted(pid, folder), id).into_iter().map(|name| folder.join(name)).collect()
}

/// The name that stands for the one by which a process has a file open: another one, if that is gone and there is one.
pub(crate) fn standing_name(pid: u32, name: PathBuf, stat: &Metadata) -> Option<PathBuf> {
    let Some(lost) = without_mark(name.as_os_str()) else { return Some(name) };
    // A file may really be called so.
    if fs::symlink_metadata(rooted(pid, &name)).is_ok_and(|there| FileId::of(&there) == FileId::of(stat)) {
        return Some(name);
    }
    names_beside(pid, Path::new(lost), FileId::of(stat)).into_iter().next()
}

/// Names of a file in a folder, but for those that CRIU gives.
fn names_in(folder: &Path, id: FileId) -> Vec<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let fits = entries.filter(|entry| {
        entry.ino() == id.inode
            && !entry.file_name().as_bytes().starts_with(LINK_REMAP_PREFIX)
            && fs::symlink_metadata(entry.path()).is_ok_and(|stat| FileId::of(&stat) == id)
    });
    let mut names: Vec<OsString> = fits.map(|entry| entry.file_name()).collect();
    names.sort();
    names
}

/// Removes names, as the process sees them.
pub(crate) fn remove(pid: u32, names: &[PathBuf]) {
    for name in names {
        // CRIU may have been before us.
        let _ = fs::remove_file(rooted(pid, name));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn own_process() -> [Process; 1] {
        [Process { pid: std::process::id(), parent: 1, state: 'R' }]
    }

    #[test]
    fn a_file_that_has_lost_its_name_is_known_by_its_others() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        let file = File::create(&first).unwrap();
        let stat = file.metadata().unwrap();
        let is_lost = || lost(&own_process()).iter().any(|lost| lost.id == FileId::of(&stat));
        fs::hard_link(&first, &second).unwrap();
        assert!(!is_lost());
        fs::remove_file(&first).unwrap();
        assert!(is_lost());
        let marked = folder.path().join("first (deleted)");
        assert_eq!(standing_name(std::process::id(), marked.clone(), &stat), Some(second.clone()));
        fs::rename(&second, &marked).unwrap();
        assert_eq!(standing_name(std::process::id(), marked.clone(), &stat), Some(marked.clone()));
        fs::remove_file(&marked).unwrap();
        assert_eq!(standing_name(std::process::id(), marked, &stat), None);
        assert!(!is_lost(), "one without a name is none of these");
    }

    #[test]
    fn mapping_of_another_kind_is_not_a_link() {
        for line in ["7f00-7f10 rw-s 00000000 00:1a 12   /dev/shm/a", "7f00-7f10 rw-p 00000000 00:00 0", ""] {
            assert!(of_mapping(1, line.as_bytes()).is_none(), "{line}");
        }
    }
}
