//! Processes that share the memory of their devices, as programs on one GPU do: `KATYDID_SOFT_SHARED` names a folder.
//!
//! Each process has a file there with the bytes that it uses of each device, after a magic text. It holds the file's lock for its
//! whole life. The process of an unlocked file has ended, so the file does not count. A process that takes memory holds the
//! folder's lock, so out-of-memory is exact here too.
//!
//! A process writes only to its own file, and removes only files with the magic text. The folder may be any folder, and its other
//! files belong to others.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::ffi::report;
use crate::process::settings::{self, MAX_SOFT_DEVICES};

/// The lock of a folder. Files of processes have numbers as names.
const USAGE_LOCK_FILE: &str = "lock";
/// First bytes of a process's file; another layout has another number.
const PROCESS_FILE_MAGIC: &[u8; 32] = b"katydid softcuda process file 1\n";
/// Bytes of a number in a file.
const NUMBER_BYTES: usize = 8;
/// Bytes of a file: [`PROCESS_FILE_MAGIC`], and the used bytes of each device.
const USAGE_FILE_BYTES: usize = PROCESS_FILE_MAGIC.len() + MAX_SOFT_DEVICES * NUMBER_BYTES;

/// The folder, as one process sees it.
pub(crate) struct PeerProcesses {
    folder: PathBuf,
    lock: File,
    own: File,
}

/// Returns the peers of this process; `None` if it does not share its devices.
pub(crate) fn of_process() -> Option<&'static PeerProcesses> {
    static PROCESS_PEERS: LazyLock<Option<PeerProcesses>> = LazyLock::new(|| {
        let folder = settings::shared_folder()?;
        let opened = PeerProcesses::open(&folder);
        opened.inspect_err(|error| report(&format!("{}: {error}: devices are not shared", folder.display()))).ok()
    });
    PROCESS_PEERS.as_ref()
}

impl PeerProcesses {
    /// Joins the processes in `folder`, under a name that no live process has.
    fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = options().write(true).create(true).truncate(false).open(folder.join(USAGE_LOCK_FILE))?;
        if !lock.metadata()?.is_file() {
            return Err(io::Error::other(format!("{USAGE_LOCK_FILE} in it is not a file; name another folder")));
        }
        lock.lock()?;
        // A process in another namespace may have the same number, and an earlier process may have left its file.
        let is_taken =
            |file: &io::Result<File>| file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
        let own = (0..)
            .map(|count| folder.join(format!("{}.{count}", std::process::id())))
            .map(|path| options().write(true).create_new(true).open(path))
            .find(|file| !is_taken(file))
            .ok_or(io::ErrorKind::NotFound)??;
        own.lock()?;
        let mut whole = [0; USAGE_FILE_BYTES];
        whole[..PROCESS_FILE_MAGIC.len()].copy_from_slice(PROCESS_FILE_MAGIC);
        own.write_all_at(&whole, 0)?;
        lock.unlock()?;
        Ok(Self { folder: folder.to_owned(), lock, own })
    }

    /// Sets the bytes that this process uses of a device, if they and those of others fit `capacity`.
    pub(crate) fn take(&self, device: usize, used: u64, capacity: u64) -> bool {
        let result = self.with_lock(|| {
            let fits = self.sum_of_others(device)?.checked_add(used).is_some_and(|all| all <= capacity);
            Ok(fits && self.write(device, used).is_ok())
        });
        result.unwrap_or(false)
    }

    /// Lowers the bytes that this process uses of a device to `used`.
    pub(crate) fn give(&self, device: usize, used: u64) {
        // If the write fails, the file claims too much, so no process gets memory that does not exist.
        let _ = self.write(device, used);
    }

    /// Returns the bytes of a device that others use; the largest number if unknown.
    pub(crate) fn used_by_others(&self, device: usize) -> u64 {
        self.with_lock(|| self.sum_of_others(device)).unwrap_or(u64::MAX)
    }

    fn with_lock<T>(&self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.lock.lock()?;
        let outcome = work();
        self.lock.unlock()?;
        outcome
    }

    fn write(&self, device: usize, used: u64) -> io::Result<()> {
        self.own.write_all_at(&used.to_le_bytes(), usage_offset(device))
    }

    fn sum_of_others(&self, device: usize) -> io::Result<u64> {
        let own = self.own.metadata()?;
        let mut sum = 0_u64;
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if !is_of_process(&path) {
                continue;
            }
            let Ok(file) = options().open(&path) else { continue };
            let metadata = file.metadata()?;
            // A process that has just joined uses nothing yet. A file of another form is not a usage file, whatever its name.
            if !metadata.is_file() || is_same(&metadata, &own) || !is_usage_file(&file, metadata.len()) {
                continue;
            }
            if file.try_lock_shared().is_ok() {
                // Its process has ended.
                let _ = fs::remove_file(&path);
                continue;
            }
            let mut used = [0; NUMBER_BYTES];
            if file.read_exact_at(&mut used, usage_offset(device)).is_ok() {
                sum = sum.saturating_add(u64::from_le_bytes(used));
            }
        }
        Ok(sum)
    }
}

