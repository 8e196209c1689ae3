//! What a supervisor knows of its job.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Condvar, Mutex, PoisonError};

use katydid_http::HttpServer;
use katydid_scratch::private;
use katydid_wire::job::ToProgram;

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
use crate::supervisor::view::{ProgressStep, Report};
use crate::sync::lock;

/// Set by tests that ask for a checkpoint wherever a program holds itself.
const FAULT_STEP_VARIABLE: &str = "KATYDID_CHECKPOINT_AT";

/// Whether the program runs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum Start {
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
    pub(crate) fn set(&self, start: Start) {
        *lock(&self.0) = start;
        self.1.notify_all();
    }

    /// Its process, if it runs.
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

    /// Its process, once it is known whether it runs.
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
    /// Where its programs' server is, and was before.
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
    /// What a session that loses its worker may be rebuilt from.
    pub(crate) recovery: Mutex<Option<Recovery>>,
    /// Processes that are locked or checkpointed one by one.
    pub(crate) locked_processes: LockedProcesses,
    pub(crate) step: Mutex<Option<ProgressStep>>,
    pub(crate) last: Mutex<Option<Report>>,
    /// A CRIU was killed while it had a hand in the program.
    pub(crate) criu_killed: AtomicBool,
    /// Programs that a signal had stopped before the checkpoint or the current move.
    pub(crate) stopped: StoppedProcesses,
    /// The program was killed because it is in an image.
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

    /// The CRIU to use, looked for once.
    pub(crate) fn criu(&self) -> Result<Criu, CriuError> {
        let mut found = lock(&self.criu);
        if found.is_none() {
            *found = Some(Criu::find(&self.private_criu, folder::cache().as_deref())?.through(&self.enter));
        }
        found.clone().ok_or_else(|| CriuError::Missing { private: self.private_criu.clone() })
    }

    /// A program holds itself. It is let go unless a test will ask for a checkpoint. One that is being taken lets it go
    /// by itself, or has passed it already.
    pub(crate) fn reached(&self, id: u64) {
        if env::var_os(FAULT_STEP_VARIABLE).is_none() {
            let _turn = lock(&self.exclusive);
            self.release_reached(|member| member.id == id);
        }
    }

    /// Lets go those that `which` means of the programs that hold themselves.
    pub(crate) fn release_reached(&self, is_released: impl Fn(&Member) -> bool) {
        // One that is not with its worker goes on when it is brought back to one.
        let holds = |member: &Member| {
            member.reached.is_some() && member.state == MemberState::Present && !self.locked_processes.has(member.id)
        };
        for member in self.members.list().into_iter().filter(|member| holds(member) && is_released(member)) {
            // One that has ended meanwhile needs no order.
            let _ = self.members.order(member.id, &ToProgram::Release {}, MEMBER_ORDER_TIMEOUT);
        }
    }
}
