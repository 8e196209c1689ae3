//! Starts a worker process.
//!
//! - A worker runs with address-space randomization (ASLR) off, so that a driver places module globals at the same addresses each
//!   time.
//! - It has its own session and process group, so that Ctrl-C on a terminal reaches the server and not the worker. CRIU could not
//!   save it in a session from outside of the server's container.
//! - It dies with the thread that started it, so that a killed server leaves no worker. That thread must therefore live as long
//!   as the server: only the pool's own thread calls [`spawn`].
//!
//! Slurm and others send SIGTERM to all processes of a job, so that its program can save its state. The program's worker gets the
//! signal too, while the program needs it. So a worker ignores and blocks signals that ask a process to end, and ends with its
//! program. Drivers of OpenCL compile with LLVM, whose handlers of these signals would replace ignoring them. Those handlers
//! remove files of the compilation, and end the process when two signals come at once.

#![expect(unsafe_code, reason = "what a child does between fork and exec has no safe interface")]

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::ptr;
use std::sync::{Arc, Mutex};

use katydid_scratch::Scratch;
use katydid_transport::exporter_sockets;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process_group, pidfd_open, setrlimit, setsid};

use crate::control;
use crate::descriptors::before_raise;
use crate::workers::control_group::{ControlGroup, ControlGroups, NoGroups};
use crate::workers::host_memory::{HostMemory, HostMemoryLimit, MemoryWatch};
use crate::workers::output::{self, WorkerOutput};
use crate::workers::users::{RunsAs, UserClaim, WorkerUser};

/// Signals that ask a process to end, or announce its end: batch systems send them to all processes of a job.
const END_REQUEST_SIGNALS: [libc::c_int; 7] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2, libc::SIGXCPU];

/// How a worker is started. The server appends `--control-fd N` and `--host-memory BYTES`.
#[derive(Debug, Clone, Default)]
pub struct WorkerCommand {
    /// Path of the executable.
    pub program: PathBuf,
    /// Arguments before those that the server appends.
    pub arguments: Vec<OsString>,
    /// Variables set for the worker.
    pub set: Vec<(OsString, OsString)>,
    /// Variables that the worker must not inherit.
    pub unset: Vec<OsString>,
    /// Selects the server's variables that the worker inherits; none means all except `unset`.
    pub passes: Option<fn(&OsStr) -> bool>,
    /// It serves tenants, in a sandbox that it enters by itself. It has its own folder for temporary files, which is removed with
    /// it, and the server makes its sockets for exporting memory.
    pub serves_tenants: bool,
    /// The user that it runs as.
    pub runs_as: RunsAs,
}

/// Variables that name the folder for temporary files, and the parent folder of caches.
const TEMPORARY_FOLDER_VARIABLES: [&str; 4] = ["TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME"];

/// Names the user's own folder, in a worker whose user has none.
const HOME_VARIABLE: &str = "HOME";

/// Replaces the server's own streams in a worker.
const NULL_DEVICE: &str = "/dev/null";

/// What enforces the memory limit of workers.
#[derive(Debug, Default)]
pub(crate) struct MemoryLimits {
    /// The limit of each worker, which also measures itself.
    pub(crate) limit: HostMemoryLimit,
    /// The server's own measurement; none where workers have the rights of their programs.
    pub(crate) measured: Option<Arc<HostMemory>>,
    /// The kernel's control groups, where available.
    pub(crate) groups: Option<ControlGroups>,
    /// Why control groups are not available, until it has been reported.
    pub(crate) no_groups: Mutex<Option<NoGroups>>,
}

/// A started worker. Dropping it kills the process and reaps it.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    /// The server's end of its control socket, shared with the thread that hands a program over.
    pub(crate) control: Arc<OwnedFd>,
    /// Readable once the process has ended.
    pub(crate) pidfd: OwnedFd,
    /// Where it requests sockets to export memory; none once it has closed its end.
    pub(crate) socket_broker: Option<OwnedFd>,
    /// Its output on standard error.
    pub(crate) output: WorkerOutput,
    /// Watches its process group's memory, until it is reaped.
    watch: Option<MemoryWatch>,
    /// Its memory limit.
    limit: HostMemoryLimit,
    /// Why it was ended, if it held too much memory.
    pub(crate) over_limit: Option<String>,
    /// It is reaped, so its number may be another process's.
    is_reaped: bool,
    /// Its temporary files, which are removed after its end.
    _folder: Option<Scratch>,
    /// Its user id, which is freed after its end.
    _claim: Option<Arc<UserClaim>>,
    /// Its control group, which is removed after its end.
    group: Option<ControlGroup>,
}

