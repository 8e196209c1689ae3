//! Standard input, output and error of a program: what they are called in a dump, and how a restore gives others.
//!
//! A restored program reads and writes where `katydid restore` does, as if that had started it. CRIU can do this for a
//! descriptor whose target it knows by name: `--inherit-fd fd[N]:NAME`. The rule: a name is given only for what cannot be
//! anything else of the program (pipes, sockets, terminals, regular files); `/dev/null` and other devices are opened
//! again as they were. What was opened in another mount namespace, as by whoever enters a container, or may not be
//! read, is given from outside.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open, stat};
use rustix::termios::isatty;
use serde::{Deserialize, Serialize};

/// What one of the three descriptors is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standard {
    /// A pipe whose other end belongs to somebody else.
    Pipe {
        /// `st_ino`.
        inode: u64,
    },
    /// A socket.
    Socket {
        /// `st_ino`.
        inode: u64,
    },
    /// A terminal.
    Terminal {
        /// `st_rdev`.
        rdev: u64,
        /// `st_dev`.
        dev: u64,
    },
    /// A regular file.
    File {
        /// Where it is.
        path: String,
    },
    /// A file or device in a mount namespace that is not the program's.
    Outside {
        /// Where it is there.
        path: String,
        /// Of the mount that it was opened through.
        mount: u64,
        /// `st_ino`.
        inode: u64,
    },
    /// Anything else, or nothing: restored as it was.
    Other,
}

impl Standard {
    /// What `fd` is.
    #[must_use]
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        let known = |stat: Stat| {
            let standard = Self::known(&stat, || isatty(fd), target(fd));
            standard.if_seen(Path::new("/proc/self"), fd.as_raw_fd(), &stat)
        };
        fstat(fd).map_or(Self::Other, known)
    }

    /// What is behind such a link of `/proc` as `/proc/7/fd/1`.
    fn behind(process: &Path, number: i32) -> Self {
        let link = &process.join("fd").join(number.to_string());
        // Opened anew, which makes it nobody's terminal.
        let open = || open(link, OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        let known =
            |stat: Stat| Self::known(&stat, || open().is_ok_and(isatty), text_of(link)).if_seen(process, number, &stat);
        stat(link).map_or(Self::Other, known)
    }

    /// The same for a process such as `/proc/7`: a file that was opened in a mount namespace which is not the process's is
    /// outside. A dump would look for its mount, and find none. So is one that this user may not read, as of a service whose
    /// streams root has opened: a dump looks into it.
    fn if_seen(self, process: &Path, number: i32, stat: &Stat) -> Self {
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

    /// By what the system says of it, whether it is a terminal, and where `/proc` says that it is.
    fn known(stat: &Stat, is_terminal: impl FnOnce() -> bool, target: Option<String>) -> Self {
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

    /// The three of another process.
    #[must_use]
    pub fn of_process(pid: u32) -> [Self; 3] {
        [0, 1, 2].map(|number| Self::behind(Path::new(&format!("/proc/{pid}")), number))
    }

    /// The three of this process, which are those of a program that it starts.
    #[must_use]
    pub fn ours() -> [Self; 3] {
        [Self::of(std::io::stdin().as_fd()), Self::of(std::io::stdout().as_fd()), Self::of(std::io::stderr().as_fd())]
    }

    /// The same for a program in namespaces of its own: there, files of ours are files outside.
    #[must_use]
    pub fn ours_from_outside() -> [Self; 3] {
        let mount_of = |fd: BorrowedFd<'_>| mount_of(Path::new("/proc/self"), fd.as_raw_fd());
        let outside = |standard, fd: BorrowedFd<'_>| match (standard, mount_of(fd), fstat(fd)) {
            (Self::File { path }, Some(mount), Ok(stat)) => Self::Outside { path, mount, inode: stat.st_ino },
            (standard, ..) => standard,
        };
        let [input, output, error] = Self::ours();
        [
            outside(input, std::io::stdin().as_fd()),
            outside(output, std::io::stdout().as_fd()),
            outside(error, std::io::stderr().as_fd()),
        ]
    }

    /// Where a regular file is.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::File { path } | Self::Outside { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The name in CRIU's words; none for [`Standard::Other`].
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Pipe { inode } => Some(format!("pipe:[{inode}]")),
            Self::Socket { inode } => Some(format!("socket:[{inode}]")),
            Self::Terminal { rdev, dev } => Some(format!("tty[{rdev:x}:{dev:x}]")),
            Self::File { path } => Some(path.trim_start_matches('/').to_owned()),
            // CRIU takes the first letter for the '/' of a path, as above. By the whole name it would open the file anew, and
            // want it to be as long as it was.
            Self::Outside { .. } => self.external().map(|name| name[1..].to_owned()),
            Self::Other => None,
        }
    }

    /// What a dump must be told, so that it does not look for the other end.
    #[must_use]
    pub fn external(&self) -> Option<String> {
        match self {
            Self::Terminal { .. } => self.name(),
            Self::Outside { mount, inode, .. } => Some(format!("file[{mount:x}:{inode:x}]")),
            Self::Socket { inode } => Some(format!("unix[{inode}]")),
            _ => None,
        }
    }
}

