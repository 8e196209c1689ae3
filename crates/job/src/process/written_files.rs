//! The files that a job writes: their lengths at a checkpoint, to which a restore cuts them back.
//!
//! A program that went on after its checkpoint has written more by the time it is restored. It writes that again, so the file has
//! to end where it ended at the checkpoint; CRIU itself only refuses a file whose length differs. The rule: the restore only
//! touches a regular file that the job had open for writing at a position of its own (with `O_APPEND` others may write there
//! too). It only cuts the file, never extends it, and only when no step of the restore can be refused any more. It must still be
//! the same file, and no process may have it open for writing, such as the job itself that lives on.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::criu::link_remap;
use crate::process::descriptors::remote;
use crate::process::file_id::{FileId, birth, is_same_birth};
use crate::process::tcp;
use crate::process::tree;
use crate::process::tree::Process;

/// `O_ACCMODE`, `O_APPEND` and the deleted mark, as `/proc/PID/fdinfo` writes flags: octal.
const ACCESS_MODE_BITS: u32 = 0o3;
const APPEND_FLAG: u32 = 0o2000;

/// Prefixes of the paths of GPU devices.
const GPU_DEVICE_PATH_PREFIXES: [&str; 3] = ["/dev/nvidia", "/dev/kfd", "/dev/dri/"];

/// A file that was open for writing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Path of the file.
    pub path: String,
    /// `st_ino`: a file that has replaced it since is another one. The device number may differ on another host.
    pub inode: u64,
    /// Creation time of the file, in nanoseconds since 1970: a later file may have its inode number. `None` if the file system
    /// does not know it, and in older images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub birth: Option<u64>,
    /// Length in bytes at the checkpoint.
    pub length: u64,
}

/// Files that the processes of a tree have open for writing. Processes and descriptors that vanish meanwhile are skipped.
#[must_use]
pub fn written(tree: &[Process]) -> Vec<WrittenFile> {
    let mut files: Vec<WrittenFile> = tree.iter().flat_map(|process| of_process(process.pid)).collect();
    files.sort();
    files.dedup();
    files
}

fn of_process(pid: u32) -> Vec<WrittenFile> {
    let files = of_descriptors(pid).filter(|open| open.stat.is_file());
    let files = files.filter(|open| open.flags & ACCESS_MODE_BITS != 0 && open.flags & APPEND_FLAG == 0);
    files
        .filter_map(|OpenFile { path, stat, .. }| {
            let path = path.into_os_string().into_string().ok()?;
            Some(WrittenFile { path, inode: stat.ino(), birth: birth(&stat), length: stat.len() })
        })
        .collect()
}

/// A process of a tree that has opened a GPU itself, and the device.
pub(crate) fn gpu_of(tree: &[Process]) -> Option<(u32, PathBuf)> {
    let paths = |process: &Process| {
        let pid = process.pid;
        of_descriptors(pid).map(move |open| (pid, open.path))
    };
    tree.iter().flat_map(paths).find(|(_, path)| is_gpu(path))
}

fn is_gpu(path: &Path) -> bool {
    path.to_str().is_some_and(|path| GPU_DEVICE_PATH_PREFIXES.iter().any(|beginning| path.starts_with(beginning)))
}

/// Regular files that the processes of a tree have open for writing, and all FIFOs that they have open. Each has a link by which
/// it can be opened.
pub(crate) fn named(tree: &[Process]) -> BTreeMap<PathBuf, PathBuf> {
    let counts = |open: &OpenFile| {
        open.stat.file_type().is_fifo() || (open.stat.is_file() && open.flags & ACCESS_MODE_BITS != 0)
    };
    let open = tree.iter().flat_map(|process| of_descriptors(process.pid)).filter(counts);
    open.map(|open| (open.path, open.link)).collect()
}

/// Folders in which sockets of the tree's processes are bound, each with a process that sees it.
pub(crate) fn folders_of_sockets(tree: &[Process]) -> BTreeMap<PathBuf, u32> {
    let mut folders = BTreeMap::new();
    for pid in tree.iter().map(|process| process.pid) {
        let held = tcp::sockets(pid);
        // The list is of the process's network namespace.
        let table = fs::read_to_string(format!("/proc/{pid}/net/unix")).unwrap_or_default();
        let bound = table.lines().filter_map(bound).filter(|(inode, _)| held.contains(*inode));
        folders.extend(bound.filter_map(|(_, path)| Some((path.parent()?.to_owned(), pid))));
    }
    folders
}

/// Reads `ffff…: 00000002 00000000 00010000 0001 01 41234 /run/name`: returns the socket's inode and name; `None` for a socket
/// without a name.
fn bound(line: &str) -> Option<(&str, &Path)> {
    let (mut field, mut rest) = ("", line);
    for _ in 0..7 {
        (field, rest) = rest.trim_start().split_once(' ')?;
    }
    Some((field, Path::new(rest))).filter(|(_, path)| path.is_absolute())
}

/// A descriptor of a file with a name in a file system.
struct OpenFile {
    link: PathBuf,
    path: PathBuf,
    flags: u32,
    stat: fs::Metadata,
}

