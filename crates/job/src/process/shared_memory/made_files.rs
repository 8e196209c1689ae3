//! Files that a restore has made, and the files that had their names before.
//!
//! The rule: until the job goes on, everything can be undone, however the restore ends: it fails, a signal ends this process
//! ([`undo_all`]), or it is killed ([`undo_abandoned`]). So each change is noted in a journal before it is made, with the
//! identity of its file. A file that another process has put under a name meanwhile belongs to that process, and stays. Names are
//! changed by a descriptor of the folder that was checked, since another user may put a link to another folder in its place.

use std::fs;
use std::io;
use std::mem;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::change_journal::{Change, Journal, abandoned, has_journal};
use super::held_folder::HeldFolder;
use crate::criu::link_remap_lock::rename_to_free;
use crate::process::file_id::DatedFileId;

/// Most names beside a file that are tried.
const MAX_NAME_ATTEMPTS: u32 = 1000;
/// Interval between checks for journals whose locks become free.
const CLAIM_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Everything that a restore has made. Dropping the value undoes it, unless the files are kept.
#[derive(Debug)]
pub(crate) struct MadeFiles(Arc<Mutex<ChangeLog>>);

/// The changes, in order, in memory and in the journal.
#[derive(Debug, Default)]
struct ChangeLog {
    changes: Vec<Change>,
    /// `None` before the first change, and once everything is settled.
    journal: Option<Journal>,
}

impl ChangeLog {
    fn add(&mut self, change: Change) -> io::Result<()> {
        let journal = match &mut self.journal {
            Some(journal) => journal,
            none => none.insert(Journal::create()?),
        };
        journal.add(&change)?;
        self.changes.push(change);
        Ok(())
    }
}

/// The changes of this process that may still be undone.
fn pending() -> MutexGuard<'static, Vec<Arc<Mutex<ChangeLog>>>> {
    static PENDING: Mutex<Vec<Arc<Mutex<ChangeLog>>>> = Mutex::new(Vec::new());
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes the restores of this process whose jobs do not go on, because a signal is about to end the process.
pub fn undo_all() {
    let pending = mem::take(&mut *pending());
    pending.iter().for_each(|log| commit_or_undo(&take(log).changes));
}

/// Undoes the restores of this user that were killed before their jobs went on.
pub fn undo_abandoned() {
    abandoned().for_each(undo_journal);
}

/// As [`undo_abandoned`], right after the end of the process `supervisor`. While its journal is still locked, waits until a
/// `deadline`.
pub(crate) fn undo_after_exit(supervisor: u32, deadline: Instant) {
    undo_abandoned();
    while has_journal(supervisor) && Instant::now() < deadline {
        thread::sleep(CLAIM_POLL_INTERVAL);
        undo_abandoned();
    }
}

pub(super) fn undo_journal(mut journal: Journal) {
    commit_or_undo(&journal.changes().unwrap_or_default());
}

fn lock(log: &Mutex<ChangeLog>) -> MutexGuard<'_, ChangeLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the changes and their journal. The journal is removed when it is dropped, so only once the changes are settled.
fn take(log: &Mutex<ChangeLog>) -> ChangeLog {
    mem::take(&mut lock(log))
}

impl MadeFiles {
    /// An empty list of changes, which go into this journal, or into a new one.
    pub(super) fn new(journal: Option<Journal>) -> Self {
        Self::of(ChangeLog { changes: Vec::new(), journal })
    }

    fn of(log: ChangeLog) -> Self {
        let log = Arc::new(Mutex::new(log));
        pending().push(Arc::clone(&log));
        Self(log)
    }

    fn add(&self, change: Change) -> io::Result<()> {
        lock(&self.0).add(change)
    }

    /// Notes a file that is about to get this name, or has just been made under it.
    pub(super) fn note(&self, path: &Path, id: DatedFileId) -> io::Result<()> {
        self.add(Change::Made { path: path.to_owned(), id })
    }

    /// Notes a name that CRIU needs, and removes when it has restored the job. A file is about to get it.
    pub(super) fn note_criu_name(&self, name: &Path, id: DatedFileId) -> io::Result<()> {
        self.add(Change::CriuName { path: name.to_owned(), id })
    }

