//! The user that a worker runs as.
//!
//! Where root runs the server, each worker of tenants has its own user: a number between those that systems give to their users
//! and services. So no worker can trace another one, send it signals, or read its files in `/proc`. systemd takes numbers from
//! the same range for its `DynamicUser=`, so both hold a lock on a file that is named by the number.
//!
//! All such workers of a machine share one group, by which they use the module cache. It is the lowest number that is free.
//!
//! NVIDIA's driver lets only processes of one user share events (`cuIpcOpenEventHandle`). So with that driver all workers of a
//! server have one user, which no other process has.
//!
//! The rule: a number is free if it is no account's, no process holds its lock, and no process runs under it: a container may
//! have such processes, or an earlier worker may have left one.

#![expect(unsafe_code, reason = "asks the system's library for users and groups, and becomes them")]

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

pub use katydid_scratch::OWN_USERS;
use rustix::fs::{FlockOperation, flock};
use rustix::rand::{GetRandomFlags, getrandom};

/// systemd's folder of locks.
const SYSTEMD_LOCK_FOLDER: &str = "/run/systemd/dynamic-uid";
/// The folder of locks on a system without systemd.
const LOCK_FOLDER: &str = "/run/katydid/dynamic-uid";
/// Bytes for the strings of an account.
const ACCOUNT_ENTRY_BYTES: usize = 64 << 10;

/// A user that workers run as.
#[derive(Debug, Clone)]
pub struct WorkerUser {
    /// User id of its processes.
    pub uid: u32,
    /// Id of the primary group.
    pub gid: u32,
    /// Ids of the supplementary groups.
    pub groups: Vec<u32>,
}

/// The user that workers run as.
#[derive(Debug, Clone, Default)]
pub enum RunsAs {
    /// Workers run as the server's user.
    #[default]
    Server,
    /// All workers run as this user.
    User(WorkerUser),
    /// Each worker runs as its own user, or all run as one that no other process has.
    OwnUser(Arc<OwnUsers>),
}

/// Gives each worker a user.
#[derive(Debug)]
pub struct OwnUsers {
    locks: PathBuf,
    group: UserClaim,
    /// Groups that may open the GPUs' devices.
    device_groups: Vec<u32>,
    /// The user of all workers; none if each has its own.
    common: Option<Arc<UserClaim>>,
}

/// A user number that no other process takes. Dropping this frees it.
#[derive(Debug)]
pub(crate) struct UserClaim {
    number: u32,
    path: PathBuf,
    file: File,
}

impl OwnUsers {
    /// Finds the group of all workers of this machine.
    ///
    /// # Errors
    ///
    /// Locks are impossible, or all numbers are taken.
    pub fn new(device_groups: Vec<u32>) -> io::Result<Self> {
        let locks = if Path::new(SYSTEMD_LOCK_FOLDER).is_dir() {
            PathBuf::from(SYSTEMD_LOCK_FOLDER)
        } else {
            make_folder(LOCK_FOLDER)?
        };
        let shared = FlockOperation::NonBlockingLockShared;
        let group = first_free(&locks, OWN_USERS, shared)?.ok_or_else(none_free)?;
        Ok(Self { locks, group, device_groups, common: None })
    }

    /// Makes all workers of this server share one user.
    ///
    /// # Errors
    ///
    /// All numbers are taken, or the system refuses a lock.
    pub fn as_common(self) -> io::Result<Self> {
        let common = Some(Arc::new(self.find()?));
        Ok(Self { common, ..self })
    }

    /// Returns the group of all workers.
    #[must_use]
    pub fn group(&self) -> u32 {
        self.group.number
    }

    /// Takes a user for one worker.
    fn claim(&self) -> io::Result<(WorkerUser, Arc<UserClaim>)> {
        let claim = self.common.clone().map_or_else(|| self.find().map(Arc::new), Ok)?;
        Ok((WorkerUser { uid: claim.number, gid: self.group(), groups: self.device_groups.clone() }, claim))
    }

