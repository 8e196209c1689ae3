//! The lock on folders in which CRIU gives names to files, since CRIU counts these names anew each time (`criu/link_remap.rs`).
//!
//! A dump or restore with such files in a folder holds a lock on the folder meanwhile. If it is killed, the kernel releases the
//! lock, but the names stay until another process removes them. Katydid recognizes them by their files, which it marks before
//! CRIU names them. Names of other files are those of a CRIU that runs without Katydid, and whose image may need them.
//!
//! The rule: the holder of the lock finds no such name. It removes names of marked files, and sets others aside. Those are put
//! back when the lock is released, if need be by the next holder. No process waits for ever: after a timeout it gets an error
//! that names the holder.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use katydid_scratch::private;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, XattrFlags, lgetxattr, major, minor, renameat_with, setxattr};
use rustix::io::Errno;

use crate::checkpoint::fault_injection;
use crate::criu::link_remap;
use crate::criu::link_remap::{LINK_REMAP_PREFIX, UnlinkedFile};
use crate::process::file_id::FileId;
use crate::process::tree;
use crate::process::tree::Process;
use crate::supervisor::folder;

/// How long to wait for the lock; programs may be paused meanwhile.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two attempts to take the lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The attribute that marks files to which Katydid's CRIU gives names; the second is for users without the right to the first.
const MARK_ATTRIBUTES: [&str; 2] = ["trusted.katydid", "user.katydid"];
/// Suffix of names that are set aside.
const SET_ASIDE_SUFFIX: &[u8] = b".set-aside-by-katydid";

/// Other processes held the lock for too long.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: checkpoints and restores with deleted files there run one at a time, and {holder} has held the lock for {} s: try again when it has ended",
    locked.display(), limit.as_secs()
)]
pub struct LinkRemapLockError {
    /// The locked folder, or the file that stands for all files without names.
    locked: PathBuf,
    /// The process that holds the lock.
    holder: String,
    limit: Duration,
}

/// The right to run a dump or restore that needs names which others might give too. After `begin`, no name is left that a killed
/// CRIU gave in a dump. Dropping the value releases the right.
#[derive(Debug)]
pub(crate) struct LinkRemapLock {
    /// Folders that no other process may use so meanwhile.
    locked_folders: Vec<LockedFolder>,
    /// Files that the dump gives names, and a link to each.
    files: Vec<(FileId, PathBuf)>,
    /// Whether the lock was held before.
    has_begun: bool,
}

/// A folder, or the file that stands for all files without names.
#[derive(Debug)]
struct LockedFolder {
    file: File,
    /// Whether this value holds the lock.
    is_ours: bool,
}

impl LinkRemapLock {
    /// The lock for a dump of these processes, not yet held; `None` if they have no such files.
    pub(crate) fn of_dump(tree: &[Process]) -> Option<Self> {
        let lost = link_remap::lost(tree);
        let locked_folders = locked_folders(lost.iter().filter_map(UnlinkedFile::folder), None);
        let files: Vec<_> = lost.into_iter().map(|lost| (lost.id, lost.link)).collect();
        (!files.is_empty()).then_some(Self { locked_folders, files, has_begun: false })
    }

    /// Takes the lock for a restore that needs these names, or makes files `without_names`. `notify` gets a sentence that says
    /// which process the restore waits for.
    pub(crate) fn of_restore(
        folders: &[&Path],
        without_names: bool,
        notify: fn(&str),
    ) -> Result<Self, LinkRemapLockError> {
        let mut lock = Self::at(folders, without_names);
        if let Some(locked) = lock.locked_folders.iter().find(|locked| locked.is_in_use()) {
            notify(&format!("{} has its lock at {}; waiting for it", locked.holders(), locked.path().display()));
        }
        lock.begin()?;
        Ok(lock)
    }

    /// Removes names that a killed restore has left. If another process gave the same names since, under its lock, these go once
    /// that lock is released.
    pub(crate) fn remove(names: &[&Path]) -> Result<(), LinkRemapLockError> {
        let mut lock = Self::at(names, false);
        lock.lock()?;
        for name in names {
            // CRIU may have removed it already.
            let _ = fs::remove_file(name);
        }
        Ok(())
    }

    fn at(folders: &[&Path], without_names: bool) -> Self {
        let nameless = without_names.then(|| private::create(&folder::cache()?.join("link-remap.lock")).ok()).flatten();
        let folders = folders.iter().filter_map(|name| name.parent()).map(Path::to_owned);
        Self { locked_folders: locked_folders(folders, nameless), files: Vec::new(), has_begun: false }
    }

