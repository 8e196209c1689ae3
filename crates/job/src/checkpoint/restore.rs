//! Restores a job: warm workers rebuild its sessions while CRIU makes its processes anew, stopped. Then both are brought
//! together, and the processes go on.
//!
//! The rule: a restore that fails leaves the image as it was, and no process, session or folder. Files and the terminal change
//! last, right before the processes go on, once sessions and processes are there ([`OpenedCheckpoint::commit`]).

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use katydid_image::{CheckpointChoice, CheckpointNumber, CheckpointReader, Image, ImageError, Manifest, Session};
use katydid_scratch::private;
use katydid_transport::Address;
use katydid_wire::handshake::SessionKind;
use katydid_wire::job::ToProgram;
use rustix::process::Signal;
use rustix::termios::isatty;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::image_notes::ImageNotes;
use crate::checkpoint::quiesce::{MEMBER_ORDER_TIMEOUT, Rejoin, answer_during, in_parallel, rejoin, session_kind};
use crate::checkpoint::recovery::Recovery;
use crate::checkpoint::worker_images;
use crate::criu::files_img::{FilesImage, RemappedFile};
use crate::criu::link_remap_lock::{LinkRemapLock, LinkRemapLockError};
use crate::criu::net_lock::SilencedConnections;
use crate::criu::restore_images::{OfferedStreams, RestoreImages};
use crate::criu::tool::{Criu, CriuError};
use crate::criu::{filelocks_img, files_img};
use crate::process::descriptors::{datagrams, leases, watches};
use crate::process::libraries::{Folders, LibraryError};
use crate::process::shared_memory::{Journal, MadeFiles, Segment};
use crate::process::stdio::StandardStream;
use crate::process::tree::Process;
use crate::process::written_files::WrittenFile;
use crate::process::{attributes, libraries, shared_memory, stopped, terminals, tree, written_files};
use crate::supervisor::companion::{Catalogue, Companion, CompanionError, Progress, Questions, Rebuild};
use crate::supervisor::folder::{Folder, FolderError};
use crate::supervisor::generations::Generations;
use crate::supervisor::guard::Guard;
use crate::supervisor::job::{Job, JobError, JobSettings};
use crate::supervisor::member_error::MemberError;
use crate::supervisor::members::Member;
use crate::supervisor::namespace::JobNamespaces;
use crate::supervisor::{folder, namespace};
use crate::sync::lock;
use crate::system::why;

/// How long a restored program may take to connect to the job socket: it tries every few milliseconds.
const RESTORED_JOIN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a process may take to end after its connections have ended.
const PROCESS_END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the kernel keeps the port of a connection that has ended (`TCP_TIMEWAIT_LEN`, a minute), and some seconds more.
const PORT_TIMEOUT: Duration = Duration::from_secs(65);
/// Time between two attempts to get a port.
const PORT_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Distance of new ids from the program's, capped at the kernel's highest.
const MEMBER_ID_GAP: u32 = 100;