    /// Notes a file that is about to get another name.
    pub(super) fn note_renamed(&self, path: &Path, backup: &Path, id: DatedFileId) -> io::Result<()> {
        self.add(Change::Renamed { path: path.to_owned(), backup: backup.to_owned(), id })
    }

    /// Renames a file to a free name beside its own.
    pub(super) fn rename_original(&self, path: &Path) -> io::Result<()> {
        let id = DatedFileId::of(path).ok_or(io::ErrorKind::NotFound)?;
        beside(path, |backup| {
            self.note_renamed(path, backup, id)?;
            rename_to_free(path, backup)
        })
        .map(drop)
    }

    /// Gives a socket a second name, since CRIU may take its own for the job's. The kernel may refuse this for a socket of
    /// another user.
    pub(super) fn hold_socket(&self, path: &Path) {
        let Some(id) = DatedFileId::of(path) else { return };
        let _ = beside(path, |second| {
            self.add(Change::Socket { path: path.to_owned(), second: second.to_owned(), id })?;
            fs::hard_link(path, second)
        });
    }

    /// Keeps the files: the job owns them now.
    pub(crate) fn keep(self) {
        // If the process is killed from here on, the backups are removed.
        let _ = self.note_committed();
        let log = take(&self.0);
        log.changes.iter().rev().for_each(Change::keep);
    }

    pub(super) fn note_committed(&self) -> io::Result<()> {
        if self.is_empty() { Ok(()) } else { self.add(Change::Committed) }
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).changes.is_empty()
    }

    /// Notes that CRIU has removed the names that it needed; others may have them from here on.
    pub(crate) fn restored(self) -> io::Result<Self> {
        let mut log = lock(&self.0);
        let sockets = log.changes.iter().filter_map(|change| match change {
            Change::Socket { path, .. } => Some((path.clone(), DatedFileId::of(path))),
            _ => None,
        });
        let sockets = sockets.collect();
        if !log.changes.is_empty() {
            log.add(Change::Restored { sockets })?;
        }
        drop(log);
        Ok(self)
    }

    /// Leaves the changes to the process that reads the journal.
    pub(crate) fn hand_over(self) {
        take(&self.0);
    }

    /// Takes over the changes that a process in other namespaces has left in the journal. Files in its own file systems are gone
    /// with it.
    pub(crate) fn handed_over(mut journal: Journal) -> io::Result<Self> {
        let changes = journal.changes()?;
        Ok(Self::of(ChangeLog { changes, journal: Some(journal) }))
    }

    /// Works as [`undo_all`], for this value alone: other tests of the process have values too.
    #[cfg(test)]
    pub(super) fn interrupt(&self) {
        assert!(pending().iter().any(|pending| Arc::ptr_eq(pending, &self.0)));
        commit_or_undo(&take(&self.0).changes);
    }

    /// Leaves everything as a killed process does, with the journal. Returns the path of that.
    #[cfg(test)]
    pub(super) fn kill(self) -> PathBuf {
        let log = take(&self.0);
        let journal = log.journal.unwrap();
        let path = journal.path().to_owned();
        journal.abandon();
        path
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        pending().retain(|pending| !Arc::ptr_eq(pending, &self.0));
        commit_or_undo(&take(&self.0).changes);
    }
}

/// Undoes the changes, unless the job goes on. Errors are ignored: the restore has ended for a reason that matters more.
fn commit_or_undo(changes: &[Change]) {
    if changes.contains(&Change::Committed) {
        return changes.iter().rev().for_each(Change::keep);
    }
    let restored = changes.iter().rev().find_map(|change| match change {
        Change::Restored { sockets } => Some(sockets.as_slice()),
        _ => None,
    });
    // Files in a folder go before the folder.
    changes.iter().rev().for_each(|change| change.undo(restored));
}

/// Removes a name, if it still is that of this file.
fn remove(path: &Path, id: DatedFileId) {
    if let Some(held) = HeldFolder::of(path) {
        held.remove(path, id);
    }
}

