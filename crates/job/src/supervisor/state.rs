//! The state of a job at its supervisor.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, PoisonError};

use katydid_http::HttpServer;
use katydid_scratch::private;
use katydid_wire::job::{HOLD_FRAMES_VARIABLE, ToProgram};

use crate::checkpoint::locked_processes::LockedProcesses;
use crate::checkpoint::quiesce::MEMBER_ORDER_TIMEOUT;
use crate::checkpoint::recovery::Recovery;
use crate::criu::tool::{Criu, CriuError};
use crate::process::stdio::StandardStream;
use crate::process::stopped::StoppedProcesses;
use crate::process::tree;
use crate::supervisor::folder;
use crate::supervisor::folder::Folder;
use crate::supervisor::generations::Generations;
use crate::supervisor::members::{Member, MemberState, Members};
use crate::supervisor::ranks::LauncherTask;
use crate::supervisor::view::{Report, StageProgress};
use crate::sync::lock;

/// State of the program's start.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum Start {
    /// Not yet, as far as the supervisor knows: the program may be quick to ask for a checkpoint of itself.
    #[default]
    Awaited,
    /// It runs as this process, in the supervisor's namespace.
    Done(u32),
    /// It has ended, or could not be started.
    Never,
}

/// The program of a job.
#[derive(Debug, Default)]
pub(crate) struct Root(Mutex<Start>, Condvar);

impl Root {
    pub(crate) fn set(&self, start: Start) {
        *lock(&self.0) = start;
        self.1.notify_all();
    }

    /// Process id of the program, if it runs.
    pub(crate) fn now(&self) -> Option<u32> {
        if let Start::Done(pid) = *lock(&self.0) { Some(pid) } else { None }
    }

    /// Whether it has ended, is about to, or was never started.
    pub(crate) fn has_ended(&self) -> bool {
        match *lock(&self.0) {
            Start::Awaited => false,
            Start::Done(pid) => tree::is_ending(pid),
            Start::Never => true,
        }
    }

    /// Waits until it is known whether the program runs, and returns its process id.
    pub(crate) fn wait_for_start(&self) -> Option<u32> {
        let is_awaited = |start: &mut Start| matches!(start, Start::Awaited);
        drop(self.1.wait_while(lock(&self.0), is_awaited).unwrap_or_else(PoisonError::into_inner));
        self.now()
    }
}

#[derive(Debug)]
pub(crate) struct JobState {
    pub(crate) folder: Folder,
    pub(crate) known_folder: PathBuf,
    pub(crate) command: Vec<String>,
    pub(crate) host: String,
    pub(crate) members: Members,
    pub(crate) stdio: [StandardStream; 3],
    pub(crate) enter: Vec<OsString>,
    /// The server of the job's programs, and earlier ones.
    pub(crate) servers: Mutex<Vec<String>>,
    pub(crate) generations: Generations,
    pub(crate) task: Option<LauncherTask>,
    pub(crate) root: Root,
    pub(crate) private_criu: PathBuf,
    pub(crate) criu: Mutex<Option<Criu>>,
    /// Held while a checkpoint is taken, a worker replaced, or a program let go.
    pub(crate) exclusive: Mutex<()>,
    /// Held by a thread that takes a checkpoint, or waits to take one.
    pub(crate) checkpointer: Mutex<()>,
    /// The checkpoint from which a session that loses its worker may be rebuilt.
    pub(crate) recovery: Mutex<Option<Recovery>>,
    /// Processes that are locked or checkpointed one by one.
    pub(crate) locked_processes: LockedProcesses,
    pub(crate) stage: Mutex<Option<StageProgress>>,
    pub(crate) last: Mutex<Option<Report>>,
    /// Whether a CRIU was killed while it held the program.
    pub(crate) criu_killed: AtomicBool,
    /// Programs that a signal had stopped before the current checkpoint or move.
    pub(crate) stopped: StoppedProcesses,
    /// Whether the program was killed because it is in an image.
    pub(crate) was_put_away: AtomicBool,
    pub(crate) control: Mutex<Option<HttpServer>>,
}

impl JobState {
    pub(crate) fn set_server(&self, address: &str) -> io::Result<()> {
        let mut servers = lock(&self.servers);
        servers.retain(|server| server != address);
        servers.insert(0, address.to_owned());
        private::write(&self.folder.path().join("server"), servers.join("\n"))
    }

    /// The CRIU to use, which is looked for once.
    pub(crate) fn criu(&self) -> Result<Criu, CriuError> {
        let mut found = lock(&self.criu);
        if found.is_none() {
            *found = Some(Criu::find(&self.private_criu, folder::cache().as_deref())?.through(&self.enter));
        }
        found.clone().ok_or_else(|| CriuError::Missing { private: self.private_criu.clone() })
    }

    /// Handles a program that holds itself: it is released unless a test will ask for a checkpoint. A checkpoint in progress
    /// releases it, or has passed it already.
    pub(crate) fn reached(&self, id: u64) {
        if env::var_os(HOLD_FRAMES_VARIABLE).is_none() {
            let _guard = lock(&self.exclusive);
            self.release_reached(|member| member.id == id);
        }
    }

    /// Releases those programs that hold themselves and for which `is_released`.
    pub(crate) fn release_reached(&self, is_released: impl Fn(&Member) -> bool) {
        // A program that is not with its worker goes on when it is brought back to one.
        let holds = |member: &Member| {
            member.reached.is_some() && member.state == MemberState::Present && !self.locked_processes.has(member.id)
        };
        for member in self.members.list().into_iter().filter(|member| holds(member) && is_released(member)) {
            // A program that has ended meanwhile needs no order.
            let _ = self.members.order(member.id, &ToProgram::Release {}, MEMBER_ORDER_TIMEOUT);
        }
    }
}