/// Why a job was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The image cannot be read.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The image holds the GPU side only, without processes.
    #[error(
        "checkpoint {0} holds the GPU side only (--device-only): there is no program to restore; choose another one with --at, or take one without --device-only"
    )]
    NoProgram(u32),
    /// The manifest has no notes of the supervisor.
    #[error("checkpoint {0} lacks the supervisor's notes: another release wrote it; restore it with that release")]
    NoNotes(u32),
    /// The caller chose devices, and no session can use the choice.
    #[error("--device chooses devices of OpenCL, and checkpoint {0} has no session of that: leave it out")]
    NoChoice(u32),
    /// Katydid's libraries cannot be given to the processes.
    #[error("checkpoint {number}: {source}")]
    Library {
        /// Number of the checkpoint.
        number: u32,
        /// Why a library cannot be used.
        source: LibraryError,
    },
    /// CRIU cannot be started, or its restore failed.
    #[error(transparent)]
    Criu(#[from] CriuError),
    /// The job's folder cannot be taken.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The job cannot be supervised.
    #[error(transparent)]
    Job(#[from] JobError),
    /// A worker refused, or could not be reached.
    #[error("the GPU side cannot be rebuilt: {0}")]
    Companion(#[from] CompanionError),
    /// The process of a worker cannot be restored.
    #[error(
        "the worker of a session cannot be restored: {0}; use the driver, kind of GPU and katydid of the image, and a server whose user may restore processes"
    )]
    Worker(CompanionError),
    /// A restored program refused an order, or does not answer.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// Another process writes a file that has to be cut back.
    #[error(
        "{path} must be cut back to its length at the checkpoint, but process {pid} ({program}) has it open for writing; end that process, which may be the job itself"
    )]
    InUse {
        /// Path of the file.
        path: String,
        /// The process that has it open.
        pid: u32,
        /// Name of the program or file.
        program: String,
    },
    /// A file that has to be cut back cannot be.
    #[error(
        "{path}: cannot cut it back to its length at the checkpoint: {source}; let this user write to it, or remove it"
    )]
    Cut {
        /// Path of the file.
        path: String,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Shared memory cannot be made anew.
    #[error("{}: cannot make this shared memory anew: {source}; free some space there (df)", path.display())]
    Shared {
        /// Name of the program or file.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The folder that the job's programs know cannot be made.
    #[error(
        "{0}: the job's programs look for their supervisor there, and the folder cannot be made: {source}; as root, `install -d -m 0700 -o $USER {0}`",
        path.display()
    )]
    JobsFolder {
        /// Path of the file.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// Other processes held the lock on names of link_remap for too long.
    #[error(transparent)]
    LinkRemapLock(#[from] LinkRemapLockError),
    /// The operating system refused.
    #[error("cannot {doing}: {}", why(source))]
    System {
        /// The step that failed.
        doing: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
}

impl RestoreError {
    /// Whether the server has no free slot for a session, has no driver, or cannot be reached.
    #[must_use]
    pub fn is_of_server(&self) -> bool {
        match self {
            Self::Companion(error) | Self::Worker(error) => error.is_of_server(),
            _ => false,
        }
    }
}

/// Step that fails if the journal of the restore cannot be written.
const NOTE_FILES_STEP: &str = "note the files that the restore makes";

fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> RestoreError {
    move |source| RestoreError::System { doing, source: source.into() }
}

/// A checkpoint that can be restored.
#[derive(Debug)]
pub struct OpenedCheckpoint {
    image: PathBuf,
    reader: CheckpointReader,
    notes: ImageNotes,
    files: PathBuf,
    skipped: Option<CheckpointNumber>,
}

/// The surroundings of a restore.
#[derive(Debug)]
pub struct RestoreEnvironment<'a> {
    /// The server that gets the sessions.
    pub server: &'a Address,
    /// Root folder of Katydid's own CRIU.
    pub private_criu: &'a Path,
    /// The `katydid` executable that runs the hidden commands.
    pub katydid: &'a Path,
    /// Folder for CRIU's log and notes; the caller removes it.
    pub work: &'a Path,
    /// Devices of OpenCL to use in place of those that the sessions had: a line each, `NEW` or `OLD=NEW`.
    pub devices: &'a str,
    /// Called with a sentence that says what the restore waits for.
    pub waits: fn(&str),
}

/// A job that runs again.
#[derive(Debug)]
pub struct RestoredJob {
    /// The job, which can take further checkpoints.
    pub job: Job,
    /// Process id of the program, for signals.
    pub program: u32,
    /// Process to wait for: the program itself, or the keeper of its namespaces, which ends as the program does.
    pub child: u32,
    /// Guard process, the parent of `child`.
    pub guard: Guard,
    /// Files that were cut back.
    pub cut: Vec<WrittenFile>,
    /// Katydid's libraries that the job was started with and that are gone, so that it uses copies of its own.
    pub missing: Vec<PathBuf>,
}

impl OpenedCheckpoint {
    /// Opens a checkpoint and verifies the files of its processes.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`].
    pub fn open(image: &Path, which: CheckpointChoice) -> Result<Self, RestoreError> {
        let opened = Image::open(image)?;
        let reader = opened.checkpoint(which)?;
        let skipped = match which {
            CheckpointChoice::Latest => opened.newer_than(reader.number())?,
            CheckpointChoice::Number(_) => None,
        };
        let number = reader.number().0;
        let part = reader.manifest().criu.as_ref().ok_or(RestoreError::NoProgram(number))?;
        let notes = ImageNotes::decode(&part.notes).ok_or(RestoreError::NoNotes(number))?;
        let understood = libraries::check(&reader.manifest().libraries);
        understood.map_err(|source| RestoreError::Library { number, source })?;
        let files = reader.folder(&part.folder)?;
        Ok(Self { image: image.to_owned(), reader, notes, files, skipped })
    }

    /// Manifest of the checkpoint.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        self.reader.manifest()
    }

    /// The number of a newer checkpoint that has no manifest, when the newest was asked for.
    #[must_use]
    pub fn skipped(&self) -> Option<u32> {
        self.skipped.map(|number| number.0)
    }

    /// Names of the sessions that are saved as the processes of their workers.
    #[must_use]
    pub fn worker_images(&self) -> Vec<&str> {
        let sessions = self.manifest().sessions.iter().filter(|session| session.worker.is_some());
        sessions.map(|session| session.name.as_str()).collect()
    }

    /// Number of the checkpoint that is restored.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.reader.number().0
    }

    /// Restores the job. `notify` hears how many bytes of how many are back on the GPU.
    ///
    /// # Errors
    ///
    /// See [`RestoreError`]; nothing of the job remains then.
    pub fn restore(
        &self,
        surroundings: &RestoreEnvironment<'_>,
        notify: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<RestoredJob, RestoreError> {
        self.check(surroundings)?;
        shared_memory::undo_abandoned();
        let criu = Criu::find(surroundings.private_criu, folder::cache().as_deref())?;
        let (folder, own_namespaces) = self.take_folder()?;
        self.check_written()?;
        let placed = self.install_libraries(&folder, surroundings)?;
        let progress: Vec<Arc<Progress>> = self.manifest().sessions.iter().map(|_| Arc::default()).collect();
        let generations = self.notes.generations.clone().and_next();
        let streams = Streams::new(self, &placed.files, surroundings.work)?;
        let is_refused = AtomicBool::new(false);
        let (companions, started) = thread::scope(|scope| {
            let sessions = scope.spawn(|| {
                let sessions = self.rebuild(surroundings, &generations, &progress);
                is_refused.store(sessions.is_err(), SeqCst);
                sessions
            });
            let target = RestoreTarget { folder: &folder, own_namespaces, streams: &streams };
            let started = StartedProcesses::new(self, &criu, surroundings, &target, &is_refused);
            while !sessions.is_finished() {
                report_progress(&progress, notify);
                thread::sleep(PROCESS_END_POLL_INTERVAL);
            }
            (sessions.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), started)
        });
        report_progress(&progress, notify);
        // If the sessions fail, the processes are not made; then the sessions' error is the cause.
        let mut companions = companions?;
        let mut started = started?;
        let enter = started.enter(surroundings.katydid);
        let job = Job::open(JobSettings {
            stdio: streams.of_program(&self.notes.stdio, started.is_apart),
            folder,
            known_folder: self.notes.folder.clone(),
            command: self.manifest().job.command.clone(),
            private_criu: surroundings.private_criu.to_owned(),
            servers: self.notes.servers.clone(),
            generations,
            enter,
            task: None,
        })?;
        let result = job.set_server(&surroundings.server.to_string()).map_err(system("note the server"));
        let reunited = result.and_then(|()| {
            let cut = self.commit(&mut started, &streams)?;
            self.reunite(&job, &started, &mut companions, surroundings).map(|()| cut)
        });
        // The workers must be free for the companions of the next checkpoint before one is taken.
        drop(companions);
        if reunited.is_err() {
            job.finish_operations();
        }
        let cut = reunited?;
        started.made_files.take().into_iter().for_each(MadeFiles::keep);
        job.started(started.program);
        let StartedProcesses { program, child, guard, .. } = started;
        Ok(RestoredJob { job, program, child, guard, cut, missing: placed.missing })
    }

    /// Refuses what is known to be impossible, before anything is made.
    fn check(&self, surroundings: &RestoreEnvironment<'_>) -> Result<(), RestoreError> {
        let mut sessions = self.manifest().sessions.iter();
        let has_choice = sessions.any(|session| session_kind(&session.name) == SessionKind::OPENCL);
        if surroundings.devices.is_empty() || has_choice { Ok(()) } else { Err(RestoreError::NoChoice(self.number())) }
    }

    /// Checks that only the job's `own` processes write files that are to be cut back.
    fn check_unused(&self, own: &[Process]) -> Result<(), RestoreError> {
        match written_files::in_use(&self.notes.written, own) {
            Some((file, pid)) => Err(RestoreError::InUse { path: file.path.clone(), pid, program: tree::name(pid) }),
            None => Ok(()),
        }
    }

    /// Checks that the files that the job writes can be cut back, before the job has any process.
    fn check_written(&self) -> Result<(), RestoreError> {
        self.check_unused(&[])?;
        written_files::can_be_cut(&self.notes.written).map_err(|(path, source)| RestoreError::Cut { path, source })
    }

    /// Makes all changes of a restore outside the job, which is sure to go on now: it is stopped, and has its sessions. Returns
    /// the files that were cut back.
    fn commit(&self, started: &mut StartedProcesses, streams: &Streams) -> Result<Vec<WrittenFile>, RestoreError> {
        let processes = tree::tree(started.child).map_err(system("list the processes"))?;
        // Another restore may have made processes meanwhile that write these files.
        self.check_unused(&processes)?;
        let cut = written_files::cut_back(&self.notes.written, &processes);
        let cut = cut.map_err(|(path, source)| RestoreError::Cut { path, source })?;
        streams.take_up(started);
        Ok(cut.into_iter().cloned().collect())
    }

    /// The names by which CRIU's list of files may have a file that the job writes. The file may have lost the name under which
    /// it was opened.
    fn names_in<'a>(&'a self, files_image: &'a FilesImage, file: &'a WrittenFile) -> impl Iterator<Item = &'a str> {
        let path = Path::new(&file.path);
        let is_it =
            move |link: &&RemappedFile| Segment::names_of(&self.notes.shared, &link.name).any(|name| name == path);
        let lost = files_image.links.iter().filter(is_it).filter_map(|link| link.of.to_str());
        lost.chain([file.path.as_str()])
    }

    /// Takes the folder that the programs know, or another one if another job has it. Also returns whether the job gets
    /// namespaces of its own: for that reason, or because another process has one of its ids or terminals.
    fn take_folder(&self) -> Result<(Folder, bool), RestoreError> {
        if let Some(above) = self.notes.folder.parent().filter(|above| !above.exists()) {
            private::folders(above).map_err(|source| RestoreError::JobsFolder { path: above.to_owned(), source })?;
        }
        let is_taken =
            self.notes.ids.iter().any(|id| tree::exists(*id)) || terminals::are_in_use(&self.notes.terminals);
        match Folder::take_at(&self.notes.folder) {
            Ok(folder) => Ok((folder, is_taken)),
            Err(FolderError::InUse { .. }) => Ok((Folder::take(&self.manifest().job.name)?, true)),
            Err(error) => Err(error.into()),
        }
    }

    /// Provides Katydid's libraries that the processes had and that are not installed any more.
    fn install_libraries(
        &self,
        folder: &Folder,
        surroundings: &RestoreEnvironment<'_>,
    ) -> Result<libraries::RestoreFiles, RestoreError> {
        let known_folder = self.notes.folder.as_path();
        let folders = Folders { files: &self.files, folder: folder.path(), known_folder, work: surroundings.work };
        let placed = libraries::restore_files(&self.manifest().libraries, &self.reader, &folders);
        placed.map_err(|source| RestoreError::Library { number: self.number(), source })
    }

    /// Rebuilds all sessions, each in a worker of its own.
    fn rebuild(
        &self,
        surroundings: &RestoreEnvironment<'_>,
        generations: &Generations,
        progress: &[Arc<Progress>],
    ) -> Result<Vec<Companion>, RestoreError> {
        let directory = self.reader.directory()?;
        let catalogue = Catalogue::new(&self.reader);
        let list = self.manifest().sessions.iter().zip(progress).collect();
        let directory = directory.as_ref().map(AsFd::as_fd);
        let (catalogue, devices) = (&catalogue, surroundings.devices);
        let (device_only, rehearsal, memory) = (false, false, Some(&*self.files));
        let plan = Rebuild { catalogue, directory, device_only, rehearsal, memory, generations, devices };
        let companions = in_parallel(list, |(session, progress): (&Session, &Arc<Progress>)| match &session.worker {
            Some(worker) => {
                let revived =
                    worker_images::revive(surroundings.server, (session, worker), (catalogue, directory), progress);
                revived.map_err(RestoreError::Worker)
            }
            None => Ok(Companion::rebuild(surroundings.server, &session.name, &plan, progress)?),
        });
        companions.into_iter().collect()
    }

    /// Lets the processes go, waits for those with a session at the job socket, and gives each its session. No program sends
    /// frames before all have their sessions. A program may end an export at once, and a process that had that open keeps it.
    fn reunite(
        &self,
        job: &Job,
        started: &StartedProcesses,
        companions: &mut [Companion],
        surroundings: &RestoreEnvironment<'_>,
    ) -> Result<(), RestoreError> {
        let processes = tree::tree(started.program).map_err(system("list the processes"))?;
        let refused = [
            attributes::set(&self.notes.attributes, &processes),
            watches::set(&self.notes.watches, &processes),
            datagrams::send_again(&self.notes.datagrams, &processes),
            leases::set(&filelocks_img::broken(&self.files).map_err(system("read CRIU's list of locks"))?, &processes),
        ];
        refused.iter().flatten().for_each(|line| (surroundings.waits)(line));
        let ids: HashMap<u32, u32> =
            processes.iter().map(|process| (tree::pid_in_own_namespace(process.pid), process.pid)).collect();
        self.stop_by_terminals(&processes);
        tree::signal(&self.that_ran(&processes), Signal::CONT);
        let address = surroundings.server.to_string();
        let catalogue = Catalogue::new(&self.reader);
        // Threads of programs run, so a program may end before it takes its session up, or goes on: that is no failure. A program
        // that is gone has ended already, and the guard has reaped it.
        let is_over = |pid: u32| ids.get(&pid).is_none_or(|process| tree::has_ended(*process));
        let mut held = Vec::new();
        for companion in companions {
            let programs = &self.manifest().programs;
            let program = programs.iter().find(|program| program.session.as_ref() == Some(&companion.session));
            let pid = program.map_or(0, |program| program.pid);
            let is_over = || is_over(pid);
            let Some(member) =
                job.members().wait_pid((pid, session_kind(&companion.session)), RESTORED_JOIN_TIMEOUT, &is_over)?
            else {
                continue;
            };
            let key = companion.key;
            let home = (address.as_str(), key);
            let rejoin = || rejoin(job.members(), &member, home, Rejoin::Held, &is_over);
            match answer_during(companion, &catalogue, rejoin) {
                Err(MemberError::Gone { .. }) if ended_soon(&is_over) => continue,
                rejoined => rejoined?,
            }
            if self.manifest().sessions.iter().any(|it| it.name == companion.session && it.worker.is_some()) {
                companion.proceed(Questions::Refused, &Progress::default())?;
            }
            held.push((member, pid));
        }
        // Set before any frame is sent, so that a worker which is killed right after can be replaced.
        let frames = held.iter().map(|(member, _)| (member.id, member.frames)).collect();
        let identity = self.manifest().identity;
        *lock(&job.0.recovery) =
            identity.map(|identity| Recovery::new(self.image.clone(), identity.image, identity.number, frames));
        for (Member { id, .. }, pid) in held {
            let is_over = || is_over(pid);
            match job.members().order(id, &ToProgram::Release {}, MEMBER_ORDER_TIMEOUT) {
                Err(MemberError::Gone { .. }) if ended_soon(&is_over) => {}
                released => drop(released?),
            }
        }
        // Programs with a session ran so far, to take it up.
        let stopped = |process: &&Process| self.notes.stopped.contains(&tree::pid_in_own_namespace(process.pid));
        let with_session = self.that_ran(&processes);
        tree::signal(&with_session.iter().filter(stopped).cloned().collect::<Vec<_>>(), Signal::STOP);
        Ok(())
    }
}

