//! A folder of the file system, accessed through one descriptor: a process that receives it needs no access to the path.
//!
//! A file is written as `NAME.part`, synced, and renamed. The caller syncs the folder once for many files. The last part of a
//! name is never followed as a symbolic link. Every change goes through [`Folder::change`], where tests inject faults.

use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, FsWord, Mode, OFlags, StatFs};
use rustix::io::Errno;

use super::faults::{Change, Faults, Verdict};
use super::{Guard, Input, Lock, Output, Store};
use crate::error::{ImageError, MAKE_FOLDER, Result};
use crate::index::PACKS_FOLDER;

/// Suffix of a file that is being written.
pub(crate) const PARTIAL_FILE_SUFFIX: &str = ".part";
/// The kernel's number for file systems in memory (`linux/magic.h`).
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// Mode bits by which other users write to a folder.
const OTHERS_WRITE: u32 = 0o022;
/// Most bytes of one `sendfile` call, by Linux's limit.
const MAX_SEND_BYTES: usize = 0x7fff_f000;
/// Lock file of the writer; contains the holder's process id.
const WRITER_LOCK: &str = "lock";
/// Lock file of readers (shared) and of a clean-up (exclusive).
const READER_LOCK: &str = "katydid-image";

/// A lock that ends with this value, even if another process has a copy of the descriptor, such as a child that was just forked.
struct StoreLock(OwnedFd);

impl Drop for StoreLock {
    fn drop(&mut self) {
        // Unlocking a file that is not locked does no harm.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// A folder of the file system, as a store.
#[derive(Clone)]
pub(crate) struct Local(Arc<Folder>);

struct Folder {
    root: OwnedFd,
    path: PathBuf,
    faults: Option<Arc<Faults>>,
}

impl fmt::Debug for Local {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Local({})", self.0.path.display())
    }
}

impl Local {
    /// Opens the folder at a path; `create` makes it and its parents, accessible to their owner only.
    pub(crate) fn at(path: &Path, create: bool, faults: Option<Arc<Faults>>) -> Result<Self> {
        let shown = path.display().to_string();
        if create {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(path)
                .map_err(|error| ImageError::io(&shown, MAKE_FOLDER, error))?;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, path, flags, Mode::empty());
        let root = root.map_err(|error| ImageError::io(&shown, "open this folder", error.into()))?;
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self(Arc::new(Folder { root, path, faults })))
    }

    /// Opens a folder from another process's descriptor.
    pub(crate) fn from_descriptor(root: OwnedFd) -> Self {
        use std::os::fd::AsRawFd;
        let link = format!("/proc/self/fd/{}", root.as_raw_fd());
        let path = fs::read_link(&link).unwrap_or_else(|_| PathBuf::from(link));
        Self(Arc::new(Folder { root, path, faults: None }))
    }
}

