//! A root folder of the worker's own: nothing is there but what [`files`](super::files) allows.
//!
//! Landlock does not hold connections to unix sockets that have a place in a folder: control sockets of jobs, the server's
//! own, services of the machine. In a mount namespace whose root has the allowed files alone, those sockets have no names.
//! Sockets without a place in a folder, by which workers lend memory to each other, stay.
//!
//! It takes `CAP_SYS_ADMIN`, which servers of root's have outside of most containers. Without it the names stay, and
//! `SECURITY.md` says what that means.

#![expect(unsafe_code, reason = "leaves the mount namespace of the server")]

use std::env;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change};
use rustix::process::chroot;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Where the new root is made, in the worker's own folder for temporary files; outside of its namespace it stays empty.
const FOLDER: &str = "root";
/// The number of the privilege to mount.
const CAP_SYS_ADMIN: u32 = 21;
/// Of the new root: a few folders, links and empty files to mount on.
const SIZE: &std::ffi::CStr = c"size=4m,mode=755";
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
    let root = own.join(FOLDER);
    fs::create_dir_all(&root)?;
    mount("none", &root, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, SIZE)?;
    for path in without_covered(allowed) {
        bring(&path, &root, &own)?;
    }
    chroot(&root)?;
    env::set_current_dir("/")?;
    Ok(true)
}

/// Shows what is at a path at the same path below `root`. A link is what it leads to, which keeps its own path as well. What is
/// mounted below comes along, such as libraries that a container is given one by one; but not where `root` lies itself.
fn bring(path: &Path, root: &Path, own: &Path) -> io::Result<()> {
    // What is not there cannot be used either.
    let Ok(real) = fs::canonicalize(path) else { return Ok(()) };
    for name in [path, real.as_path()] {
        let place = root.join(name.strip_prefix("/").unwrap_or(name));
        // The folder that holds it was brought before.
        if fs::symlink_metadata(&place).is_ok() {
            continue;
        }
        if real.is_dir() {
            fs::create_dir_all(&place)?;
        } else {
            place.parent().map_or(Ok(()), fs::create_dir_all)?;
            File::create(&place)?;
        }
        if own.starts_with(&real) {
            mount_bind(&real, &place)?;
        } else {
            mount_bind_recursive(&real, &place)?;
        }
    }
    Ok(())
}

/// The paths that no other one holds, in order.
fn without_covered(allowed: &[PathBuf]) -> Vec<PathBuf> {
    let mut sorted: Vec<&PathBuf> = allowed.iter().filter(|path| path.is_absolute()).collect();
    sorted.sort();
    let mut kept: Vec<PathBuf> = Vec::new();
    for path in sorted {
        if !kept.iter().any(|above| path.starts_with(above)) {
            kept.push(path.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_path_holds_is_brought_with_it() {
        let paths = ["/usr/lib/x", "/usr", "/x/y", "relative", "/x/yy", "/x/y/z"].map(PathBuf::from);
        assert_eq!(without_covered(&paths), ["/usr", "/x/y", "/x/yy"].map(PathBuf::from));
    }
}
