//! A running job: the supervisor's state, and the one checkpoint at a time that it takes.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use katydid_scratch::private;
use rustix::system::uname;

use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::locked_processes::LockedProcesses;
use crate::checkpoint::process_checkpoint;
use crate::process::stdio::StandardStream;
use crate::process::stopped::StoppedProcesses;
use crate::supervisor::control;
use crate::supervisor::folder::{Folder, FolderError};
use crate::supervisor::generations::Generations;
use crate::supervisor::members::{MemberEvent, Members};
use crate::supervisor::ranks::LauncherTask;
use crate::supervisor::state::{JobState, Root, Start};
use crate::supervisor::view::{Report, Request, StageProgress};
use crate::sync::lock;

/// Settings of a job.
#[derive(Debug)]
pub struct JobSettings {
    /// Folder with the sockets and files of the job.
    pub folder: Folder,
    /// The folder as the job's programs see it: another path for a job in namespaces of its own.
    pub known_folder: PathBuf,
    /// Command line of the program: its name and arguments.
    pub command: Vec<String>,
    /// Folder of Katydid's own CRIU.
    pub private_criu: PathBuf,
    /// Servers that the job's programs may have been told of, the last one first.
    pub servers: Vec<String>,
    /// The job's generation, and those before it.
    pub generations: Generations,
    /// Command prefix that runs a command among the job's processes: empty, or a command that enters their namespaces.
    pub enter: Vec<OsString>,
    /// Standard streams of the program: input, output and error.
    pub stdio: [StandardStream; 3],
    /// Set if the job is one of several tasks that were started together.
    pub task: Option<LauncherTask>,
}

/// Why a job cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The job's folder cannot be made or found.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A socket of the job cannot be made.
    #[error("{}: {source}; set XDG_RUNTIME_DIR to a folder that you can write to, with free space", path.display())]
    Socket {
        /// Path of the socket.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
}

/// A running job. Dropping the value removes its folder.
#[derive(Debug, Clone)]
pub struct Job(pub(crate) Arc<JobState>);

impl Job {
    /// Opens the job's sockets.
    ///
    /// # Errors
    ///
    /// See [`JobError`].
    pub fn open(settings: JobSettings) -> Result<Self, JobError> {
        let JobSettings { folder, known_folder, command, private_criu, servers, generations, enter, stdio, task } =
            settings;
        let (sender, events) = mpsc::channel();
        let socket = |path: PathBuf| move |source| JobError::Socket { path, source };
        generations.note(folder.path()).map_err(socket(folder.path().to_owned()))?;
        let members = Members::listen(&folder.shims(), sender).map_err(socket(folder.shims()))?;
        folder.describe(0, &command.join(" "))?;
        let path = folder.control();
        let inner = Arc::new(JobState {
            folder,
            known_folder,
            command,
            host: uname().nodename().to_string_lossy().into_owned(),
            members,
            stdio,
            enter,
            servers: Mutex::new(servers),
            generations,
            task,
            root: Root::default(),
            private_criu,
            criu: Mutex::new(None),
            exclusive: Mutex::new(()),
            checkpointer: Mutex::new(()),
            recovery: Mutex::new(None),
            locked_processes: LockedProcesses::default(),
            stage: Mutex::new(None),
            last: Mutex::new(None),
            criu_killed: AtomicBool::new(false),
            stopped: StoppedProcesses::default(),
            was_put_away: AtomicBool::new(false),
            control: Mutex::new(None),
        });
        let listener = UnixListener::bind(&path).map_err(socket(path.clone()))?;
        private::close(&path).map_err(socket(path.clone()))?;
        let opened = control::open(listener, &inner).map_err(socket(path))?;
        *lock(&inner.control) = Some(opened);
        process_checkpoint::answer(&inner);
        let job = Self(inner);
        job.listen(events);
        Ok(job)
    }

    /// Name of the job, which is that of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.folder.name()
    }

    /// Path of the job socket, for the program's environment.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.known_folder.join("shims")
    }

    /// The job's programs that have a GPU side.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.0.members
    }

    /// Notes the server that the job's programs are to use. A program that starts after a restore reads it there, because its
    /// environment names an old server.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn set_server(&self, address: &str) -> io::Result<()> {
        self.0.set_server(address)
    }

    /// Notes that the program runs as process `root`.
    pub fn started(&self, root: u32) {
        self.0.root.set(Start::Done(root));
        // Only look-ups by process id need the file; without it they find no such job.
        let _ = self.0.folder.describe(root, &self.0.command.join(" "));
    }

    /// Takes a checkpoint and reports each stage, from `prepare` to `done` or `failed`.
    ///
    /// # Errors
    ///
    /// See [`CheckpointError`]; the program goes on as if no checkpoint had been requested.
    pub fn checkpoint(
        &self,
        request: &Request,
        notify: &(dyn Fn(&StageProgress) + Sync),
    ) -> Result<Report, CheckpointError> {
        self.0.checkpoint(request, notify)
    }

    /// Called when the program has ended, or will not be started: waits for a running checkpoint, and until questions are
    /// answered.
    pub fn finish_operations(&self) {
        self.0.root.set(Start::Never);
        self.0.members.close();
        drop(lock(&self.0.exclusive));
        self.0.locked_processes.clear();
        self.0.members.wait_for_answers();
    }

    /// Called when the program has ended: waits for a running checkpoint. Returns the report of the checkpoint for which the
    /// program was killed, if any.
    #[must_use]
    pub fn ended(&self) -> Option<Report> {
        self.finish_operations();
        if let Some(control) = lock(&self.0.control).take() {
            control.close();
        }
        // Threads that still use the job may not live until this process ends.
        self.0.folder.leave();
        lock(&self.0.last).clone().filter(|_| self.0.was_put_away.load(SeqCst))
    }

    /// Whether a CRIU was killed while it held the program, and may have left a breakpoint there.
    #[must_use]
    pub fn was_criu_killed(&self) -> bool {
        self.0.criu_killed.load(SeqCst)
    }

    /// Handles events that members report unasked.
    fn listen(&self, events: mpsc::Receiver<MemberEvent>) {
        let weak = Arc::downgrade(&self.0);
        // If no thread starts, programs whose worker died wait until the job ends.
        let _ = thread::Builder::new().name("events".into()).spawn(move || {
            for event in events {
                let Some(inner) = weak.upgrade() else { return };
                match event {
                    MemberEvent::Lost { id } => inner.rebuild_lost_session(id),
                    MemberEvent::Reached { id } => inner.reached(id),
                }
            }
        });
    }
}