impl HeldFolder<'_> {
    /// Removes a name in the folder, if it still is that of this file.
    fn remove(&self, name: &Path, id: DatedFileId) {
        if let Some(entry) = self.entry(name).filter(|entry| DatedFileId::of(entry) == Some(id)) {
            let _ = fs::remove_file(&entry).or_else(|_| fs::remove_dir(entry));
        }
    }

    /// Gives a file that has a second name in the folder its first one again.
    fn put_back(&self, path: &Path, backup: &Path, id: DatedFileId) {
        let Some((name, second)) = self.entry(path).zip(self.entry(backup)) else { return };
        if DatedFileId::of(&name) == Some(id) {
            self.remove(backup, id);
        } else if DatedFileId::of(&second) == Some(id) {
            // If another file has the name by now, both stay.
            let _ = rename_to_free(&second, &name);
        }
    }

    /// Gives a socket that has a second name in the folder its first one again, if that `is_lost`, and removes the second.
    fn put_socket_back(&self, path: &Path, second: &Path, id: DatedFileId, is_lost: impl FnOnce(&Path) -> bool) {
        let Some((name, held)) = self.entry(path).zip(self.entry(second)) else { return };
        if DatedFileId::of(&held) == Some(id) {
            if is_lost(&name) {
                let _ = fs::rename(&held, &name);
            }
            // A rename between two names of the same socket does nothing.
            self.remove(second, id);
        }
    }
}

impl Change {
    /// Settles a change that is not undone, because the job goes on.
    fn keep(&self) {
        match self {
            Self::Renamed { backup: name, id, .. } | Self::Socket { second: name, id, .. } => remove(name, *id),
            Self::Made { .. } | Self::CriuName { .. } | Self::Restored { .. } | Self::Committed => {}
        }
    }

    /// Undoes the change. `restored` has the files that had the sockets' names when CRIU had restored the job; `None` if it has
    /// not.
    fn undo(&self, restored: Option<&[(PathBuf, Option<DatedFileId>)]>) {
        match self {
            Self::Made { path, id } => remove(path, *id),
            Self::CriuName { path, id } if restored.is_none() => remove(path, *id),
            Self::Renamed { path, backup, id } => {
                if let Some(held) = HeldFolder::of(path) {
                    held.put_back(path, backup, *id);
                }
            }
            Self::Socket { path, second, id } => {
                let now =
                    restored.map(|sockets| sockets.iter().find(|(socket, _)| socket == path).and_then(|(_, id)| *id));
                if let Some(held) = HeldFolder::of(path) {
                    held.put_socket_back(path, second, *id, |name| has_lost_its_name(name, *id, now.flatten()));
                }
            }
            Self::CriuName { .. } | Self::Restored { .. } | Self::Committed => {}
        }
    }
}

/// Whether a socket has lost its name to one of the job, and not to a file that others have made since. `restored` had the name
/// when CRIU had restored.
fn has_lost_its_name(path: &Path, id: DatedFileId, restored: Option<DatedFileId>) -> bool {
    match (DatedFileId::of(path), restored) {
        (None, _) => true,
        (Some(now), _) if now == id => false,
        (now, Some(_)) => now == restored,
        // CRIU has failed, and no process of the job is left.
        (_, None) => is_dead_socket(path),
    }
}

/// Whether a name is that of a socket without a process, as CRIU's is when the restore has failed.
fn is_dead_socket(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|stat| stat.file_type().is_socket());
    // A blocking connect would wait for an owner that accepts nothing.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| connect(socket, &SocketAddrUnix::new(path)?));
    is_socket && matches!(connected, Err(Errno::NOENT | Errno::CONNREFUSED))
}

