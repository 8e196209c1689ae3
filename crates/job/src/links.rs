//! Files that have lost the name under which a process opened them, and have others: semaphores of POSIX, which the C
//! library makes under a name of the moment before they get the one that was asked for.
//!
//! For the time of a dump CRIU gives such a file a name beside the lost one (`link_remap.7`), and wants to find it by that
//! when it restores, after which it takes the name away. The rule: there is such a name only while somebody dumps or
//! restores. The file is in the image under all its names (`shared.rs`); whoever is killed in a dump leaves none behind.
//! Since CRIU counts anew each time, dumps and restores with such files in a folder take turns, by a lock on the folder.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::folder;
use crate::tree::Process;

/// Begin of the names that CRIU gives.
const GIVEN: &[u8] = b"link_remap.";
/// What the kernel writes behind a name that is gone.
const MARK: &[u8] = b" (deleted)";

/// Which file it is, whatever its name: device and inode.
pub(crate) type Key = (u64, u64);

pub(crate) fn key(stat: &Metadata) -> Key {
    (stat.dev(), stat.ino())
}

/// A file that has lost the name under which a process has it.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) key: Key,
    /// Somebody can write to it through a mapping that others see.
    pub(crate) is_written: bool,
    /// One that has it.
    pid: u32,
    /// The name that is gone.
    name: PathBuf,
}

/// Those that the processes of a tree have open or mapped. What ends meanwhile is passed over.
pub(crate) fn lost(tree: &[Process]) -> Vec<Lost> {
    tree.iter().flat_map(|process| open(process.pid).into_iter().chain(mapped(process.pid))).collect()
}

fn open(pid: u32) -> Vec<Lost> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let lost = entries.filter_map(|entry| Lost::new(pid, fs::read_link(entry.path()).ok()?.as_os_str(), &entry.path()));
    lost.collect()
}

fn mapped(pid: u32) -> Vec<Lost> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').filter_map(|line| of_mapping(pid, line)).collect()
}

/// `7f00-7f10 rw-s 00000000 00:1a 12   /dev/shm/name (deleted)`.
fn of_mapping(pid: u32, line: &[u8]) -> Option<Lost> {
    let name = line.iter().position(|byte| *byte == b'/').map(|at| OsStr::from_bytes(&line[at..]))?;
    without_mark(name)?;
    let mut words = line.split(|byte| *byte == b' ');
    let (range, rights) = (std::str::from_utf8(words.next()?).ok()?, words.next()?);
    // Without the zeros that make up the lines' columns.
    let (from, to) = range.split_once('-')?;
    let range = format!("{}-{}", from.trim_start_matches('0'), to.trim_start_matches('0'));
    let lost = Lost::new(pid, name, Path::new(&format!("/proc/{pid}/map_files/{range}")))?;
    Some(Lost { is_written: rights.starts_with(b"rw") && rights.ends_with(b"s"), ..lost })
}

fn without_mark(name: &OsStr) -> Option<&OsStr> {
    name.as_bytes().strip_suffix(MARK).map(OsStr::from_bytes)
}

impl Lost {
    /// What `link` leads to, if the kernel says that its name is gone, and it has another.
    fn new(pid: u32, name: &OsStr, link: &Path) -> Option<Self> {
        let name = PathBuf::from(without_mark(name)?);
        let stat = fs::metadata(link).ok()?;
        let is_lost = name.is_absolute() && stat.is_file() && stat.nlink() > 0;
        is_lost.then(|| Self { key: key(&stat), is_written: false, pid, name })
    }

    /// Where CRIU gives it a name: the folder of the lost one, or where that is gone too, one above.
    fn folder(&self) -> Option<(File, Key)> {
        let folder = self.name.ancestors().skip(1).find_map(|folder| File::open(rooted(self.pid, folder)).ok())?;
        Some((folder, self.key))
    }
}

/// A path as a process sees it, which may be in a namespace of its own.
pub(crate) fn rooted(pid: u32, path: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path))
}

/// Names that the file has in the folder of `name`, as the process sees them, but for those that CRIU gives.
pub(crate) fn names_beside(pid: u32, name: &Path, key: Key) -> Vec<PathBuf> {
    let Some(folder) = name.parent() else { return Vec::new() };
    names_in(&rooted(pid, folder), key, false).into_iter().map(|name| folder.join(name)).collect()
}