impl OpenedCheckpoint {
    /// Stops processes by the terminal's signal that had stopped them, before any process that could ask about it runs.
    fn stop_by_terminals(&self, processes: &[Process]) {
        let ran: Vec<u32> = self.that_ran(processes).iter().map(|process| process.pid).collect();
        for process in processes.iter().filter(|process| !ran.contains(&process.pid)) {
            if let Some(signal) = stopped::terminal_signal(&self.files, tree::pid_in_own_namespace(process.pid)) {
                stopped::stop_by(process, signal);
            }
        }
    }

    /// Returns the processes that no signal had stopped at the checkpoint, or that have a session: a stopped process could not
    /// attach to its session.
    fn that_ran(&self, processes: &[Process]) -> Vec<Process> {
        let programs = &self.manifest().programs;
        let has_session = |pid| programs.iter().any(|program| program.pid == pid);
        let stays = |process: &&Process| {
            let pid = tree::pid_in_own_namespace(process.pid);
            self.notes.stopped.contains(&pid) && !has_session(pid)
        };
        processes.iter().filter(|process| !stays(process)).cloned().collect()
    }
}

/// Whether a process whose connection has ended ends itself a moment later.
fn ended_soon(is_over: &dyn Fn() -> bool) -> bool {
    let deadline = Instant::now() + PROCESS_END_TIMEOUT;
    while !is_over() && Instant::now() < deadline {
        thread::sleep(PROCESS_END_POLL_INTERVAL);
    }
    is_over()
}

