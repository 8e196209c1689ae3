//! Why a job cannot be checkpointed or moved.

use std::io;
use std::path::PathBuf;

use katydid_image::{CheckpointNumber, ImageError};
use katydid_transport::AddressError;

use crate::checkpoint::fault_injection::InjectedFailure;
use crate::criu::tool::CriuError;
use crate::supervisor::companion::CompanionError;
use crate::supervisor::member_error::MemberError;
use crate::supervisor::ranks::LauncherTask;
use crate::system::why;

/// How often a checkpoint starts anew because a program joined the job while it was taken.
pub(crate) const MAX_CHECKPOINT_ATTEMPTS: u32 = 8;

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another checkpoint of the job is being taken.
    #[error("a checkpoint of this job is being taken already: wait for it to end")]
    Busy,
    /// The job has no program, or no longer has one, that a checkpoint could save.
    #[error("the program has ended, or was not started: start it with `katydid run`")]
    NoProgram,
    /// The supervisor's folder is not that of the requester.
    #[error("{}: the image must be given by its absolute path", .0.display())]
    Relative(PathBuf),
    /// A program that cannot be brought to rest.
    #[error(
        "{program} (process {pid}) cannot be part of a checkpoint now: {}",
        if *duplicates > 1 { "another process of the job has the same id, in another namespace" } else { "it has no worker; try again in a moment" }
    )]
    Member {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Programs with this id.
        duplicates: usize,
    },
    /// A device that the program has opened without Katydid.
    #[error(
        "{program} (process {pid}) has {} open itself, past Katydid, and CRIU cannot dump that; a launcher of MPI, which looks for GPUs by hwloc, begins with HWLOC_COMPONENTS=-opencl, or by `katydid run`",
        device.display()
    )]
    Gpu {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Path of the device file that the program has open.
        device: PathBuf,
    },
    /// A session made outside the job's namespace of processes, as by an MPI launcher that was started without Katydid.
    #[error(
        "the session of {program} (process {pid}) was made outside of its namespace of processes, and CRIU cannot dump that; start it with `setsid`, or with `katydid run`"
    )]
    Session {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// A process that CRIU would restore with the personality of the job's first process.
    #[error(
        "process {pid} of the job has a personality of its own (setarch), which CRIU does not restore: start all of the job with the same one"
    )]
    Personality {
        /// Process id of the program.
        pid: u32,
    },
    /// A process of the job is locked by `cuCheckpointProcessLock`.
    #[error(
        "{program} (process {pid}) was locked by cuCheckpointProcessLock: it can be part of a checkpoint when it is unlocked"
    )]
    Locked {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// A part of the job would be missing, or could not be saved.
    #[error(transparent)]
    Obstacle(#[from] Obstacle),
    /// The program shares memory or events.
    #[error("{program} (process {pid}) {what}")]
    Shared {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// What the program shares, with whom, and what helps.
        what: &'static str,
    },
    /// Descriptors in a socket, which CRIU would not restore.
    #[error(
        "descriptors are on their way through a socket of the job, and CRIU would lose them: try again in a moment"
    )]
    Descriptors,
    /// Bytes that CRIU would send before the other end of the connection exists again.
    #[error(
        "{program} (process {pid}) has sent bytes to another process of the job that this has no room for, and CRIU would lose their connection: try again in a moment"
    )]
    Unsent {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// Unread datagrams that no restore could send again.
    #[error(
        "{program} (process {pid}) has not read datagrams of a unix socket, and no restore could send them again: {why}; try again in a moment"
    )]
    Datagrams {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Why the datagrams cannot be saved.
        why: &'static str,
    },
    /// Unread events of watched files, which CRIU leaves out of a dump.
    #[error(
        "{program} (process {pid}) has not read events of the files that it watches (inotify, fanotify), and CRIU would lose them: try again in a moment"
    )]
    Events {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// Watches that CRIU would restore only in part.
    #[error(
        "{program} (process {pid}) watches a file with IN_ONESHOT or IN_EXCL_UNLINK that has no name any more, and CRIU would lose these: remove the watch"
    )]
    Watches {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// A program outside the job's process tree.
    #[error(
        "process {pid} of the job is not a descendant of its program any more, so CRIU would not dump it: start it so that its parent waits for it"
    )]
    Stray {
        /// Process id of the program, as it sees itself.
        pid: u32,
    },
    /// New programs joined the job in each attempt.
    #[error("programs began to use the GPU while the checkpoint was taken, {MAX_CHECKPOINT_ATTEMPTS} times: try again")]
    ProgramsKeepArriving,
    /// A server's address that is malformed.
    #[error("{text}: {source}")]
    Address {
        /// Address as the program gave it.
        text: String,
        /// What is wrong with the address.
        source: AddressError,
    },
    /// CRIU failed, or cannot be used.
    #[error(transparent)]
    Criu(#[from] CriuError),
    /// The image cannot be written.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A program did not follow an order.
    #[error(transparent)]
    Order(#[from] MemberError),
    /// A worker refused, or could not be reached.
    #[error(transparent)]
    Companion(CompanionError),
    /// The sessions would not come back, or the rehearsal could not find out.
    #[error(
        "a rehearsal of the restore failed, so the job goes on: {0}; try again later, or take the checkpoint all the same with `katydid checkpoint --force`"
    )]
    Rehearsal(CompanionError),
    /// The sessions would not come back, and their workers cannot be saved as processes.
    #[error(
        "a rehearsal of the restore failed, so the job goes on: {cause}; its worker was not kept as a process instead: {also}; try again later, or take the checkpoint all the same with `katydid checkpoint --force`"
    )]
    WorkerImage {
        /// Why a replay does not bring the session back.
        cause: CompanionError,
        /// Why the worker cannot be saved.
        also: Box<CheckpointError>,
    },
    /// The operating system refused.
    #[error("cannot {doing}: {}", why(source))]
    System {
        /// The step that failed.
        doing: &'static str,
        /// Error that the system returned.
        source: io::Error,
    },
    /// A checkpoint failed, and undoing it failed too.
    #[error("{cause}; then resuming the program failed: {also}")]
    Undo {
        /// Error that ended the checkpoint.
        cause: Box<CheckpointError>,
        /// Error that came while the checkpoint was undone.
        also: Box<CheckpointError>,
    },
    /// The image that a program could go on from is not there any more.
    #[error("{}: another image lies there, whose checkpoint {number} is not of this job: do not move or replace the image of a running job", path.display())]
    Replaced {
        /// Path of the image at the last checkpoint.
        path: PathBuf,
        /// Number of the checkpoint in that image.
        number: CheckpointNumber,
    },
    /// A program keeps its kind of link for as long as it lives.
    #[error(
        "{program} (process {pid}) shares memory with its worker, which {to} cannot: name a server of this machine by its unix socket, or checkpoint the job and restore it there"
    )]
    Link {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Address of the server.
        to: String,
    },
    /// The request chooses devices, and no session can use the choice.
    #[error("--device chooses devices of OpenCL, and no program of the job has a session of that: leave it out")]
    NoChoice,
    /// A test asked for this failure.
    #[error(transparent)]
    Injected(#[from] InjectedFailure),
    /// A thread of the supervisor panicked.
    #[error("a thread of the supervisor has failed: try again")]
    ThreadFailed,
}

