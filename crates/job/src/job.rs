//! A job that runs: what its supervisor knows of it, and the one checkpoint at a time that it takes.

use std::ffi::OsString;
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, mpsc};
use std::thread;

use katydid_http::HttpServer;
use katydid_scratch::private;
use rustix::system::uname;

use crate::checkpoint::{self, CheckpointError};
use crate::control;
use crate::criu::{Criu, CriuError};
use crate::failover::Recovery;
use crate::folder::{self, Folder, FolderError};
use crate::incarnations::Incarnations;
use crate::members::{Event, Members};
use crate::migrate;
use crate::parked::{self, Parked};
use crate::ranks::Task;
use crate::stdio::Standard;
use crate::stopped::Stopped;
use crate::tree;
use crate::view::{JobView, Migration, Moved, Report, Request, Step};

/// What a job is made of.
#[derive(Debug)]
pub struct Settings {
    /// Its folder.
    pub folder: Folder,
    /// The folder as the job's programs know it: another one for a job in namespaces of its own.
    pub known_folder: PathBuf,
    /// Command and arguments.
    pub command: Vec<String>,
    /// Where our own CRIU would be.
    pub private_criu: PathBuf,
    /// Servers that its programs may have been told of, the last one first.
    pub servers: Vec<String>,
    /// The one that begins with it, and those before.
    pub incarnations: Incarnations,
    /// What runs a command among the job's processes: nothing, or a command that enters their namespaces.
    pub enter: Vec<OsString>,
    /// Where its root reads and writes.
    pub stdio: [Standard; 3],
    /// It is one task of several that were started together.
    pub task: Option<Task>,
}

/// Why a job cannot be supervised.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// Its folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Its sockets.
    #[error("{}: {source}", path.display())]
    Socket {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Whether the program runs.
#[derive(Debug, Default, Clone, Copy)]
enum Start {
    /// Not yet, as far as we know: it may be quick to ask for a checkpoint of itself.
    #[default]
    Awaited,
    /// It is this process, as we see it.
    Done(u32),
    /// It has ended by now, or could not be started.
    Never,
}

/// The program of a job.
#[derive(Debug, Default)]
pub(crate) struct Root(Mutex<Start>, Condvar);

impl Root {
    fn set(&self, start: Start) {
        *lock(&self.0) = start;
        self.1.notify_all();
    }

    /// Its process, if it runs.
    fn now(&self) -> Option<u32> {
        if let Start::Done(pid) = *lock(&self.0) { Some(pid) } else { None }
    }

    /// The same, once it is known whether it runs.
    pub(crate) fn awaited(&self) -> Option<u32> {
        let is_awaited = |start: &mut Start| matches!(start, Start::Awaited);
        drop(self.1.wait_while(lock(&self.0), is_awaited).unwrap_or_else(PoisonError::into_inner));
        self.now()
    }
}

/// A running job. Dropped: its folder goes.
#[derive(Debug, Clone)]
pub struct Job(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) folder: Folder,
    pub(crate) known_folder: PathBuf,
    pub(crate) command: Vec<String>,
    pub(crate) host: String,
    pub(crate) members: Members,
    pub(crate) stdio: [Standard; 3],
    pub(crate) enter: Vec<OsString>,
    /// Where its programs' server is, and was before.
    pub(crate) servers: Mutex<Vec<String>>,
    pub(crate) incarnations: Incarnations,
    pub(crate) task: Option<Task>,
    pub(crate) root: Root,
    private_criu: PathBuf,
    criu: Mutex<Option<Criu>>,
    /// Held while a checkpoint is taken, a worker replaced, or a program let go.
    pub(crate) turn: Mutex<()>,
    /// Held by whoever takes a checkpoint, or waits for the turn to.
    checkpointer: Mutex<()>,
    /// What a session that loses its worker may be rebuilt from.
    pub(crate) recovery: Mutex<Option<Recovery>>,
    /// Processes that are locked or checkpointed one by one.
    pub(crate) parked: Parked,
    step: Mutex<Option<Step>>,
    last: Mutex<Option<Report>>,
    /// A CRIU was killed while it had a hand in the program.
    pub(crate) torn: AtomicBool,
    /// Programs that a signal had stopped before the checkpoint or the move at hand.
    pub(crate) stopped: Stopped,
    /// The program was killed because it is in an image.
    was_put_away: AtomicBool,
    control: Mutex<Option<HttpServer>>,
}