/// How often progress is reported.
const PROCESS_END_POLL_INTERVAL: Duration = Duration::from_millis(5);

fn report_progress(progress: &[Arc<Progress>], notify: &(dyn Fn(u64, u64) + Sync)) {
    use std::sync::atomic::Ordering::Relaxed;
    let sum = |count: fn(&Progress) -> u64| progress.iter().map(|progress| count(progress)).sum();
    notify(sum(|progress| progress.done.load(Relaxed)), sum(|progress| progress.total.load(Relaxed)));
}

/// Settings for restoring the processes.
struct RestoreTarget<'a> {
    /// The job's folder.
    folder: &'a Folder,
    /// Whether they have namespaces of their own.
    own_namespaces: bool,
    /// The job's streams, and CRIU's files, with names as they are here.
    streams: &'a Streams,
}

/// Processes that CRIU has made, and stopped. Dropping the value has their guard kill them, and removes files made for them.
#[derive(Debug)]
struct StartedProcesses {
    program: u32,
    child: u32,
    guard: Guard,
    /// Files that the restore made; `None` once the job has them.
    made_files: Option<MadeFiles>,
    /// Whether they have namespaces of their own, whose keeper is `child`.
    is_apart: bool,
}

impl StartedProcesses {
    /// Calls [`StartedProcesses::once`], and repeats that while the kernel keeps ports of connections that have just ended.
    /// Killed listeners leave such connections, and CRIU cannot get the port before. Stops if the sessions `is_refused`.
    fn new(
        opened: &OpenedCheckpoint,
        criu: &Criu,
        surroundings: &RestoreEnvironment<'_>,
        target: &RestoreTarget<'_>,
        is_refused: &AtomicBool,
    ) -> Result<Self, RestoreError> {
        let since = Instant::now();
        let mut is_told = false;
        loop {
            match Self::once(opened, criu, surroundings, target) {
                Err(error) if error.is_of_port() && since.elapsed() < PORT_TIMEOUT && !is_refused.load(SeqCst) => {}
                other => return other,
            }
            if !is_told {
                (surroundings.waits)("a port or a connection of the job is still in use; trying again for 65 s");
                is_told = true;
            }
            let next = Instant::now() + PORT_RETRY_INTERVAL;
            while Instant::now() < next && !is_refused.load(SeqCst) {
                thread::sleep(PROCESS_END_POLL_INTERVAL);
            }
        }
    }

