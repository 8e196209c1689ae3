//! The servers and jobs of this machine, as far as the caller may know them: a user's own, and those of all users for root.
//!
//! A server notes its admin socket in a file of its user's folder, whose lock it holds as long as it lives. A note that can be
//! locked is abandoned. Jobs have their folders (`supervisor/folder.rs`). `supervisor/runtime_dirs.rs` says where both may be.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use katydid_scratch::private;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::process::geteuid;

use crate::supervisor::folder;
use crate::supervisor::folder::FoundJob;
use crate::supervisor::runtime_dirs;

/// The folder of servers' notes, beside the folder of jobs.
const SERVERS_FOLDER: &str = "servers";
/// Most bytes of a note that are read: the path of a socket is shorter.
const MAX_NOTED_PATH_BYTES: u64 = 4096;
/// Most names that are tried for one process, which may have several servers.
const MAX_NOTES_OF_PROCESS: u32 = 1000;

/// The note of a server. Dropping the value removes it.
#[derive(Debug)]
pub struct ServerRegistration {
    path: PathBuf,
    _lock: File,
}

impl ServerRegistration {
    /// Notes that a server of this process answers at `admin`.
    ///
    /// # Errors
    ///
    /// The system's error; the server works without the note.
    pub fn new(admin: &Path) -> io::Result<Self> {
        let above = folder::cache().ok_or(io::ErrorKind::NotFound)?.join(SERVERS_FOLDER);
        match private::folder(&above) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let admin = std::path::absolute(admin)?;
        for number in 0..MAX_NOTES_OF_PROCESS {
            let path = above.join(format!("{}.{number}", std::process::id()));
            let mut options = File::options();
            let mut lock = match options.write(true).create_new(true).mode(0o600).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // An earlier process with this id left it.
                    clear(&path);
                    continue;
                }
                lock => lock?,
            };
            // Waits, since a process that checks the lock holds it for a moment.
            flock(&lock, FlockOperation::LockExclusive)?;
            lock.write_all(admin.as_os_str().as_bytes())?;
            return Ok(Self { path, _lock: lock });
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }
}

impl Drop for ServerRegistration {
    fn drop(&mut self) {
        // If the note stays, its free lock shows that it is abandoned.
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes an abandoned note.
fn clear(path: &Path) {
    if admin_of(path).is_none() {
        let _ = fs::remove_file(path);
    }
}

/// The admin sockets of running servers.
pub fn servers() -> Vec<PathBuf> {
    let above = runtime_dirs::all().into_iter().map(|above| above.join(SERVERS_FOLDER));
    let notes = above.flat_map(|above| fs::read_dir(above).into_iter().flatten().flatten());
    let mut admins: Vec<PathBuf> = notes.filter_map(|note| admin_of(&note.path())).collect();
    admins.sort();
    admins.dedup();
    admins
}

/// Whether a socket belongs to a user: a note or a job of another user may name any socket.
#[must_use]
pub fn is_socket_of(socket: &Path, user: u32) -> bool {
    open_socket(socket, user).is_ok()
}

/// Finds a user's socket, to which [`descriptor_path`] leads whatever is put at `path` meanwhile. A symbolic link is none: it
/// may lead to another user's socket.
///
/// # Errors
///
/// The system's error, or that this is no socket of the user.
pub fn open_socket(path: &Path, user: u32) -> io::Result<OwnedFd> {
    let found = File::from(rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?);
    let stat = found.metadata()?;
    if stat.file_type().is_socket() && stat.uid() == user {
        return Ok(found.into());
    }
    let why =
        format!("this is no socket of user {user}, who owns its folder; remove it, or end what that user runs there");
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// A path by which this process reaches an open file.
#[must_use]
pub fn descriptor_path(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The path in a note whose server runs. The folder may be another user's, who may put any file there.
fn admin_of(note: &Path) -> Option<PathBuf> {
    let file = folder::open_file(note).ok()?;
    let owner = file.metadata().ok()?.uid();
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        let _ = flock(&file, FlockOperation::Unlock);
        return None;
    }
    let mut text = Vec::new();
    file.take(MAX_NOTED_PATH_BYTES).read_to_end(&mut text).ok()?;
    let named = Some(PathBuf::from(std::ffi::OsString::from_vec(text))).filter(|path| path.is_absolute());
    named.filter(|socket| owner == geteuid().as_raw() || is_socket_of(socket, owner))
}

/// All jobs, by user and name.
pub fn jobs() -> Vec<FoundJob> {
    let mut all = folder::all();
    all.sort_by(|one, other| (one.user, &one.entry.name).cmp(&(other.user, &other.entry.name)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_belongs_to_its_owner_and_a_file_is_not_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let [socket, link, file] = ["socket", "link", "file"].map(|name| folder.path().join(name));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        fs::write(&file, "").unwrap();
        let us = geteuid().as_raw();
        assert!(is_socket_of(&socket, us) && !is_socket_of(&link, us) && !is_socket_of(&socket, us + 1));
        assert!(!is_socket_of(&file, us) && !is_socket_of(&folder.path().join("none"), us));
    }

    #[test]
    fn a_note_is_believed_as_long_as_its_maker_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("7.0");
        fs::write(&note, "/run/k.admin").unwrap();
        assert_eq!(admin_of(&note), None);
        let lock = File::open(&note).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert_eq!(admin_of(&note), Some("/run/k.admin".into()));
        fs::write(&note, "relative").unwrap();
        assert_eq!(admin_of(&note), None);
        drop(lock);
        clear(&note);
        assert!(!note.exists());
    }
}