    /// Waits until the lock is free, without keeping it, so that a caller that stops programs before `begin` stops them only
    /// briefly.
    pub(crate) fn wait_until_free(&mut self) -> Result<(), LinkRemapLockError> {
        self.lock()?;
        self.locked_folders.iter_mut().for_each(LockedFolder::unlock);
        Ok(())
    }

    /// Waits for the lock, and takes it.
    pub(crate) fn begin(&mut self) -> Result<(), LinkRemapLockError> {
        self.lock()?;
        self.has_begun = true;
        self.files.iter().for_each(|(_, link)| mark(link));
        self.locked_folders.iter().filter(|locked| locked.is_ours).for_each(|locked| locked.clear(&self.files));
        Ok(())
    }

    /// Takes the lock again if it was held before.
    pub(crate) fn resume(&mut self) -> Result<(), LinkRemapLockError> {
        if self.has_begun { self.begin() } else { Ok(()) }
    }

    /// Releases the lock until `begin` or `resume`.
    pub(crate) fn pause(&mut self) {
        for locked in self.locked_folders.iter_mut().filter(|locked| locked.is_ours) {
            locked.leave(&self.files);
        }
    }

    fn lock(&mut self) -> Result<(), LinkRemapLockError> {
        let limit = fault_injection::wait_limit(LOCK_TIMEOUT);
        let until = Instant::now() + limit;
        let outcome = self.locked_folders.iter_mut().try_for_each(|locked| locked.lock(until));
        outcome.map_err(|(locked, holder)| {
            self.pause();
            LinkRemapLockError { locked, holder, limit }
        })
    }
}

impl Drop for LinkRemapLock {
    fn drop(&mut self) {
        self.pause();
    }
}

/// Opens each folder once, in the same order in every process.
fn locked_folders(folders: impl Iterator<Item = PathBuf>, other: Option<File>) -> Vec<LockedFolder> {
    let id = |file: &File| file.metadata().ok().map(|stat| FileId::of(&stat));
    let mut files: BTreeMap<Option<FileId>, File> = other.into_iter().map(|file| (id(&file), file)).collect();
    for folder in folders {
        // Many files share one folder, and descriptors are few.
        let is_known = fs::metadata(&folder).is_ok_and(|stat| files.contains_key(&Some(FileId::of(&stat))));
        if let Some(file) = (!is_known).then(|| open_folder(&folder).ok()).flatten() {
            files.insert(id(&file), file);
        }
    }
    files.into_values().map(|file| LockedFolder { file, is_ours: false }).collect()
}

/// Opens only a folder: opening a FIFO could block.
fn open_folder(path: &Path) -> io::Result<File> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?.into())
}

impl LockedFolder {
    /// Takes the lock before `until`. A folder that cannot be locked is used without a lock.
    fn lock(&mut self, until: Instant) -> Result<(), (PathBuf, String)> {
        while !self.is_ours {
            match self.file.try_lock() {
                Ok(()) => self.is_ours = true,
                Err(TryLockError::Error(_)) => return Ok(()),
                Err(TryLockError::WouldBlock) if Instant::now() < until => thread::sleep(LOCK_POLL_INTERVAL),
                Err(TryLockError::WouldBlock) => return Err((self.path(), self.holders())),
            }
        }
        Ok(())
    }

    fn is_in_use(&self) -> bool {
        let is_in_use = matches!(self.file.try_lock(), Err(TryLockError::WouldBlock));
        let _ = self.file.unlock();
        is_in_use
    }