/// Returns options that follow no link and wait for no peer of a pipe, since other processes wait for the folder's lock.
fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    options
}

/// Returns whether a file has the name of a process's file. The folder may be any, and may hold other files.
fn is_of_process(path: &Path) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let name = path.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.split_once('.')).is_some_and(|(pid, count)| is_number(pid) && is_number(count))
}

/// Returns whether a file of `length` bytes is a usage file.
fn is_usage_file(file: &File, length: u64) -> bool {
    let mut magic = [0; PROCESS_FILE_MAGIC.len()];
    length == USAGE_FILE_BYTES as u64 && file.read_exact_at(&mut magic, 0).is_ok() && magic == *PROCESS_FILE_MAGIC
}

/// Returns the offset of a device's used bytes in a file.
fn usage_offset(device: usize) -> u64 {
    (PROCESS_FILE_MAGIC.len() + device * NUMBER_BYTES) as u64
}

fn is_same(first: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (first.dev(), first.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_peer_processes_is_unavailable_until_they_free_it_or_end() {
        let folder = std::env::temp_dir().join(format!("katydid-peers-{}", std::process::id()));
        let [first, other] = [(); 2].map(|()| PeerProcesses::open(&folder).unwrap());
        assert!(first.take(0, 60, 100) && !other.take(0, 41, 100) && other.take(0, 40, 100));
        assert_eq!((first.used_by_others(0), other.used_by_others(0), other.used_by_others(1)), (40, 60, 0));
        first.give(0, 10);
        assert!(other.take(0, 90, 100));
        drop(other);
        assert!(first.take(0, 100, 100));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn foreign_files_with_the_name_of_a_process_file_are_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let path = |count: u32| folder.path().join(format!("{}.{count}", std::process::id()));
        let magic = std::str::from_utf8(PROCESS_FILE_MAGIC).unwrap();
        let texts = [String::new(), magic.to_owned(), "a".repeat(USAGE_FILE_BYTES)];
        texts.iter().zip(0..).for_each(|(text, count)| fs::write(path(count), text).unwrap());
        let target = folder.path().join("notes");
        fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, path(3)).unwrap();
        let pipes = [path(4), folder.path().join("1.0")];
        assert!(std::process::Command::new("mkfifo").args(&pipes).status().unwrap().success());
        let peers = PeerProcesses::open(folder.path()).unwrap();
        assert!(peers.take(0, 100, 100) && peers.used_by_others(0) == 0);
        texts.iter().zip(0..).for_each(|(text, count)| assert_eq!(fs::read_to_string(path(count)).unwrap(), *text));
        assert_eq!(fs::read_to_string(&target).unwrap(), "mine");
        assert!(pipes.iter().all(|pipe| pipe.exists()));
        assert_eq!(fs::metadata(path(5)).unwrap().len(), USAGE_FILE_BYTES as u64);
    }

    #[test]
    fn a_folder_whose_lock_is_no_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, elsewhere) = (folder.path().join(USAGE_LOCK_FILE), folder.path().join("elsewhere"));
        std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
        assert!(PeerProcesses::open(folder.path()).is_err() && !elsewhere.exists());
        fs::remove_file(&lock).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
        assert!(PeerProcesses::open(folder.path()).is_err());
    }

    #[test]
    fn files_of_no_process_stay() {
        let folder = std::env::temp_dir().join(format!("katydid-foreign-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // The last has the size and the name of a process's file.
        let names = ["thesis.tex", "7.bak", ".1", "1.", "12", "2026.11"];
        for name in names {
            fs::write(folder.join(name), [255; USAGE_FILE_BYTES]).unwrap();
        }
        let whole = [&PROCESS_FILE_MAGIC[..], &[0; MAX_SOFT_DEVICES * NUMBER_BYTES]].concat();
        fs::write(folder.join("4194304.0"), whole).unwrap();
        let peers = PeerProcesses::open(&folder).unwrap();
        assert!(peers.take(0, 100, 100) && peers.used_by_others(0) == 0);
        names.iter().for_each(|name| assert!(folder.join(name).exists(), "{name}"));
        assert!(!folder.join("4194304.0").exists(), "its process has ended");
        fs::remove_dir_all(folder).unwrap();
    }
}