fn of_descriptors(pid: u32) -> impl Iterator<Item = OpenFile> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let entries = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| of_descriptor(pid, &folder, &entry.file_name()))
}

fn of_descriptor(pid: u32, folder: &Path, number: &OsStr) -> Option<OpenFile> {
    let link = folder.join("fd").join(number);
    let path = fs::read_link(&link).ok()?;
    if !path.is_absolute() {
        return None;
    }
    let info = fs::read_to_string(folder.join("fdinfo").join(number)).ok()?;
    let flags = u32::from_str_radix(tree::proc_field(&info, "flags:")?, 8).ok()?;
    let stat = fs::metadata(&link).ok()?;
    // An unlinked file has no name to find it by; its content is in the image.
    let path = if stat.nlink() > 0 { link_remap::standing_name(pid, path, &stat)? } else { return None };
    Some(OpenFile { link, path, flags, stat })
}

/// The files with the lengths that CRIU saw while the processes were stopped; files that CRIU did not see are left out.
#[must_use]
pub(crate) fn with_lengths(files: Vec<WrittenFile>, lengths: &BTreeMap<String, u64>) -> Vec<WrittenFile> {
    let with_length = |file: WrittenFile| lengths.get(&file.path).map(|length| WrittenFile { length: *length, ..file });
    files.into_iter().filter_map(with_length).collect()
}

/// The files that have to be cut back. CRIU reports files that are gone or replaced.
pub(crate) fn longer(files: &[WrittenFile]) -> impl Iterator<Item = &WrittenFile> {
    files.iter().filter(|file| fs::metadata(&file.path).is_ok_and(|stat| is_longer(file, &stat)))
}

/// Finds a file that has to be cut back and that a process outside of `own` has open for writing. That process would lose what it
/// has written since the checkpoint, and go on to write behind the end. Processes are searched only if a file is longer than it
/// was.
#[must_use]
pub fn in_use<'a>(files: &'a [WrittenFile], own: &[Process]) -> Option<(&'a WrittenFile, u32)> {
    let longer: Vec<_> = longer(files).filter_map(|file| Some((file, fs::metadata(&file.path).ok()?))).collect();
    if longer.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut others = ids.filter(|pid| own.iter().all(|process| process.pid != *pid));
    others.find_map(|pid| {
        let open = of_descriptors(pid).filter(|open| open.flags & ACCESS_MODE_BITS != 0);
        let mut files = open.filter_map(|open| {
            let is_it = |(_, stat): &&(&WrittenFile, fs::Metadata)| FileId::of(stat) == FileId::of(&open.stat);
            longer.iter().find(is_it)
        });
        files.next().map(|(file, _)| (*file, pid))
    })
}

/// Checks that each file that has to be cut back can be.
///
/// # Errors
///
/// The first file that cannot be opened for writing, with its name.
pub(crate) fn can_be_cut(files: &[WrittenFile]) -> Result<(), (String, io::Error)> {
    longer(files).try_for_each(|file| match open_to_cut(file) {
        Ok(_) => Ok(()),
        Err(error) => Err((file.path.clone(), error)),
    })
}

/// Cuts each file back to its length at the checkpoint, and returns the files that were cut; if one cannot be opened, none is.
/// Files that processes of `own` have open are cut by their descriptors. A new open would break leases that the job has taken,
/// and notify processes that watch the file.
///
/// # Errors
///
/// The first file that could not be cut, with its name.
pub fn cut_back<'a>(files: &'a [WrittenFile], own: &[Process]) -> Result<Vec<&'a WrittenFile>, (String, io::Error)> {
    let opened = longer(files).filter_map(|file| match reopen_own(file, own).map_or_else(|| open_to_cut(file), Ok) {
        Ok(opened) => opened.map(|opened| Ok((file, opened))),
        Err(error) => Some(Err((file.path.clone(), error))),
    });
    let opened: Vec<(&WrittenFile, File)> = opened.collect::<Result<_, _>>()?;
    for (file, opened) in &opened {
        opened.set_len(file.length).map_err(|error| (file.path.clone(), error))?;
    }
    Ok(opened.into_iter().map(|(file, _)| file).collect())
}

/// The file as a process of `own` has it open; the inner `None` if it is not longer, the outer one if no process has it.
fn reopen_own(then: &WrittenFile, own: &[Process]) -> Option<Option<File>> {
    let metadata = fs::metadata(&then.path).ok()?;
    own.iter().find_map(|process| {
        let is_it =
            |open: &OpenFile| open.flags & ACCESS_MODE_BITS != 0 && FileId::of(&open.stat) == FileId::of(&metadata);
        let open = of_descriptors(process.pid).find(is_it)?;
        let number = open.link.file_name()?.to_str()?.parse().ok()?;
        let file = File::from(remote::descriptor(process.pid, number)?);
        let stat = file.metadata().ok()?;
        Some((stat.dev() == metadata.dev() && is_longer(then, &stat)).then_some(file))
    })
}

/// Opens the file, if it still is longer then.
fn open_to_cut(then: &WrittenFile) -> io::Result<Option<File>> {
    let file = File::options().write(true).open(&then.path)?;
    Ok(is_longer(then, &file.metadata()?).then_some(file))
}