    /// Removes names that CRIU might want to give, or sets them aside.
    fn clear(&self, files: &[(FileId, PathBuf)]) {
        for name in self.names(is_criu_name) {
            let path = self.by_descriptor().join(&name);
            let is_old = || {
                rename_to_free(&path, &backup_path(&path))
                    .is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
            };
            // If a name is set aside already, this one is from a holder that has ended. A name that cannot be set aside is still
            // in use.
            if is_of(&path, files) || is_marked(&path) || is_old() {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Removes the names given to these files, puts back names that were set aside, and releases the lock.
    fn leave(&mut self, files: &[(FileId, PathBuf)]) {
        for path in self.names(is_criu_name).into_iter().map(|name| self.by_descriptor().join(name)) {
            if is_of(&path, files) {
                // CRIU may have removed it already.
                let _ = fs::remove_file(path);
            }
        }
        for name in self.names(|name| original(name).is_some()) {
            if let Some(first) = original(&name) {
                let folder = self.by_descriptor();
                // The other CRIU may have given the same name again; then this one stays aside.
                let _ = rename_to_free(&folder.join(&name), &folder.join(first));
            }
        }
        self.unlock();
    }

    fn unlock(&mut self) {
        // Fails if the lock is not held.
        let _ = self.file.unlock();
        self.is_ours = false;
    }

    fn names(&self, fits: impl Fn(&OsStr) -> bool) -> Vec<OsString> {
        let entries = fs::read_dir(self.by_descriptor()).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).filter(|name| fits(name)).collect()
    }

    fn by_descriptor(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Path of the folder, for messages.
    fn path(&self) -> PathBuf {
        fs::read_link(self.by_descriptor()).unwrap_or_default()
    }

    /// The holders of the lock, for messages, as far as the kernel shows them.
    fn holders(&self) -> String {
        let Ok(stat) = self.file.metadata() else { return String::new() };
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let holders: Vec<String> =
            locks.lines().filter_map(|line| holder(line, FileId::of(&stat))).map(named).collect();
        if holders.is_empty() { "a process that cannot be seen from here".to_owned() } else { holders.join(", ") }
    }
}

/// Reads `1: FLOCK  ADVISORY  WRITE 29300 00:1a:12 0 EOF`, and returns the holder if it is a lock of this file. Lines of waiting
/// processes have an arrow before the kind.
fn holder(line: &str, FileId { device, inode }: FileId) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = words[..] else { return None };
    (file == format!("{:02x}:{:02x}:{inode}", major(device), minor(device))).then(|| pid.parse().ok()).flatten()
}

/// Names a holder. If the process has ended, a process that inherited the lock holds it.
fn named(pid: u32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) if !tree::has_ended(pid) => format!("process {pid} ({})", name.trim()),
        _ => format!("a descendant of process {pid}"),
    }
}

/// Whether a name has the form that CRIU gives, such as `link_remap.7`.
fn is_criu_name(name: &OsStr) -> bool {
    let number = name.as_bytes().strip_prefix(LINK_REMAP_PREFIX);
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

fn backup_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(OsStr::from_bytes(SET_ASIDE_SUFFIX));
    name.into()
}

/// The original of a name that is set aside.
fn original(name: &OsStr) -> Option<&OsStr> {
    name.as_bytes().strip_suffix(SET_ASIDE_SUFFIX).map(OsStr::from_bytes).filter(|name| is_criu_name(name))
}

/// Renames a file to a free name. Some file systems cannot do that atomically (NFS).
pub(crate) fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(error) if error != Errno::EXIST => moved_by_link(from, to),
        other => Ok(other?),
    }
}

/// Renames a file to a free name by a link: for a moment it has both names.
fn moved_by_link(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)?;
    fs::remove_file(from)
}

fn is_of(path: &Path, files: &[(FileId, PathBuf)]) -> bool {
    fs::symlink_metadata(path).is_ok_and(|stat| files.iter().any(|(id, _)| *id == FileId::of(&stat)))
}

/// Marks a file, so that names that CRIU gives it are known as Katydid's, and are abandoned once the lock is released.
pub(crate) fn mark(path: &Path) {
    // The next holder sets names of unmarked files aside.
    let _ = MARK_ATTRIBUTES.iter().any(|mark| setxattr(path, *mark, b"1", XattrFlags::empty()).is_ok());
}

