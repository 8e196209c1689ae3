//! Files that were made for a restore, and what had their names before.
//!
//! The rule: until the job goes on, all of it can be undone, by whatever way the restore ends: it fails, or a signal ends this process
//! ([`leave_none`]). What another process has put under a name meanwhile is that process's, and stays.

use std::fs;
use std::io;
use std::mem;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use katydid_scratch::private;
use serde::{Deserialize, Serialize};

use crate::criu::link_remap_lock::rename_to_free;
use crate::process::file_id::FileId;

/// Names beside a file that are tried.
const MAX_NAME_ATTEMPTS: u32 = 1000;

/// All that a restore has made. Dropped, all is as it was, unless the files are kept.
#[derive(Debug)]
pub(crate) struct MadeFiles(Arc<Mutex<Changes>>);

/// What was changed, in order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Changes {
    made: Vec<MadeFile>,
    /// Names that CRIU takes away when it has restored the job.
    given: Vec<PathBuf>,
    /// Files whose names are the job's now: the name, and where the file is meanwhile.
    aside: Vec<(PathBuf, PathBuf)>,
    /// Sockets whose names CRIU may take.
    sockets: Vec<NamedSocket>,
}

/// A socket with a second name, until the job goes on.
#[derive(Debug, Serialize, Deserialize)]
struct NamedSocket {
    path: PathBuf,
    second: PathBuf,
    /// Device and inode of what had the name when CRIU had restored.
    restored: Option<FileId>,
}

impl NamedSocket {
    /// Whether the socket has lost its name to one of the job, and to no socket that its owner has made since.
    fn has_lost_its_name(&self) -> bool {
        match (id_of(&self.path), self.restored) {
            (None, _) => true,
            (now, _) if now == id_of(&self.second) => false,
            (now, Some(restored)) => now == Some(restored),
            // CRIU has failed, and no process of the job is left.
            (_, None) => !is_listened_at(&self.path),
        }
    }
}

/// A file as it was made, by device and inode.
#[derive(Debug, Serialize, Deserialize)]
struct MadeFile {
    path: PathBuf,
    id: FileId,
}

/// Device and inode of what has the name now; a symbolic link's own.
fn id_of(path: &Path) -> Option<FileId> {
    fs::symlink_metadata(path).ok().map(|stat| FileId::of(&stat))
}

/// The changes of this process that may still be undone.
fn pending() -> MutexGuard<'static, Vec<Arc<Mutex<Changes>>>> {
    static PENDING: Mutex<Vec<Arc<Mutex<Changes>>>> = Mutex::new(Vec::new());
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Undoes what restores of this process have made whose jobs do not go on: for one that a signal is about to end.
pub fn leave_none() {
    let pending = mem::take(&mut *pending());
    pending.iter().for_each(|changes| take(changes).undo());
}

fn lock(changes: &Mutex<Changes>) -> MutexGuard<'_, Changes> {
    changes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take(changes: &Mutex<Changes>) -> Changes {
    mem::take(&mut lock(changes))
}

impl MadeFiles {
    /// Nothing is made yet.
    pub(super) fn new() -> Self {
        Self::of(Changes::default())
    }

    fn of(changes: Changes) -> Self {
        let changes = Arc::new(Mutex::new(changes));
        pending().push(Arc::clone(&changes));
        Self(changes)
    }

    /// Notes what was just made under the name.
    pub(super) fn note(&self, path: &Path) {
        lock(&self.0).made.extend(id_of(path).map(|id| MadeFile { path: path.to_owned(), id }));
    }

    /// Notes a name that CRIU needs, and takes away when it has restored the job.
    pub(super) fn note_given(&self, name: &Path) {
        lock(&self.0).given.push(name.to_owned());
    }

    /// Notes where the file is now that had the name.
    pub(super) fn note_aside(&self, path: &Path, aside: PathBuf) {
        lock(&self.0).aside.push((path.to_owned(), aside));
    }