    /// Starts the processes in the supervisor's namespaces, unless that fails or `own_namespaces` is wanted.
    fn once(
        opened: &OpenedCheckpoint,
        criu: &Criu,
        surroundings: &RestoreEnvironment<'_>,
        target: &RestoreTarget<'_>,
    ) -> Result<Self, RestoreError> {
        let _silence = SilencedConnections::begin(&opened.files, &opened.notes.connections);
        if target.own_namespaces {
            return Self::split(opened, criu, surroundings, target);
        }
        let criu_names: Vec<&Path> = shared_memory::criu_names(&opened.notes.shared).collect();
        let link_remap_lock = lock_link_remap(opened, &criu_names, surroundings.waits)?;
        let made_files = shared_memory::make(&opened.notes.shared, &opened.files, None);
        let made_files = made_files.map_err(|(path, source)| RestoreError::Shared { path, source })?;
        let (images, inherit) = (&target.streams.images.folder, target.streams.inherit());
        let personality = attributes::personality(&opened.notes.attributes);
        match criu.restore(surroundings.katydid, images, surroundings.work, &criu_names, &inherit, personality) {
            Ok((guard, program)) => {
                let made_files = Some(made_files.restored().map_err(system(NOTE_FILES_STEP))?);
                Ok(Self { program, child: program, guard, made_files, is_apart: false })
            }
            Err(endless @ CriuError::Endless { .. }) => Err(endless.into()),
            // Another process may have had one of the ids, if only while a thread needed it. Other causes recur, and then the
            // first error is reported, because it came before any debris of a failure. But a port may be free later.
            Err(first) => {
                drop((made_files, link_remap_lock));
                let started = Self::split(opened, criu, surroundings, target);
                started.map_err(|second| if second.is_of_port() { second } else { first.into() })
            }
        }
    }