impl Worker {
    /// Returns its process id, valid until this value is dropped.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process and its children, whatever they are doing, and reaps it. Returns how it ended.
    pub(crate) fn reap(&mut self) -> String {
        self.end_group();
        // Fails only if the process was reaped already.
        let _ = self.child.kill();
        self.is_reaped = true;
        self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
    }

    /// Kills the rest of the worker's process group, in which seccomp keeps tenants' code. Until the worker is reaped, no other
    /// group has the number.
    fn end_group(&mut self) {
        if let Some(watch) = self.watch.take() {
            let has_met_limit = self.group.as_ref().is_some_and(ControlGroup::has_met_limit);
            let by_kernel = || has_met_limit.then(|| self.limit.reason(self.limit.bytes));
            self.over_limit = watch.ended().map(str::to_owned).or_else(by_kernel);
        }
        if !self.is_reaped {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        }
    }

    /// Reaps a process that `pidfd` reports as ended. Returns how it ended.
    pub(crate) fn outcome(&mut self) -> String {
        self.end_group();
        match self.child.try_wait() {
            Ok(Some(status)) => {
                self.is_reaped = true;
                status.to_string()
            }
            _ => self.reap(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.reap();
    }
}

/// Starts a worker that will report on its control socket.
///
/// # Errors
///
/// The system's error about the socket pair, the fork or the exec, with the file that it is about.
pub(crate) fn spawn(options: &WorkerCommand, limits: &MemoryLimits) -> io::Result<Worker> {
    let (server_end, worker_end) = control::pair()?;
    let number = worker_end.as_raw_fd();
    let mut command = Command::new(&options.program);
    if let Some(passes) = options.passes {
        command.env_clear().envs(env::vars_os().filter(|(name, _)| passes(name)));
    }
    let (user, claim) = options.runs_as.next()?.unzip();
    let claim = claim.flatten();
    let folder = options.serves_tenants.then(|| own_folder(user.as_ref())).transpose()?;
    command
        .envs(folder.iter().flat_map(|folder| TEMPORARY_FOLDER_VARIABLES.map(|name| (name, folder.path().to_owned()))));
    command.envs(folder.iter().filter(|_| claim.is_some()).map(|folder| (HOME_VARIABLE, folder.path().to_owned())));
    command.args(&options.arguments).arg("--control-fd").arg(number.to_string());
    command.arg("--host-memory").arg(limits.limit.bytes.to_string());
    let (socket_broker, asking) = options.serves_tenants.then(exporter_sockets::pair).transpose()?.unzip();
    if let Some(asking) = &asking {
        command.arg("--socket-broker-fd").arg(asking.as_raw_fd().to_string());
    }
    if let Some(user) = user.as_ref().filter(|_| options.serves_tenants) {
        command.arg("--user").arg(user.spelled(claim.is_some()));
    }
    let (output_reader, output_writer) = output::pipe()?;
    let (input, output) = (null_device(false)?, null_device(true)?);
    command.envs(options.set.iter().cloned()).stdin(input).stdout(output).stderr(output_writer);
    options.unset.iter().for_each(|name| {
        command.env_remove(name);
    });
    // Without a control group the server measures.
    let group = limits.groups.as_ref().and_then(|groups| groups.group().ok());
    let start = ChildStart {
        group: group.as_ref().map(ControlGroup::entrance),
        control: number,
        socket_broker: asking.as_ref().map(AsRawFd::as_raw_fd),
        parent: std::process::id(),
        becomes: user.filter(|_| !options.serves_tenants),
        descriptors: before_raise(),
    };
    // SAFETY: `prepare` makes only system calls that are safe between fork and exec: it takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(move || start.prepare()) };
    let child = command.spawn().map_err(|error| of_file(&options.program, &error, ""))?;
    let pidfd = open_pidfd(&child)?;
    let (control, output) = (Arc::new(server_end), WorkerOutput::new(output_reader, child.id()));
    let watch = limits.measured.as_ref().map(|all| all.watch(child.id()));
    let (is_reaped, over_limit) = (false, None);
    Ok(Worker {
        child,
        control,
        pidfd,
        socket_broker,
        output,
        watch,
        limit: limits.limit,
        over_limit,
        is_reaped,
        _folder: folder,
        _claim: claim,
        group,
    })
}

/// Opens `/dev/null`, to which the system may deny the server's user access.
fn null_device(is_written: bool) -> io::Result<File> {
    let opened = File::options().read(!is_written).write(is_written).open(NULL_DEVICE);
    opened.map_err(|error| of_file(Path::new(NULL_DEVICE), &error, "; let every user read and write it (chmod 666)"))
}

/// Makes an error that names its file and the remedy.
fn of_file(path: &Path, error: &io::Error, remedy: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}{remedy}", path.display()))
}

/// Creates a folder that only the worker's user can enter.
fn own_folder(user: Option<&WorkerUser>) -> io::Result<Scratch> {
    let folder = Scratch::new("worker")?;
    if let Some(user) = user {
        chown(folder.path(), Some(user.uid), Some(user.gid))?;
    }
    Ok(folder)
}

fn open_pidfd(child: &Child) -> io::Result<OwnedFd> {
    let pid = Pid::from_child(child);
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// What a child needs between fork and exec.
struct ChildStart {
    /// Where the child enters its control group.
    group: Option<RawFd>,
    control: RawFd,
    socket_broker: Option<RawFd>,
    parent: u32,
    /// The user that the child becomes before the exec.
    becomes: Option<WorkerUser>,
    descriptors: Option<Rlimit>,
}

impl ChildStart {
    /// Runs in the child, between fork and exec.
    fn prepare(&self) -> io::Result<()> {
        setsid()?;
        if let Some(before) = self.descriptors {
            setrlimit(Resource::Nofile, before)?;
        }
        if let Some(group) = self.group {
            // SAFETY: open in the child as in the parent, which holds it until the child has begun.
            let group = unsafe { BorrowedFd::borrow_raw(group) };
            // If it cannot enter the group, the server measures.
            let _ = rustix::io::write(group, b"0");
        }
        fix_addresses();
        ignore_signals();
        block_end_requests()?;
        if let Some(user) = &self.becomes {
            user.enter()?;
        }
        // The kernel clears this when a process becomes another user, so it comes after that.
        // SAFETY: this option takes one integer.
        check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) })?;
        // The server may have died before the line above took effect.
        if std::os::unix::process::parent_id() != self.parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        [Some(self.control), self.socket_broker].into_iter().flatten().try_for_each(|end| {
            // SAFETY: the worker's end of a pair, open in the child as in the parent; clearing its flags lets it pass the
            // exec.
            check(unsafe { libc::fcntl(end, libc::F_SETFD, 0) })
        })
    }
}