/// The arguments that give a restored program `fds` in place of what `then` says it had.
#[must_use]
pub fn inherit(then: &[Standard; 3], fds: [BorrowedFd<'_>; 3]) -> Vec<OsString> {
    let mut seen = Vec::new();
    let mut arguments = Vec::new();
    for (standard, fd) in then.iter().zip(fds) {
        // Standard output and error are often one and the same: the first counts.
        let Some(name) = standard.name().filter(|name| !seen.contains(name)) else { continue };
        arguments.push("--inherit-fd".into());
        arguments.push(format!("fd[{}]:{name}", fd.as_raw_fd()).into());
        seen.push(name);
    }
    arguments
}

/// The id of the mount that a descriptor of a process was opened through.
fn mount_of(process: &Path, number: i32) -> Option<u64> {
    let text = fs::read_to_string(process.join("fdinfo").join(number.to_string())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// Whether a mount is in the namespace of a process; it is where that cannot be told.
fn sees(process: &Path, mount: u64) -> bool {
    let Ok(mounts) = fs::read_to_string(process.join("mountinfo")) else { return true };
    let number = |line: &str| line.split(' ').next().and_then(|number| number.parse().ok());
    mounts.lines().any(|line| number(line) == Some(mount))
}

/// Whether this process may read all files that it has as standard streams.
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

/// What `/proc` says the descriptor is; none when that is no text.
fn target(fd: BorrowedFd<'_>) -> Option<String> {
    text_of(&Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string()))
}

/// Where a link leads; none when that is no text.
fn text_of(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_and_files_are_told_apart() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = Standard::of(writer.as_fd());
        assert_eq!(pipe, Standard::of(reader.as_fd()));
        assert!(pipe.name().unwrap().starts_with("pipe:["));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        assert_eq!(Standard::of(file.as_fd()), Standard::File { path: path.clone() });
        assert_eq!(Standard::File { path }.name().unwrap(), file.path().to_str().unwrap()[1..]);
        let (process, number) = (Path::new("/proc/self"), file.as_file().as_raw_fd());
        let mount = mount_of(process, number).unwrap();
        assert!(sees(process, mount) && !sees(process, u64::MAX));
        let null = fs::File::open("/dev/null").unwrap();
        assert_eq!(Standard::of(null.as_fd()), Standard::Other);
    }

    #[test]
    fn those_of_another_process_are_seen_as_it_sees_them() {
        assert_eq!(Standard::of_process(std::process::id()), Standard::ours());
        let (reader, writer) = std::io::pipe().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut sleep = std::process::Command::new("/bin/sleep");
        sleep.arg("1000").stdin(reader).stdout(file.reopen().unwrap()).stderr(std::process::Stdio::null());
        let mut child = sleep.spawn().unwrap();
        let expected = [Standard::of(writer.as_fd()), Standard::of(file.as_fd()), Standard::Other];
        assert_eq!(Standard::of_process(child.id()), expected);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(Standard::of_process(child.id()), [const { Standard::Other }; 3]);
    }

    #[test]
    fn one_target_is_named_once() {
        let pipe = || Standard::Pipe { inode: 5 };
        let null = fs::File::open("/dev/null").unwrap();
        let arguments = inherit(&[Standard::Other, pipe(), pipe()], [null.as_fd(); 3]);
        assert_eq!(arguments, ["--inherit-fd".into(), OsString::from(format!("fd[{}]:pipe:[5]", null.as_raw_fd()))]);
    }

    #[test]
    fn the_names_are_criu_s() {
        assert_eq!(Standard::Terminal { rdev: 0x8801, dev: 0x18 }.name().unwrap(), "tty[8801:18]");
        assert_eq!(Standard::Socket { inode: 9 }.external().unwrap(), "unix[9]");
        assert_eq!(Standard::Pipe { inode: 9 }.external(), None);
        let outside = Standard::Outside { path: "/e".into(), mount: 27, inode: 255 };
        assert_eq!((outside.external().unwrap().as_str(), outside.path()), ("file[1b:ff]", Some("/e")));
        assert_eq!(outside.name().unwrap(), "ile[1b:ff]");
    }
}
