//! CRIU's findings about the kernel, which it collects at every start: Katydid keeps them if CRIU cannot.
//!
//! CRIU writes its findings to `/run/criu.kdat` if that is on a memory file system, so that they end with the kernel that they
//! are about. In most containers it is not, and every dump and restore begins with more than a tenth of a second of probing. So
//! Katydid has CRIU write them once to memory, at a mount that only that CRIU sees, and lends them to each later CRIU. The file
//! is there while that CRIU runs, unless another process has put one there.
//!
//! The rule: findings are of this boot of the kernel, or there are none.

#![expect(unsafe_code, reason = "what CRIU does before it is started is its own")]

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use katydid_scratch::Scratch;
use rustix::fs::statfs;
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};

use crate::process::shared_memory::SHM_FOLDER;

/// Folder and name of CRIU's file of findings.
const KERNEL_DATA_FOLDER: &str = "/run";
const KERNEL_DATA_FILE: &str = "criu.kdat";
/// Largest file of findings that is taken; CRIU's is a structure of a kilobyte.
const MAX_KERNEL_DATA_BYTES: u64 = 1 << 20;

/// CRIU's findings, as it wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelData(Vec<u8>);

/// The file of findings while it is installed.
#[derive(Debug)]
pub(crate) struct InstalledKernelData {
    path: PathBuf,
    inode: u64,
}

impl KernelData {
    /// Has the CRIU that `command` starts write its findings. Returns `None` if CRIU keeps them itself, or if that fails.
    pub(crate) fn collect(command: &[OsString]) -> Option<Self> {
        if is_memory(Path::new(KERNEL_DATA_FOLDER)) || !is_memory(Path::new(SHM_FOLDER)) {
            return None;
        }
        // A supervisor that was killed before this boot of the kernel left it.
        let left = Path::new(KERNEL_DATA_FOLDER).join(KERNEL_DATA_FILE);
        if fs::metadata(&left).and_then(|left| left.modified()).is_ok_and(|written| Some(written) < started()) {
            fs::remove_file(&left).ok()?;
        }
        let folder = Scratch::below(Path::new(SHM_FOLDER), "criu").ok()?;
        let (program, first) = command.split_first()?;
        let mut command = Command::new(program);
        command.args(first).arg("check").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let source = folder.path().to_owned();
        // SAFETY: between fork and exec it makes system calls, and allocates no more than paths that fit the stack.
        unsafe { command.pre_exec(move || cover(&source)) };
        command.status().ok()?;
        let found = folder.path().join(KERNEL_DATA_FILE);
        let fits = fs::metadata(&found).is_ok_and(|found| (1..=MAX_KERNEL_DATA_BYTES).contains(&found.len()));
        if fits { fs::read(found).ok().map(Self) } else { None }
    }

    /// Puts the findings where CRIU looks. Returns `None` if a file is there already, or if this user may not.
    pub(crate) fn install(&self) -> Option<InstalledKernelData> {
        self.install_in(Path::new(KERNEL_DATA_FOLDER)).ok()
    }

    /// Creates the complete file at once, and only if none is there: CRIU takes what it finds.
    fn install_in(&self, folder: &Path) -> io::Result<InstalledKernelData> {
        let mut fresh = tempfile::Builder::new().prefix("katydid-criu-").tempfile_in(folder)?;
        fresh.write_all(&self.0)?;
        let path = folder.join(KERNEL_DATA_FILE);
        fs::hard_link(fresh.path(), &path)?;
        Ok(InstalledKernelData { path, inode: fresh.as_file().metadata()?.ino() })
    }
}

impl Drop for InstalledKernelData {
    fn drop(&mut self) {
        // A file that another process has put in its place belongs to that process.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn is_memory(folder: &Path) -> bool {
    statfs(folder).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC)
}

/// Boot time of the kernel.
fn started() -> Option<SystemTime> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

/// Mounts `source` where CRIU keeps its findings, for this process and what it executes.
fn cover(source: &Path) -> io::Result<()> {
    // SAFETY: of all flags only that for the table of descriptors is dangerous, and it is not given.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    Ok(mount_bind(source, KERNEL_DATA_FOLDER)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_data_file_is_removed_on_drop() {
        let folder = tempfile::tempdir().unwrap();
        let (data, path) = (KernelData(b"findings".to_vec()), folder.path().join(KERNEL_DATA_FILE));
        let installed = data.install_in(folder.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"findings");
        assert!(data.install_in(folder.path()).is_err(), "one that is there stays");
        drop(installed);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn kernel_data_file_of_another_process_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(KERNEL_DATA_FILE);
        let installed = KernelData(b"findings".to_vec()).install_in(folder.path()).unwrap();
        fs::write(folder.path().join("other"), "theirs").unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        drop(installed);
        assert_eq!(fs::read(&path).unwrap(), b"theirs");
    }

    #[test]
    fn findings_of_another_boot_are_older_than_this_one() {
        assert!(started().unwrap() < SystemTime::now());
    }
}
