//! Temporary folders for a log, a socket or a checkpoint in transit. They are removed after their process ends, even if it is
//! killed.
//!
//! A killed process removes nothing. So each process holds a lock (`flock`) on each folder that it makes, and the kernel releases
//! the lock when the process ends. The next process that makes a folder, or calls [`clear_away`], removes folders without a lock
//! holder.
//!
//! A folder with such a name that can be locked belongs to no process, and the holder of its lock may remove it. A folder that
//! its maker has not locked yet may be mistaken for such a one: then the maker notices, and makes another. On file systems
//! without locks, only the maker removes its folders.

pub mod private;

use std::env;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

/// Users that root's servers assign to their workers, and to the workers' folders. systemd gives these ids to services while they
/// run, and distributions to no account.
pub const OWN_USERS: RangeInclusive<u32> = 61184..=65519;
/// Prefix of all folder names.
const FOLDER_PREFIX: &str = "katydid.";
/// Characters of the random end of all folder names.
const RANDOM_LENGTH: usize = 6;
/// The file that marks an image of checkpoints.
const IMAGE_FILE: &str = "katydid-image";
/// Kinds of folders that are themselves images: of a checkpoint in transit.
const IMAGE_KINDS: [&str; 2] = ["migrate", "process"];
/// Longest path of a temporary folder that may hold sockets. With the names of folder and socket, socket paths then stay below
/// the 107 bytes that the kernel accepts.
const MAX_SOCKET_FOLDER_BYTES: usize = 64;
/// Attempts to make a folder if another process takes each for an abandoned one.
const MAKE_ATTEMPTS: u32 = 100;
/// Attempts to remove a folder that is still written to: by a worker, until it notices that its program is gone.
const REMOVE_ATTEMPTS: u32 = 1000;
/// Interval between two attempts.
const REMOVE_INTERVAL: Duration = Duration::from_millis(1);

/// A folder that only this user can enter. Dropping this removes it with its contents.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// `None` on a file system without locks.
    _lock: Option<File>,
}

impl Scratch {
    /// Makes a folder among temporary files (`TMPDIR`); `kind` is a word for its purpose.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn new(kind: &str) -> io::Result<Self> {
        Self::below(&env::temp_dir(), kind)
    }

    /// Makes a folder for sockets, whose paths must be short: in `/tmp` if `TMPDIR` is too long.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn for_sockets(kind: &str) -> io::Result<Self> {
        let above = env::temp_dir();
        Self::below(if above.as_os_str().len() > MAX_SOCKET_FOLDER_BYTES { Path::new("/tmp") } else { &above }, kind)
    }

    /// Makes a folder below a given one.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn below(above: &Path, kind: &str) -> io::Result<Self> {
        clear_away(above);
        for _ in 0..MAKE_ATTEMPTS {
            // Held until the folder is recorded, so that a process that a signal ends leaves none.
            let mut folders = created_folders();
            if folders.is_over {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut builder = tempfile::Builder::new();
            let builder = builder.permissions(Permissions::from_mode(0o700)).rand_bytes(RANDOM_LENGTH);
            let path = builder.prefix(&format!("{FOLDER_PREFIX}{kind}.")).tempdir_in(above)?.keep();
            let lock = match private::give_back(&path).and_then(|()| lock_if_free(&path)) {
                Ok(lock) => Some(lock),
                // The lock's holder is about to remove it.
                Err(error) if name_exists(&error) => continue,
                Err(_) => None,
            };
            folders.paths.push(path.clone());
            return Ok(Self { path, _lock: lock });
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(&self.path);
        created_folders().paths.retain(|path| *path != self.path);
    }
}

/// Folders that this process has made.
struct CreatedFolders {
    /// Paths of existing folders.
    paths: Vec<PathBuf>,
    /// Whether the process is about to end, and makes no more.
    is_over: bool,
}

fn created_folders() -> MutexGuard<'static, CreatedFolders> {
    static CREATED_FOLDERS: Mutex<CreatedFolders> = Mutex::new(CreatedFolders { paths: Vec::new(), is_over: false });
    CREATED_FOLDERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all folders of this process, which makes no more: for a process that a signal is about to end.
pub fn remove_all() {
    let folders = {
        let mut folders = created_folders();
        folders.is_over = true;
        std::mem::take(&mut folders.paths)
    };
    folders.iter().for_each(|path| remove(path));
}