/// Whether it is the same file, and has become longer.
fn is_longer(then: &WrittenFile, metadata: &fs::Metadata) -> bool {
    metadata.ino() == then.inode && is_same_birth(then.birth, birth(metadata)) && metadata.len() > then.length
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use katydid_tests::watch::until;

    use super::*;

    fn own_files() -> Vec<WrittenFile> {
        written(&[Process { pid: std::process::id(), parent: 1, state: 'R' }])
    }

    /// Waits until no other process has the files open. A child that another test has just forked has copies until it starts its
    /// program.
    fn wait_until_unused(description: &str, files: &[WrittenFile], own: &[Process]) {
        until(description, || in_use(files, own).is_none()).unwrap();
    }

    #[test]
    fn a_file_is_cut_to_its_length_at_the_checkpoint() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"before").unwrap();
        let path = file.path().to_str().unwrap();
        let files: Vec<WrittenFile> = own_files().into_iter().filter(|written| written.path == path).collect();
        assert_eq!(files.len(), 1);
        file.write_all(b" and after").unwrap();
        assert_eq!(in_use(&files, &[]), Some((&files[0], std::process::id())));
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        wait_until_unused("the job itself may have it open", &files, &us);
        let reopened = reopen_own(&files[0], &us).flatten().unwrap();
        assert_eq!(reopened.metadata().unwrap().ino(), file.as_file().metadata().unwrap().ino());
        drop(reopened);
        let file = file.into_temp_path();
        wait_until_unused("no process has it open any more", &files, &[]);
        assert!(reopen_own(&files[0], &us).is_none());
        assert_eq!(cut_back(&files, &[]).unwrap(), [&files[0]]);
        assert_eq!(fs::read(&file).unwrap(), b"before");
        assert!(cut_back(&files, &[]).unwrap().is_empty());
    }

    #[test]
    fn no_file_is_cut_where_one_cannot_be() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, "before and after").unwrap();
            let inode = fs::metadata(&path).unwrap().ino();
            WrittenFile { path: path.into_os_string().into_string().unwrap(), inode, birth: None, length: 6 }
        };
        let files = [file("one"), file("program")];
        fs::copy("/bin/sleep", &files[1].path).unwrap();
        let mut running = std::process::Command::new(&files[1].path).arg("1000").spawn().unwrap();
        let refused = cut_back(&files, &[]).unwrap_err();
        assert_eq!((refused.0.as_str(), refused.1.kind()), (files[1].path.as_str(), io::ErrorKind::ExecutableFileBusy));
        assert_eq!(fs::read_to_string(&files[0].path).unwrap(), "before and after");
        running.kill().unwrap();
        running.wait().unwrap();
    }

    #[test]
    fn a_file_of_an_image_of_before_is_known_by_its_inode() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::write(&path, "before and after").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let entry = serde_json::json!({"path": path, "inode": inode, "length": 6});
        let file: WrittenFile = serde_json::from_value(entry).unwrap();
        assert_eq!(cut_back(std::slice::from_ref(&file), &[]).unwrap(), [&file]);
        assert_eq!(fs::read(&path).unwrap(), b"before");
    }

    #[test]
    fn devices_of_gpus_are_known_by_their_names() {
        assert!(
            ["/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dri/renderD128"]
                .iter()
                .all(|name| is_gpu(Path::new(name)))
        );
        assert!(!["/dev/null", "/home/dev/nvidia", "/dev/driver"].iter().any(|name| is_gpu(Path::new(name))));
        assert_eq!(gpu_of(&[Process { pid: std::process::id(), parent: 1, state: 'R' }]), None);
    }

    #[test]
    fn lengths_that_criu_recorded_count() {
        let file = |path: &str, length| WrittenFile { path: path.into(), inode: 1, birth: None, length };
        let lengths = [("/a".to_owned(), 7)].into();
        assert_eq!(with_lengths(vec![file("/a", 5), file("/b", 5)], &lengths), [file("/a", 7)]);
    }

    #[test]
    fn shared_logs_files_only_read_and_other_files_of_the_name_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (log, data) = (folder.path().join("log"), folder.path().join("data"));
        fs::write(&data, b"x").unwrap();
        let _log = File::options().append(true).create(true).open(&log).unwrap();
        let _data = File::open(&data).unwrap();
        assert!(!own_files().iter().any(|written| Path::new(&written.path).starts_with(folder.path())));
        let stat = fs::metadata(&data).unwrap();
        let path = data.to_str().unwrap().to_owned();
        let replaced = WrittenFile { path, inode: stat.ino() + 1, birth: birth(&stat), length: 0 };
        // This file has the inode number of the removed one.
        let reused = WrittenFile { inode: stat.ino(), birth: birth(&stat).map(|birth| birth - 1), ..replaced.clone() };
        assert!(birth(&stat).is_some(), "the file system of temporary files tells no birth: try another TMPDIR");
        assert!(cut_back(&[replaced, reused], &[]).unwrap().is_empty());
        assert_eq!(fs::read(&data).unwrap(), b"x");
    }
}
