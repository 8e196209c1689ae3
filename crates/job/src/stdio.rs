//! Standard input, output and error of a program: what they are called in a dump, and how a restore gives others.
//!
//! A restored program reads and writes where `katydid restore` does, as if that had started it. CRIU can do this for a
//! descriptor whose target it knows by name: `--inherit-fd fd[N]:NAME`. The rule: a name is given only for what cannot be
//! anything else of the program (pipes, sockets, terminals, regular files); `/dev/null` and other devices are opened
//! again as they were.

use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{FileType, fstat};
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
    /// A regular file in a mount namespace that is not the program's.
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
        let Ok(stat) = fstat(fd) else { return Self::Other };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo if is_named(fd) => Self::Other,
            FileType::Fifo => Self::Pipe { inode: stat.st_ino },
            FileType::Socket => Self::Socket { inode: stat.st_ino },
            FileType::CharacterDevice if isatty(fd) => Self::Terminal { rdev: stat.st_rdev, dev: stat.st_dev },
            FileType::RegularFile => target(fd).map_or(Self::Other, |path| Self::File { path }),
            _ => Self::Other,
        }
    }

    /// The three of this process, which are those of a program that it starts.
    #[must_use]
    pub fn ours() -> [Self; 3] {
        [Self::of(std::io::stdin().as_fd()), Self::of(std::io::stdout().as_fd()), Self::of(std::io::stderr().as_fd())]
    }

    /// The same for a program in namespaces of its own: there, files of ours are files outside.
    #[must_use]
    pub fn ours_from_outside() -> [Self; 3] {
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

/// Whether a FIFO has a name, so that it can be opened again.
fn is_named(fd: BorrowedFd<'_>) -> bool {
    target(fd).is_some_and(|path| path.starts_with('/'))
}

/// The id of the mount that a descriptor was opened through.
fn mount_of(fd: BorrowedFd<'_>) -> Option<u64> {
    let text = fs::read_to_string(Path::new("/proc/self/fdinfo").join(fd.as_raw_fd().to_string())).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()
}

/// What `/proc` says the descriptor is; none when that is no text.
fn target(fd: BorrowedFd<'_>) -> Option<String> {
    let link = fs::read_link(Path::new("/proc/self/fd").join(fd.as_raw_fd().to_string())).ok()?;
    link.into_os_string().into_string().ok()
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
        assert!(mount_of(file.as_fd()).is_some());
        let null = fs::File::open("/dev/null").unwrap();
        assert_eq!(Standard::of(null.as_fd()), Standard::Other);
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
