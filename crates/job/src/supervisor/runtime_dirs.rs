//! Parent folders of jobs and of servers' notes: `katydid` in the runtime folder of a user, or `/tmp/katydid-UID`.
//!
//! The rule: new entries go to the first of [`of_user`], and existing ones are looked for in [`all`]. A user's processes may have
//! been started with another `XDG_RUNTIME_DIR` than the caller's, or with none, as by cron, `su` and `sudo -u`. So the login's
//! folder is searched too, and the folders in the initial environments of processes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use katydid_transport::MAX_SOCKET_PATH_BYTES;
use rustix::fs::Mode;
use rustix::process::{getegid, geteuid};

/// The folder of jobs, below one of those of [`of_user`].
pub(crate) const JOBS_FOLDER: &str = "jobs";
/// Longest name of a job, in characters, which are ASCII. With the folders above it a socket's path stays below the 107 bytes
/// that the kernel takes.
pub(crate) const MAX_JOB_NAME_CHARS: usize = 40;
/// Longest name of a socket in a job's folder, with the slash in front.
const MAX_SOCKET_NAME_BYTES: usize = "/control".len();
/// The runtime folders of logins, by user id.
const LOGIN_RUNTIME_FOLDER: &str = "/run/user";
/// Variable that names a runtime folder.
const RUNTIME_DIR_VARIABLE: &str = "XDG_RUNTIME_DIR";
/// Katydid's folder in a runtime folder.
const FOLDER_NAME: &str = "katydid";

/// Folders of this user: new ones go to the first, and existing ones may be in any.
pub(crate) fn of_user() -> Vec<PathBuf> {
    let runtime = std::env::var_os(RUNTIME_DIR_VARIABLE).map(PathBuf::from);
    dirs_of(runtime.as_deref(), geteuid().as_raw())
}

fn dirs_of(runtime: Option<&Path>, user: u32) -> Vec<PathBuf> {
    let is_ours = |folder: &&Path| fs::metadata(folder).is_ok_and(|stat| stat.is_dir() && stat.uid() == user);
    let fits = |above: &PathBuf| {
        above.join(JOBS_FOLDER).as_os_str().len() + 1 + MAX_JOB_NAME_CHARS + MAX_SOCKET_NAME_BYTES
            <= MAX_SOCKET_PATH_BYTES
    };
    let own = runtime.filter(|folder| folder.is_absolute()).filter(is_ours).map(|folder| folder.join(FOLDER_NAME));
    let own = own.filter(fits);
    own.into_iter().chain([PathBuf::from(format!("/tmp/katydid-{user}"))]).collect()
}

/// Folders that the caller may search: this user's, that of new entries first, and for root those of all users. Each was made by
/// its user.
pub(crate) fn all() -> Vec<PathBuf> {
    all_by_user().into_iter().map(|(_, folder)| folder).collect()
}

/// Those of [`all`] in which this user may remove abandoned files, by paths without symbolic links. They belong to this user, and
/// no other user can put another folder in their place meanwhile.
pub(crate) fn own() -> Vec<PathBuf> {
    let us = geteuid().as_raw();
    let own = all_by_user().into_iter().filter(|(user, _)| *user == us);
    own.filter_map(|(_, folder)| fs::canonicalize(folder).ok()).filter(|folder| is_out_of_reach(folder, us)).collect()
}

/// Whether the folder is this user's and closed to others, and only this user and root can change what its path leads to.
fn is_out_of_reach(folder: &Path, us: u32) -> bool {
    let is_closed = |above: &Path| {
        fs::symlink_metadata(above).is_ok_and(|stat| {
            let is_writable = stat.mode() & Mode::WOTH.bits() != 0
                || (stat.mode() & Mode::WGRP.bits() != 0 && ![0, getegid().as_raw()].contains(&stat.gid()));
            let is_sticky = stat.mode() & Mode::SVTX.bits() != 0;
            stat.is_dir() && [0, us].contains(&stat.uid()) && (!is_writable || is_sticky)
        })
    };
    let is_ours = |stat: fs::Metadata| stat.uid() == us && stat.mode() & 0o077 == 0;
    // Only this user can change its own entry in a sticky folder, or in a closed one.
    fs::symlink_metadata(folder).is_ok_and(is_ours) && folder.ancestors().all(is_closed)
}

