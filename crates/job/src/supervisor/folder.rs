//! The folder of a job, and how a job is found by its name or by the id of one of its processes.
//!
//! ```text
//! $XDG_RUNTIME_DIR/katydid/jobs/      or /tmp/katydid-UID/jobs/, both of mode 0700 and this user's; see below
//!   NAME/lock                         locked as long as the job's supervisor lives
//!   NAME/job.json                     name, supervisor and program
//!   NAME/control                      the control socket (HTTP/JSON)
//!   NAME/shims                        the job socket, for the shims of the job's programs
//!   NAME/libraries                    libraries that its programs have mapped, and that are not installed any more
//! ```
//!
//! The second path is for a user without a usable `XDG_RUNTIME_DIR`: it is unset, missing, another user's (as after `su`), or too
//! long for a socket in it. Jobs are looked for in all such folders (`supervisor/runtime_dirs.rs`), since the caller's variable
//! may differ.
//!
//! The rule: the holder of the lock owns the folder, and has its process id in it. A folder whose lock is free is debris and may
//! be taken. No process waits for an owner, but one that only checks the lock, or removes debris, holds it for a moment. A
//! process that makes a job removes the debris of others. So does the guard of a supervisor that was killed
//! (`supervisor/guard.rs`), which also removes what is abandoned among temporary files. Programs remember the path of the job
//! socket, so a restored job needs the very same folder. An owner that a signal ends before its job has a guard removes its
//! folders itself ([`remove_all`]). An owner that leaves removes the lock last. Until then no other process takes the folder, and
//! from then on the owner touches nothing in it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::iter;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use katydid_scratch::private;
use katydid_transport::MAX_SOCKET_PATH_BYTES;
use katydid_wire::job::JOB_VARIABLE;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::process::tree;
use crate::supervisor::members::out_of_sight;
use crate::supervisor::runtime_dirs;
use crate::supervisor::runtime_dirs::{JOBS_FOLDER, MAX_JOB_NAME_CHARS};

/// Most bytes of a `job.json` that are read.
const MAX_JOB_FILE_BYTES: u64 = 64 << 10;
/// Most jobs of one name at a time.
const MAX_NAMESAKES: u32 = 10_000;

/// Attempts to take a folder whose owner is about to go, or whose lock another process checks.
const MAX_TAKE_ATTEMPTS: u32 = 1000;
/// Time between two attempts.
const FOLDER_RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Name of the folder of libraries.
pub(crate) const LIBRARIES_FOLDER: &str = "libraries";
/// Name of the lock.
const JOB_LOCK_FILE: &str = "lock";

/// A job folder that this process owns. Dropping the value removes the folder.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The lock, which is released with this value.
    lock: File,
    /// Runs when this process gives the folder up.
    removal: Once,
    /// Whether it is one of [`owned_folders`].
    is_noted: bool,
}

/// A job as its `job.json` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// Name of the job, which is that of its folder.
    pub name: String,
    /// Process id of the supervisor.
    pub supervisor: u32,
    /// Process id of the program at the root of the tree, in the supervisor's namespace; 0 until it is started.
    pub program: u32,
    /// File name of the program.
    pub command: String,
}

/// Why there is no job folder, or no job.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder above all jobs cannot be used.
    #[error("{}: {problem}; set XDG_RUNTIME_DIR to a folder that belongs to you", path.display())]
    Unusable {
        /// The folder or file that failed.
        path: PathBuf,
        /// What is wrong with the folder.
        problem: String,
    },
    /// The name is not a valid one.
    #[error(
        "{name:?} cannot be the name of a job: at most {MAX_JOB_NAME_CHARS} of letters, digits, '.', '_' and '-', not first '.' or '-'"
    )]
    Name {
        /// Name that was requested.
        name: String,
    },
    /// Another process uses the folder.
    #[error("{}: another job has it; wait until that has ended", path.display())]
    InUse {
        /// The folder or file that failed.
        path: PathBuf,
    },
    /// No job has the name, or the process.
    #[error("no job {wanted}: there {present}")]
    Unknown {
        /// Job that was requested, by its name or a process.
        wanted: String,
        /// `are a, b` or `is none`.
        present: String,
    },
    /// An empty name.
    #[error("the name of the job is empty: there {present}")]
    Unnamed {
        /// `are a, b` or `is none`.
        present: String,
    },
    /// The job is in another mount namespace, such as a container's.
    #[error(
        "process {pid} belongs to a job in another mount namespace; run this command there (by `nsenter --target {pid} --mount --pid` or `podman exec`), with {} as the job and an image path of that namespace",
        job.display()
    )]
    Elsewhere {
        /// Process that was requested.
        pid: u32,
        /// Folder of the job that the process belongs to.
        job: PathBuf,
    },
    /// Several jobs of other users, or in several folders of one user, have the name.
    #[error(
        "several jobs are called {wanted}: give the process id of the supervisor that is meant, one of {supervisors}"
    )]
    Several {
        /// Job that was requested.
        wanted: String,
        /// Process ids of their supervisors.
        supervisors: String,
    },
    /// A system call on the folder failed.
    #[error("{}: {source}; set XDG_RUNTIME_DIR to a folder that you can write to, with free space", path.display())]
    System {
        /// Path of the folder.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
}

