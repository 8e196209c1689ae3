//! Standard input, output and error of a program: their names in a dump, and their replacements in a restore.
//!
//! A restored program reads and writes where `katydid restore` does, as if that had started it (`criu/restore_images.rs`). The
//! rule: a stream is replaced only if it cannot be any other file of the program (pipes, sockets, terminals, regular files that
//! it writes). `/dev/null` and other devices are opened again; a regular file of standard input is read on at its offset. So is a
//! pipe of standard input that no process can write to any more, as of a small here-document: the dump has its rest. A file that
//! was opened in another mount namespace, as by a process that enters a container, or that may not be read, is given from
//! outside.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, stat};
use rustix::termios::isatty;
use serde::{Deserialize, Serialize};

use crate::process::tree;

/// The target of a standard stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandardStream {
    /// A pipe whose other end belongs to another process.
    Pipe {
        /// Inode number of the pipe, `st_ino`.
        inode: u64,
    },
    /// A socket, known by its inode.
    Socket {
        /// Inode number of the socket, `st_ino`.
        inode: u64,
    },
    /// A terminal, known by its device.
    Terminal {
        /// Number of the device, `st_rdev`.
        rdev: u64,
        /// Device of its file system, `st_dev`.
        dev: u64,
    },
    /// A regular file, known by its path.
    File {
        /// Path of the file.
        path: String,
    },
    /// A file or device in a mount namespace that is not the program's.
    Outside {
        /// Path of the file in that namespace.
        path: String,
        /// Id of the mount that it was opened through.
        mount: u64,
        /// Inode number of the file, `st_ino`.
        inode: u64,
    },
    /// Anything else, or nothing: restored as it was.
    Other,
}

impl StandardStream {
    /// Examines the descriptor `fd`.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        let known = |stat: Stat| {
            let standard = Self::of_stat(&stat, || isatty(fd), target(fd));
            standard.if_visible(Path::new("/proc/self"), fd.as_raw_fd(), &stat)
        };
        fstat(fd).map_or(Self::Other, known)
    }

    /// The stream behind a link of `/proc` such as `/proc/7/fd/1`.
    fn of_link(process: &Path, number: i32) -> Self {
        let link = &process.join("fd").join(number.to_string());
        // The new open makes it no process's controlling terminal.
        let open = || open(link, OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let known = |stat: Stat| {
            Self::of_stat(&stat, || open().is_ok_and(isatty), text_of(link)).if_visible(process, number, &stat)
        };
        stat(link).map_or(Self::Other, known)
    }

    /// The stream as a process such as `/proc/7` sees it. A file that was opened in another mount namespace is outside: a dump
    /// would look for its mount, and find none. So is a file that this user may not read, as of a service whose streams root has
    /// opened: a dump reads it.
    fn if_visible(self, process: &Path, number: i32, stat: &Stat) -> Self {
        let has_place =
            matches!(FileType::from_raw_mode(stat.st_mode), FileType::RegularFile | FileType::CharacterDevice);
        let path = match &self {
            Self::File { path } => Some(path.clone()),
            Self::Other if has_place => text_of(&process.join("fd").join(number.to_string())),
            _ => None,
        };
        match (path, mount_of(process, number)) {
            (Some(path), Some(mount)) if !sees(process, mount) || !can_be_read(process, number) => {
                Self::Outside { path, mount, inode: stat.st_ino }
            }
            _ => self,
        }
    }

    /// The stream with this metadata; `target` is its path according to `/proc`.
    fn of_stat(stat: &Stat, is_terminal: impl FnOnce() -> bool, target: Option<String>) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            // A FIFO with a name can be opened again.
            FileType::Fifo if target.as_ref().is_some_and(|path| path.starts_with('/')) => Self::Other,
            FileType::Fifo => Self::Pipe { inode: stat.st_ino },
            FileType::Socket => Self::Socket { inode: stat.st_ino },
            FileType::CharacterDevice if is_terminal() => Self::Terminal { rdev: stat.st_rdev, dev: stat.st_dev },
            FileType::RegularFile => target.map_or(Self::Other, |path| Self::File { path }),
            _ => Self::Other,
        }
    }

    /// The standard streams of another process.
    #[must_use]
    pub fn of_process(pid: u32) -> [Self; 3] {
        [0, 1, 2].map(|number| Self::of_link(Path::new(&format!("/proc/{pid}")), number))
    }

    /// The standard streams of this process, which a program that it starts inherits.
    #[must_use]
    pub fn own_streams() -> [Self; 3] {
        [Self::of(std::io::stdin().as_fd()), Self::of(std::io::stdout().as_fd()), Self::of(std::io::stderr().as_fd())]
    }

    /// The stream `fd` for a program in a mount namespace of its own: there, files of this process are files outside.
    #[must_use]
    pub fn from_outside(fd: BorrowedFd<'_>) -> Self {
        match (Self::of(fd), mount_of(Path::new("/proc/self"), fd.as_raw_fd()), fstat(fd)) {
            (Self::File { path }, Some(mount), Ok(stat)) => Self::Outside { path, mount, inode: stat.st_ino },
            (standard, ..) => standard,
        }
    }

    /// Path of a regular file.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::File { path } | Self::Outside { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Argument of CRIU's `--external` for a dump, so that CRIU does not look for the other end.
    #[must_use]
    pub fn external(&self) -> Option<String> {
        match self {
            Self::Terminal { rdev, dev } => Some(format!("tty[{rdev:x}:{dev:x}]")),
            Self::Outside { mount, inode, .. } => Some(format!("file[{mount:x}:{inode:x}]")),
            Self::Socket { inode } => Some(format!("unix[{inode}]")),
            _ => None,
        }
    }
}

