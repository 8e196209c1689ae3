//! A control group for each worker, with a memory limit that the kernel enforces: exactly, and for all that the worker starts.
//!
//! This is available where the server owns its own group (version 2). Root must run the server, no other process may be in the
//! group, and systemd, where it runs, must have delegated the group (`Delegate=`). A group with processes of its own cannot give
//! its children controllers. So the server first moves into a leaf of its own:
//!
//! ```text
//! the server's group ─┬─ katydid-server       the server
//!                     └─ katydid-worker-N ... a worker, with memory.max
//! ```
//!
//! Elsewhere the server measures (`host_memory.rs`), as it does beside control groups.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::getxattr;
use rustix::process::geteuid;

/// Name of the control group that the server's own process is in.
const SERVER_GROUP: &str = "katydid-server";
/// How the names of workers' groups begin.
const WORKER_GROUP_PREFIX: &str = "katydid-worker-";
/// Lists this process's groups.
const OWN_GROUPS: &str = "/proc/self/cgroup";
const MOUNTS_FILE: &str = "/proc/self/mountinfo";
/// A folder that exists where systemd runs, and the attributes that mark a delegated group.
const SYSTEMD_FOLDER: &str = "/run/systemd/system";
const DELEGATED_ATTRIBUTES: [&str; 2] = ["user.delegate", "trusted.delegate"];
/// How often a group's removal is tried while a killed process is ending, and the pause in between.
const MAX_REMOVE_ATTEMPTS: u32 = 50;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The group that contains the workers' groups.
#[derive(Debug)]
pub(crate) struct ControlGroups {
    folder: PathBuf,
    limit: u64,
    next: AtomicU64,
}

/// The group of one worker. It is removed with this value.
#[derive(Debug)]
pub(crate) struct ControlGroup {
    folder: PathBuf,
    /// A process that writes to this file enters the group.
    processes: File,
}

/// Why there are no control groups.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoGroups {
    #[error("the server does not run as root")]
    NotRoot,
    #[error("the server's control group is not of version 2")]
    NoVersion2,
    #[error("systemd has not delegated the server's control group to it (Delegate=yes)")]
    NotDelegated,
    #[error("the server's control group lacks the memory controller")]
    NoMemory,
    #[error("other processes are in the server's control group")]
    NotAlone,
    #[error("the server's control group: {0}")]
    System(#[from] io::Error),
}

impl ControlGroups {
    /// Prepares the server's own group. Each worker's group is limited to `limit` bytes.
    pub(crate) fn prepare(limit: u64) -> Result<Self, NoGroups> {
        if !geteuid().is_root() {
            return Err(NoGroups::NotRoot);
        }
        let folder = own_group(&fs::read_to_string(OWN_GROUPS)?, &fs::read_to_string(MOUNTS_FILE)?);
        let folder = folder.filter(|folder| folder.is_dir()).ok_or(NoGroups::NoVersion2)?;
        if Path::new(SYSTEMD_FOLDER).is_dir() && !is_delegated(&folder) {
            return Err(NoGroups::NotDelegated);
        }
        Self::prepare_in(folder, limit)
    }

    fn prepare_in(folder: PathBuf, limit: u64) -> Result<Self, NoGroups> {
        if !words_of_file(&folder, "cgroup.controllers")?.iter().any(|controller| controller == "memory") {
            return Err(NoGroups::NoMemory);
        }
        let (own, server) = (std::process::id().to_string(), folder.join(SERVER_GROUP));
        let is_taken = words_of_file(&server, "cgroup.procs").is_ok_and(|processes| !processes.is_empty());
        if is_taken || words_of_file(&folder, "cgroup.procs")? != [own.clone()] {
            return Err(NoGroups::NotAlone);
        }
        clear(&folder);
        let groups = Self { folder, limit, next: AtomicU64::new(1) };
        match fs::create_dir(&server) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        // From here on, dropping `groups` undoes the change.
        fs::write(server.join("cgroup.procs"), &own)?;
        fs::write(groups.folder.join("cgroup.subtree_control"), "+memory")?;
        // Tests whether a limit can be set, before a worker relies on it.
        drop(groups.group()?);
        Ok(groups)
    }

    /// Creates a group for a worker.
    pub(crate) fn group(&self) -> io::Result<ControlGroup> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(format!("{WORKER_GROUP_PREFIX}{number}"));
        fs::create_dir(&folder)?;
        let limited = fs::write(folder.join("memory.max"), self.limit.to_string());
        // The file may not exist; then the kernel ends the worker's processes one by one.
        let _ = fs::write(folder.join("memory.oom.group"), "1");
        let opened = limited.and_then(|()| OpenOptions::new().write(true).open(folder.join("cgroup.procs")));
        match opened {
            Ok(processes) => Ok(ControlGroup { folder, processes }),
            Err(error) => {
                let _ = fs::remove_dir(&folder);
                Err(error)
            }
        }
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        clear(&self.folder);
        // The group can have processes of its own again once it gives no controllers to others.
        let _ = fs::write(self.folder.join("cgroup.subtree_control"), "-memory");
        let _ = fs::write(self.folder.join("cgroup.procs"), std::process::id().to_string());
        let _ = fs::remove_dir(self.folder.join(SERVER_GROUP));
    }
}