impl Folder {
    /// Returns a path for messages only; nothing is opened by it.
    fn location(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    /// Adds the location to an error; a full disk becomes its own error.
    fn failed(&self, name: &str, action: &'static str, error: impl Into<io::Error>) -> ImageError {
        ImageError::io(&self.location(name), action, error.into())
    }

    /// Makes a change, or injects the fault that a test has planned: `half` leaves what a crash would.
    fn change<T>(
        &self,
        change: Change<'_>,
        whole: impl FnOnce() -> io::Result<T>,
        half: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<T> {
        match self.faults.as_ref().map_or(Verdict::Done, |faults| faults.next(change)) {
            Verdict::Done => whole(),
            Verdict::Half => half().and(Err(io::ErrorKind::BrokenPipe.into())),
            Verdict::Refused(kind) => Err(kind.into()),
        }
    }

    /// Opens a file. Files are accessible to their owner only: an image has everything that a program had in memory. In a folder
    /// that others may write to, a pipe in place of a file does not block the process.
    fn open_at(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        rustix::io::retry_on_intr(|| rustix::fs::openat(&self.root, name, flags, Mode::from_raw_mode(0o600)))
    }

    /// Returns the file system's state if it is in memory.
    fn memory(&self) -> Option<StatFs> {
        rustix::fs::fstatfs(&self.root).ok().filter(|found| found.f_type == TMPFS_MAGIC)
    }

    /// Returns whether anything has this name, including a dangling link.
    fn exists(&self, name: &str) -> bool {
        rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes a name; a missing one is fine.
    fn unlink(&self, name: &str, flags: AtFlags) -> io::Result<()> {
        let remove = || match rustix::fs::unlinkat(&self.root, name, flags) {
            Err(error) if error != Errno::NOENT => Err(error.into()),
            _ => Ok(()),
        };
        // A crash during a removal leaves its state before or after: the next fault point covers the other one.
        self.change(Change::Remove(name), remove, || Ok(()))
    }

    /// Returns the names in a folder, with whether they are folders.
    fn entries(&self, folder: &str) -> Result<Vec<(String, bool)>> {
        let failed = |error: Errno| self.failed(folder, "list this folder", error);
        let opened = match self.open_at(folder, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened.map_err(failed)?,
        };
        let mut entries = Vec::new();
        for entry in Dir::new(opened).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // A name that is not text is not Katydid's; CRIU's file names are ASCII.
            if let Ok(name) = entry.file_name().to_str()
                && name != "."
                && name != ".."
            {
                let known = entry.file_type();
                let path = format!("{folder}/{name}");
                let stat = || rustix::fs::statat(&self.root, path.as_str(), AtFlags::SYMLINK_NOFOLLOW);
                // Some file systems do not report the kind of an entry.
                let kind = match known {
                    FileType::Unknown => FileType::from_raw_mode(stat().map_err(failed)?.st_mode),
                    known => known,
                };
                entries.push((name.to_owned(), kind == FileType::Directory));
            }
        }
        Ok(entries)
    }

    /// Returns the lock's holder, from the lock file.
    fn holder(&self) -> String {
        let mut text = String::new();
        let opened = self.open_at(WRITER_LOCK, OFlags::RDONLY).map(File::from);
        let _ = opened.map(|file| file.take(20).read_to_string(&mut text));
        match text.trim().parse::<u32>() {
            Ok(pid) => format!("process {pid}"),
            Err(_) => "another process".to_owned(),
        }
    }

    /// Takes the writer's lock. The kernel releases it when its holder ends, however that happens.
    fn lock_writer(&self) -> Result<Guard> {
        let make = || self.open_at(WRITER_LOCK, OFlags::RDWR | OFlags::CREATE).map_err(io::Error::from);
        let opened = match self.open_at(WRITER_LOCK, OFlags::RDWR) {
            Err(Errno::NOENT) => self.change(Change::Make, make, || make().map(drop)),
            opened => opened.map_err(io::Error::from),
        };
        let opened = opened.map_err(|error| self.failed(WRITER_LOCK, "open", error))?;
        self.flock(&opened, FlockOperation::NonBlockingLockExclusive, || self.holder())?;
        // The note is only for messages of other processes; a failed write does not matter.
        let file = File::from(opened);
        let note =
            || file.set_len(0).and_then(|()| file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0));
        let _ = self.change(Change::Write(WRITER_LOCK), note, || file.set_len(0));
        Ok(Box::new(StoreLock(file.into())))
    }

    /// Locks the image file itself. It exists as long as the image does, and a reader can open it on a read-only disk.
    fn lock_readers(&self, operation: FlockOperation) -> Result<Guard> {
        let opened = self.open_at(READER_LOCK, OFlags::RDONLY);
        let opened = opened.map_err(|error| self.failed(READER_LOCK, "open", error))?;
        self.flock(&opened, operation, || "a process that restores from it or clears it up".to_owned())?;
        Ok(Box::new(StoreLock(opened)))
    }

    /// Locks the folder of the packs, which both parts and the next writer use.
    fn lock_parts(&self, operation: FlockOperation) -> Result<Guard> {
        let opened = self.open_at(PACKS_FOLDER, OFlags::RDONLY | OFlags::DIRECTORY);
        let opened = opened.map_err(|error| self.failed(PACKS_FOLDER, "open", error))?;
        self.flock(&opened, operation, || "a worker that still has to do with an earlier checkpoint".to_owned())?;
        Ok(Box::new(StoreLock(opened)))
    }

    /// Takes a lock without waiting; an error names the holder.
    fn flock(&self, file: &OwnedFd, operation: FlockOperation, holder: impl FnOnce() -> String) -> Result<()> {
        match rustix::io::retry_on_intr(|| rustix::fs::flock(file, operation)) {
            Err(Errno::WOULDBLOCK) => Err(ImageError::Locked { location: self.location(""), holder: holder() }),
            other => other.map_err(|error| self.failed(WRITER_LOCK, "lock", error)),
        }
    }

    /// Syncs a file of another program to the disk; any descriptor of it will do.
    fn sync_file(&self, name: &str) -> Result<()> {
        let sync = || rustix::fs::fsync(self.open_at(name, OFlags::RDONLY)?).map_err(io::Error::from);
        let synced = self.change(Change::Sync(name), sync, || Ok(()));
        synced.map_err(|error| self.failed(name, "make lasting", error))
    }

    /// Removes a folder and its contents, up to `depth` folders deep.
    fn remove_tree(&self, folder: &str, depth: u32) -> Result<()> {
        for (name, is_folder) in self.entries(folder)? {
            let name = format!("{folder}/{name}");
            if is_folder && depth > 0 {
                self.remove_tree(&name, depth - 1)?;
            } else {
                self.unlink(&name, AtFlags::empty()).map_err(|error| self.failed(&name, "remove", error))?;
            }
        }
        self.unlink(folder, AtFlags::REMOVEDIR).map_err(|error| self.failed(folder, "remove", error))
    }
}

impl Store for Local {
    fn location(&self, name: &str) -> String {
        self.0.location(name)
    }