fn all_by_user() -> Vec<(u32, PathBuf)> {
    let (us, is_root) = (geteuid().as_raw(), geteuid().is_root());
    let login = |user: u32| Path::new(LOGIN_RUNTIME_FOLDER).join(user.to_string()).join(FOLDER_NAME);
    let mut folders: Vec<(u32, PathBuf)> =
        of_user().into_iter().chain([login(us)]).map(|folder| (us, folder)).collect();
    if is_root {
        let users = numbers_in(LOGIN_RUNTIME_FOLDER, "").into_iter().map(|user| (user, login(user)));
        let others = numbers_in("/tmp", "katydid-").into_iter();
        folders.extend(users.chain(others.map(|user| (user, PathBuf::from(format!("/tmp/katydid-{user}"))))));
    }
    let from_environments = pick_from_environments(|environment| {
        runtime_dir_in_environment(environment).map(|folder| folder.join(FOLDER_NAME))
    });
    folders.extend(from_environments.into_iter().filter(|(user, _)| is_root || *user == us));
    // A folder may have several names.
    let mut seen = BTreeSet::new();
    folders.retain(|(user, folder)| {
        let found = fs::symlink_metadata(folder).ok().filter(|stat| stat.is_dir() && stat.uid() == *user);
        let is_closed = |mode: u32| *user != us || mode & 0o077 == 0;
        found.is_some_and(|stat| is_closed(stat.mode()) && seen.insert((stat.dev(), stat.ino())))
    });
    folders
}

/// The numbers after `prefix` in the names of a folder's entries.
fn numbers_in(folder: &str, prefix: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

/// Values that `pick` finds in the initial environments of processes, with the users of these. Only processes count whose
/// environment may be read, and which see the same files.
pub(crate) fn pick_from_environments<T: Ord>(pick: impl Fn(&[u8]) -> Option<T>) -> Vec<(u32, T)> {
    let own_namespace = fs::read_link("/proc/self/ns/mnt").ok();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| entry.file_name().as_bytes().iter().all(u8::is_ascii_digit));
    let folders = processes.filter_map(|process| {
        let picked = pick(&fs::read(process.path().join("environ")).ok()?)?;
        let sees_ours = fs::read_link(process.path().join("ns/mnt")).ok() == own_namespace;
        let user = process.metadata().ok()?.uid();
        sees_ours.then_some((user, picked))
    });
    let all: BTreeSet<(u32, T)> = folders.collect();
    all.into_iter().collect()
}

/// The runtime folder in the environment of a process.
fn runtime_dir_in_environment(environment: &[u8]) -> Option<PathBuf> {
    variable(environment, RUNTIME_DIR_VARIABLE).map(Path::to_owned).filter(|folder| folder.is_absolute())
}

/// The path that a variable holds in the environment of a process.
pub(crate) fn variable<'a>(environment: &'a [u8], name: &str) -> Option<&'a Path> {
    let mut variables = environment.split(|byte| *byte == 0);
    let value = variables.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
    Some(Path::new(OsStr::from_bytes(value)))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_runtime_folder_that_cannot_be_used_is_passed_over() {
        let user = geteuid().as_raw();
        let other = PathBuf::from(format!("/tmp/katydid-{user}"));
        let folder = tempfile::Builder::new().prefix("r").tempdir_in("/tmp").unwrap();
        let own = folder.path().join("katydid");
        assert_eq!(dirs_of(Some(folder.path()), user), [own, other.clone()]);
        let long = folder.path().join("x".repeat(MAX_SOCKET_PATH_BYTES));
        fs::create_dir(&long).unwrap();
        for unfit in [None, Some(Path::new("run")), Some(Path::new("/no/such")), Some(long.as_path())] {
            assert_eq!(dirs_of(unfit, user), std::slice::from_ref(&other), "{unfit:?}");
        }
        assert_eq!(dirs_of(Some(folder.path()), user + 1), [PathBuf::from(format!("/tmp/katydid-{}", user + 1))]);
    }

    #[test]
    fn the_runtime_folder_that_a_process_was_begun_with_is_one_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let runtime_dir = folder.path().join(FOLDER_NAME);
        fs::create_dir(&runtime_dir).unwrap();
        fs::set_permissions(&runtime_dir, Permissions::from_mode(0o700)).unwrap();
        assert!(!all().contains(&runtime_dir));
        let mut other =
            Command::new("/bin/cat").env(RUNTIME_DIR_VARIABLE, folder.path()).stdin(Stdio::piped()).spawn().unwrap();
        assert!(all().contains(&runtime_dir));
        fs::set_permissions(&runtime_dir, Permissions::from_mode(0o755)).unwrap();
        assert!(!all().contains(&runtime_dir), "others may have put something there");
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    #[test]
    fn runtime_dir_that_another_user_can_replace_is_not_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let (us, above) = (geteuid().as_raw(), folder.path().join("above"));
        let runtime_dir = above.join(FOLDER_NAME);
        fs::create_dir_all(&runtime_dir).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(&runtime_dir, 0o700);
        for (bits, is_safe) in [(0o755, true), (0o777, false), (0o1777, true), (0o700, true)] {
            mode(&above, bits);
            assert_eq!(is_out_of_reach(&runtime_dir, us), is_safe, "{bits:o}");
        }
        mode(&runtime_dir, 0o750);
        assert!(!is_out_of_reach(&runtime_dir, us), "others may have put something there");
        mode(&runtime_dir, 0o700);
        assert!(!is_out_of_reach(&runtime_dir, us + 1));
        if us == 0 {
            std::os::unix::fs::chown(&above, Some(1), None).unwrap();
            assert!(!is_out_of_reach(&runtime_dir, us), "its owner can put another folder in its place");
        }
    }
}