impl Folder {
    /// Takes a folder for a job called `name`, with a number appended if other jobs have that name.
    ///
    /// # Errors
    ///
    /// See [`FolderError`].
    pub fn take(name: &str) -> Result<Self, FolderError> {
        let jobs = jobs()?;
        let folder = Self::take_below(&jobs, name);
        clear_below(&jobs);
        folder
    }

    /// Works as [`Folder::take`], in the folder `jobs`.
    pub(crate) fn take_below(jobs: &Path, name: &str) -> Result<Self, FolderError> {
        let name = tidy(name);
        for number in 1..=MAX_NAMESAKES {
            let path = jobs.join(if number == 1 { name.clone() } else { format!("{name}-{number}") });
            match Self::take_at(&path) {
                Err(FolderError::InUse { .. }) => {}
                other => return other,
            }
        }
        Err(FolderError::InUse { path: jobs.join(name) })
    }

    /// Takes exactly this folder.
    ///
    /// # Errors
    ///
    /// [`FolderError::InUse`] if a job has it.
    pub fn take_at(path: &Path) -> Result<Self, FolderError> {
        // Held until the folder is noted, so that a process that a signal ends leaves none.
        let mut owned = owned_folders();
        let system = |source| FolderError::System { path: path.join(JOB_LOCK_FILE), source };
        if owned.is_over {
            return Err(system(io::ErrorKind::Interrupted.into()));
        }
        let mut folder = Self::claim(path)?;
        let mut lock = &folder.lock;
        lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id())).map_err(system)?;
        owned.paths.push(path.to_owned());
        folder.is_noted = true;
        Ok(folder)
    }

    /// Takes exactly this folder, for a job or to clear it away.
    fn claim(path: &Path) -> Result<Self, FolderError> {
        let system = |source| FolderError::System { path: path.to_owned(), source };
        if path.join("control").as_os_str().len() > MAX_SOCKET_PATH_BYTES {
            let problem = "its path is too long for a socket".to_owned();
            return Err(FolderError::Unusable { path: path.to_owned(), problem });
        }
        for _ in 0..MAX_TAKE_ATTEMPTS {
            if let Some(lock) = lock_of(path)? {
                let folder = Self { path: path.to_owned(), lock, removal: Once::new(), is_noted: false };
                for socket in [folder.control(), folder.shims(), out_of_sight(&folder.shims())] {
                    remove(&socket).map_err(system)?;
                }
                return Ok(folder);
            }
        }
        Err(FolderError::InUse { path: path.to_owned() })
    }

    /// Gives the folder up, and removes it.
    pub fn leave(&self) {
        self.removal.call_once(|| {
            // Held until the folder is gone; after that it may be another process's.
            let mut guard = self.is_noted.then(owned_folders);
            empty(&self.path);
            guard.iter_mut().for_each(|folders| folders.paths.retain(|path| *path != self.path));
        });
    }

    /// Path of the job's folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the job, which is that of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Path of the control socket, for commands such as `katydid checkpoint`.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.path.join("control")
    }

    /// Path of the job socket, to which the job's programs connect.
    #[must_use]
    pub fn shims(&self) -> PathBuf {
        self.path.join("shims")
    }

    /// Writes `job.json`, which describes the job.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn describe(&self, program: u32, command: &str) -> Result<(), FolderError> {
        let entry =
            JobEntry { name: self.name(), supervisor: std::process::id(), program, command: command.to_owned() };
        let path = self.path.join("job.json");
        let system = |source| FolderError::System { path: path.clone(), source };
        let fresh = self.path.join(".job.json");
        let text = serde_json::to_vec(&entry).map_err(|error| system(error.into()))?;
        private::write(&fresh, text).and_then(|()| fs::rename(&fresh, &path)).map_err(system)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Removes a folder that this process owns.
