//! Leases of files (`F_SETLEASE`): those that other opens are breaking, and files that must not be opened.
//!
//! An open breaks a lease to write, and waits until the holder gives it back. In a checkpoint the holder stands still: the open
//! would wait 45 seconds, and then the kernel takes the lease away. So a checkpoint reads such a file by the holder's own
//! descriptor.
//!
//! CRIU takes such a lease and breaks it once more, and the process gets a second signal, or ends by it. So CRIU's files for the
//! restore lack it. The restored processes take it themselves while they are stopped, and Katydid's own opens break it, while no
//! process gets a signal (`F_SETOWN`). The holder again has the time of `/proc/sys/fs/lease-break-time` to give the lease back.
//!
//! The rule: if the restoring side refuses a lease, a message names it, and the program goes on without it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::io::Errno;

use crate::process::descriptors::remote;
use crate::process::injection::Tracee;
use crate::process::tree;
use crate::process::tree::Process;

/// Commands of `fcntl` that the libc crate lacks: `F_SETOWN_EX` and `F_GETOWN_EX`.
const F_SETOWN_EX: i32 = 15;
const F_GETOWN_EX: i32 = 16;
/// Bytes of a `struct f_owner_ex`, which is copied into a process.
const OWNER_SIZE: usize = 8;
const MAX_OWNERS: usize = 512;

/// A lease that another open is breaking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BrokenLease {
    /// A process that has the file open, as it sees itself.
    pub(crate) pid: u32,
    /// Number of the descriptor in that process.
    pub(crate) number: i32,
    /// Whether the break leaves a lease to read, instead of none.
    pub(crate) keeps_reading: bool,
}

/// A restored process that takes leases.
struct LeaseHolder {
    tracee: Tracee,
    /// Address in the process where owners of descriptors are kept meanwhile.
    owners: u64,
}

/// Has restored processes, which are stopped, take their leases, and breaks these. Returns a line for each that was refused.
pub(crate) fn set(leases: &[BrokenLease], processes: &[Process]) -> Vec<String> {
    let mut refused = Vec::new();
    let mut holders = BTreeMap::new();
    let mut held_leases = Vec::new();
    let mut note = |lease: &BrokenLease, error: &io::Error| {
        refused.push(format!("a lease of a file (F_SETLEASE) of process {} is not restored: {error}", lease.pid));
    };
    for (at, lease) in leases.iter().enumerate().take(MAX_OWNERS) {
        let taking = holder(lease, processes, &mut holders).and_then(|(pid, holder)| {
            let owner = holder.owners + (at * OWNER_SIZE) as u64;
            holder.take(pid, lease, owner).map(|()| (pid, lease, owner))
        });
        match taking {
            Ok(done) => held_leases.push(done),
            Err(error) => note(lease, &error),
        }
    }
    leases.iter().skip(MAX_OWNERS).for_each(|lease| note(lease, &io::Error::other("there are too many")));
    // Broken only now: no lease of a file can be taken while another one of it is being broken.
    for (pid, lease, owner) in held_leases {
        let broken = break_lease(pid, lease);
        let result = holders.get(&pid).map_or(Ok(()), |holder| holder.set_owner(lease, owner));
        if let Err(error) = broken.and(result) {
            note(lease, &error);
        }
    }
    refused
}

/// The process of a lease, as a tracee.
fn holder<'a>(
    lease: &BrokenLease,
    processes: &[Process],
    holders: &'a mut BTreeMap<u32, LeaseHolder>,
) -> io::Result<(u32, &'a LeaseHolder)> {
    let process = processes.iter().find(|process| tree::pid_in_own_namespace(process.pid) == lease.pid);
    let pid = process.ok_or(io::ErrorKind::NotFound)?.pid;
    let holder = match holders.entry(pid) {
        std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
        std::collections::btree_map::Entry::Vacant(entry) => entry.insert(LeaseHolder::new(pid)?),
    };
    Ok((pid, holder))
}

