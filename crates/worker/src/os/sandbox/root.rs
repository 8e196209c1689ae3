//! A root folder of the worker's own: nothing is there but what [`files`](super::files) allows.
//!
//! Landlock does not hold connections to unix sockets that have a place in a folder: control sockets of jobs, the server's
//! own, services of the machine. In a mount namespace whose root has the allowed files alone, those sockets have no names.
//! Sockets without a place in a folder, by which workers export memory to each other, stay.
//!
//! It takes `CAP_SYS_ADMIN`, which servers of root's have outside of most containers. Without it the names stay, and
//! `SECURITY.md` says what that means.

#![expect(unsafe_code, reason = "leaves the mount namespace of the server")]

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change, mount_move,
    unmount,
};
use rustix::process::{chroot, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Where the new root is made, in the worker's own folder for temporary files; outside of its namespace it stays empty.
const ROOT_FOLDER: &str = "root";
/// The number of the privilege to mount.
const CAP_SYS_ADMIN: u32 = 21;
/// Size and mode of the new root: a few folders, links and empty files to mount on.
const ROOT_MOUNT_OPTIONS: &std::ffi::CStr = c"size=4m,mode=755";
/// Whether this process has the privilege that it takes. A container may forbid it all the same.
pub(super) fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|found| u64::from_str_radix(found.trim(), 16).ok());
    effective.is_some_and(|effective| effective >> CAP_SYS_ADMIN & 1 == 1)
}

/// Makes `allowed` all that there is, at the same paths; whether this process may do that.
///
/// # Errors
///
/// It may, and the system refuses a part of it.
pub(super) fn enter(allowed: &[PathBuf]) -> io::Result<bool> {
    // SAFETY: the process has one thread, and this flag leaves its descriptors alone.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
        Ok(()) => {}
        // No capability, or a container that forbids it.
        Err(Errno::PERM | Errno::NOSYS | Errno::INVAL) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let own = env::temp_dir();
    let root = own.join(ROOT_FOLDER);
    fs::create_dir_all(&root)?;
    mount("none", &root, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, ROOT_MOUNT_OPTIONS)?;
    for mount in bind_mounts(allowed) {
        bind(&mount, &root, &own)?;
    }
    become_root(&root)?;
    Ok(true)
}

/// Has the namespace begin at `root`, with nothing above it. It has to be the namespace's own root and not the process's alone
/// (`chroot`): Landlock looks for rules on the whole way up to the former, and above `root` lies a folder in which all is allowed.
fn become_root(root: &Path) -> io::Result<()> {
    env::set_current_dir(root)?;
    // The old root goes to the same place, above the new one, and is let go of from there.
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH)?,
        // A system that runs from its first root (initramfs), which cannot go away: the new one covers it.
        Err(Errno::INVAL) => {
            mount_move(".", "/")?;
            chroot(".")?;
        }
        Err(error) => return Err(error.into()),
    }
    env::set_current_dir("/")
}

/// A path below the new root, and the path that is mounted there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BindMount {
    path: PathBuf,
    real: PathBuf,
}

/// Shows at a path below `root` what is there now. What is mounted below comes along, such as a driver's libraries on a file system of
/// their own; but not where `root` lies itself.
fn bind(mount: &BindMount, root: &Path, own: &Path) -> io::Result<()> {
    let inside = root.join(mount.path.strip_prefix("/").unwrap_or(&mount.path));
    if mount.real.is_dir() {
        fs::create_dir_all(&inside)?;
    } else {
        inside.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::create(&inside)?;
    }
    if own.starts_with(&mount.real) {
        mount_bind(&mount.real, &inside)?;
    } else {
        mount_bind_recursive(&mount.real, &inside)?;
    }
    Ok(())
}

/// What is mounted: each path, and what it leads to at its own path too. None lies in another one: a folder that comes after a part
/// of it would hide what the part has, or be taken for mounted. What is not there cannot be used either.
fn bind_mounts(allowed: &[PathBuf]) -> Vec<BindMount> {
    let absolute = allowed.iter().filter(|path| path.is_absolute());
    let both = absolute
        .filter_map(|path| Some((path.clone(), fs::canonicalize(path).ok()?)))
        .flat_map(|(path, real)| [BindMount { path, real: real.clone() }, BindMount { path: real.clone(), real }]);
    // A folder comes right before what it holds.
    let mut sorted: Vec<BindMount> = both.collect();
    sorted.sort();
    let mut mounts: Vec<BindMount> = Vec::new();
    for mount in sorted {
        if !mounts.iter().any(|above| mount.path.starts_with(&above.path)) {
            mounts.push(mount);
        }
    }
    mounts
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nested_sandbox_paths_share_one_mount() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        for name in ["usr/lib/x", "usr/local", "x/y/z", "x/yy", "opt"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        // As /lib is on most systems: its name comes before the folder that holds what it leads to.
        symlink("usr/lib", at("lib")).unwrap();
        symlink("../opt", at("usr/apart")).unwrap();
        let names = ["lib", "usr/lib/x", "usr", "x/y", "x/yy", "x/y/z", "usr/apart", "absent"];
        let mut allowed = names.map(at).to_vec();
        allowed.push("relative".into());
        let found: Vec<(PathBuf, PathBuf)> = bind_mounts(&allowed).into_iter().map(|it| (it.path, it.real)).collect();
        let same = |name: &str| (at(name), at(name));
        assert_eq!(found, [(at("lib"), at("usr/lib")), same("opt"), same("usr"), same("x/y"), same("x/yy")]);
    }
}