    /// Starts the processes in namespaces of their own.
    fn split(
        opened: &OpenedCheckpoint,
        criu: &Criu,
        surroundings: &RestoreEnvironment<'_>,
        target: &RestoreTarget<'_>,
    ) -> Result<Self, RestoreError> {
        let names: Vec<&Path> = shared_memory::criu_names_outside(&opened.notes.shared).collect();
        let _link_remap_lock = lock_link_remap(opened, &names, surroundings.waits)?;
        Criu::make_statistics(surroundings.work).map_err(system("prepare the restore"))?;
        let restore = criu.restore_command(&target.streams.images.folder, surroundings.work, &target.streams.inherit());
        let highest = opened.notes.ids.iter().copied().max().unwrap_or(0);
        let journal = Journal::create().map_err(system(NOTE_FILES_STEP))?;
        let namespaces = JobNamespaces {
            known_folder: opened.notes.folder.clone(),
            folder: target.folder.path().to_owned(),
            note: Criu::note(surroundings.work),
            last_id: highest.saturating_add(MEMBER_ID_GAP).min(highest_id()),
            files: opened.files.clone(),
            shared: surroundings.work.join("shared.json"),
            made: journal.path().to_owned(),
            terminals: opened.notes.terminals.clone(),
        };
        let shared = serde_json::to_vec(&opened.notes.shared).map_err(io::Error::from);
        shared
            .and_then(|list| private::write(&namespaces.shared, list))
            .map_err(system("tell of the job's shared memory"))?;
        let _kernel_data = criu.install_kernel_data();
        let command = namespace::keeper(surroundings.katydid, &namespaces, &restore);
        let started = Self::in_own_namespaces(opened, criu, surroundings, (&command, &names));
        // No keeper is left if it has failed.
        let made_files = MadeFiles::handed_over(journal).map_err(system(NOTE_FILES_STEP))?;
        let started = started?;
        Ok(Self { made_files: Some(made_files.restored().map_err(system(NOTE_FILES_STEP))?), ..started })
    }