    fn create(&self, name: &str) -> Result<Box<dyn Output>> {
        let part = format!("{name}{PARTIAL_FILE_SUFFIX}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let make = || self.0.open_at(&part, flags).map_err(io::Error::from);
        let file = self.0.change(Change::Make, make, || make().map(drop));
        let file = File::from(file.map_err(|error| self.0.failed(&part, "make", error))?);
        Ok(Box::new(LocalWriter {
            file,
            part,
            name: name.to_owned(),
            folder: Arc::clone(&self.0),
            is_preallocated: false,
            finished: false,
        }))
    }

    // `O_EXCL` on the `.part` file decides between processes; nothing else counts the used names.
    fn create_new(&self, name: &str) -> Result<Option<Box<dyn Output>>> {
        let part = format!("{name}{PARTIAL_FILE_SUFFIX}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let make = || self.0.open_at(&part, flags).map_err(io::Error::from);
        let file = match self.0.change(Change::Make, make, || make().map(drop)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            file => File::from(file.map_err(|error| self.0.failed(&part, "make", error))?),
        };
        let folder = Arc::clone(&self.0);
        let writing =
            LocalWriter { file, part, name: name.to_owned(), folder, is_preallocated: false, finished: false };
        // The name's earlier owner has finished by now, or has not begun: the name is checked after the `.part` file exists.
        Ok(if self.0.exists(name) { None } else { Some(Box::new(writing)) })
    }

    fn open(&self, name: &str) -> Result<Option<Arc<dyn Input>>> {
        let file = match self.0.open_at(name, OFlags::RDONLY) {
            Err(Errno::NOENT) => return Ok(None),
            file => File::from(file.map_err(|error| self.0.failed(name, "open", error))?),
        };
        let found = file.metadata().map_err(|error| self.0.failed(name, "open", error))?;
        if !found.is_file() {
            return Err(ImageError::damaged(&self.0.location(name), "it is not a file"));
        }
        Ok(Some(Arc::new(LocalReader { folder: Arc::clone(&self.0), name: name.to_owned(), size: found.len() })))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>> {
        Ok(self.0.entries(folder)?.into_iter().map(|(name, _)| name).collect())
    }

    fn make_folder(&self, folder: &str) -> Result<()> {
        let make = || match rustix::fs::mkdirat(&self.0.root, folder, Mode::from_raw_mode(0o700)) {
            Err(error) if error != Errno::EXIST => Err(io::Error::from(error)),
            _ => Ok(()),
        };
        self.0.change(Change::Make, make, make).map_err(|error| self.0.failed(folder, MAKE_FOLDER, error))
    }

    // Who can write to a folder can put his own in place of those below, and read what this process or CRIU writes there.
    fn check_private(&self, folder: &str) -> Result<()> {
        let failed = |error: Errno| self.0.failed(folder, "look at this folder", error);
        let found = match rustix::fs::statat(&self.0.root, folder, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            found => found.map_err(failed)?,
        };
        let seen = rustix::fs::stat(self.0.path.join(folder)).map_err(failed)?;
        let problem = if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            "is no folder".to_owned()
        } else if found.st_uid != 0 && found.st_uid != rustix::process::geteuid().as_raw() {
            format!("belongs to another user ({})", found.st_uid)
        } else if found.st_mode & OTHERS_WRITE != 0 {
            format!("others may write to it (mode {:04o}; try `chmod go-w`)", found.st_mode & 0o7777)
        } else if (found.st_dev, found.st_ino) != (seen.st_dev, seen.st_ino) {
            "another folder has its place by now".to_owned()
        } else {
            return Ok(());
        };
        Err(ImageError::NotPrivate { location: self.0.location(folder), problem })
    }

    // Names are contents of their folder: a synced file may still lose its name.
    fn sync_folder(&self, folder: &str) -> Result<()> {
        let sync = || {
            let opened = self.0.open_at(folder, OFlags::RDONLY | OFlags::DIRECTORY)?;
            rustix::fs::fsync(opened).map_err(io::Error::from)
        };
        self.0
            .change(Change::Sync(folder), sync, || Ok(()))
            .map_err(|error| self.0.failed(folder, "make this folder lasting", error))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.0.unlink(name, AtFlags::empty()).map_err(|error| self.0.failed(name, "remove", error))
    }

    fn remove_folder(&self, folder: &str) -> Result<()> {
        // Folders of a checkpoint are two deep; a deeper tree is not Katydid's, and its removal fails.
        if self.0.exists(folder) { self.0.remove_tree(folder, 3) } else { Ok(()) }
    }

    fn lock(&self, lock: Lock) -> Result<Guard> {
        match lock {
            Lock::Writer => self.0.lock_writer(),
            Lock::Reader => self.0.lock_readers(FlockOperation::NonBlockingLockShared),
            Lock::Sweeper => self.0.lock_readers(FlockOperation::NonBlockingLockExclusive),
            Lock::Part => self.0.lock_parts(FlockOperation::NonBlockingLockShared),
            Lock::Alone => self.0.lock_parts(FlockOperation::NonBlockingLockExclusive),
        }
    }

    fn descriptor(&self) -> Result<Option<OwnedFd>> {
        self.0.root.try_clone().map(Some).map_err(|error| self.0.failed("", "share", error))
    }

    fn path(&self, folder: &str) -> PathBuf {
        self.0.path.join(folder)
    }

    fn commit_folder(&self, folder: &str) -> Result<Vec<String>> {
        let names = self.list(folder)?;
        for name in &names {
            self.0.sync_file(&format!("{folder}/{name}"))?;
        }
        self.sync_folder(folder).map(|()| names)
    }

    fn export_file(&self, _folder: &str, _name: &str, _input: &dyn Input) -> Result<()> {
        Ok(())
    }

    fn max_parallel_writes(&self) -> usize {
        usize::MAX
    }

    // Preallocation does not help on a disk: its pages are allocated at the write anyway.
    fn spare_bytes(&self) -> u64 {
        let free = self.0.memory().map_or(0, |found| found.f_bavail.saturating_mul(found.f_frsize.unsigned_abs()));
        free.min(available_memory()) / 2
    }

    // At the first read of a file in memory, the kernel re-sorts its pages, on one processor at a time: for 32 GiB that took 0.8
    // s of 2.1 (Linux 6.18). `sendfile` to `/dev/null` triggers that without a copy.
    fn warm_page_cache(&self, name: &str) {
        let opened = self.0.memory().and_then(|_| self.0.open_at(name, OFlags::RDONLY).ok());
        let nowhere = rustix::fs::openat(CWD, "/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        let (Some(file), Ok(nowhere)) = (opened, nowhere) else { return };
        // The reader triggers the rest.
        while matches!(rustix::fs::sendfile(&nowhere, &file, None, MAX_SEND_BYTES), Ok(1..)) {}
    }
}

/// Returns how many bytes the system can give without taking them from a process; 0 if it does not tell.
fn available_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// A file that does not have its final name yet.
struct LocalWriter {
    file: File,
    part: String,
    name: String,
    folder: Arc<Folder>,
    /// Whether memory may be allocated past its end.
    is_preallocated: bool,
    finished: bool,
}

impl fmt::Debug for LocalWriter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.part)
    }
}

/// Writes all parts, with one system call if the kernel takes them all.
fn write_all(mut file: &File, parts: &[&[u8]]) -> io::Result<()> {
    let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut done = file.write_vectored(&slices)?;
    for part in parts {
        let skipped = done.min(part.len());
        done -= skipped;
        file.write_all(&part[skipped..])?;
    }
    Ok(())
}

impl Output for LocalWriter {
    fn write(&mut self, parts: &[&[u8]]) -> Result<()> {
        let half = || parts.iter().try_for_each(|part| write_all(&self.file, &[&part[..part.len() / 2]]));
        let written = self.folder.change(Change::Write(&self.part), || write_all(&self.file, parts), half);
        written.map_err(|error| self.folder.failed(&self.part, "write", error))
    }

