//! Files that have lost the name under which a process opened them, but have other names. POSIX semaphores are such: the C
//! library creates them under a temporary name, and then gives them the requested one.
//!
//! For the time of a dump, CRIU gives such a file a name beside the lost one (`link_remap.7`). A restore finds the file by that
//! name, and then removes the name. The rule: there is such a name only while a process dumps or restores. The image has the file
//! under all its names (`process/shared_memory.rs`); a name that a killed dump leaves goes with the next dump there. CRIU counts
//! anew each time, so dumps and restores with such files in a folder lock each other out (`criu/link_remap_lock.rs`).

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::process::file_id::FileId;
use crate::process::memory::maps::{self, MemoryMapping};
use crate::process::tree::Process;

/// Prefix of the names that CRIU gives; a number follows.
pub(crate) const LINK_REMAP_PREFIX: &[u8] = b"link_remap.";

/// A file that has lost the name under which a process has it.
#[derive(Debug)]
pub(crate) struct UnlinkedFile {
    pub(crate) id: FileId,
    /// Whether a process can write to it through a shared mapping.
    pub(crate) is_written: bool,
    /// A process that has the file.
    pid: u32,
    /// The name that is gone.
    name: PathBuf,
    /// A link of the kernel's by which the file can still be found.
    pub(crate) link: PathBuf,
}

/// Returns the unlinked files that the processes of a tree have open or mapped. Processes that end meanwhile are skipped.
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
    maps::of(pid).iter().filter_map(|mapping| of_mapping(pid, mapping)).collect()
}

fn of_mapping(pid: u32, mapping: &MemoryMapping) -> Option<UnlinkedFile> {
    let lost = UnlinkedFile::new(pid, mapping.name(), &mapping.link(pid))?;
    Some(UnlinkedFile { is_written: mapping.rights.starts_with("rw") && mapping.is_shared(), ..lost })
}

impl UnlinkedFile {
    /// The file behind `link`, if the kernel says that its name is gone, and it has another name.
    fn new(pid: u32, name: &OsStr, link: &Path) -> Option<Self> {
        let name = PathBuf::from(maps::deleted_name(name)?);
        let stat = fs::metadata(link).ok()?;
        let is_lost = name.is_absolute() && stat.is_file() && stat.nlink() > 0;
        is_lost.then(|| Self { id: FileId::of(&stat), is_written: false, pid, name, link: link.to_owned() })
    }

    /// The folder in which CRIU gives it a name: the folder of the lost name, or, if that is gone too, the nearest one above.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.name.ancestors().skip(1).map(|folder| rooted(self.pid, folder)).find(|folder| folder.is_dir())
    }
}

/// The path, from this process, of what a process sees at `path`, since that may be in another mount namespace.
pub(crate) fn rooted(pid: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Names of the file in the folder of `name`, as the process sees them, except names that CRIU gave.
pub(crate) fn names_beside(pid: u32, name: &Path, id: FileId) -> Vec<PathBuf> {
    let Some(folder) = name.parent() else { return Vec::new() };
    names_in(&rooted(pid, folder), id).into_iter().map(|name| folder.join(name)).collect()
}

/// The present name of a file that a process opened under `name`: another one if that is gone, or `None` if there is no other.
pub(crate) fn standing_name(pid: u32, name: PathBuf, stat: &Metadata) -> Option<PathBuf> {
    let Some(lost) = maps::deleted_name(name.as_os_str()) else { return Some(name) };
    // The name of a file may really end so.
    if fs::symlink_metadata(rooted(pid, &name)).is_ok_and(|there| FileId::of(&there) == FileId::of(stat)) {
        return Some(name);
    }
    names_beside(pid, Path::new(lost), FileId::of(stat)).into_iter().next()
}

/// Names of a file in a folder, except names that CRIU gave.
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
        // CRIU may have removed it already.
        let _ = fs::remove_file(rooted(pid, name));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::process::memory::maps::tests::mapping;

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
        for line in ["7f00-7f10 rw-s 00000000 00:1a 12   /dev/shm/a", "7f00-7f10 rw-p 00000000 00:00 0"] {
            assert!(of_mapping(1, &mapping(line)).is_none(), "{line}");
        }
    }
}