impl CheckpointError {
    /// Whether the cause usually disappears within a moment.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Criu(error) => error.is_transient(),
            Self::Unsent { .. } | Self::Datagrams { .. } | Self::Events { .. } | Self::Descriptors => true,
            _ => false,
        }
    }

    /// Whether a session of the job was about to end, or had ended.
    pub(crate) fn is_of_ended_session(&self) -> bool {
        matches!(self, Self::Companion(error) if error.is_of_ended_session())
    }

    /// Whether a program that ended could be the cause.
    pub(crate) fn is_of_ended_program(&self) -> bool {
        match self {
            Self::Order(error) => matches!(error, MemberError::Gone { .. }),
            Self::Undo { cause, .. } => cause.is_of_ended_program(),
            error => error.is_of_ended_session(),
        }
    }

    /// Whether a server has no free slot for a session, has no driver, or cannot be reached.
    pub(crate) fn is_of_server(&self) -> bool {
        matches!(self, Self::Companion(error) if error.is_of_server())
    }
}

impl From<CompanionError> for CheckpointError {
    fn from(error: CompanionError) -> Self {
        Self::Companion(error)
    }
}

/// Why a job cannot be part of a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Obstacle {
    /// A session that the supervisor does not know.
    #[error(
        "{program} (process {pid}) uses the GPU and is not a member of this job, so the GPU memory of the process would be missing: {}",
        if *has_socket {
            "it cannot reach the job socket, as another user, or with another root directory or /tmp; start it as the user of `katydid run`, where that folder is seen"
        } else {
            "KATYDID_JOB is not in its environment; start it with the environment that `katydid run` gives"
        }
    )]
    Unknown {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Whether the process's environment names a job socket.
        has_socket: bool,
    },
    /// The job is one task of several that were started together.
    #[error(
        "this job is one of several tasks ({task}); start their launcher by `katydid run` on one machine, or a job of its own by `env -u {} katydid run`",
        task.variable
    )]
    Task {
        /// Environment variable of the launcher, and its value.
        task: LauncherTask,
    },
    /// System V shared memory.
    #[error(
        "{program} (process {pid}) has a System V shared memory segment attached (shmget), which CRIU saves only with an IPC namespace; begin the program by `katydid run unshare --ipc`"
    )]
    Segment {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
    },
    /// A resource that CRIU does not restore, or not as it was.
    #[error("{program} (process {pid}) {what}, which CRIU does not restore; {remedy}")]
    Lost {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Resource that the program has, as text for the user.
        what: &'static str,
        /// The remedy, for the user.
        remedy: &'static str,
    },
    /// Namespaces below those of the job's first process.
    #[error(
        "{program} (process {pid}) has a {kind} namespace of its own, which CRIU restores only below a first process with one; begin the job by `katydid run unshare --{option}`"
    )]
    Namespace {
        /// Name of the program.
        program: String,
        /// Process id of the program.
        pid: u32,
        /// Kind of the namespace, in words.
        kind: &'static str,
        /// The option of `unshare` that makes one.
        option: &'static str,
    },
}