    fn preallocate(&mut self, bytes: u64) {
        let make =
            |bytes| rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, bytes).map_err(io::Error::from);
        let result = self.folder.change(Change::Preallocation(&self.part), || make(bytes), || make(bytes / 2));
        self.is_preallocated = result.is_ok();
    }

    // Contents before name: after a power cut, the name must not refer to an empty file.
    fn finish(mut self: Box<Self>) -> Result<()> {
        let given_back = if self.is_preallocated { self.release_preallocation() } else { Ok(()) };
        given_back.map_err(|error| self.folder.failed(&self.part, "cut to its length", error))?;
        let synced = self.folder.change(Change::Sync(&self.part), || self.file.sync_all(), || Ok(()));
        synced.map_err(|error| self.folder.failed(&self.part, "make lasting", error))?;
        let root = self.folder.root.as_fd();
        let rename = || rustix::fs::renameat(root, &self.part, root, &self.name).map_err(io::Error::from);
        let renamed = self.folder.change(Change::Rename(&self.part, &self.name), rename, rename);
        renamed.map_err(|error| self.folder.failed(&self.name, "rename to this name", error))?;
        self.finished = true;
        Ok(())
    }
}

impl LocalWriter {
    /// Cuts the file to its length.
    fn release_preallocation(&self) -> io::Result<()> {
        let cut = || self.file.set_len(self.file.metadata()?.len());
        // Half done, it leaves the state before or after, as a removal does.
        self.folder.change(Change::Preallocation(&self.part), cut, || Ok(()))
    }
}