/// Turns off address-space randomization for the process (personality(2)).
fn fix_addresses() {
    // SAFETY: `personality` takes and returns integers. Where a container forbids it (`katydid doctor` reports that) the worker
    // runs with randomization on, which matters only for a restore from an image: so the result is not checked.
    unsafe { libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong) };
}

/// Ignores the signals whose defaults a worker restores itself, and those that are meant for its program.
fn ignore_signals() {
    // Rust's runtime sets a handler of these two signals, unless they have one. For it, the runtime gives each thread a second
    // stack, mapped wherever there is room just then. That would be in the way of the driver's memory, whose addresses depend on
    // what is mapped. The worker restores the defaults once the runtime has started.
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: this sets no handler, and the server's own handler is of no use after the exec.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    for signal in END_REQUEST_SIGNALS {
        // SAFETY: as above; an ignored signal stays ignored after the exec, so the worker is never without this.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Blocks the signals meant for its program, so that handlers of a driver in the worker do not get them.
fn block_end_requests() -> io::Result<()> {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the first call initializes the set, which the others change and read; they make system calls at most.
    unsafe {
        check(libc::sigemptyset(blocked.as_mut_ptr()))?;
        END_REQUEST_SIGNALS.iter().try_for_each(|signal| check(libc::sigaddset(blocked.as_mut_ptr(), *signal)))?;
        check(libc::sigprocmask(libc::SIG_BLOCK, blocked.as_ptr(), ptr::null_mut()))
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, poll};

    use rustix::process::getrlimit;

    use super::*;
    use crate::descriptors::raise_descriptors;

    /// bash, because the `sh` of Debian cannot write to a descriptor above 9.
    fn shell(script: &str) -> WorkerCommand {
        let arguments = vec!["-c".into(), script.into(), "worker".into()];
        let unset = vec!["HOME".into()];
        WorkerCommand { program: "/bin/bash".into(), arguments, unset, ..WorkerCommand::default() }
    }

    #[test]
    fn a_worker_has_the_variables_that_pass_and_a_folder_that_goes_with_it() {
        let script = "[ -d \"$TMPDIR\" ] && printf \"warm ${PATH:+path}${CARGO_PKG_NAME:-none} $TMPDIR\" >&$2";
        let passes = |name: &OsStr| name == "PATH" || name == "TMPDIR";
        let mut worker = spawn(
            &WorkerCommand { passes: Some(passes), serves_tenants: true, ..shell(script) },
            &MemoryLimits::default(),
        )
        .unwrap();
        wait_for_end(&worker);
        let Ok(Some(control::Message::Warm(environment))) = control::receive(&worker.control) else {
            panic!("no message")
        };
        let folder = environment.strip_prefix("pathnone ").unwrap().to_owned();
        assert_eq!(worker.outcome(), "exit status: 0");
        assert!(std::path::Path::new(&folder).is_dir());
        drop(worker);
        assert!(!std::path::Path::new(&folder).exists());
    }

    fn wait_for_end(worker: &Worker) {
        poll(&mut [PollFd::from_borrowed_fd(worker.pidfd.as_fd(), PollFlags::IN)], None).unwrap();
    }

    /// `$2` is the number after `--control-fd`.
    #[test]
    fn a_worker_gets_its_control_socket_and_nothing_it_must_not_have() {
        let mut worker =
            spawn(&shell("printf \"warm ${HOME_VARIABLE:-none}\" >&$2"), &MemoryLimits::default()).unwrap();
        wait_for_end(&worker);
        assert_eq!(control::receive(&worker.control), Ok(Some(control::Message::Warm("none".into()))));
        assert_eq!(worker.outcome(), "exit status: 0");
    }

    #[test]
    fn a_worker_leads_a_session_and_a_group_without_randomization() {
        let looks = "read -r _ _ _ _ group session _ < /proc/$$/stat
            [ $group = $$ ] && [ $session = $$ ] && [ \"$(cat /proc/$$/personality)\" = 00040000 ]";
        let mut worker = spawn(&shell(looks), &MemoryLimits::default()).unwrap();
        wait_for_end(&worker);
        assert_eq!(worker.outcome(), "exit status: 0");
    }

    /// Ends on each of the signals, unless it never arrives: LLVM sets such handlers.
    const DEFAULT_HANDLERS: &str = "
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
os.write(int(sys.argv[2]), b'warm here')
";

    #[test]
    fn a_worker_outlives_what_is_meant_for_its_program_whatever_handlers_its_driver_sets() {
        let arguments = vec!["-c".into(), DEFAULT_HANDLERS.into()];
        let command = WorkerCommand { program: "python3".into(), arguments, ..WorkerCommand::default() };
        let mut worker = spawn(&command, &MemoryLimits::default()).unwrap();
        wait_for_end(&worker);
        assert_eq!(control::receive(&worker.control), Ok(Some(control::Message::Warm("here".into()))));
        assert_eq!(worker.outcome(), "exit status: 0");
    }

    #[test]
    fn a_worker_outlives_what_is_meant_for_its_program() {
        let script = "for s in HUP INT QUIT TERM USR1 USR2 XCPU; do kill -$s $$; done; printf 'warm here' >&$2";
        let mut worker = spawn(&shell(script), &MemoryLimits::default()).unwrap();
        wait_for_end(&worker);
        assert_eq!(control::receive(&worker.control), Ok(Some(control::Message::Warm("here".into()))));
        assert_eq!(worker.outcome(), "exit status: 0");
    }

    #[test]
    fn a_dropped_worker_is_killed_and_reaped() {
        let worker = spawn(&shell("exec sleep 1000"), &MemoryLimits::default()).unwrap();
        let pid = worker.pid();
        drop(worker);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_worker_may_have_as_many_descriptors_as_the_server_was_given() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(0);
        raise_descriptors();
        assert_eq!(getrlimit(Resource::Nofile).current, getrlimit(Resource::Nofile).maximum);
        let mut worker = spawn(&shell(&format!("[ \"$(ulimit -Sn)\" = {before} ]")), &MemoryLimits::default()).unwrap();
        wait_for_end(&worker);
        assert_eq!(worker.outcome(), "exit status: 0");
    }

    #[test]
    fn a_missing_executable_is_an_error() {
        let how = WorkerCommand { program: "/no/such/file".into(), ..shell("") };
        let error = spawn(&how, &MemoryLimits::default()).unwrap_err();
        assert!(error.kind() == io::ErrorKind::NotFound && error.to_string().starts_with("/no/such/file: "), "{error}");
    }
}
