//! The journal of a restore: its changes outside of its job, one a line, each written before the change is made.
//!
//! A restore that is killed outright undoes nothing. Then its guard undoes the changes in the journal. If it had no guard yet,
//! the next restore of this user does.
//!
//! ```text
//! $XDG_RUNTIME_DIR/katydid/restores/PID-N      or /tmp/katydid-UID/restores/PID-N; mode 0600
//! ```
//!
//! The rule: the restore holds a lock on its journal (`flock`) for as long as it lives. A journal whose lock is free belongs to a
//! restore that is gone; the process that takes the lock undoes it. Only journals of this user count, in folders that no other
//! user may enter or replace.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use katydid_scratch::private;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::process::file_id::DatedFileId;
use crate::supervisor::{folder, runtime_dirs};

/// The folder of journals, beside the folder of jobs.
const JOURNALS_FOLDER: &str = "restores";
/// Most bytes of a journal. A restore that needs more is refused, and a longer file is no journal.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;
/// Additional bytes for the line that says that the job goes on.
const KEPT_LINE_BYTES: u64 = 64;
/// Most names of other processes' journals that are skipped for a free one.
const MAX_CREATE_ATTEMPTS: u32 = 1000;

/// A change that a restore makes, or a stage that it has reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    /// A file of the restore gets this name.
    Made { path: PathBuf, id: DatedFileId },
    /// The file with the name `path` gets the name `backup`.
    Renamed { path: PathBuf, backup: PathBuf, id: DatedFileId },
    /// CRIU needs this name, and removes it when it has restored the job.
    CriuName { path: PathBuf, id: DatedFileId },
    /// A socket gets a second name, since CRIU may take its own.
    Socket { path: PathBuf, second: PathBuf, id: DatedFileId },
    /// CRIU has restored the job; `sockets` has the files that have the sockets' names now.
    Restored { sockets: Vec<(PathBuf, Option<DatedFileId>)> },
    /// The job goes on: it owns the files that were made.
    Committed,
}

/// A journal that changes can be added to.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// `None` if another process removes the journal.
    path: Option<PathBuf>,
}

impl Journal {
    /// Makes a journal, and locks it.
    ///
    /// # Errors
    ///
    /// No folder can hold the journal.
    pub(crate) fn create() -> io::Result<Self> {
        let above = folder::cache().ok_or_else(|| io::Error::other("there is no folder for its journal"))?;
        Self::create_below(&above.join(JOURNALS_FOLDER))
    }

    pub(super) fn create_below(folder: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        private::folders(folder)?;
        for _ in 0..MAX_CREATE_ATTEMPTS {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("{}-{number}", std::process::id()));
            let file = match File::options().read(true).append(true).create_new(true).mode(0o600).open(&path) {
                // It is of a process in another namespace, or of an earlier one with this id.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            match is_locked(&file, &path) {
                Ok(true) => return Ok(Self { file, path: Some(path) }),
                // Before it was locked, another process may have taken it for abandoned.
                Ok(false) => {}
                Err(error) => {
                    let _ = fs::remove_file(&path);
                    return Err(error);
                }
            }
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Opens the journal of the process that started this one.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::options().read(true).append(true).open(path)?, path: None })
    }

    pub(crate) fn path(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(""))
    }

    /// Leaves the journal to the next process that looks for it.
    #[cfg(test)]
    pub(super) fn abandon(mut self) {
        self.path = None;
    }

    /// Notes a change that is about to be made. If that fails, the journal is as before.
    pub(super) fn add(&mut self, change: &Change) -> io::Result<()> {
        let mut line = serde_json::to_vec(change)?;
        line.push(b'\n');
        let length_before = self.file.metadata()?.len();
        let limit = if *change == Change::Committed { MAX_JOURNAL_BYTES + KEPT_LINE_BYTES } else { MAX_JOURNAL_BYTES };
        if length_before.saturating_add(line.len() as u64) > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all(&line).inspect_err(|_| {
            let _ = self.file.set_len(length_before);
        })
    }

    /// Returns all changes. An incomplete line stands for a change that was not made. Later lines count all the same, since one
    /// may say that the job goes on.
    pub(super) fn changes(&mut self) -> io::Result<Vec<Change>> {
        self.file.rewind()?;
        let (mut text, longest) = (Vec::new(), MAX_JOURNAL_BYTES + KEPT_LINE_BYTES);
        if Read::by_ref(&mut self.file).take(longest + 1).read_to_end(&mut text)? as u64 > longest {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let lines = text.split_inclusive(|byte| *byte == b'\n');
        Ok(lines.filter_map(|line| serde_json::from_slice(line.strip_suffix(b"\n")?).ok()).collect())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

/// Takes the lock on a journal, and returns whether it has it: the journal must be this user's, and still have its name.
fn is_locked(file: &File, path: &Path) -> io::Result<bool> {
    let stat = file.metadata()?;
    if !stat.is_file() || stat.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(false),
        locked => locked.map(|()| DatedFileId::of(path) == Some(DatedFileId::new(&stat))).map_err(io::Error::from),
    }
}

/// The journal, locked, if its process is gone.
fn claim(path: &Path) -> Option<Journal> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).ok()?;
    let file = File::options().read(true).append(true).custom_flags(flags).open(path).ok()?;
    let is_ours = is_locked(&file, path).ok()?;
    is_ours.then(|| Journal { file, path: Some(path.to_owned()) })
}

/// Journals of this user's restores that are gone, each locked.
pub(super) fn abandoned() -> impl Iterator<Item = Journal> {
    runtime_dirs::own().into_iter().flat_map(|above| abandoned_below(&above.join(JOURNALS_FOLDER)))
}

pub(super) fn abandoned_below(folder: &Path) -> impl Iterator<Item = Journal> + use<> {
    journals(folder).filter_map(|path| claim(&path))
}

/// Whether a process still has a journal. A child that it has just forked holds its locks for a moment.
pub(super) fn has_journal(process: u32) -> bool {
    let of_process = |path: PathBuf| {
        let pid = path.file_name().and_then(|name| name.to_str()?.split_once('-')).map(|(pid, _)| pid.to_owned());
        pid.is_some_and(|pid| pid == process.to_string())
    };
    folder::cache().is_some_and(|above| journals(&above.join(JOURNALS_FOLDER)).any(of_process))
}

fn journals(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}