impl Job {
    /// Opens the job's sockets.
    ///
    /// # Errors
    ///
    /// See [`JobError`].
    pub fn open(settings: Settings) -> Result<Self, JobError> {
        let Settings { folder, known_folder, command, private_criu, servers, incarnations, enter, stdio, task } =
            settings;
        let (events, heard) = mpsc::channel();
        let socket = |path: PathBuf| move |source| JobError::Socket { path, source };
        incarnations.note(folder.path()).map_err(socket(folder.path().to_owned()))?;
        let members = Members::listen(&folder.shims(), events).map_err(socket(folder.shims()))?;
        folder.describe(0, &command.join(" "))?;
        let path = folder.control();
        let inner = Arc::new(Inner {
            folder,
            known_folder,
            command,
            host: uname().nodename().to_string_lossy().into_owned(),
            members,
            stdio,
            enter,
            servers: Mutex::new(servers),
            incarnations,
            task,
            root: Root::default(),
            private_criu,
            criu: Mutex::new(None),
            turn: Mutex::new(()),
            checkpointer: Mutex::new(()),
            recovery: Mutex::new(None),
            parked: Parked::default(),
            step: Mutex::new(None),
            last: Mutex::new(None),
            torn: AtomicBool::new(false),
            stopped: Stopped::default(),
            was_put_away: AtomicBool::new(false),
            control: Mutex::new(None),
        });
        let listener = UnixListener::bind(&path).map_err(socket(path.clone()))?;
        private::close(&path).map_err(socket(path.clone()))?;
        let opened = control::open(listener, &inner).map_err(socket(path))?;
        *lock(&inner.control) = Some(opened);
        parked::answer(&inner);
        let job = Self(inner);
        job.listen(heard);
        Ok(job)
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> String {
        self.0.folder.name()
    }

    /// What the program's environment must say of the job socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.0.known_folder.join("shims")
    }

    /// Its programs, as far as they have a GPU side.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.0.members
    }

    /// Notes the server that the job's programs are to use. One that begins later than a restore looks there, because
    /// its environment names a server that was.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn set_server(&self, address: &str) -> io::Result<()> {
        self.0.set_server(address)
    }

    /// The program has been started.
    pub fn started(&self, root: u32) {
        self.0.root.set(Start::Done(root));
        // Only look-ups by process id need it, and they say that there is no such job.
        let _ = self.0.folder.describe(root, &self.0.command.join(" "));
    }

    /// Takes a checkpoint and tells each step, from `prepare` to `done` or `failed`.
    ///
    /// # Errors
    ///
    /// See [`CheckpointError`]; the program goes on as if nothing had been asked for.
    pub fn checkpoint(&self, request: &Request, tell: &(dyn Fn(&Step) + Sync)) -> Result<Report, CheckpointError> {
        self.0.checkpoint(request, tell)
    }

    /// The program has ended, or will not be started: waits for a checkpoint at hand.
    pub fn settle(&self) {
        self.0.root.set(Start::Never);
        self.0.members.close();
        drop(lock(&self.0.turn));
        self.0.parked.clear();
    }

    /// The program has ended: waits for a checkpoint at hand, and says whether the program is in an image and was
    /// killed for that reason.
    #[must_use]
    pub fn ended(&self) -> Option<Report> {
        self.settle();
        if let Some(control) = lock(&self.0.control).take() {
            control.close();
        }
        // Whoever else still has a hand on the job may not live to the end of this process.
        self.0.folder.leave();
        lock(&self.0.last).clone().filter(|_| self.0.was_put_away.load(SeqCst))
    }

    /// Whether a CRIU was killed while it had a hand in the program, and may have left a breakpoint there.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.0.torn.load(SeqCst)
    }

    /// Answers what members say without being asked.
    fn listen(&self, heard: mpsc::Receiver<Event>) {
        let weak = Arc::downgrade(&self.0);
        // Without a thread, programs whose worker died wait until the job ends.
        let _ = thread::Builder::new().name("events".into()).spawn(move || {
            for event in heard {
                let Some(inner) = weak.upgrade() else { return };
                match event {
                    Event::Lost { id } => inner.bereft(id),
                    Event::Reached { id } => inner.reached(id),
                }
            }
        });
    }
}

impl Inner {
    pub(crate) fn set_server(&self, address: &str) -> io::Result<()> {
        let mut servers = lock(&self.servers);
        servers.retain(|server| server != address);
        servers.insert(0, address.to_owned());
        private::write(&self.folder.path().join("server"), servers.join("\n"))
    }