    /// Gives a socket a second name: CRIU may take its own for one of the job.
    pub(super) fn hold_socket(&self, path: PathBuf) {
        if let Ok((second, ())) = beside(&path, |second| fs::hard_link(&path, second)) {
            lock(&self.0).sockets.push(NamedSocket { path, second, restored: None });
        }
    }

    /// The job has them now.
    pub(crate) fn keep(self) {
        let changes = take(&self.0);
        let second_names = changes.sockets.into_iter().map(|socket| socket.second);
        for aside in changes.aside.into_iter().map(|(_, aside)| aside).chain(second_names) {
            // The job does not need it gone.
            let _ = fs::remove_file(aside);
        }
    }

    /// CRIU has taken away the names that it needed; others may have them from here on.
    pub(crate) fn restored(self) -> Self {
        let mut changes = lock(&self.0);
        changes.given.clear();
        changes.sockets.iter_mut().for_each(|socket| socket.restored = id_of(&socket.path));
        drop(changes);
        self
    }

    /// Leaves all that to another process, which finds it in the file `note`.
    pub(crate) fn hand_over(self, note: &Path) -> io::Result<()> {
        private::write(note, serde_json::to_vec(&*lock(&self.0))?)?;
        take(&self.0);
        Ok(())
    }

    /// What a process of other namespaces has left to us, as far as we see those files: it had the folders `hidden` for itself.
    pub(crate) fn handed_over(note: &Path, hidden: &[&Path]) -> Self {
        let text = fs::read(note).unwrap_or_default();
        // A process that made nothing has written no note.
        let mut changes: Changes = serde_json::from_slice(&text).unwrap_or_default();
        let _ = fs::remove_file(note);
        let is_seen = |path: &Path| !hidden.iter().any(|folder| path.starts_with(folder));
        changes.made.retain(|made| is_seen(&made.path));
        changes.aside.retain(|(path, _)| is_seen(path));
        changes.sockets.retain(|socket| is_seen(&socket.path));
        Self::of(changes).restored()
    }

    /// As [`leave_none`], for these alone: other tests of the process have some too.
    #[cfg(test)]
    pub(super) fn interrupt(&self) {
        assert!(pending().iter().any(|pending| Arc::ptr_eq(pending, &self.0)));
        take(&self.0).undo();
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        lock(&self.0).made.is_empty()
    }
}

impl Drop for MadeFiles {
    fn drop(&mut self) {
        pending().retain(|pending| !Arc::ptr_eq(pending, &self.0));
        take(&self.0).undo();
    }
}

impl Changes {
    /// Makes all as it was. The restore has failed for a reason that matters more than what fails here.
    fn undo(self) {
        for name in self.given.iter().rev() {
            let _ = fs::remove_file(name);
        }
        // What lies in a folder goes before it.
        for MadeFile { path, id } in self.made.iter().rev() {
            if id_of(path) == Some(*id) {
                let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
            }
        }
        for (path, aside) in self.aside.iter().rev() {
            // Where the name is another file's by now, both stay.
            let _ = rename_to_free(aside, path);
        }
        for socket in self.sockets.iter().rev() {
            if socket.has_lost_its_name() {
                let _ = fs::rename(&socket.second, &socket.path);
            }
            // A rename to another name of the same socket does nothing.
            let _ = fs::remove_file(&socket.second);
        }
    }
}

/// Whether a socket of that name has a process. CRIU's has none when the restore has failed.
fn is_listened_at(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused),
    }
}

/// Makes something under a name beside `path` that is free, and gives the name. `make` fails with `AlreadyExists` where the name is not
/// free: the folder may be another user's, who may take it between a look and the use.
pub(super) fn beside<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    let mut number = 0;
    loop {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".katydid-{}-{number}", std::process::id()));
        match make(Path::new(&name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAME_ATTEMPTS => number += 1,
            made => return made.map(|made| (name.into(), made)),
        }
    }
}

/// Gives a file another name beside its own.
pub(super) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    beside(path, |aside| rename_to_free(path, aside)).map(|(aside, ())| aside)
}
