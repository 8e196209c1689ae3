//! The worker's own root folder, with only what [`files`](super::files) allows.
//!
//! Landlock does not restrict connections to unix sockets with a path: control sockets of jobs, the server's own, services of the
//! machine. In a mount namespace whose root has only the allowed files, those sockets have no names. Abstract sockets, by which
//! workers export memory to each other, stay.
//!
//! This takes `CAP_SYS_ADMIN`, which servers of root have outside of most containers. Without it the names stay, and
//! `SECURITY.md` describes the consequences.

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

/// The new root's folder, in the worker's own folder for temporary files. Outside of the worker's namespace it stays empty.
const ROOT_FOLDER: &str = "root";
/// The capability's number.
const CAP_SYS_ADMIN: u32 = 21;
/// Size and mode of the new root: a few folders, links and empty files to mount on.
const ROOT_MOUNT_OPTIONS: &std::ffi::CStr = c"size=4m,mode=755";
/// Returns whether this process has the necessary capability. A container may still forbid mounting.
pub(super) fn may_mount() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|found| u64::from_str_radix(found.trim(), 16).ok());
    effective.is_some_and(|effective| effective >> CAP_SYS_ADMIN & 1 == 1)
}

/// Replaces the root by one with only `allowed`, at the same paths. Returns false if this process may not do that.
///
/// # Errors
///
/// The process may, but the system refuses a part of it.
pub(super) fn enter(allowed: &[PathBuf]) -> io::Result<bool> {
    // SAFETY: the process has one thread, and this flag leaves its descriptors alone.
    match unsafe { unshare_unsafe(UnshareFlags::NEWNS) } {
        Ok(()) => {}
        // No capability, or a container that forbids this.
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

/// Makes `root` the root of the namespace. It must be that, and not only the process's root (`chroot`): Landlock checks rules all
/// the way up to the namespace's root, and above `root` lies a folder in which everything is allowed.
fn become_root(root: &Path) -> io::Result<()> {
    env::set_current_dir(root)?;
    // The old root is mounted at the same place, above the new one, and detached from there.
    match pivot_root(".", ".") {
        Ok(()) => unmount(".", UnmountFlags::DETACH)?,
        // A system that runs from its first root (initramfs), which cannot be removed: the new root covers it.
        Err(Errno::INVAL) => {
            mount_move(".", "/")?;
            chroot(".")?;
        }
        Err(error) => return Err(error.into()),
    }
    env::set_current_dir("/")
}

/// A path below the new root, and the path to mount there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BindMount {
    path: PathBuf,
    real: PathBuf,
}

/// Mounts a path's current contents below `root`. Mounts inside of it come along, such as a driver's libraries on a file system
/// of their own, except where `root` lies itself.
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

/// Returns what to mount: each path, and also the path that it resolves to. None lies inside another one: a folder mounted after
/// a part of it would hide that part, or the part would seem to be mounted already. Paths that do not exist cannot be used
/// anyway.
fn bind_mounts(allowed: &[PathBuf]) -> Vec<BindMount> {
    let absolute = allowed.iter().filter(|path| path.is_absolute());
    let both = absolute
        .filter_map(|path| Some((path.clone(), fs::canonicalize(path).ok()?)))
        .flat_map(|(path, real)| [BindMount { path, real: real.clone() }, BindMount { path: real.clone(), real }]);
    // A folder sorts right before its contents.
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
        // As with /lib on most systems: the link sorts before the folder that it leads to.
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
