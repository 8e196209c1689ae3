//! Pseudo-terminals that a job has opened itself, such as those of `mpirun` for its ranks: they are known by numbers, which
//! programs hold in the names of the other ends.
//!
//! A restore wants the very numbers again. The rule: where another process has one of them, the job gets a `/dev/pts` of its own, in
//! which it has all of them; and only then, because the terminal at which a user started the restore has no name there.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, major, minor, open, stat};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, getpgrp};
use rustix::pty::{OpenptFlags, openpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp,
};

use crate::process::tree;
use crate::process::tree::Process;

/// Where the other ends are. What is opened as `/dev/ptmx` belongs to what is mounted here.
const DEVPTS_FOLDER: &str = "/dev/pts";
/// Names by which pseudo-terminals are opened.
const OPENED_AS: [&str; 2] = ["/dev/ptmx", "/dev/pts/ptmx"];

/// Most terminals that are opened for the sake of their numbers.
const MAX_TERMINALS: u32 = 512;

/// The controlling terminal of the process that opens it.
const CONTROLLING_TERMINAL: &str = "/dev/tty";
/// The device of that name.
const CONTROLLING_DEVICE: (u32, u32) = (5, 0);
/// Major numbers of the other ends of pseudo-terminals.
const SLAVE_MAJORS: RangeInclusive<u32> = 136..=143;

/// How a terminal of the job was set: by a program that reads keys one by one, say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Modes {
    /// Its foreground group, as the processes see it.
    pub(crate) group: u32,
    /// Modes of input, `c_iflag`.
    pub(crate) input: u32,
    /// Modes of output, `c_oflag`.
    pub(crate) output: u32,
    /// Local modes of the terminal, `c_lflag` (termios(3)).
    pub(crate) local: u32,
    /// Control characters of the terminal, `c_cc`.
    pub(crate) keys: Vec<u8>,
}

/// Our controlling terminal, if we have one.
pub(crate) fn controlling() -> Option<OwnedFd> {
    open(CONTROLLING_TERMINAL, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Sets the terminal that we have in the foreground as that of the job was, and gives it to the group of `processes` that had
/// that. A terminal that we do not have, or only in the background, stays as it is.
pub(crate) fn take_up(modes: &Modes, processes: &[Process]) {
    let Some(terminal) = controlling() else { return };
    if tcgetpgrp(&terminal) != Ok(getpgrp()) {
        return;
    }
    if let Ok(mut attributes) = tcgetattr(&terminal) {
        attributes.input_modes = InputModes::from_bits_retain(modes.input);
        attributes.output_modes = OutputModes::from_bits_retain(modes.output);
        attributes.local_modes = LocalModes::from_bits_retain(modes.local);
        // Without whole lines these two say when a read ends. The other keys are those of this terminal.
        if !attributes.local_modes.contains(LocalModes::ICANON) && modes.keys.len() > MIN_KEY_CHARS.max(KEY_TIME_INDEX)
        {
            attributes.special_codes[SpecialCodeIndex::VMIN] = modes.keys[MIN_KEY_CHARS];
            attributes.special_codes[SpecialCodeIndex::VTIME] = modes.keys[KEY_TIME_INDEX];
        }
        // The program gets the hang-up of one that hangs up meanwhile.
        let _ = tcsetattr(&terminal, OptionalActions::Now, &attributes);
    }
    let of = |process: &Process| tree::seen_group(process.pid) == Some(modes.group);
    let group = processes.iter().find(|process| of(process)).and_then(|process| tree::group_and_session(process.pid));
    if let Some(group) = group.and_then(|(group, _)| Pid::from_raw(i32::try_from(group).ok()?)) {
        // The terminal of another session is refused, which a job in namespaces of its own has.
        let _ = tcsetpgrp(&terminal, group);
    }
}

/// `VTIME` and `VMIN` in `c_cc`.
const KEY_TIME_INDEX: usize = 5;
const MIN_KEY_CHARS: usize = 6;

/// Device and file system numbers of the other ends of pseudo-terminals that the processes have open and have not made
/// themselves, and of `/dev/tty` where it is none of theirs: CRIU dumps one such at most.
pub(crate) fn foreign(processes: &[Process]) -> Vec<(u64, u64)> {
    let own = numbers(processes);
    let mut found: Vec<(u64, u64)> = processes.iter().flat_map(|process| foreign_of(process.pid, &own)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn foreign_of(pid: u32, own: &[u32]) -> Vec<(u64, u64)> {
    let has_own = tree::terminal(pid).and_then(number_of).is_some_and(|number| own.contains(&number));
    let is_foreign = |device| match number_of(device) {
        // One that has hung up is dumped as that.
        Some(number) => !own.contains(&number) && Path::new(DEVPTS_FOLDER).join(number.to_string()).exists(),
        None => (major(device), minor(device)) == CONTROLLING_DEVICE && !has_own,
    };
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let terminals = links
        .filter_map(|link| stat(link.path()).ok())
        .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && is_foreign(stat.st_rdev));
    terminals.map(|stat| (stat.st_rdev, stat.st_dev)).collect()
}

/// The number of a pseudo-terminal by the device of its other end.
fn number_of(device: u64) -> Option<u32> {
    let major = major(device);
    SLAVE_MAJORS.contains(&major).then(|| (major - SLAVE_MAJORS.start()) << 20 | minor(device))
}

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
    let number = |text: String| tree::proc_field(&text, "tty-index:")?.parse().ok();
    opened.filter_map(|entry| number(fs::read_to_string(folder.join("fdinfo").join(entry.file_name())).ok()?)).collect()
}

/// Whether a process has one of these numbers.
pub(crate) fn are_in_use(numbers: &[u32]) -> bool {
    numbers.iter().any(|number| Path::new(DEVPTS_FOLDER).join(number.to_string()).exists())
}

/// Mounts a place of its own for terminals, in a mount namespace of its own.
pub(crate) fn mount_own() -> io::Result<()> {
    let options = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
    Ok(mount("devpts", DEVPTS_FOLDER, "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)?)
}

/// Takes the numbers below and between these, in a new place of its own, until the value is dropped: CRIU finds a number by
/// opening terminals until one has it, and opens 32 at most.
pub(crate) fn fill_up(numbers: &[u32]) -> io::Result<Vec<OwnedFd>> {
    let count = numbers.iter().max().map_or(0, |last| last.saturating_add(1)).min(MAX_TERMINALS);
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
        assert!(numbers(&us).contains(&number) && are_in_use(&[number]));
        drop(terminal);
        assert!(!numbers(&us).contains(&number));
        assert!(!are_in_use(&[u32::MAX]));
    }
}