    /// Finds a free number.
    fn find(&self) -> io::Result<UserClaim> {
        // A random start, so that numbers are not reused soon.
        let mut random = [0; 4];
        getrandom(&mut random, GetRandomFlags::empty())?;
        let count = OWN_USERS.end() - OWN_USERS.start() + 1;
        let start = OWN_USERS.start() + u32::from_le_bytes(random) % count;
        let in_use = users_of_processes()?;
        let order = (start..=*OWN_USERS.end()).chain(*OWN_USERS.start()..start);
        let order = order.filter(|number| !in_use.contains(number));
        first_free(&self.locks, order, FlockOperation::NonBlockingLockExclusive)?.ok_or_else(none_free)
    }
}

impl RunsAs {
    /// Returns the user of the next worker; none for the server's.
    pub(crate) fn next(&self) -> io::Result<Option<(WorkerUser, Option<Arc<UserClaim>>)>> {
        match self {
            Self::Server => Ok(None),
            Self::User(user) => Ok(Some((user.clone(), None))),
            Self::OwnUser(users) => users.claim().map(|(user, claim)| Some((user, Some(claim)))),
        }
    }
}

impl WorkerUser {
    /// Returns the worker's argument for this user. With `shared`, files are for its group as well.
    pub(crate) fn spelled(&self, shared: bool) -> OsString {
        let groups = self.groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        format!("{}:{}:{groups}{}", self.uid, self.gid, if shared { ":shared" } else { "" }).into()
    }

    /// Becomes this user. Sets the groups first, since a user may not change them. Takes no lock and allocates nothing.
    pub(crate) fn enter(&self) -> io::Result<()> {
        // SAFETY: the length is that of the list.
        check(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: takes a number.
        check(unsafe { libc::setgid(self.gid) })?;
        // SAFETY: takes a number.
        check(unsafe { libc::setuid(self.uid) })
    }
}

impl Drop for UserClaim {
    fn drop(&mut self) {
        // The group's file stays while another server holds its lock.
        if flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn make_folder(folder: &str) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    Ok(PathBuf::from(folder))
}

fn none_free() -> io::Error {
    io::Error::other(format!("all users from {} to {} are taken", OWN_USERS.start(), OWN_USERS.end()))
}

/// Takes the first free number.
fn first_free(
    locks: &Path,
    numbers: impl IntoIterator<Item = u32>,
    operation: FlockOperation,
) -> io::Result<Option<UserClaim>> {
    for number in numbers {
        if let Some(claim) = claim(locks, number, operation)? {
            return Ok(Some(claim));
        }
    }
    Ok(None)
}

fn claim(locks: &Path, number: u32, operation: FlockOperation) -> io::Result<Option<UserClaim>> {
    if is_account(number) {
        return Ok(None);
    }
    let path = locks.join(number.to_string());
    loop {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        if flock(&file, operation).is_err() {
            return Ok(None);
        }
        // The earlier holder removes the file; then the lock is on no file.
        let is_there = fs::symlink_metadata(&path)
            .is_ok_and(|found| file.metadata().is_ok_and(|metadata| metadata.ino() == found.ino()));
        if is_there {
            return Ok(Some(UserClaim { number, path, file }));
        }
    }
}

/// Returns whether the system knows a user or a group with this number.
fn is_account(number: u32) -> bool {
    let mut entry_buffer = vec![0; ACCOUNT_ENTRY_BYTES];
    let (mut user, mut entry) = (MaybeUninit::<libc::passwd>::zeroed(), ptr::null_mut());
    // SAFETY: the buffer is as large as given, and all arguments outlive the call.
    let code = unsafe {
        libc::getpwuid_r(number, user.as_mut_ptr(), entry_buffer.as_mut_ptr(), entry_buffer.len(), &raw mut entry)
    };
    let is_user = code == 0 && !entry.is_null();
    let (mut group, mut entry) = (MaybeUninit::<libc::group>::zeroed(), ptr::null_mut());
    // SAFETY: as above.
    let code = unsafe {
        libc::getgrgid_r(number, group.as_mut_ptr(), entry_buffer.as_mut_ptr(), entry_buffer.len(), &raw mut entry)
    };
    is_user || (code == 0 && !entry.is_null())
}

/// Returns the users of all visible processes. The owner of a process's folder may be another one.
fn users_of_processes() -> io::Result<BTreeSet<u32>> {
    let status = fs::read_dir("/proc")?.flatten().filter_map(|entry| fs::read(entry.path().join("status")).ok());
    Ok(status.flat_map(|status| users(&status)).collect())
}

/// Returns the users of a process, from its `Uid:` line: the real, the effective, the saved and the file-system one.
fn users(status: &[u8]) -> Vec<u32> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"));
    let numbers = std::str::from_utf8(line.unwrap_or_default()).unwrap_or_default().split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;
    const SHARED: FlockOperation = FlockOperation::NonBlockingLockShared;