impl Drop for LocalWriter {
    fn drop(&mut self) {
        if !self.finished {
            // A file that cannot be removed now is removed when the next checkpoint begins.
            let _ = self.folder.unlink(&self.part, AtFlags::empty());
        }
    }
}

/// A file that is opened for each read: an image may have more packs than a process may have open files.
struct LocalReader {
    folder: Arc<Folder>,
    name: String,
    size: u64,
}

impl fmt::Debug for LocalReader {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

impl Input for LocalReader {
    fn size(&self) -> u64 {
        self.size
    }

    // Opening takes some microseconds, a chunk some hundreds.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let opened = self.folder.open_at(&self.name, OFlags::RDONLY).map_err(io::Error::from);
        let read = opened.and_then(|file| File::from(file).read_exact_at(buffer, offset));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ImageError::damaged(&self.folder.location(&self.name), "it is cut off"),
            _ => self.folder.failed(&self.name, "read", error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::faults::InjectedFault;
    use super::*;

    /// The changes: creating a file, preallocating, writing, trimming, syncing, renaming; and creating the lock file with its
    /// note.
    #[test]
    fn every_change_can_be_let_fail() {
        let folder = tempfile::tempdir().unwrap();
        let write = |local: &Local| {
            let mut output = local.create("file")?;
            output.preallocate(1 << 16);
            output.write(&[b"contents"])?;
            output.finish()
        };
        let act = |faults: Faults| {
            let faults = Arc::new(faults);
            let local = Local::at(folder.path(), false, Some(Arc::clone(&faults))).unwrap();
            let _ = fs::remove_file(folder.path().join(WRITER_LOCK));
            let (written, locked) = (write(&local), local.lock(Lock::Writer));
            (faults.changes(), written.is_ok(), locked.is_ok())
        };
        assert_eq!(act(Faults::none()), (8, true, true));
        let full: Vec<_> = (0..8).map(|at| act(Faults::at(at, InjectedFault::Full))).map(|(_, a, b)| (a, b)).collect();
        // All fail up to the rename; then the lock file; the note is only for people.
        assert_eq!(full[..6], [(false, false); 6]);
        assert_eq!(full[6..], [(true, false), (true, true)]);
    }

    #[test]
    fn folders_that_others_may_change_are_refused() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let local = Local::at(folder.path(), false, None).unwrap();
        let packs = folder.path().join(PACKS_FOLDER);
        fs::create_dir(&packs).unwrap();
        for (mode, is_private) in [(0o755, true), (0o775, false), (0o757, false), (0o1777, false), (0o700, true)] {
            fs::set_permissions(&packs, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(local.check_private(PACKS_FOLDER).is_ok(), is_private, "{mode:o}");
        }
        symlink(&packs, folder.path().join("link")).unwrap();
        assert!(local.check_private("link").is_err() && local.check_private("missing").is_ok());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&packs, Some(65534), None).unwrap();
            let text = local.check_private(PACKS_FOLDER).unwrap_err().to_string();
            assert!(text.contains("another user (65534)") && text.contains("only you"), "{text}");
        }
    }

