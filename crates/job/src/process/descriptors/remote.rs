//! Descriptors of other processes, copied into this one. The rule: what this process may not inspect is left out; CRIU checks it
//! again.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::process::tree;

/// Prefix of the kernel's names of sockets.
pub(crate) const SOCKET_NAME_PREFIX: &[u8] = b"socket:";

/// Copies a descriptor of another process; `None` if that process has ended, or does not permit it.
pub(crate) fn descriptor(pid: u32, number: i32) -> Option<OwnedFd> {
    let process = pidfd_open(tree::raw(pid)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok()
}

/// Opens, without access (`OFlags::PATH`), the file that a process sees at an absolute path. Links on the way are resolved as the
/// process sees them.
pub(super) fn open_in_root(pid: u32, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let root = open(format!("/proc/{pid}/root"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    Ok(openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?)
}

/// Numbers of a process's descriptors whose name in `/proc/PID/fd` begins with `begin`.
pub(crate) fn numbers(pid: u32, begin: &[u8]) -> impl Iterator<Item = i32> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let is_it = target.as_os_str().as_bytes().starts_with(begin);
        entry.file_name().to_str().filter(|_| is_it)?.parse().ok()
    })
}

/// The sockets of a process: their numbers and inodes.
pub(crate) fn sockets(pid: u32) -> impl Iterator<Item = (i32, u64)> {
    numbers(pid, SOCKET_NAME_PREFIX).filter_map(move |number| {
        let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((number, inode))
    })
}

/// As [`numbers`], each with a copy of the descriptor.
pub(crate) fn named(pid: u32, begin: &[u8]) -> impl Iterator<Item = (i32, OwnedFd)> {
    numbers(pid, begin).filter_map(move |number| Some((number, descriptor(pid, number)?)))
}