    #[test]
    fn a_number_is_held_by_one_and_a_group_by_all_servers() {
        let locks = tempfile::tempdir().unwrap();
        let group = first_free(locks.path(), OWN_USERS, SHARED).unwrap().unwrap();
        let again = first_free(locks.path(), OWN_USERS, SHARED).unwrap().unwrap();
        assert_eq!(group.number, again.number);
        let one = first_free(locks.path(), OWN_USERS, EXCLUSIVE).unwrap().unwrap();
        let other = first_free(locks.path(), OWN_USERS, EXCLUSIVE).unwrap().unwrap();
        assert!(group.number < one.number && one.number < other.number);
        let number = one.number;
        drop((group, one));
        assert_eq!(claim(locks.path(), number, EXCLUSIVE).unwrap().unwrap().number, number);
        // The other server still holds the group.
        assert!(claim(locks.path(), again.number, EXCLUSIVE).unwrap().is_none());
        drop((again, other));
        assert_eq!(fs::read_dir(locks.path()).unwrap().count(), 0);
    }

    #[test]
    fn workers_have_a_user_each_or_one_for_all() {
        let locks = tempfile::tempdir().unwrap();
        let group = || first_free(locks.path(), OWN_USERS, SHARED).unwrap().unwrap();
        let users =
            || OwnUsers { locks: locks.path().to_owned(), group: group(), device_groups: Vec::new(), common: None };
        let uid = |users: &OwnUsers| users.claim().map(|(user, claim)| (user.uid, claim)).unwrap();
        let (each, all) = (users(), users().as_common().unwrap());
        let (first, second) = (uid(&each), uid(&each));
        assert_ne!(first.0, second.0);
        let (first, second) = (uid(&all), uid(&all));
        assert_eq!(first.0, second.0);
        // It stays taken as long as a worker has it.
        drop((all, first.1));
        assert!(claim(locks.path(), second.0, EXCLUSIVE).unwrap().is_none());
    }

    #[test]
    fn numbers_of_accounts_are_left_alone() {
        let locks = tempfile::tempdir().unwrap();
        assert!(is_account(0) && claim(locks.path(), 0, EXCLUSIVE).unwrap().is_none());
        assert_eq!(fs::read_dir(locks.path()).unwrap().count(), 0);
    }

    #[test]
    fn numbers_of_processes_are_known() {
        assert_eq!(users(b"Name:\tx\nUid:\t61200\t61201\t0\t7\nGid:\t1\n"), [61200, 61201, 0, 7]);
        assert!(users_of_processes().unwrap().contains(&rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn user_argument_is_one_word() {
        let user = WorkerUser { uid: 61200, gid: 61184, groups: vec![44, 107] };
        assert_eq!(
            (user.spelled(false), user.spelled(true)),
            ("61200:61184:44,107".into(), "61200:61184:44,107:shared".into())
        );
    }
}