impl ControlGroup {
    /// Returns the file by which a process enters the group: it writes `0` there. Valid as long as this value.
    pub(crate) fn entrance(&self) -> RawFd {
        self.processes.as_raw_fd()
    }

    /// Returns whether the kernel has ended a process of the group because of its limit.
    pub(crate) fn has_met_limit(&self) -> bool {
        let events = fs::read_to_string(self.folder.join("memory.events")).unwrap_or_default();
        let kills = events.lines().filter_map(|line| line.strip_prefix("oom_kill ")?.parse::<u64>().ok());
        kills.sum::<u64>() > 0
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Ends processes that have left the worker's process group. The file exists from Linux 5.14 on.
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
        // A killed process stays in the group until it has ended. The server's end or the next server removes what is left.
        for _ in 0..MAX_REMOVE_ATTEMPTS {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => sleep(REMOVAL_PAUSE),
                _ => break,
            }
        }
    }
}

/// Removes groups of workers that have ended.
fn clear(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(WORKER_GROUP_PREFIX) {
            let _ = fs::write(entry.path().join("cgroup.kill"), "1");
            // A group that has processes stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn words_of_file(folder: &Path, file: &str) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(folder.join(file))?;
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

fn is_delegated(folder: &Path) -> bool {
    let mut value = [0; 8];
    DELEGATED_ATTRIBUTES
        .iter()
        .any(|name| getxattr(folder, *name, &mut value).is_ok_and(|length| &value[..length.min(8)] == b"1"))
}

/// Returns the folder of this process's version 2 control group, from the kernel's lists of groups and of mounts.
fn own_group(groups: &str, mounts: &str) -> Option<PathBuf> {
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mount = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut words = fields.split(' ').skip(3);
        let (root, point) = (words.next()?, words.next()?);
        kind.starts_with("cgroup2 ").then_some((root, point))
    });
    let (root, point) = mount?;
    let below = Path::new(path).strip_prefix(root).ok()?;
    Some(Path::new(point).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_where_it_is_mounted() {
        let mounts = "22 1 0:20 / /sys rw - sysfs sysfs rw\n30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        let group = own_group("1:name=x:/y\n0::/system.slice/katydid.service\n", mounts);
        assert_eq!(group, Some("/sys/fs/cgroup/system.slice/katydid.service".into()));
        assert_eq!(own_group("4:memory:/x\n", mounts), None);
        let of_container = "30 22 0:26 /machine/c /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own_group("0::/machine/c/server\n", of_container), Some("/sys/fs/cgroup/server".into()));
        assert_eq!(own_group("0::/elsewhere\n", of_container), None);
        assert_eq!(own_group("0::/x\n", "22 1 0:20 / /sys rw - sysfs sysfs rw\n"), None);
    }

    /// A folder with files as the kernel shows them of a group.
    fn folder(controllers: &str, processes: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(folder.path().join("cgroup.procs"), processes).unwrap();
        folder
    }

    fn own() -> String {
        format!("{}\n", std::process::id())
    }

    #[test]
    fn a_shared_control_group_stays_as_it_is() {
        for (controllers, processes) in
            [("cpu io\n", own()), ("cpu memory\n", format!("{}1\n", own())), ("memory\n", String::new())]
        {
            let folder = folder(controllers, &processes);
            assert!(ControlGroups::prepare_in(folder.path().to_owned(), 1 << 20).is_err());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{controllers} {processes}");
        }
    }

    /// The kernel makes a group's files with its folder, and removes them with it. Here each `group` fails in the end, because
    /// `cgroup.procs` does not exist.
    #[test]
    fn a_limit_that_cannot_be_set_leads_back() {
        let folder = folder("cpuset cpu memory\n", &own());
        let failed = ControlGroups::prepare_in(folder.path().to_owned(), 1 << 20).unwrap_err();
        assert!(matches!(failed, NoGroups::System(_)), "{failed}");
        assert_eq!(fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap(), "-memory");
        assert_eq!(fs::read_to_string(folder.path().join("cgroup.procs")).unwrap(), own().trim());
    }

    #[test]
    fn a_group_has_the_limit_and_tells_that_it_was_met() {
        let folder = tempfile::tempdir().unwrap();
        let groups = ControlGroups { folder: folder.path().to_owned(), limit: 1 << 30, next: AtomicU64::new(7) };
        assert!(groups.group().is_err(), "no file to enter by");
        let own = folder.path().join("katydid-worker-8");
        fs::create_dir(&own).unwrap();
        let group = ControlGroup { folder: own.clone(), processes: File::create(own.join("cgroup.procs")).unwrap() };
        assert!(!group.has_met_limit());
        fs::write(own.join("memory.events"), "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 1\n").unwrap();
        assert!(group.has_met_limit());
        drop(group);
        assert_eq!(fs::read_to_string(own.join("cgroup.kill")).unwrap(), "1");
        std::mem::forget(groups);
    }
}