fn is_marked(path: &Path) -> bool {
    MARK_ATTRIBUTES.iter().any(|mark| lgetxattr(path, *mark, &mut [0_u8; 1]).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_process() -> [Process; 1] {
        [Process { pid: std::process::id(), parent: 1, state: 'R' }]
    }

    /// A folder with a file that has lost its name, and has another one.
    fn with_a_lost_file() -> (tempfile::TempDir, File) {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("first")).unwrap();
        fs::hard_link(folder.path().join("first"), folder.path().join("second")).unwrap();
        fs::remove_file(folder.path().join("first")).unwrap();
        (folder, file)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.collect();
        names.sort();
        names
    }

    /// The lock, limited to one folder: other tests of this process have files of their own.
    fn lock(folder: &Path) -> LinkRemapLock {
        let mut lock = LinkRemapLock::of_dump(&own_process()).unwrap();
        lock.locked_folders.retain(|locked| locked.path() == folder);
        lock
    }

    #[test]
    fn names_that_a_criu_has_left_are_taken_away_and_no_others() {
        let (folder, _file) = with_a_lost_file();
        let path = |name: &str| folder.path().join(name);
        fs::hard_link(path("second"), path("link_remap.3")).unwrap();
        for name in ["link_remap.5", "link_remap.6", "link_remap.x"] {
            fs::write(path(name), name).unwrap();
        }
        mark(&path("link_remap.5"));
        let mut lock = lock(folder.path());
        lock.wait_until_free().unwrap();
        assert_eq!(names(folder.path()).len(), 5, "nothing is done before it has begun");
        lock.begin().unwrap();
        assert_eq!(names(folder.path()), ["link_remap.6.set-aside-by-katydid", "link_remap.x", "second"]);
        // CRIU gives such names during a dump, and leaves them if it is killed.
        for name in ["link_remap.4", "link_remap.6"] {
            fs::hard_link(path("second"), path(name)).unwrap();
        }
        drop(lock);
        assert_eq!(names(folder.path()), ["link_remap.6", "link_remap.x", "second"]);
        assert_eq!(fs::read_to_string(path("link_remap.6")).unwrap(), "link_remap.6");
    }

    #[test]
    fn next_lock_restores_backups_of_a_killed_process() {
        let (folder, _file) = with_a_lost_file();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("link_remap.3.set-aside-by-katydid"), "another's").unwrap();
        fs::write(path("link_remap.3"), "of the killed one, which could not mark it").unwrap();
        lock(folder.path()).begin().unwrap();
        assert_eq!(names(folder.path()), ["link_remap.3", "second"]);
        assert_eq!(fs::read_to_string(path("link_remap.3")).unwrap(), "another's");
    }

    #[test]
    fn link_remap_file_that_cannot_be_renamed_stays() {
        let (folder, _file) = with_a_lost_file();
        // With the suffix, the name is too long.
        let name = format!("link_remap.{}", "7".repeat(230));
        fs::write(folder.path().join(&name), "another's").unwrap();
        let mut lock = lock(folder.path());
        lock.begin().unwrap();
        drop(lock);
        assert_eq!(names(folder.path()), [name, "second".to_owned()]);
    }

    #[test]
    fn a_second_name_replaces_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, third] = ["one", "other", "third"].map(|name| folder.path().join(name));
        fs::write(&one, "one").unwrap();
        fs::write(&other, "other").unwrap();
        assert_eq!(moved_by_link(&one, &other).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        moved_by_link(&one, &third).unwrap();
        assert_eq!(names(folder.path()), ["other", "third"]);
        assert_eq!(
            (fs::read_to_string(other).unwrap(), fs::read_to_string(third).unwrap()),
            ("other".into(), "one".into())
        );
    }

    #[test]
    fn a_lock_that_pauses_is_free() {
        let (folder, _file) = with_a_lost_file();
        let mut lock = lock(folder.path());
        let other = File::open(folder.path()).unwrap();
        lock.begin().unwrap();
        assert!(other.try_lock().is_err());
        lock.pause();
        other.try_lock().unwrap();
        other.unlock().unwrap();
        lock.resume().unwrap();
        assert!(other.try_lock().is_err());
        drop(lock);
        other.try_lock().unwrap();
    }

    #[test]
    fn failed_wait_names_the_lock_holder() {
        let folder = tempfile::tempdir().unwrap();
        let other = File::open(folder.path()).unwrap();
        other.lock().unwrap();
        let mut locked = LockedFolder { file: File::open(folder.path()).unwrap(), is_ours: false };
        let mut failure = || locked.lock(Instant::now()).unwrap_err();
        assert_eq!(failure().0, folder.path());
        // The kernel lists locks a page at a time, and may skip a line if others free locks between two pages.
        let holder = format!("process {} (", std::process::id());
        assert!((0..1000).any(|_| failure().1.starts_with(&holder)), "{}", failure().1);
    }

    #[test]
    fn only_who_has_a_lock_of_the_file_is_its_holder() {
        let id = FileId { device: rustix::fs::makedev(0xfe, 0x12), inode: 77 };
        assert_eq!(holder("1: FLOCK  ADVISORY  WRITE 29300 fe:12:77 0 EOF", id), Some(29300));
        for line in ["1: -> FLOCK  ADVISORY  WRITE 3 fe:12:77 0 EOF", "2: FLOCK  ADVISORY  READ 3 fe:12:7 0 EOF", ""] {
            assert_eq!(holder(line, id), None, "{line}");
        }
    }

    #[test]
    fn names_of_a_restore_go_when_their_folder_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let (name, other) = (folder.path().join("link_remap.3"), folder.path().join("other"));
        for path in [&name, &other] {
            fs::write(path, "text").unwrap();
        }
        let lock = File::open(folder.path()).unwrap();
        lock.lock().unwrap();
        thread::scope(|scope| {
            let waiting = name.clone();
            scope.spawn(move || LinkRemapLock::remove(&[&waiting, &waiting.with_extension("4")]).unwrap());
            thread::sleep(10 * LOCK_POLL_INTERVAL);
            assert!(name.exists(), "it was another holder's lock");
            lock.unlock().unwrap();
        });
        assert!(!name.exists() && other.exists());
    }
}