fn empty(path: &Path) {
    // The next job of the name takes over debris that stays.
    let inside = fs::read_dir(path).into_iter().flatten().flatten();
    for entry in inside.filter(|entry| entry.file_name() != JOB_LOCK_FILE) {
        let _ = fs::remove_file(entry.path());
    }
    let _ = fs::remove_dir_all(path.join(LIBRARIES_FOLDER));
    let _ = fs::remove_file(path.join(JOB_LOCK_FILE));
    // The folder may be another job's by now, and is not empty then.
    let _ = fs::remove_dir(path);
}

/// The folders that this process owns.
struct OwnedFolders {
    paths: Vec<PathBuf>,
    /// Whether the process is about to end, and takes no more folders.
    is_over: bool,
}

fn owned_folders() -> MutexGuard<'static, OwnedFolders> {
    static OWNED: Mutex<OwnedFolders> = Mutex::new(OwnedFolders { paths: Vec::new(), is_over: false });
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the folders that this process owns, and makes it take no more. Called when a signal is about to end the process, whose
/// jobs have no guard to do so.
pub fn remove_all() {
    let mut folders = owned_folders();
    folders.is_over = true;
    folders.paths.drain(..).for_each(|path| empty(&path));
}

/// Makes the folder and takes its lock; `None` if another owner removed them meanwhile.
fn lock_of(path: &Path) -> Result<Option<File>, FolderError> {
    let system = |source| FolderError::System { path: path.to_owned(), source };
    match private::folder(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(system(error)),
        _ => {}
    }
    let lock_path = path.join(JOB_LOCK_FILE);
    let open = || File::options().create(true).append(true).read(true).mode(0o600).open(&lock_path).map_err(system);
    let lock = match check(path).and_then(|()| open()) {
        Err(FolderError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(None),
        lock => lock?,
    };
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) if has_owner(&lock) => return Err(FolderError::InUse { path: path.to_owned() }),
        Err(Errno::WOULDBLOCK) => {
            thread::sleep(FOLDER_RETRY_INTERVAL);
            return Ok(None);
        }
        Err(error) => return Err(system(error.into())),
        Ok(()) => {}
    }
    let number = |stat: io::Result<fs::Metadata>| stat.ok().map(|stat| stat.ino());
    let (lock_inode, there) = (number(lock.metadata()), number(fs::metadata(&lock_path)));
    Ok((lock_inode.is_some() && lock_inode == there).then_some(lock))
}

/// Whether the holder of the lock is its owner, as far as the system shows it: only an owner writes its process id into it.
fn has_owner(mut lock: &File) -> bool {
    let mut text = String::new();
    // If the lock file cannot be read, the holder may well be an owner.
    lock.read_to_string(&mut text).is_err() || text.trim().parse().is_ok_and(|pid| !tree::has_ended(pid))
}

/// The jobs of this user that run now, by name.
///
/// # Errors
///
/// The folder of the jobs cannot be used.
pub fn running() -> Result<Vec<JobEntry>, FolderError> {
    // Reports what is wrong with the folder of new jobs.
    jobs()?;
    let mut entries = Vec::new();
    for jobs in all_jobs() {
        entries.extend(running_below(&jobs)?);
    }
    Ok(entries)
}

fn running_below(jobs: &Path) -> Result<Vec<JobEntry>, FolderError> {
    let system = |source| FolderError::System { path: jobs.to_owned(), source };
    let mut entries = Vec::new();
    for folder in fs::read_dir(jobs).map_err(system)? {
        entries.extend(alive(&folder.map_err(system)?.path()));
    }
    entries.sort_by(|a: &JobEntry, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// The job in a folder, if its supervisor lives.
pub(crate) fn alive(folder: &Path) -> Option<JobEntry> {
    if !folder.join(JOB_LOCK_FILE).exists() || is_debris(folder) {
        return None;
    }
    let mut text = Vec::new();
    // The folder may be another user's, who may put any file there.
    open_file(&folder.join("job.json")).ok()?.take(MAX_JOB_FILE_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Opens a file that is no link, without waiting for a process at the other end of a FIFO.
pub(crate) fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty())?.into())
}

/// A running job, with its folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundJob {
    /// The job's `job.json`.
    pub entry: JobEntry,
    /// User id of the job's owner.
    pub user: u32,
    /// Path of the job's folder.
    pub folder: PathBuf,
}

