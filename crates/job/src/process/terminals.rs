//! Pseudo-terminals that a job has opened itself, such as those of `mpirun` for its ranks. They are known by numbers, which
//! programs hold in the names of the slave ends.
//!
//! A restore needs the very same numbers. The rule: if another process has one of them, the job gets a `/dev/pts` of its own, in
//! which it has all of them. It gets one only then, because the terminal at which a user started the restore has no name there.

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

/// Folder of the slave ends. `/dev/ptmx` belongs to the file system that is mounted here.
const DEVPTS_FOLDER: &str = "/dev/pts";
/// Names by which pseudo-terminals are opened.
const OPENED_AS: [&str; 2] = ["/dev/ptmx", "/dev/pts/ptmx"];

/// Most terminals that are opened to reserve their numbers.
const MAX_TERMINALS: u32 = 512;

/// The controlling terminal of the process that opens it.
const CONTROLLING_TERMINAL: &str = "/dev/tty";
/// The device of that name.
const CONTROLLING_DEVICE: (u32, u32) = (5, 0);
/// Major numbers of the slave ends of pseudo-terminals.
const SLAVE_MAJORS: RangeInclusive<u32> = 136..=143;

/// Modes of a terminal of the job, set by a program that reads single keys, say.
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

/// This process's controlling terminal, if it has one.
pub(crate) fn controlling() -> Option<OwnedFd> {
    open(CONTROLLING_TERMINAL, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// If this process is in the foreground of its terminal, sets the modes that the job's terminal had. Also makes the group of
/// `processes` that was in the foreground there so again. Otherwise the terminal stays as it is.
pub(crate) fn take_up(modes: &Modes, processes: &[Process]) {
    let Some(terminal) = controlling() else { return };
    if tcgetpgrp(&terminal) != Ok(getpgrp()) {
        return;
    }
    if let Ok(mut attributes) = tcgetattr(&terminal) {
        attributes.input_modes = InputModes::from_bits_retain(modes.input);
        attributes.output_modes = OutputModes::from_bits_retain(modes.output);
        attributes.local_modes = LocalModes::from_bits_retain(modes.local);
        // Without line mode, these two decide when a read ends. The other keys are those of this terminal.
        if !attributes.local_modes.contains(LocalModes::ICANON) && modes.keys.len() > MIN_KEY_CHARS.max(KEY_TIME_INDEX)
        {
            attributes.special_codes[SpecialCodeIndex::VMIN] = modes.keys[MIN_KEY_CHARS];
            attributes.special_codes[SpecialCodeIndex::VTIME] = modes.keys[KEY_TIME_INDEX];
        }
        // If the terminal hangs up meanwhile, the program gets the signal.
        let _ = tcsetattr(&terminal, OptionalActions::Now, &attributes);
    }
    let of = |process: &Process| tree::seen_group(process.pid) == Some(modes.group);
    let group = processes.iter().find(|process| of(process)).and_then(|process| tree::group_and_session(process.pid));
    if let Some(group) = group.and_then(|(group, _)| Pid::from_raw(i32::try_from(group).ok()?)) {
        // The kernel refuses this for a terminal of another session, as a job in namespaces of its own has.
        let _ = tcsetpgrp(&terminal, group);
    }
}

/// `VTIME` and `VMIN` in `c_cc`.
const KEY_TIME_INDEX: usize = 5;
const MIN_KEY_CHARS: usize = 6;

/// Device and file system numbers of slave ends that the processes have open but have not made themselves; and of `/dev/tty`, if
/// that is none of theirs. CRIU dumps at most one such terminal.
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
        // CRIU dumps a terminal that has hung up as such.
        Some(number) => !own.contains(&number) && Path::new(DEVPTS_FOLDER).join(number.to_string()).exists(),
        None => (major(device), minor(device)) == CONTROLLING_DEVICE && !has_own,
    };
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let terminals = links
        .filter_map(|link| stat(link.path()).ok())
        .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && is_foreign(stat.st_rdev));
    terminals.map(|stat| (stat.st_rdev, stat.st_dev)).collect()
}

/// The number of a pseudo-terminal, from the device of its slave end.
fn number_of(device: u64) -> Option<u32> {
    let major = major(device);
    SLAVE_MAJORS.contains(&major).then(|| (major - SLAVE_MAJORS.start()) << 20 | minor(device))
}

/// Numbers of the pseudo-terminals whose master ends the processes have open, as they see them.
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

/// Mounts a private `/dev/pts`, in a mount namespace of the job's own.
pub(crate) fn mount_own() -> io::Result<()> {
    let options = c"newinstance,ptmxmode=0666,mode=0620,gid=5";
    Ok(mount("devpts", DEVPTS_FOLDER, "devpts", MountFlags::NOSUID | MountFlags::NOEXEC, options)?)
}

/// Takes all numbers below the highest of these that are not among them, in a fresh `/dev/pts`, until the value is dropped. CRIU
/// finds a number by opening terminals until one has it, and opens at most 32.
pub(crate) fn fill_up(numbers: &[u32]) -> io::Result<Vec<OwnedFd>> {
    let count = numbers.iter().max().map_or(0, |last| last.saturating_add(1)).min(MAX_TERMINALS);
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    // Each open gets the lowest free number.
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
