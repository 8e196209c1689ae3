//! Watches of files by inotify and fanotify, as far as CRIU does not save them.
//!
//! | what | after CRIU's restore | here |
//! |---|---|---|
//! | events that were not read | gone | a process with such is found, so that the checkpoint is refused |
//! | that a watch ends with its first event (`IN_ONESHOT`), or leaves out files without a name (`IN_EXCL_UNLINK`) | forgotten | noted, and set again while restored processes are stopped |
//!
//! The rule: if the restoring side refuses a watch, a message names it. Linux shows these two flags since 5.19.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::fs::inotify::{WatchFlags, add_watch, remove_watch};
use rustix::io::ioctl_fionread;
use serde::{Deserialize, Serialize};

use crate::process::descriptors::remote::{descriptor, named, numbers, open_in_root};
use crate::process::file_id::FileId;
use crate::process::tree;
use crate::process::tree::Process;

/// The kernel's names of their descriptors.
const INOTIFY_NAME: &[u8] = b"anon_inode:inotify";
const WATCH_NAMES: [&[u8]; 2] = [INOTIFY_NAME, b"anon_inode:[fanotify]"];
/// The bits of a mask that CRIU restores: `IN_ALL_EVENTS`.
const IN_ALL_EVENTS: u32 = 0xfff;

/// A watch whose mask has more than events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InotifyWatch {
    /// A process that has the watch, as it sees itself.
    pid: u32,
    /// Number of the inotify descriptor in that process.
    number: i32,
    wd: i32,
    mask: u32,
    /// The file, below the root folder of the first process.
    path: PathBuf,
}

/// A line of `/proc/PID/fdinfo/N` about a watch.
#[derive(Debug, PartialEq, Eq)]
struct FdinfoLine {
    wd: i32,
    mask: u32,
    file: FileId,
}

/// Finds a stopped process with unread events.
pub(crate) fn with_events(tree: &[Process]) -> Option<u32> {
    let has_some =
        |pid: u32, kind: &[u8]| named(pid, kind).any(|(_, watch)| ioctl_fionread(&watch).is_ok_and(|bytes| bytes > 0));
    tree.iter().map(|process| process.pid).find(|pid| WATCH_NAMES.iter().any(|kind| has_some(*pid, kind)))
}

/// Notes the watches of stopped processes that CRIU would restore without a part of their masks. `paths`: where CRIU found
/// watched files.
///
/// # Errors
///
/// The process with such a watch of a file that CRIU did not find.
pub(crate) fn note(processes: &[Process], paths: &BTreeMap<FileId, PathBuf>) -> Result<Vec<InotifyWatch>, u32> {
    let mut watches = Vec::new();
    for process in processes {
        for number in numbers(process.pid, INOTIFY_NAME) {
            let info = fs::read_to_string(format!("/proc/{}/fdinfo/{number}", process.pid)).unwrap_or_default();
            for FdinfoLine { wd, mask, file } in lines(&info).filter(|line| line.mask & !IN_ALL_EVENTS != 0) {
                let path = paths.get(&file).ok_or(process.pid)?.clone();
                watches.push(InotifyWatch { pid: tree::pid_in_own_namespace(process.pid), number, wd, mask, path });
            }
        }
    }
    Ok(watches)
}

/// Completes the masks of watches of restored processes, which are stopped. Returns a line for each that was refused.
pub(crate) fn set(watches: &[InotifyWatch], processes: &[Process]) -> Vec<String> {
    let Some(first) = processes.first().map(|process| process.pid) else { return Vec::new() };
    let refused = watches.iter().filter_map(|watch| {
        let process = processes.iter().find(|process| tree::pid_in_own_namespace(process.pid) == watch.pid);
        let done = match process {
            Some(process) => watch.set(process.pid, first),
            None => Err(io::ErrorKind::NotFound.into()),
        };
        let message = |error| {
            let InotifyWatch { pid, path, .. } = watch;
            format!("flags of a watch of {} of process {pid} are not restored: {error}", path.display())
        };
        done.err().map(message)
    });
    refused.collect()
}

impl InotifyWatch {
    fn set(&self, pid: u32, first: u32) -> io::Result<()> {
        let inotify = descriptor(pid, self.number).ok_or(io::ErrorKind::NotFound)?;
        let file = open_in_root(first, &self.path, OFlags::empty())?;
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        let wd = add_watch(&inotify, link, WatchFlags::from_bits_retain(self.mask))?;
        if wd == self.wd {
            return Ok(());
        }
        // The call made a watch of another file.
        remove_watch(&inotify, wd)?;
        Err(io::Error::other("another file is there"))
    }
}

/// `inotify wd:1 ino:2a sdev:800001 mask:3 ignored_mask:0 …`, all hexadecimal.
fn lines(fdinfo: &str) -> impl Iterator<Item = FdinfoLine> {
    fdinfo.lines().filter_map(|line| {
        let rest = line.strip_prefix("inotify ")?;
        let number = |name: &str| {
            let mut words = rest.split_ascii_whitespace().filter_map(|word| word.split_once(':'));
            words.find(|(known, _)| *known == name).and_then(|(_, value)| u64::from_str_radix(value, 16).ok())
        };
        let small = |name| u32::try_from(number(name)?).ok();
        Some(FdinfoLine {
            wd: i32::try_from(number("wd")?).ok()?,
            mask: small("mask")?,
            file: FileId::of_kernel(number("sdev")?, number("ino")?),
        })
    })
}

#[cfg(test)]
mod tests {
    use rustix::fs::inotify::{CreateFlags, init};

    use super::*;

    fn us() -> [Process; 1] {
        [Process { pid: std::process::id(), parent: 1, state: 'R' }]
    }

    /// Held by tests with watches of this process.
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn events_that_were_not_read_are_found() {
        let _alone = LOCK.lock().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let watch = init(CreateFlags::empty()).unwrap();
        add_watch(&watch, folder.path(), WatchFlags::CREATE).unwrap();
        assert_eq!(with_events(&us()), None);
        fs::write(folder.path().join("new"), "").unwrap();
        assert_eq!(with_events(&us()), Some(std::process::id()));
    }

    #[test]
    fn a_watch_gets_all_of_its_mask_again() {
        let _alone = LOCK.lock().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let inotify = init(CreateFlags::NONBLOCK).unwrap();
        let mask = WatchFlags::CREATE | WatchFlags::ONESHOT | WatchFlags::EXCL_UNLINK;
        let wd = add_watch(&inotify, folder.path(), mask).unwrap();
        let info = || fs::read_to_string(format!("/proc/self/fdinfo/{}", inotify.as_raw_fd())).unwrap();
        let FdinfoLine { file, .. } = lines(&info()).next().unwrap();
        assert_eq!(note(&us(), &BTreeMap::new()), Err(std::process::id()));
        let watches = note(&us(), &[(file, folder.path().to_owned())].into()).unwrap();
        // CRIU restores the watch like this.
        add_watch(&inotify, folder.path(), WatchFlags::CREATE).unwrap();
        assert_eq!(lines(&info()).next().unwrap().mask, WatchFlags::CREATE.bits());
        assert_eq!(set(&watches, &us()), Vec::<String>::new());
        assert_eq!(lines(&info()).next().unwrap(), FdinfoLine { wd, mask: mask.bits(), file });
        let elsewhere = InotifyWatch { path: "/".into(), ..watches[0].clone() };
        assert!(set(&[elsewhere], &us())[0].contains("another file is there"));
        assert_eq!(lines(&info()).count(), 1);
    }
}
