//! Users as which the workers of a root server run.

#![expect(unsafe_code, reason = "asks the system's library for a user")]

use std::ffi::{CStr, CString, OsString};
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use katydid_driver::DriverChoice;
use katydid_server::{OWN_USERS, OwnUsers, RunsAs, WorkerUser};
use katydid_worker::{NamedFolder, folders_of_workers, has_nvidia};
use rustix::process::geteuid;

use crate::output::failure::{Failure, print_message};

/// Name that makes the workers of a root server run as root.
pub const SERVER_USER: &str = "root";
/// Numbers of the capabilities for giving files to a user and becoming that user: `CAP_CHOWN`, `CAP_SETGID`, `CAP_SETUID`.
const USER_CHANGE_CAPABILITIES: [u32; 3] = [0, 6, 7];
/// Folders of GPU devices.
const DEVICE_FILES_FOLDER: &str = "/dev";
const RENDER_DEVICE_FOLDER: &str = "/dev/dri";
/// Prefixes of devices that a group may have access to.
const GPU_GROUP_DEVICE_PREFIXES: [&str; 3] = ["nvidia", "kfd", "dxg"];

/// Buffer size for the strings of a user entry.
const MAX_USER_ENTRY_BYTES: usize = 64 << 10;
/// Most groups of a user.
const MAX_USER_GROUPS: usize = 4096;

/// Returns the named user and its home; `None` for the server's own user.
///
/// # Errors
///
/// There is no such user, or the server is not root and cannot become another user.
pub fn named(name: &str) -> Result<Option<(WorkerUser, OsString)>, Failure> {
    if !geteuid().is_root() {
        return Err(Failure::usage(
            "--worker-user: only a server that runs as root can start workers as another user: leave it out, or start the server as root",
        ));
    }
    if name == SERVER_USER {
        return Ok(None);
    }
    find(name).map(Some)
}

/// Returns a user of its own for each worker of a root server for tenants; beside NVIDIA's driver, one user for all of them. If
/// that is impossible, workers run as the server's user without privileges, which `quiet` servers do not report. `needed`: files
/// that workers open.
#[must_use]
pub fn own_users(driver: &str, needed: &[PathBuf], quiet: bool) -> RunsAs {
    if !geteuid().is_root() {
        return RunsAs::Server;
    }
    let is_soft = driver.parse() == Ok(DriverChoice::Soft);
    match obstacle(needed).map_or_else(|| with_folders(!is_soft && has_nvidia()), Err) {
        Ok(users) => RunsAs::OwnUser(Arc::new(users)),
        Err(reason) => {
            if !quiet {
                print_message(format_args!(
                    "warning: workers run as root without privileges, not as users of their own: {reason}; --worker-user \
                     NAME names a user for all of them, --worker-user root takes root without this line"
                ));
            }
            RunsAs::Server
        }
    }
}

/// Users for workers that can use the folders that variables name; `as_one`: one user for all.
fn with_folders(as_one: bool) -> Result<OwnUsers, String> {
    let users = OwnUsers::new(device_groups());
    let users = users
        .and_then(|users| if as_one { users.as_common() } else { Ok(users) })
        .map_err(|error| error.to_string())?;
    let closed = folders_of_workers().into_iter().find_map(|named| closed(&named, users.group()));
    closed.map_or(Ok(users), Err)
}

/// Why workers of several users cannot use a folder, if so.
fn closed(named: &NamedFolder, group: u32) -> Option<String> {
    let NamedFolder { variable, path, may_share } = named;
    let shown = path.display();
    if !may_share {
        return Some(format!("{variable}: what drivers keep in {shown} is for one user"));
    }
    let (owner, mode) = fs::metadata(path).map(|found| (found.gid(), found.mode())).ok()?;
    let is_open = mode & 0o007 == 0o007 || (owner == group && mode & 0o070 == 0o070);
    (!is_open)
        .then(|| format!("{variable}: {shown} is not open to their group (chgrp {group} {shown}; chmod g+rwx {shown})"))
}

/// What keeps workers from having users of their own, if anything.
fn obstacle(needed: &[PathBuf]) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|found| u64::from_str_radix(found.trim(), 16).ok()).unwrap_or(0);
    if USER_CHANGE_CAPABILITIES.iter().any(|privilege| effective >> privilege & 1 == 0) {
        return Some("this container takes away the privilege to become another user".to_owned());
    }
    let maps =
        ["uid_map", "gid_map"].map(|map| fs::read_to_string(Path::new("/proc/self").join(map)).unwrap_or_default());
    if !maps.iter().all(|map| covers(map)) {
        return Some(format!("this container has no users from {} to {}", OWN_USERS.start(), OWN_USERS.end()));
    }
    // A worker with a root folder of its own can reach files in closed folders.
    if katydid_worker::has_own_root() {
        return None;
    }
    let closed = needed.iter().find(|path| !is_open(path))?;
    Some(format!("{} lies in a folder that is root's alone", closed.display()))
}

