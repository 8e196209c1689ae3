//! The user that a worker becomes, which no other process has.
//!
//! It becomes that user after it has entered the root folder, which takes root's privileges, and before everything else.

#![expect(unsafe_code, reason = "becomes another user")]

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::Mode;
use rustix::process::{Signal, set_parent_process_death_signal, umask};

/// Whether this process has become a user that no other process has.
static IS_OWN: AtomicBool = AtomicBool::new(false);
/// Umask for files that a worker's group uses as well.
const SHARED_UMASK: Mode = Mode::from_raw_mode(0o007);
/// Mode of a folder made for a worker and its group, or for the worker alone.
const SHARED_FOLDER_MODE: u32 = 0o770;
const OWN_FOLDER_MODE: u32 = 0o700;

/// A user for one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxUser {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Whether its group, which all workers of the machine share, may use its files.
    shares: bool,
}

/// The text is not of the form UID:GID:GROUPS.
#[derive(Debug, thiserror::Error)]
#[error("a worker's user is UID:GID:GROUP,GROUP")]
pub struct NoUser;

impl FromStr for SandboxUser {
    type Err = NoUser;

    fn from_str(text: &str) -> Result<Self, NoUser> {
        let number = |text: &str| text.parse().map_err(|_| NoUser);
        let mut parts = text.split(':');
        let (uid, gid) = (number(parts.next().ok_or(NoUser)?)?, number(parts.next().ok_or(NoUser)?)?);
        let groups = parts.next().ok_or(NoUser)?.split(',').filter(|group| !group.is_empty());
        let groups = groups.map(number).collect::<Result<_, _>>()?;
        Ok(Self { uid, gid, groups, shares: parts.next() == Some("shared") })
    }
}

/// Returns whether other processes cannot read the files that this process makes, nor it theirs.
pub(crate) fn is_own() -> bool {
    IS_OWN.load(Ordering::Relaxed)
}

impl SandboxUser {
    /// Notes what kind of user it is.
    pub(super) fn note(&self) {
        IS_OWN.store(self.shares, Ordering::Relaxed);
    }

    /// Becomes this user. The process must have one thread.
    pub(super) fn enter(&self) -> io::Result<()> {
        // SAFETY: the length is that of the list.
        check(unsafe { libc::setgroups(self.groups.len(), self.groups.as_ptr()) })?;
        // SAFETY: takes a number.
        check(unsafe { libc::setgid(self.gid) })?;
        // SAFETY: takes a number.
        check(unsafe { libc::setuid(self.uid) })?;
        if self.shares {
            umask(SHARED_UMASK);
        }
        // The kernel has reset both settings. Without the first one, `/proc/self` would belong to root.
        // SAFETY: this option takes a number.
        check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) })?;
        Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
    }

    /// Gives the user a folder that was just made.
    pub(super) fn give(&self, folder: &Path) -> io::Result<()> {
        let (user, mode) = if self.shares { (None, SHARED_FOLDER_MODE) } else { (Some(self.uid), OWN_FOLDER_MODE) };
        chown(folder, user, Some(self.gid))?;
        fs::set_permissions(folder, PermissionsExt::from_mode(mode))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_read_from_one_word() {
        let user = |shares| SandboxUser { uid: 61200, gid: 61184, groups: vec![44, 107], shares };
        assert_eq!("61200:61184:44,107".parse::<SandboxUser>().unwrap(), user(false));
        assert_eq!("61200:61184:44,107:shared".parse::<SandboxUser>().unwrap(), user(true));
        assert!("1:2:".parse::<SandboxUser>().is_ok());
        for wrong in ["", "1", "1:2", "1:x:", "1:2:a"] {
            assert!(wrong.parse::<SandboxUser>().is_err(), "{wrong}");
        }
    }
}
