//! Pseudo-terminals that a job has opened itself, such as those of `mpirun` for its ranks: they are known by numbers, which
//! programs hold in the names of the other ends.
//!
//! A restore wants the very numbers again. The rule: where somebody has one of them, the job gets a `/dev/pts` of its own, in
//! which it has all of them; and only then, because the terminal at which a user started the restore has no name there.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};
use rustix::pty::{OpenptFlags, openpt};

use crate::tree::Process;

/// Where the other ends are. What is opened as `/dev/ptmx` belongs to what is mounted here.
const PLACE: &str = "/dev/pts";
/// Names by which pseudo-terminals are opened.
const OPENED_AS: [&str; 2] = ["/dev/ptmx", "/dev/pts/ptmx"];

/// So many terminals are opened for the sake of their numbers at most.
const MOST: u32 = 512;

/// Numbers of those that the processes have open at the end that made them, as they see them.
pub(crate) fn numbers(processes: &[Process]) -> Vec<u32> {
    let mut numbers: Vec<u32> = processes.iter().flat_map(|process| of_process(process.pid)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn of_process(pid: u32) -> Vec<u32> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let entries = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    let opened = entries.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|path| OPENED_AS.iter().any(|name| path == Path::new(name)))
    });
    let number = |text: String| text.lines().find_map(|line| line.strip_prefix("tty-index:"))?.trim().parse().ok();
    opened.filter_map(|entry| number(fs::read_to_string(folder.join("fdinfo").join(entry.file_name())).ok()?)).collect()
}

/// Whether somebody has one of these numbers.
pub(crate) fn are_taken(numbers: &[u32]) -> bool {
    numbers.iter().any(|number| Path::new(PLACE).join(number.to_string()).exists())
}

/// Mounts a place of its own for terminals, in a mount namespace of its own.
pub(crate) fn mount_own() -> io::Result<()> {
    let options = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
    Ok(mount("devpts", PLACE, "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)?)
}

/// Takes the numbers below and between these, in a new place of its own, until the value is dropped: CRIU finds a number by
/// opening terminals until one has it, and opens 32 at most.
pub(crate) fn fill_up(numbers: &[u32]) -> io::Result<Vec<OwnedFd>> {
    let count = numbers.iter().max().map_or(0, |last| last.saturating_add(1)).min(MOST);
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    // The lowest free number is the next one's.
    let all = (0..count).map(|number| Ok((number, openpt(flags)?)));
    let all = all.collect::<io::Result<Vec<(u32, OwnedFd)>>>()?;
    Ok(all.into_iter().filter(|(number, _)| !numbers.contains(number)).map(|(_, terminal)| terminal).collect())
}

#[cfg(test)]
mod tests {
    use rustix::pty::{ptsname, unlockpt};

    use super::*;

    #[test]
    fn a_terminal_that_is_open_is_found_and_taken() {
        let us = [Process { pid: std::process::id(), parent: 1, state: 'R' }];
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let number: u32 = name.rsplit('/').next().unwrap().parse().unwrap();
        assert!(numbers(&us).contains(&number) && are_taken(&[number]));
        drop(terminal);
        assert!(!numbers(&us).contains(&number));
        assert!(!are_taken(&[u32::MAX]));
    }
}