    /// Does `work` unless a checkpoint or a migration is at hand already.
    fn in_turn<T>(&self, work: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        let only = match self.checkpointer.try_lock() {
            Ok(only) => Some(only),
            Err(TryLockError::Poisoned(only)) => Some(only.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        only.ok_or(CheckpointError::Busy).and_then(|_only| {
            let _turn = lock(&self.turn);
            work()
        })
    }

    /// Moves the job's sessions, and tells each step.
    pub(crate) fn migrate(&self, request: &Migration, tell: &(dyn Fn(&Step) + Sync)) -> Result<Moved, CheckpointError> {
        let outcome =
            self.in_turn(|| self.or_release(|| self.attended(tell, |tell| migrate::migrate(self, request, tell))));
        match &outcome {
            Ok(moved) => tell(&Step::Moved(moved.clone())),
            Err(error) => tell(&Step::Failed { error: error.to_string() }),
        }
        outcome
    }

    /// Does `work`, whose steps are in the job's view meanwhile.
    fn attended<T>(&self, tell: &(dyn Fn(&Step) + Sync), work: impl FnOnce(&(dyn Fn(&Step) + Sync)) -> T) -> T {
        let outcome = work(&|step| {
            *lock(&self.step) = Some(step.clone());
            tell(step);
        });
        *lock(&self.step) = None;
        outcome
    }

    pub(crate) fn checkpoint(
        &self,
        request: &Request,
        tell: &(dyn Fn(&Step) + Sync),
    ) -> Result<Report, CheckpointError> {
        let outcome = self.in_turn(|| self.take(request, tell));
        // Whoever hears this may ask for the next one at once.
        match &outcome {
            Ok(report) => tell(&Step::Done(report.clone())),
            Err(error) => tell(&Step::Failed { error: error.to_string() }),
        }
        outcome
    }

    /// Takes one, in its turn.
    fn take(&self, request: &Request, tell: &(dyn Fn(&Step) + Sync)) -> Result<Report, CheckpointError> {
        let outcome = self.or_release(|| self.attended(tell, |tell| checkpoint::take(self, request, tell)));
        if let Ok(report) = &outcome {
            *lock(&self.last) = Some(report.clone());
            self.was_put_away.store(!report.running, SeqCst);
        }
        outcome
    }

    /// Does `work`. If it fails, perhaps before it came to the programs, those that held themselves for it go on; but not
    /// one that it has let go, and that has come to its next point since.
    fn or_release<T>(&self, work: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
        let waiting: Vec<(u64, Option<u64>)> =
            self.members.list().iter().map(|member| (member.id, member.reached)).collect();
        let done = self.parked.refuse(&self.members).and_then(|()| {
            let sees = |pid| self.members.list().iter().any(|member| member.pid == pid);
            let root = self.root.now().and_then(|root| tree::tree(root).ok());
            self.stopped.go_on(&root.unwrap_or_default(), sees);
            work()
        });
        self.stopped.stop();
        done.inspect_err(|_| self.release_reached(|member| waiting.contains(&(member.id, member.reached))))
    }

    pub(crate) fn view(&self) -> JobView {
        JobView {
            name: self.folder.name(),
            supervisor: std::process::id(),
            program: self.root.now().unwrap_or(0),
            command: self.command.clone(),
            host: self.host.clone(),
            members: self.members.list().into_iter().map(Into::into).collect(),
            checkpoint: lock(&self.step).clone(),
            last: lock(&self.last).clone(),
        }
    }

    /// The CRIU to use, looked for once.
    pub(crate) fn criu(&self) -> Result<Criu, CriuError> {
        let mut found = lock(&self.criu);
        if found.is_none() {
            *found = Some(Criu::find(&self.private_criu, folder::cache().as_deref())?.through(&self.enter));
        }
        found.clone().ok_or_else(|| CriuError::Missing { private: self.private_criu.clone() })
    }

    /// Where the image of a request is.
    pub(crate) fn image_of(request: &Request) -> Result<&Path, CheckpointError> {
        if request.image.is_absolute() || katydid_image::is_address(&request.image) {
            Ok(&request.image)
        } else {
            Err(CheckpointError::Relative(request.image.clone()))
        }
    }
}

/// A value whose users leave it whole, whatever else they do.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