impl LeaseHolder {
    fn new(pid: u32) -> io::Result<Self> {
        let mut tracee = Tracee::attach(pid, pid)?;
        let owners = tracee.copy_in(&[0; OWNER_SIZE * MAX_OWNERS])?;
        Ok(Self { tracee, owners })
    }

    /// Takes a lease that is to be broken, and makes sure that no process gets a signal for that.
    fn take(&self, pid: u32, lease: &BrokenLease, owner: u64) -> io::Result<()> {
        let only_reads = access(pid, lease.number)? == libc::O_RDONLY;
        let kind = if only_reads && !lease.keeps_reading { libc::F_RDLCK } else { libc::F_WRLCK };
        self.control(lease, libc::F_SETLEASE, kind.cast_unsigned().into())?;
        self.control(lease, F_GETOWN_EX, owner)?;
        self.control(lease, libc::F_SETOWN, 0)
    }

    fn set_owner(&self, lease: &BrokenLease, owner: u64) -> io::Result<()> {
        self.control(lease, F_SETOWN_EX, owner)
    }

    fn control(&self, lease: &BrokenLease, command: i32, argument: u64) -> io::Result<()> {
        let number = lease.number.cast_unsigned().into();
        let arguments = [number, command.cast_unsigned().into(), argument, 0, 0, 0];
        self.tracee.call(libc::SYS_fcntl, arguments).map(drop)
    }
}

/// Whether one of these processes has a lease.
pub(crate) fn any(processes: &[Process]) -> bool {
    // The file lists the locks of all processes, and nearly always has no lease.
    let are_any = fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains("LEASE"));
    let has_one = |process: &Process| {
        remote::numbers(process.pid, b"/")
            .any(|number| is_leased(&Path::new("/proc").join(format!("{}/fd/{number}", process.pid))))
    };
    are_any && processes.iter().any(has_one)
}

/// Splits a descriptor's link (`/proc/PID/fd/N`) into the process's folder in `/proc`, and the number.
fn parts(link: &Path) -> Option<(&Path, &OsStr)> {
    Some((link.parent()?.parent()?, link.file_name()?))
}

/// Whether a process has a lease by a descriptor (`/proc/PID/fd/N`), whole or being broken.
pub(crate) fn is_leased(link: &Path) -> bool {
    let Some((process, number)) = parts(link) else { return false };
    let info = fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
    info.lines().any(|line| line.starts_with("lock:") && line.contains("LEASE"))
}

/// Copies a descriptor (`/proc/PID/fd/N`), which opens the file no second time.
///
/// # Errors
///
/// The process has ended or closed the descriptor, or does not permit the copy.
pub(crate) fn copy_descriptor(link: &Path) -> io::Result<File> {
    let number = parts(link).and_then(|(process, number)| {
        Some((process.file_name()?.to_str()?.parse().ok()?, number.to_str()?.parse().ok()?))
    });
    let descriptor = number.and_then(|(pid, number)| remote::descriptor(pid, number));
    descriptor.map(File::from).ok_or_else(|| io::Error::other("its process does not lend the descriptor"))
}

/// Copies the first `length` bytes of a file to memory. The position of the descriptor stays, since the program shares it. `None`
/// for a file that the program can only write, unless it is empty.
///
/// # Errors
///
/// The file cannot be read, or there is no memory.
pub(crate) fn contents(file: &File, length: u64) -> io::Result<Option<File>> {
    let copy = File::from(memfd_create("katydid-leased", MemfdFlags::CLOEXEC)?);
    let (mut buffer, mut position) = ([0; 1 << 16], 0);
    while position < length {
        let count = match file.read_at(&mut buffer, position) {
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => return Ok(None),
            count => count?,
        };
        if count == 0 {
            break;
        }
        copy.write_all_at(&buffer[..count], position)?;
        position += count as u64;
    }
    Ok(Some(copy))
}