/// Calls `make` with free names beside `path` until it succeeds, and returns the name. `make` fails with `AlreadyExists` if the
/// name is taken: the folder may be another user's, who may take the name between check and use.
pub(super) fn beside<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    let mut number = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".katydid-{}-{number}", std::process::id()));
        match make(Path::new(&name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAME_ATTEMPTS => number += 1,
            result => return result.map(|entry| (name.into(), entry)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use rustix::net::{bind, listen};

    use super::super::change_journal::abandoned_below;
    use super::*;

    /// Names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn id(path: &Path) -> DatedFileId {
        DatedFileId::of(path).unwrap()
    }

    #[test]
    fn a_journal_that_says_more_than_a_restore_does_changes_nothing_elsewhere() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [here, there] = [&folder, &other].map(|root| root.path().join("file"));
        for path in [&here, &there] {
            fs::write(path, "text").unwrap();
        }
        let (outside, name) = (id(&there), || PathBuf::from("file"));
        let link = folder.path().join("link");
        symlink(&there, &link).unwrap();
        for change in [
            Change::Renamed { path: folder.path().join("free"), backup: there.clone(), id: outside },
            Change::Socket { path: folder.path().join("free"), second: there.clone(), id: outside },
            Change::Made { path: link.clone(), id: outside },
            Change::Made { path: name(), id: id(&here) },
            Change::Made { path: here.clone(), id: outside },
            Change::Made { path: folder.path().join("link/.."), id: id(other.path()) },
        ] {
            commit_or_undo(std::slice::from_ref(&change));
            assert_eq!(
                (names(folder.path()), names(other.path())),
                (vec!["file".into(), "link".into()], vec!["file".into()]),
                "{change:?}"
            );
        }
    }

    #[test]
    fn a_damaged_journal_undoes_nothing_of_a_job_that_goes_on() {
        let (folder, journals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        for (damage, is_left) in [("{\"made\":{\"path\":\"/\n", true), ("\n\0\n[[[[\n", true), ("", true), ("x", false)]
        {
            let mut journal = Journal::create_below(journals.path()).unwrap();
            journal.add(&Change::Made { path: path.clone(), id: id(&path) }).unwrap();
            File::options().append(true).open(journal.path()).unwrap().write_all(damage.as_bytes()).unwrap();
            journal.add(&Change::Committed).unwrap();
            journal.abandon();
            assert_eq!(abandoned_below(journals.path()).map(undo_journal).count(), 1);
            assert_eq!(path.exists(), is_left, "{damage}");
        }
    }

    #[test]
    fn journal_beyond_its_bound_is_refused() {
        let (folder, journals) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        let mut journal = Journal::create_below(journals.path()).unwrap();
        let change = Change::Made { path: path.clone(), id: id(&path) };
        journal.add(&change).unwrap();
        let file = File::options().write(true).open(journal.path()).unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(journal.add(&change).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        journal.add(&Change::Committed).unwrap();
        assert!(journal.changes().unwrap().contains(&change), "the job goes on all the same");
        file.set_len(1 << 40).unwrap();
        journal.abandon();
        assert_eq!(abandoned_below(journals.path()).map(undo_journal).count(), 1);
        assert!(path.exists());
    }

    #[test]
    fn foreign_files_among_the_journals_stay() {
        let (journals, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = other.path().join("file");
        fs::write(&file, "{}").unwrap();
        symlink(&file, journals.path().join("1-0")).unwrap();
        symlink("/", journals.path().join("1-1")).unwrap();
        fs::create_dir(journals.path().join("1-2")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            journals.path().join("1-3"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        let _listener = UnixListener::bind(journals.path().join("1-4")).unwrap();
        assert_eq!(abandoned_below(journals.path()).count(), 0);
        assert_eq!((names(journals.path()).len(), names(other.path()).len()), (5, 1));
    }

    #[test]
    fn undo_spares_sockets_of_other_processes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _first = UnixListener::bind(&path).unwrap();
        let hold = || {
            let made_files = MadeFiles::new(None);
            made_files.hold_socket(&path);
            fs::remove_file(&path).unwrap();
            made_files
        };
        let made_files = hold();
        fs::write(&path, "text").unwrap();
        drop(made_files);
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        fs::remove_file(&path).unwrap();
        // A listener that accepts nothing, and has a full queue.
        let _second = UnixListener::bind(&path).unwrap();
        let made_files = hold();
        let full = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&full, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&full, 0).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        let third = id(&path);
        drop(made_files);
        assert_eq!((id(&path), names(folder.path()).len()), (third, 1));
    }
}