/// Removes the folders that ended processes of this user have left below `above`.
pub fn clear_away(above: &Path) {
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| is_ours(path)) {
        if let Ok(_lock) = lock_if_free(&path) {
            remove(&path);
        }
    }
}

/// Returns whether a folder has a name as [`Scratch::below`] makes it, and is no image that a user keeps.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(FOLDER_PREFIX));
    let Some((kind, end)) = name.and_then(|name| name.rsplit_once('.')) else { return false };
    let is_random = end.len() == RANDOM_LENGTH && end.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let may_be_image = IMAGE_KINDS.contains(&kind);
    is_random && !kind.is_empty() && (may_be_image || fs::symlink_metadata(path.join(IMAGE_FILE)).is_err())
}

/// Locks a folder of this user or its workers, if the lock is free.
fn lock_if_free(path: &Path) -> io::Result<File> {
    let only = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let flags = i32::try_from(only.bits()).map_err(io::Error::other)?;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = folder.metadata()?;
    let us = geteuid();
    // The folder of a worker of root's server, which has ended.
    let is_workers = us.is_root() && OWN_USERS.contains(&found.uid());
    if found.uid() != us.as_raw() && !is_workers {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
    // The earlier holder may have removed it.
    if fs::symlink_metadata(path)?.ino() == found.ino() { Ok(folder) } else { Err(io::ErrorKind::NotFound.into()) }
}

fn name_exists(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotFound)
}

fn remove(path: &Path) {
    for _ in 0..REMOVE_ATTEMPTS {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => thread::sleep(REMOVE_INTERVAL),
            // A folder that cannot be removed is left to the system's clean-up.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(above: &Path) -> Vec<String> {
        let entries = fs::read_dir(above).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_folder_goes_with_its_maker_and_with_all_that_is_in_it() {
        let above = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(above.path(), "test").unwrap();
        fs::create_dir_all(scratch.path().join("a/b")).unwrap();
        assert!(scratch.path().starts_with(above.path()) && names(above.path())[0].starts_with("katydid.test."));
        drop(scratch);
        assert!(names(above.path()).is_empty());
    }

    #[test]
    fn locked_scratch_folders_stay_and_stale_ones_go() {
        let above = tempfile::tempdir().unwrap();
        let living = Scratch::below(above.path(), "living").unwrap();
        for left in ["katydid.dead.aB3dE6", "katydid.images", "katydid.my.image", "katydid-other", "else"] {
            fs::create_dir_all(above.path().join(left).join("below")).unwrap();
        }
        for kind in ["run", "migrate"] {
            let image = above.path().join(format!("katydid.{kind}.backup"));
            fs::create_dir(&image).unwrap();
            fs::write(image.join(IMAGE_FILE), "").unwrap();
        }
        fs::write(above.path().join("katydid.file"), "").unwrap();
        std::os::unix::fs::symlink(above.path().join("else"), above.path().join("katydid.link")).unwrap();
        let next = Scratch::below(above.path(), "next").unwrap();
        assert!(living.path().exists() && next.path().exists());
        drop((living, next));
        let mut left = names(above.path());
        left.sort();
        assert_eq!(
            left,
            [
                "else",
                "katydid-other",
                "katydid.file",
                "katydid.images",
                "katydid.link",
                "katydid.my.image",
                "katydid.run.backup",
            ]
        );
        assert!(above.path().join("else/below").exists());
    }

    /// Only root can change the owner of a folder, so other users skip this test.
    #[test]
    fn stale_folders_of_worker_users_go_and_those_of_other_users_stay() {
        if !geteuid().is_root() {
            return;
        }
        let above = tempfile::tempdir().unwrap();
        for (name, user) in [("katydid.worker.aaaaa1", *OWN_USERS.start()), ("katydid.worker.aaaaa2", 1)] {
            fs::create_dir(above.path().join(name)).unwrap();
            std::os::unix::fs::chown(above.path().join(name), Some(user), None).unwrap();
        }
        clear_away(above.path());
        assert_eq!(names(above.path()), ["katydid.worker.aaaaa2"]);
    }

    #[test]
    fn makers_and_removers_do_not_disturb_each_other() {
        let above = tempfile::tempdir().unwrap();
        let one = || {
            for _ in 0..200 {
                let scratch = Scratch::below(above.path(), "relay").unwrap();
                fs::write(scratch.path().join("file"), "text").unwrap();
                thread::yield_now();
                assert_eq!(fs::read(scratch.path().join("file")).unwrap(), b"text");
            }
        };
        thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(one))));
        assert!(names(above.path()).is_empty());
    }
}