    /// Runs the `keeper`, which starts the processes in namespaces of their own.
    fn in_own_namespaces(
        opened: &OpenedCheckpoint,
        criu: &Criu,
        surroundings: &RestoreEnvironment<'_>,
        (keeper, names): (&Command, &[&Path]),
    ) -> Result<Self, RestoreError> {
        let _outside = shared_memory::OutsideFiles(&opened.notes.shared);
        let guard = Guard::spawn(surroundings.katydid, keeper, names, |command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            if let Some(personality) = attributes::personality(&opened.notes.attributes) {
                attributes::start_with_personality(command, personality);
            }
        });
        let mut guard = guard.map_err(system("start a keeper"))?;
        let mut line = String::new();
        if let Some(out) = guard.stdout() {
            BufReader::new(out).read_line(&mut line).map_err(system("hear of the keeper"))?;
        }
        let inner: Option<u32> = line.trim().parse().ok();
        let child = guard.first();
        let processes = tree::tree(child).map_err(system("list the processes"))?;
        let program = processes.iter().find(|process| Some(tree::pid_in_own_namespace(process.pid)) == inner);
        let Some(program) = program.map(|process| process.pid) else {
            let mut output = Vec::new();
            if let Some(mut stderr) = guard.stderr() {
                stderr.read_to_end(&mut output).map_err(system("wait for the keeper"))?;
            }
            return Err(criu.failure(surroundings.work, &output).into());
        };
        guard.restored();
        Ok(Self { program, child, guard, made_files: None, is_apart: true })
    }

    /// The command prefix that runs a command among the processes.
    fn enter(&self, katydid: &Path) -> Vec<OsString> {
        if self.is_apart { namespace::entering(katydid, self.child) } else { Vec::new() }
    }
}

/// Takes the lock on names of link_remap, if the restore needs it. In every restore of the job, CRIU gives a file without a name
/// the same name for a moment. A file that had lost one of several names gets the name that the dump gave. So restores with such
/// files lock each other out, until the value is dropped.
fn lock_link_remap(
    opened: &OpenedCheckpoint,
    criu_names: &[&Path],
    notify: fn(&str),
) -> Result<Option<LinkRemapLock>, LinkRemapLockError> {
    let names = fs::read_dir(&opened.files).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let has_ghosts = names.into_iter().any(|name| name.to_string_lossy().starts_with(GHOST_FILE_PREFIX));
    (has_ghosts || !criu_names.is_empty())
        .then(|| LinkRemapLock::of_restore(criu_names, has_ghosts, notify))
        .transpose()
}