impl FoundJob {
    /// Path of the supervisor's control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.folder.join("control")
    }

    /// The servers that the job's programs have used, the current one first.
    #[must_use]
    pub fn servers(&self) -> Vec<String> {
        let opened = open_file(&self.folder.join("server"));
        let mut text = String::new();
        let read = opened.and_then(|file| file.take(MAX_JOB_FILE_BYTES).read_to_string(&mut text));
        if read.is_ok() { text.lines().map(str::to_owned).collect() } else { Vec::new() }
    }
}

/// All jobs that the caller may know of: a user's own, those in its first folder first, and for root those of all users.
pub fn all() -> Vec<FoundJob> {
    let below = |jobs: PathBuf| fs::read_dir(jobs).into_iter().flatten().flatten().map(|entry| entry.path());
    let known = runtime_dirs::all().into_iter().flat_map(|above| below(above.join(JOBS_FOLDER)));
    let from_environments =
        runtime_dirs::pick_from_environments(folder_in_environment).into_iter().map(|(_, folder)| folder);
    let us = geteuid();
    // Compared by inode, since a folder may have two names.
    let (mut seen, mut jobs) = (BTreeSet::new(), Vec::new());
    for folder in known.chain(from_environments) {
        let Ok(stat) = fs::symlink_metadata(&folder) else { continue };
        let user = stat.uid();
        if !stat.is_dir() || (user != us.as_raw() && !us.is_root()) || !seen.insert((stat.dev(), stat.ino())) {
            continue;
        }
        jobs.extend(alive(&folder).map(|entry| FoundJob { entry, user, folder }));
    }
    jobs
}

/// The job that `selector` names. `selector` is a name, or the id of the supervisor, the program, or a
/// descendant. The job is one of [`all`].
///
/// # Errors
///
/// [`FolderError::Unknown`] names the jobs that exist.
pub fn find(selector: &str) -> Result<FoundJob, FolderError> {
    let first = jobs()?;
    match choose(&all(), &first, geteuid().as_raw(), selector) {
        Err(unknown @ FolderError::Unknown { .. }) => {
            let job = selector.parse().map_or(Ok(None), of_environment)?;
            job.ok_or(unknown)
        }
        found => found.cloned(),
    }
}

/// The job that was found before, if it still runs; a job of the same name elsewhere, or of another user, does not count.
///
/// # Errors
///
/// See [`find`].
pub fn find_again(selector: &str, job: &FoundJob) -> Result<FoundJob, FolderError> {
    let found = found_at(job.folder.clone()).filter(|found| found.user == job.user);
    found.ok_or_else(|| unknown(&all(), selector))
}

/// The running job in a folder, which belongs to the folder's user.
fn found_at(folder: PathBuf) -> Option<FoundJob> {
    let stat = fs::symlink_metadata(&folder).ok().filter(fs::Metadata::is_dir)?;
    alive(&folder).map(|entry| FoundJob { entry, user: stat.uid(), folder })
}

/// The job in the initial environment of a process. Its folder may differ from the caller's, and belong to another user.
///
/// The user who starts a process writes its environment, so that alone makes it no process of the job ([`is_of_job`]).
fn of_environment(pid: u32) -> Result<Option<FoundJob>, FolderError> {
    let Some(folder) = folder_in_environment(&fs::read(format!("/proc/{pid}/environ")).unwrap_or_default()) else {
        return Ok(None);
    };
    let mounts = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    if mounts("self") != mounts(&pid.to_string()) {
        let job = folder.file_name().unwrap_or_default().into();
        return Err(FolderError::Elsewhere { pid, job });
    }
    Ok(found_at(folder).filter(|job| is_of_job(job, pid)))
}

/// The job's folder, according to the environment of a process.
pub(crate) fn folder_in_environment(environment: &[u8]) -> Option<PathBuf> {
    runtime_dirs::variable(environment, JOB_VARIABLE)?
        .parent()
        .filter(|folder| folder.is_absolute())
        .map(Path::to_owned)
}