/// The name that stands for the one by which a process has a file open: another one, if that is gone and there is one.
pub(crate) fn standing_name(pid: u32, name: PathBuf, stat: &Metadata) -> Option<PathBuf> {
    let Some(lost) = without_mark(name.as_os_str()) else { return Some(name) };
    // A file may really be called so.
    if fs::symlink_metadata(rooted(pid, &name)).is_ok_and(|there| key(&there) == key(stat)) {
        return Some(name);
    }
    names_beside(pid, Path::new(lost), key(stat)).into_iter().next()
}

/// Names of a file in a folder: those that CRIU gives, or all others.
fn names_in(folder: &Path, wanted: Key, given: bool) -> Vec<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let fits = entries.filter(|entry| {
        entry.ino() == wanted.1
            && entry.file_name().as_bytes().starts_with(GIVEN) == given
            && fs::symlink_metadata(entry.path()).is_ok_and(|stat| key(&stat) == wanted)
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

/// The right to dump or to restore what needs names that others might give too, until it is dropped: then no name is left
/// that a CRIU gave in a dump and did not take away, because it was killed.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Where names are given in a dump, and which files they are of.
    folders: Vec<(File, Key)>,
    /// Files and folders that nobody else may use so, once it is our turn.
    locks: Vec<File>,
}

impl Turn {
    /// For a dump of these processes, if they have such files; it has yet to begin.
    pub(crate) fn of_dump(tree: &[Process]) -> Option<Self> {
        let lost = lost(tree);
        let folders = lost.iter().filter_map(Lost::folder).collect();
        (!lost.is_empty()).then_some(Self { folders, locks: Vec::new() })
    }

    /// For a restore that needs these names, or makes files `without_names`; waits for it.
    pub(crate) fn of_restore(given: &[&Path], without_names: bool) -> Self {
        let ghosts = without_names.then(|| File::create(folder::cache()?.join("ghosts.lock")).ok()).flatten();
        let folders = given.iter().filter_map(|name| File::open(name.parent()?).ok());
        Self { folders: Vec::new(), locks: locked(folders.chain(ghosts).collect()) }
    }

    /// Waits until it is ours.
    pub(crate) fn begin(&mut self) {
        let folders = self.folders.iter().filter_map(|(folder, _)| folder.try_clone().ok());
        self.locks = locked(folders.collect());
    }

    /// Lets others have it, until it is begun again.
    pub(crate) fn pause(&mut self) {
        self.locks.clear();
    }
}

/// Locks each of these once, in an order that all keep. Of what cannot be locked nobody takes turns.
fn locked(mut files: Vec<File>) -> Vec<File> {
    let which = |file: &mut File| file.metadata().ok().map(|stat| key(&stat));
    files.sort_by_cached_key(|file| file.metadata().ok().map(|stat| key(&stat)));
    files.dedup_by_key(which);
    files.retain(|file| file.lock().is_ok());
    files
}

impl Drop for Turn {
    fn drop(&mut self) {
        for (folder, key) in &self.folders {
            let folder = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
            for name in names_in(&folder, *key, true) {
                // CRIU may have been before us.
                let _ = fs::remove_file(folder.join(name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> [Process; 1] {
        [Process { pid: std::process::id(), parent: 1, state: 'R' }]
    }

    #[test]
    fn a_file_that_has_lost_its_name_is_known_by_its_others() {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        let file = File::create(&first).unwrap();
        let stat = file.metadata().unwrap();
        let is_lost = || lost(&ours()).iter().any(|lost| lost.key == key(&stat));
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
    fn names_that_a_criu_has_left_are_taken_away_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let _file = File::create(path("first")).unwrap();
        for name in ["second", "link_remap.3", "link_remap.4"] {
            fs::hard_link(path("first"), path(name)).unwrap();
        }
        fs::remove_file(path("first")).unwrap();
        fs::write(path("link_remap.5"), "of somebody else").unwrap();
        drop(Turn::of_dump(&ours()));
        let left = |name: &str| path(name).exists();
        assert!(left("second") && left("link_remap.5") && !left("link_remap.3") && !left("link_remap.4"));
    }

    #[test]
    fn a_mapping_of_another_kind_is_none() {
        for line in ["7f00-7f10 rw-s 00000000 00:1a 12   /dev/shm/a", "7f00-7f10 rw-p 00000000 00:00 0", ""] {
            assert!(of_mapping(1, line.as_bytes()).is_none(), "{line}");
        }
    }
}