    #[test]
    fn special_file_in_an_image_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let local = Local::at(folder.path(), false, None).unwrap();
        for (name, kind) in [("pipe", FileType::Fifo), ("socket", FileType::Socket)] {
            rustix::fs::mknodat(&local.0.root, name, kind, Mode::from_raw_mode(0o600), 0).unwrap();
        }
        fs::create_dir(folder.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", folder.path().join("link")).unwrap();
        for name in ["pipe", "folder"] {
            let text = local.open(name).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("it is not a file"), "{text}");
        }
        assert!(["socket", "link"].iter().all(|name| local.open(name).is_err()));
    }

    #[test]
    fn a_lock_ends_with_its_holder_though_a_child_has_a_copy_of_the_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let local = Local::at(folder.path(), false, None).unwrap();
        std::fs::write(folder.path().join(READER_LOCK), "").unwrap();
        std::fs::create_dir(folder.path().join(PACKS_FOLDER)).unwrap();
        for lock in [Lock::Writer, Lock::Reader, Lock::Sweeper, Lock::Part, Lock::Alone] {
            let held = local.lock(lock).unwrap();
            let _copy = held.downcast_ref::<StoreLock>().unwrap().0.try_clone().unwrap();
            let other = match lock {
                Lock::Reader => Lock::Sweeper,
                Lock::Part => Lock::Alone,
                lock => lock,
            };
            assert!(matches!(local.lock(other), Err(ImageError::Locked { .. })), "{lock:?}");
            drop(held);
            assert!(local.lock(other).is_ok(), "{lock:?}");
        }
    }
}