/// The access mode of a descriptor.
fn access(pid: u32, number: i32) -> io::Result<i32> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}"))?;
    let flags = tree::proc_field(&info, "flags:").and_then(|flags| i32::from_str_radix(flags, 8).ok());
    flags.map(|flags| flags & libc::O_ACCMODE).ok_or_else(|| io::Error::other("the descriptor has no flags"))
}

/// Breaks the lease with an open like the original one.
fn break_lease(pid: u32, lease: &BrokenLease) -> io::Result<()> {
    let access = if lease.keeps_reading { OFlags::RDONLY } else { OFlags::WRONLY };
    let file = Path::new("/proc").join(pid.to_string()).join("fd").join(lease.number.to_string());
    match open(file, access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::WOULDBLOCK) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err(io::Error::other("the file has no lease")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use rustix::process::{Signal, kill_process};

    use super::*;

    /// The kernel's line for the lease of a process's descriptor.
    fn lease_of(pid: u32, number: i32) -> Option<String> {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap();
        let line = info.lines().find(|line| line.contains("LEASE"))?.to_owned();
        Some(line.split_ascii_whitespace().skip(2).take(3).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn leases_are_taken_and_broken_and_no_signal_is_heard() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["read", "write", "both"].map(|name| folder.path().join(name));
        names.iter().for_each(|name| fs::write(name, "contents").unwrap());
        // The second reader has a lease of its own on the first file.
        let script = "exec 3<\"$0\" 4<\"$0\" 5>>\"$1\" 6<>\"$2\"; echo ready; read line; echo $line";
        let mut child = Command::new("/bin/sh")
            .args(["-c", script])
            .args(&names)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let child = child.as_mut().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        kill_process(tree::raw(child.id()).unwrap(), Signal::STOP).unwrap();
        let lease = |number, keeps_reading| BrokenLease { pid: child.id(), number, keeps_reading };
        let all = [lease(3, false), lease(4, false), lease(5, true), lease(6, false)];
        let processes = [Process { pid: child.id(), parent: std::process::id(), state: 'T' }];
        assert_eq!(set(&all, &processes), Vec::<String>::new());
        let found = [3, 4, 5, 6].map(|number| lease_of(child.id(), number).unwrap_or_default());
        assert_eq!(
            found,
            ["LEASE BREAKING UNLCK", "LEASE BREAKING UNLCK", "LEASE BREAKING READ", "LEASE BREAKING UNLCK"]
        );
        assert!(set(&[lease(9, false)], &processes)[0].contains("is not restored"));
        let link = |number: i32| PathBuf::from(format!("/proc/{}/fd/{number}", child.id()));
        let contents = |number, length| {
            let copy = super::contents(&copy_descriptor(&link(number)).unwrap(), length).unwrap();
            copy.map(|mut copy| io::read_to_string(&mut copy).unwrap())
        };
        assert_eq!([1, 5, 6].map(|number| is_leased(&link(number))), [false, true, true]);
        assert!(any(&processes) && !any(&[Process { pid: std::process::id(), ..processes[0] }]));
        assert_eq!(
            (contents(6, 8).as_deref(), contents(5, 8), contents(5, 0).as_deref()),
            (Some("contents"), None, Some(""))
        );
        assert!(copy_descriptor(&link(99)).is_err(), "there is no such descriptor");
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/6", child.id())).unwrap();
        assert!(info.starts_with("pos:\t0\n"), "{info}");
        let unchanged = [3, 4, 5, 6].map(|number| lease_of(child.id(), number).unwrap_or_default());
        assert_eq!(unchanged, found, "a lease is given up where its file is read");
        kill_process(tree::raw(child.id()).unwrap(), Signal::CONT).unwrap();
        child.stdin.take().unwrap().write_all(b"heard none\n").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "heard none");
        assert!(child.wait().unwrap().success());
    }
}