/// The streams at a dump of a job that began with `streams`. A pipe of standard input without a writer is the job's own: no other
/// process can supply what is still in it.
pub(crate) fn at_dump(streams: &[StandardStream; 3]) -> [StandardStream; 3] {
    let mut now = streams.clone();
    if let StandardStream::Pipe { inode } = now[0]
        && has_no_writer(std::io::stdin().as_fd(), inode)
    {
        now[0] = StandardStream::Other;
    }
    now
}

/// Whether this is the pipe with that inode, and no process has its write end.
fn has_no_writer(input: BorrowedFd<'_>, inode: u64) -> bool {
    let mut polled = [PollFd::new(&input, PollFlags::IN)];
    fstat(input).is_ok_and(|stat| stat.st_ino == inode)
        && poll(&mut polled, Some(&Timespec::default())).is_ok()
        && polled[0].revents().contains(PollFlags::HUP)
}

/// Whether a restore replaces the file at a path by a stream of its own. Standard input is not replaced: the program reads on in
/// its file.
pub(crate) fn is_replaced(streams: &[StandardStream; 3], path: &Path) -> bool {
    let is_own = |number, standard: &StandardStream| number == 0 && matches!(standard, StandardStream::File { .. });
    let mut replaced = streams.iter().enumerate().filter(|(number, standard)| !is_own(*number, standard));
    replaced.any(|(_, standard)| standard.path().map(Path::new) == Some(path))
}

/// Id of the mount through which a process's descriptor was opened.
fn mount_of(process: &Path, number: i32) -> Option<u64> {
    let text = fs::read_to_string(process.join("fdinfo").join(number.to_string())).ok()?;
    tree::proc_field(&text, "mnt_id:")?.parse().ok()
}

/// Whether a mount is in the namespace of a process; `true` if that is unknown.
fn sees(process: &Path, mount: u64) -> bool {
    let Ok(mounts) = fs::read_to_string(process.join("mountinfo")) else { return true };
    let number = |line: &str| line.split(' ').next().and_then(|number| number.parse().ok());
    mounts.lines().any(|line| number(line) == Some(mount))
}

/// Whether this process may read all files behind its standard streams.
pub(crate) fn are_readable() -> bool {
    [std::io::stdin().as_fd(), std::io::stdout().as_fd(), std::io::stderr().as_fd()].into_iter().all(|fd| {
        let is_file = fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        !is_file || can_be_read(Path::new("/proc/self"), fd.as_raw_fd())
    })
}

/// Whether the file of a descriptor can be opened again for reading.
fn can_be_read(process: &Path, number: i32) -> bool {
    let link = process.join("fd").join(number.to_string());
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(link, flags, Mode::empty()).is_ok()
}

/// The descriptor's name in `/proc`; `None` if that is not UTF-8.
fn target(fd: BorrowedFd<'_>) -> Option<String> {
    text_of(&Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string()))
}

/// The target of a link; `None` if that is not UTF-8.
fn text_of(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipe_without_a_writer_is_the_jobs_own() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let StandardStream::Pipe { inode } = StandardStream::of(reader.as_fd()) else { panic!() };
        std::io::Write::write_all(&mut writer, b"rest").unwrap();
        assert!(!has_no_writer(reader.as_fd(), inode));
        drop(writer);
        assert!(has_no_writer(reader.as_fd(), inode) && !has_no_writer(reader.as_fd(), inode + 1));
    }

    #[test]
    fn pipes_and_files_are_distinguished() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = StandardStream::of(writer.as_fd());
        assert_eq!(pipe, StandardStream::of(reader.as_fd()));
        assert!(matches!(pipe, StandardStream::Pipe { .. }));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        assert_eq!(StandardStream::of(file.as_fd()), StandardStream::File { path });
        let (process, number) = (Path::new("/proc/self"), file.as_file().as_raw_fd());
        let mount = mount_of(process, number).unwrap();
        assert!(sees(process, mount) && !sees(process, u64::MAX));
        let null = fs::File::open("/dev/null").unwrap();
        assert_eq!(StandardStream::of(null.as_fd()), StandardStream::Other);
    }

    #[test]
    fn standard_streams_of_another_process_are_recognized() {
        assert_eq!(StandardStream::of_process(std::process::id()), StandardStream::own_streams());
        let (reader, writer) = std::io::pipe().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sleep = std::process::Command::new("/bin/sleep");
        sleep.arg("1000").stdin(reader).stdout(file.reopen().unwrap()).stderr(std::process::Stdio::null());
        let mut child = sleep.spawn().unwrap();
        let expected = [StandardStream::of(writer.as_fd()), StandardStream::of(file.as_fd()), StandardStream::Other];
        assert_eq!(StandardStream::of_process(child.id()), expected);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(StandardStream::of_process(child.id()), [const { StandardStream::Other }; 3]);
    }

    #[test]
    fn a_file_of_standard_input_stays_the_program_s() {
        let file = |path: &str| StandardStream::File { path: path.into() };
        let streams = [file("/in"), file("/out"), StandardStream::Other];
        assert!(!is_replaced(&streams, Path::new("/in")) && is_replaced(&streams, Path::new("/out")));
    }

    #[test]
    fn the_names_are_criu_s() {
        assert_eq!(StandardStream::Terminal { rdev: 0x8801, dev: 0x18 }.external().unwrap(), "tty[8801:18]");
        assert_eq!(StandardStream::Socket { inode: 9 }.external().unwrap(), "unix[9]");
        assert_eq!(StandardStream::Pipe { inode: 9 }.external(), None);
        let outside = StandardStream::Outside { path: "/e".into(), mount: 27, inode: 255 };
        assert_eq!((outside.external().unwrap().as_str(), outside.path()), ("file[1b:ff]", Some("/e")));
    }
}