/// Chooses among jobs. A name means the caller's job in its folder for new jobs, else the caller's only one. A process id comes
/// before another user's job of that name: any user may call a job like the process of someone else.
fn choose<'a>(jobs: &'a [FoundJob], first: &Path, us: u32, selector: &str) -> Result<&'a FoundJob, FolderError> {
    let named = jobs.iter().filter(|job| job.entry.name == selector);
    let (own, foreign): (Vec<&FoundJob>, Vec<&FoundJob>) = named.partition(|job| job.user == us);
    let here = own.iter().copied().find(|job| job.folder.parent() == Some(first));
    let of_process = || selector.parse().ok().and_then(|pid| jobs.iter().find(|job| has_process(job, pid)));
    match (here, &own[..]) {
        (Some(job), _) | (None, &[job]) => Ok(job),
        (None, []) => match (of_process(), &foreign[..]) {
            (Some(job), _) | (None, &[job]) => Ok(job),
            (None, []) => Err(unknown(jobs, selector)),
            (None, several) => Err(ambiguous(several, selector)),
        },
        (None, several) => Err(ambiguous(several, selector)),
    }
}

/// The error for a name that several jobs have.
fn ambiguous(jobs: &[&FoundJob], selector: &str) -> FolderError {
    let supervisors: Vec<String> = jobs.iter().map(|job| job.entry.supervisor.to_string()).collect();
    FolderError::Several { wanted: selector.to_owned(), supervisors: supervisors.join(", ") }
}

/// Most jobs that a message names.
const MAX_NAMED_JOBS: usize = 8;

/// The error for a selector that names none of the jobs.
fn unknown(jobs: &[FoundJob], selector: &str) -> FolderError {
    let names: Vec<&str> = jobs.iter().map(|one| one.entry.name.as_str()).collect();
    let more = match names.len().saturating_sub(MAX_NAMED_JOBS) {
        0 => String::new(),
        more => format!(" and {more} more, which `katydid ps` lists"),
    };
    let present = if names.is_empty() {
        "is no job; start one with `katydid run`".to_owned()
    } else {
        let named = names[..names.len().min(MAX_NAMED_JOBS)].join(", ");
        format!("are {named}{more}; name one of these, or the id of one of its processes")
    };
    if selector.is_empty() {
        return FolderError::Unnamed { present };
    }
    FolderError::Unknown { wanted: selector.to_owned(), present }
}

/// Whether a process belongs to a job: it is the supervisor, or descends from it. The job's owner writes what `job.json` says, so
/// that counts only if the supervisor is a process of the owner.
fn has_process(job: &FoundJob, pid: u32) -> bool {
    let supervisor = job.entry.supervisor;
    tree::is_of_user(supervisor, job.user)
        && iter::successors(Some(pid), |pid| tree::parent(*pid)).any(|ancestor| ancestor == supervisor)
}

/// Whether a process that names a job in its environment belongs to it. A program that became another user is below the
/// supervisor still. One that is not, as in another PID namespace, has to be the owner's.
fn is_of_job(job: &FoundJob, pid: u32) -> bool {
    has_process(job, pid) || tree::is_of_user(pid, job.user)
}

/// Removes the folders of jobs, and temporary folders, that this user's supervisors left when they were killed.
pub fn clear_away() {
    own_jobs().iter().for_each(|jobs| clear_below(jobs));
    katydid_scratch::clear_away(&std::env::temp_dir());
}

/// Clears away right after the end of `supervisor`. A child that it has just forked holds its locks for a moment; this waits for
/// that until a `deadline`.
pub(crate) fn clear_away_after_exit(supervisor: u32, deadline: Instant) {
    clear_after_exit(supervisor, &own_jobs(), deadline);
    clear_away();
}

/// Clears away the folders of jobs below `jobs_folders`, right after the end of `supervisor`.
fn clear_after_exit(supervisor: u32, jobs_folders: &[PathBuf], deadline: Instant) {
    let is_left = |jobs: &PathBuf| {
        let mut folders = fs::read_dir(jobs).into_iter().flatten().flatten();
        folders.any(|folder| owner_of(&folder.path().join(JOB_LOCK_FILE)) == Some(supervisor))
    };
    while jobs_folders.iter().any(is_left) && Instant::now() < deadline {
        jobs_folders.iter().for_each(|jobs| clear_below(jobs));
        thread::sleep(FOLDER_RETRY_INTERVAL);
    }
}