/// Whether a user namespace maps all of the users. A line has the first number inside, the first outside, and the count.
fn covers(map: &str) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let &[first, _, count] = &numbers[..] else { return false };
        first <= u64::from(*OWN_USERS.start()) && first + count > u64::from(*OWN_USERS.end())
    })
}

/// Whether every user may enter the folders of a file's real path.
#[must_use]
pub fn is_open(path: &Path) -> bool {
    let Ok(real) = fs::canonicalize(path) else { return true };
    let may_enter = |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.mode() & 0o001 != 0);
    real.ancestors().skip(1).all(may_enter)
}

/// Groups with access to GPU devices that not every user can use.
fn device_groups() -> Vec<u32> {
    let entries = |folder| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_gpu = |name: &str| GPU_GROUP_DEVICE_PREFIXES.iter().any(|start| name.starts_with(start));
    let gpus = entries(DEVICE_FILES_FOLDER).filter(|entry| entry.file_name().to_str().is_some_and(is_gpu));
    let found = gpus.chain(entries(RENDER_DEVICE_FOLDER)).filter_map(|entry| entry.metadata().ok());
    let open = found.filter(|found| found.gid() != 0 && found.mode() & 0o060 == 0o060 && found.mode() & 0o006 != 0o006);
    let mut groups: Vec<u32> = open.map(|found| found.gid()).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

/// Looks up a user by name, with its home.
fn find(name: &str) -> Result<(WorkerUser, OsString), Failure> {
    let unknown = || {
        Failure::usage(format!(
            "--worker-user: there is no user {name} here: make it with `useradd`, or name another one"
        ))
    };
    let spelled = CString::new(name).map_err(|_| unknown())?;
    let mut entry = MaybeUninit::<libc::passwd>::zeroed();
    let (mut room, mut found) = (vec![0; MAX_USER_ENTRY_BYTES], ptr::null_mut());
    // SAFETY: the name ends with a NUL, the room is as large as said, and all outlive the call.
    let code = unsafe {
        libc::getpwnam_r(spelled.as_ptr(), entry.as_mut_ptr(), room.as_mut_ptr(), room.len(), &raw mut found)
    };
    if code != 0 || found.is_null() {
        return Err(unknown());
    }
    // SAFETY: the call has filled the entry in.
    let libc::passwd { pw_uid: uid, pw_gid: gid, pw_dir, .. } = unsafe { entry.assume_init() };
    // SAFETY: a string in the room, which is still there.
    let home = unsafe { CStr::from_ptr(pw_dir) }.to_bytes().to_vec();
    let mut groups = vec![0; MAX_USER_GROUPS];
    let mut count = i32::try_from(MAX_USER_GROUPS).unwrap_or(0);
    // SAFETY: the name ends with a NUL, and `count` is the length of the buffer.
    let listed = unsafe { libc::getgrouplist(spelled.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
    groups.truncate(if listed < 0 { 0 } else { usize::try_from(count).unwrap_or(0) });
    Ok((WorkerUser { uid, gid, groups }, OsString::from_vec(home)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn container_user_map_must_have_all_users() {
        assert!(covers("         0          0 4294967295\n") && covers("0 1000 1\n1 100000 65536\n"));
        assert!(!covers("0 1000 1\n") && !covers("0 100000 65000\n") && !covers(""));
    }

    #[test]
    fn a_folder_for_several_users_is_open_to_their_group() {
        let folder = tempfile::tempdir().unwrap();
        let named = |may_share| NamedFolder { variable: "X", path: folder.path().to_owned(), may_share };
        let group = fs::metadata(folder.path()).unwrap().gid();
        let with = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert!(
            closed(&named(true), group).is_some_and(|why| why.contains("chgrp"))
                && closed(&named(false), group).is_some()
        );
        with(0o770);
        assert!(closed(&named(true), group).is_none() && closed(&named(true), group + 1).is_some());
        with(0o777);
        assert!(closed(&named(true), group + 1).is_none() && closed(&named(false), group).is_some());
    }

    #[test]
    fn a_file_below_a_closed_folder_is_not_open() {
        let above = tempfile::tempdir_in("/tmp").unwrap();
        let file = above.path().join("file");
        fs::write(&file, "").unwrap();
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert!(!is_open(&file));
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o711)).unwrap();
        assert!(is_open(&file));
    }
}