/// Prefix of CRIU's files about files without a name.
const GHOST_FILE_PREFIX: &str = "ghost-file-";

/// The restore's standard streams that the program gets, which CRIU inherits beside its own, and the files that name them.
#[derive(Debug)]
struct Streams {
    images: RestoreImages,
    /// The descriptors to pass on, by their numbers in the program.
    inherited: Vec<(usize, OwnedFd)>,
}

impl Streams {
    fn new(opened: &OpenedCheckpoint, files: &Path, work: &Path) -> Result<Self, RestoreError> {
        let folder = work.join("streams");
        private::folder(&folder).map_err(system("make a folder for CRIU's files"))?;
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let own_streams = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()];
        let controlling = terminals::controlling();
        let offered = OfferedStreams { is_terminal: own_streams.map(isatty), has_controlling: controlling.is_some() };
        let files_image = files_img::read(files).map_err(system("read CRIU's list of files"))?;
        let longer = written_files::longer(&opened.notes.written).flat_map(|file| opened.names_in(&files_image, file));
        let changes = (&*opened.notes.makers, &longer.collect());
        let images = RestoreImages::new(files, folder, &opened.notes.stdio, offered, changes);
        let images = images.map_err(system("rewrite CRIU's files"))?;
        let copy = |fd: BorrowedFd<'_>| rustix::io::dup(fd).map_err(system("copy the standard streams"));
        let mut inherited = Vec::new();
        for stream in &images.streams {
            let offset = images.input_offset.filter(|_| *stream == 0);
            let fd = match (offset.and_then(|offset| input(&opened.notes.stdio[0], offset)), own_streams.get(*stream)) {
                (Some(file), _) => file,
                (None, Some(fd)) => copy(*fd)?,
                (None, None) => copy(controlling.as_ref().map_or(own_streams[0], AsFd::as_fd))?,
            };
            inherited.push((*stream, fd));
        }
        Ok(Self { images, inherited })
    }

    fn inherit(&self) -> Vec<OsString> {
        self.inherited.iter().flat_map(|(stream, fd)| RestoreImages::inherit(*stream, fd.as_raw_fd())).collect()
    }

    /// The standard streams of a restored program that had `then`.
    fn of_program(&self, then: &[StandardStream; 3], is_apart: bool) -> [StandardStream; 3] {
        [0, 1, 2].map(|number| match self.inherited.iter().find(|(stream, _)| *stream == number) {
            Some((_, fd)) if is_apart => StandardStream::from_outside(fd.as_fd()),
            Some((_, fd)) => StandardStream::of(fd.as_fd()),
            None => then[number].clone(),
        })
    }

    /// Sets the restore's terminal to the modes that the program's had.
    fn take_up(&self, started: &StartedProcesses) {
        if let (Some(modes), Ok(processes)) = (&self.images.modes, tree::tree(started.program)) {
            terminals::take_up(modes, &processes);
        }
    }
}

/// Opens the file of standard input at the offset that the program had read to. Returns `None` if another file is at its path
/// here.
fn input(standard: &StandardStream, offset: u64) -> Option<OwnedFd> {
    let StandardStream::Outside { path, inode, .. } = standard else { return None };
    let mut file = fs::File::open(path).ok()?;
    let is_same = std::os::unix::fs::MetadataExt::ino(&file.metadata().ok()?) == *inode;
    file.seek(SeekFrom::Start(offset)).ok().filter(|_| is_same)?;
    // A duplicate lacks the close-on-exec flag, so CRIU inherits it.
    rustix::io::dup(&file).ok()
}

/// The highest process id that the kernel gives.
fn highest_id() -> u32 {
    let most = fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse::<u32>().ok());
    most.map_or(u32::MAX, |most| most.saturating_sub(1))
}

impl RestoreError {
    /// Whether another process has a port that the job listens on.
    fn is_of_port(&self) -> bool {
        matches!(self, Self::Criu(error) if error.is_of_port())
    }
}

impl From<CheckpointError> for RestoreError {
    fn from(error: CheckpointError) -> Self {
        Self::System { doing: "restore", source: io::Error::other(error.to_string()) }
    }
}