/// The process id in a lock file.
fn owner_of(lock: &Path) -> Option<u32> {
    let mut text = String::new();
    open_file(lock).ok()?.take(MAX_JOB_FILE_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn clear_below(jobs: &Path) {
    let entries = fs::read_dir(jobs).into_iter().flatten().flatten();
    for debris in entries.map(|entry| entry.path()).filter(|folder| is_debris(folder)) {
        // Dropping the value removes the folder. If another process was quicker, it uses the folder.
        let _ = Folder::claim(&debris);
    }
}

/// Whether this folder has a lock that no process holds. The lock is taken only for the check.
fn is_debris(folder: &Path) -> bool {
    let Ok(lock) = open_file(&folder.join(JOB_LOCK_FILE)) else { return false };
    let is_free = flock(&lock, FlockOperation::NonBlockingLockShared).is_ok();
    // Closing the file is not enough: a child that another thread has just forked has a copy.
    let _ = flock(&lock, FlockOperation::Unlock);
    is_free
}

/// Folder for findings about this machine, which are kept until it restarts; `None` if no folder can be used.
pub(crate) fn cache() -> Option<PathBuf> {
    jobs().ok()?.parent().map(Path::to_owned)
}

/// The folder of this user's new jobs, which is made if it is missing.
pub(crate) fn jobs() -> Result<PathBuf, FolderError> {
    let above = runtime_dirs::of_user().swap_remove(0);
    let jobs = above.join(JOBS_FOLDER);
    for folder in [&above, &jobs] {
        match private::folder(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(FolderError::Unusable { path: folder.clone(), problem: error.to_string() });
            }
            _ => check(folder)?,
        }
    }
    Ok(jobs)
}

/// The existing folders of this user's jobs, the one of new jobs first.
fn all_jobs() -> Vec<PathBuf> {
    let jobs = runtime_dirs::all().into_iter().map(|above| above.join(JOBS_FOLDER));
    jobs.filter(|jobs| check(jobs).is_ok()).collect()
}

/// Those of the folders that no other user can replace while they are cleared away.
fn own_jobs() -> Vec<PathBuf> {
    let jobs = runtime_dirs::own().into_iter().map(|above| above.join(JOBS_FOLDER));
    jobs.filter(|jobs| check(jobs).is_ok()).collect()
}

/// Refuses a folder that other users may enter, or have made.
fn check(folder: &Path) -> Result<(), FolderError> {
    let problem = match fs::symlink_metadata(folder) {
        Err(source) => return Err(FolderError::System { path: folder.to_owned(), source }),
        Ok(stat) if !stat.is_dir() => "is not a folder".to_owned(),
        Ok(stat) if stat.uid() != geteuid().as_raw() => "belongs to another user".to_owned(),
        Ok(stat) if stat.mode() & 0o077 != 0 => "others may enter it".to_owned(),
        Ok(_) => return Ok(()),
    };
    Err(FolderError::Unusable { path: folder.to_owned(), problem })
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Checks a name that the user chose.
///
/// # Errors
///
/// [`FolderError::Name`].
pub fn check_name(name: &str) -> Result<(), FolderError> {
    if tidy(name) == name { Ok(()) } else { Err(FolderError::Name { name: name.to_owned() }) }
}

/// Makes a file name of any name: characters that it cannot have become '_'.
fn tidy(name: &str) -> String {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let tidy: String =
        name.chars().take(MAX_JOB_NAME_CHARS).map(|letter| if fits(letter) { letter } else { '_' }).collect();
    match tidy.chars().next() {
        None => "job".to_owned(),
        Some('.' | '-') => format!("_{}", &tidy[1..]),
        Some(_) => tidy,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use std::fs::DirBuilder;
    use std::os::unix::fs::DirBuilderExt;
    use std::os::unix::process::CommandExt;

    use katydid_tests::deadline::hang::hang_limit;

    use super::*;

    #[test]
    fn namesakes_get_numbers_and_the_dead_make_room() {
        let jobs = tempfile::tempdir().unwrap();
        let first = Folder::take_below(jobs.path(), "train").unwrap();
        let second = Folder::take_below(jobs.path(), "train").unwrap();
        assert_eq!((first.name().as_str(), second.name().as_str()), ("train", "train-2"));
        first.describe(1, "a").unwrap();
        second.describe(1, "b").unwrap();
        assert_eq!(running_below(jobs.path()).unwrap().len(), 2);
        drop(first);
        assert_eq!(Folder::take_below(jobs.path(), "train").unwrap().name(), "train");
    }

    #[test]
    fn of_namesakes_the_nearest_is_meant_or_none_is() {
        let job = |lock_path: &str, user, supervisor| FoundJob {
            entry: JobEntry { name: "train".into(), supervisor, program: 0, command: String::new() },
            user,
            folder: Path::new(lock_path).join("train"),
        };
        let find = |found: &[FoundJob], selector: &str| {
            let chosen = choose(found, Path::new("/here"), 7, selector);
            chosen.map(FoundJob::control).map_err(|error| error.to_string())
        };
        let (foreign_job, others) = (job("/theirs", 8, 1), job("/others", 9, 2));
        let (there, elsewhere, here) = (job("/there", 7, 3), job("/elsewhere", 7, 4), job("/here", 7, 5));
        assert_eq!(find(std::slice::from_ref(&foreign_job), "train").unwrap(), Path::new("/theirs/train/control"));
        let mut all = vec![foreign_job, others];
        assert!(find(&all, "train").unwrap_err().contains("one of 1, 2"));
        all.push(there);
        assert_eq!(find(&all, "train").unwrap(), Path::new("/there/train/control"));
        all.push(elsewhere);
        assert!(find(&all, "train").unwrap_err().contains("one of 3, 4"));
        all.push(here);
        assert_eq!(find(&all, "train").unwrap(), Path::new("/here/train/control"));
        assert!(find(&all[..2], "other").unwrap_err().contains("no job other: there are train, train"));
        let many: Vec<FoundJob> = (0..10).map(|pid| job("/many", 7, pid)).collect();
        assert!(find(&many, "other").unwrap_err().contains("train and 2 more, which `katydid ps` lists; name"));
        assert!(find(&all[..2], "").unwrap_err().starts_with("the name of the job is empty: there are train, train;"));
    }

    #[test]
    fn a_process_id_means_the_job_of_its_user_whatever_others_call_or_claim() {
        let job = |name: &str, user, path: &str| FoundJob {
            entry: JobEntry { name: name.into(), supervisor: std::process::id(), program: 1, command: String::new() },
            user,
            folder: path.into(),
        };
        let us = geteuid().as_raw();
        let own = std::process::id().to_string();
        let jobs = [job(&own, us + 1, "/impostor"), job("claims", us + 2, "/liar"), job("train", us, "/meant")];
        let find = |jobs: &[FoundJob], selector: &str| {
            choose(jobs, Path::new("/here"), us + 3, selector).map(|found| found.folder.clone()).ok()
        };
        assert_eq!(find(&jobs, &own), Some("/meant".into()));
        assert_eq!(find(&jobs, "1"), None, "only descendants of the supervisor are the job's");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        assert_eq!(find(&jobs, &child.id().to_string()), Some("/meant".into()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find(&jobs[..1], &own), Some("/impostor".into()), "a name of another user's job is one still");
    }

    #[test]
    fn an_owner_that_goes_takes_nothing_of_the_next_one_away() {
        let jobs = tempfile::tempdir().unwrap();
        let path = jobs.path().join("relay");
        let one = || {
            for _ in 0..200 {
                let Ok(folder) = Folder::take_at(&path) else { continue };
                fs::write(folder.shims(), "").unwrap();
                std::thread::yield_now();
                assert!(folder.shims().exists());
                folder.leave();
                folder.leave();
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(one))));
        assert!(!path.exists());
    }

    #[test]
    fn looking_for_jobs_and_debris_keeps_no_owner_from_a_folder() {
        let (jobs, over) = (tempfile::tempdir().unwrap(), AtomicBool::new(false));
        let looks = || {
            while !over.load(Ordering::Relaxed) {
                clear_below(jobs.path());
                // A folder that is removed during the search is skipped.
                let _ = running_below(jobs.path());
            }
        };
        let names: Vec<_> = std::thread::scope(|scope| {
            (0..2).for_each(|_| drop(scope.spawn(looks)));
            let names = (0..2000).map(|_| Folder::take_below(jobs.path(), "train").map(|folder| folder.name()));
            let names = names.collect();
            over.store(true, Ordering::Relaxed);
            names
        });
        let others: Vec<_> = names.iter().filter(|name| !name.as_ref().is_ok_and(|name| name == "train")).collect();
        assert!(others.is_empty(), "{} of {}: {others:?}", others.len(), names.len());
    }

    /// A child that another thread of the supervisor has just forked holds the lock like this.
    #[test]
    fn stale_job_folder_goes_while_a_forked_child_holds_its_lock_briefly() {
        let jobs = tempfile::tempdir().unwrap();
        let path = jobs.path().join("gone");
        let folder = Folder::take_at(&path).unwrap();
        let copy = folder.lock.try_clone().unwrap();
        owned_folders().paths.retain(|entry| *entry != path);
        std::mem::forget(folder);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(50));
                flock(&copy, FlockOperation::Unlock).unwrap();
            });
            clear_after_exit(std::process::id(), &[jobs.path().to_owned()], Instant::now() + hang_limit());
        });
        assert!(!path.exists());
    }

    #[test]
    fn stale_folder_of_a_killed_supervisor_is_not_a_job_and_is_reused() {
        let jobs = tempfile::tempdir().unwrap();
        let path = jobs.path().join("gone");
        DirBuilder::new().mode(0o700).create(&path).unwrap();
        for file in ["lock", "control", "shims", "job.json"] {
            fs::write(path.join(file), "{}").unwrap();
        }
        assert!(running_below(jobs.path()).unwrap().is_empty());
        let folder = Folder::take_at(&path).unwrap();
        assert!(!folder.control().exists());
        assert!(matches!(Folder::take_at(&path), Err(FolderError::InUse { .. })));
    }

    #[test]
    fn debris_goes_when_a_job_is_made_and_the_living_stay() {
        let jobs = tempfile::tempdir().unwrap();
        let living = Folder::take_below(jobs.path(), "living").unwrap();
        DirBuilder::new().mode(0o700).create(jobs.path().join("gone")).unwrap();
        for file in ["lock", "control", "shims", "job.json"] {
            fs::write(jobs.path().join("gone").join(file), "{}").unwrap();
        }
        clear_below(jobs.path());
        assert!(!jobs.path().join("gone").exists() && living.path().join(JOB_LOCK_FILE).exists());
    }

    #[test]
    fn a_folder_that_others_may_enter_is_refused() {
        let jobs = tempfile::tempdir().unwrap();
        let path = jobs.path().join("open");
        DirBuilder::new().mode(0o755).create(&path).unwrap();
        assert!(matches!(Folder::take_at(&path), Err(FolderError::Unusable { .. })));
    }

    #[test]
    fn processes_have_their_job_in_the_environment() {
        let environment = b"A=b\0KATYDID_JOB=/run/user/5/katydid/jobs/train/shims\0C=d\0";
        assert_eq!(folder_in_environment(environment).unwrap(), Path::new("/run/user/5/katydid/jobs/train"));
        assert_eq!(folder_in_environment(b"KATYDID_JOBS=/a/b\0KATYDID_JOB=a/b\0"), None);
        assert_eq!(of_environment(std::process::id()).unwrap(), None);
        let elsewhere = FolderError::Elsewhere { pid: 7, job: "train".into() }.to_string();
        assert!(elsewhere.contains("nsenter --target 7") && elsewhere.contains("with train as the job"), "{elsewhere}");
    }

    /// Runs as root alone, since no one else can start processes of other users.
    #[test]
    fn a_job_in_the_environment_counts_only_for_its_own_processes() {
        if !geteuid().is_root() {
            return;
        }
        let jobs = tempfile::tempdir().unwrap();
        let folder = Folder::take_below(jobs.path(), "mine").unwrap();
        let sleep = |user: u32| {
            let mut command = std::process::Command::new("sleep");
            command.arg("1000").env(JOB_VARIABLE, folder.shims()).uid(user).spawn().unwrap()
        };
        let mut processes = [sleep(0), sleep(65534)];
        let [own, foreign] = processes.each_ref().map(std::process::Child::id);
        let found = |pid: u32| of_environment(pid).unwrap().map(|job| job.folder);
        folder.describe(0, "a").unwrap();
        assert_eq!(found(foreign).as_deref(), Some(folder.path()), "a program that became another user");
        let elsewhere = JobEntry { name: "mine".into(), supervisor: own, program: 0, command: String::new() };
        private::write(&folder.path().join("job.json"), serde_json::to_vec(&elsewhere).unwrap()).unwrap();
        assert_eq!((found(own).as_deref(), found(foreign)), (Some(folder.path()), None));
        processes.iter_mut().for_each(|process| {
            process.kill().unwrap();
            process.wait().unwrap();
        });
    }

    #[test]
    fn any_name_becomes_one_for_a_folder() {
        for (name, tidied) in [("", "job"), ("a b/c", "a_b_c"), ("../x", "_._x"), ("ok-1.2", "ok-1.2"), ("--", "_-")] {
            assert_eq!(tidy(name), tidied);
        }
        assert!(check_name("train").is_ok() && check_name("a/b").is_err());
    }
}
