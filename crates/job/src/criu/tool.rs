//! Finds a CRIU that works here, and has it dump and restore.
//!
//! The system's own CRIU is preferred if its `criu check` passes. Else it is the one that `cargo xtask setup` fetched. That is a
//! folder with loader and libraries (`lib/katydid/criu`), because CRIU needs a newer C library than many systems have. The rule:
//! the user sees CRIU's log lines of class Error, never just its exit status.
//!
//! Without an administrator's rights CRIU runs with `--unprivileged`, which takes three capabilities (`criu/capabilities.rs`).
//! They come from this process, from the file of the system's CRIU, or from `katydid-criu`, a launcher beside the folder.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use katydid_scratch::{Scratch, private};
use rustix::process::Signal;
use rustix::system::uname;
use serde::{Deserialize, Serialize};

use crate::criu::capabilities::{Capabilities, SETCAP_TEXT};
use crate::criu::kernel_data::{InstalledKernelData, KernelData};
use crate::criu::link_remap_lock::{LinkRemapLock, LinkRemapLockError};
use crate::criu::net_lock;
use crate::criu::options::{self, AfterDump, DUMP_LOG, NetworkLock, RESTORE_LOG, UNPRIVILEGED_OPTION};
use crate::criu::rpc::{CriuRpc, RpcEvent};
use crate::criu::watchdog::{PROGRESS_TIMEOUT, signs, wait_until_idle, wait_with_progress};
use crate::process::descriptors::leases;
use crate::process::stdio::StandardStream;
use crate::process::tree::Process;
use crate::process::{attributes, signals, stdio, tcp, terminals, tree};
use crate::supervisor::guard::Guard;

/// Variable that names another CRIU: a program, or a folder such as `lib/katydid/criu`.
pub const CRIU_VARIABLE: &str = "KATYDID_CRIU";
/// The launcher beside Katydid's own CRIU folder, which can be given capabilities.
const LAUNCHER_PROGRAM: &str = "katydid-criu";
/// Folder of loader and libraries in Katydid's own CRIU folder.
const CRIU_LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";
/// CRIU's errors about a port or connection that is taken.
const ADDRESS_TAKEN_ERRORS: [&str; 2] =
    ["Address already in use", "Can't connect inet socket back: Cannot assign requested address"];
/// CRIU's error about a connection that its listener has not accepted yet.
const IN_FLIGHT_ERROR: &str = "In-flight connection";
/// CRIU's error about a socket that the kernel's list lacked: the list may skip some while other programs open and close many.
const UNLISTED_SOCKET_ERROR: [&str; 2] = ["Unix socket ", " not found"];
/// Lines of a log that an error quotes.
const MAX_QUOTED_ERRORS: usize = 3;

/// A CRIU that passed its check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Criu {
    /// Program and first arguments.
    command: Vec<OsString>,
    /// Version of CRIU, such as `4.2.1`.
    pub version: String,
    /// Path of CRIU, as messages show it.
    pub path: PathBuf,
    /// Whether it runs without an administrator's rights.
    pub unprivileged: bool,
    /// How connections are kept silent during a dump, if any are open: `nftables`, or `skip` if the kernel cannot.
    network_lock: NetworkLock,
    /// CRIU's findings about the kernel, which it need not collect again.
    kernel_data: Option<KernelData>,
}

/// A CRIU that was found, and all that the result depends on.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    circumstances: String,
    criu: Criu,
}

/// Why CRIU did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CriuError {
    /// Neither the system nor Katydid's folder has a CRIU.
    #[error(
        "no CRIU is installed, neither the system's nor {}: `cargo xtask setup` and `dist` put one there; --device-only needs none",
        private.display()
    )]
    Missing {
        /// Folder of Katydid's own CRIU.
        private: PathBuf,
    },
    /// CRIU is installed and cannot work on this machine.
    #[error("{} cannot work here: {reason}; --device-only needs no CRIU", path.display())]
    Unfit {
        /// The program that was tried.
        path: PathBuf,
        /// Reason in CRIU's own words.
        reason: String,
    },
    /// CRIU's process cannot be started.
    #[error("cannot start {}: {source}; correct its permissions, or name another one by {CRIU_VARIABLE}", path.display())]
    Start {
        /// The program that was tried.
        path: PathBuf,
        /// Error that the system returned.
        source: io::Error,
    },
    /// CRIU made no progress and was ended.
    #[error("CRIU did not {doing} the program: it stood still for {} s; try again when the machine is less busy; the last it wrote: {last}", PROGRESS_TIMEOUT.as_secs())]
    Endless {
        /// Operation that failed: `dump` or `restore`.
        doing: &'static str,
        /// The last line of CRIU's log.
        last: String,
    },
    /// A signal ended CRIU.
    #[error(
        "CRIU was killed before it could {doing} the program, by a user or because memory ran out: try again; the last it wrote: {last}"
    )]
    Killed {
        /// Operation that failed: `dump` or `restore`.
        doing: &'static str,
        /// The last line of CRIU's log.
        last: String,
    },
    /// Other processes held the lock on names of link_remap for too long.
    #[error(transparent)]
    LinkRemapLock(#[from] LinkRemapLockError),
    /// A dump or a restore failed.
    #[error("CRIU could not {doing} the program: {reason}{}", remedy(reason))]
    Failed {
        /// Operation that failed: `dump` or `restore`.
        doing: &'static str,
        /// Reason in CRIU's own words.
        reason: String,
    },
}

impl CriuError {
    /// Whether another process has a port that the job listens on, or the kernel keeps one of its connections that has just
    /// ended.
    pub(crate) fn is_of_port(&self) -> bool {
        let is_one = |reason: &str| ADDRESS_TAKEN_ERRORS.iter().any(|log_text| reason.contains(log_text));
        matches!(self, Self::Failed { reason, .. } if is_one(reason))
    }

    /// Whether another attempt may succeed: a connection waited to be accepted by the program, or CRIU missed a socket.
    pub(crate) fn is_transient(&self) -> bool {
        let Self::Failed { reason, .. } = self else { return false };
        reason.contains(IN_FLIGHT_ERROR) || UNLISTED_SOCKET_ERROR.iter().all(|words| reason.contains(words))
    }

    /// Whether CRIU had no chance to clean up in the program.
    pub(crate) fn tears(&self) -> bool {
        matches!(self, Self::Endless { .. } | Self::Killed { .. })
    }
}

impl Criu {
    /// Finds the CRIU to use: `KATYDID_CRIU`, the system's, or the one in `private`. The checks start CRIU three times (0.1 s),
    /// so the folder `cache` keeps their result for as long as nothing changes.
    ///
    /// # Errors
    ///
    /// There is none, or none that passes its check; the text has the reason of the best one.
    pub fn find(private: &Path, cache: Option<&Path>) -> Result<Self, CriuError> {
        let named = env::var_os(CRIU_VARIABLE).filter(|named| !named.is_empty()).map(PathBuf::from);
        let system = in_path("criu");
        let note = cache.map(|cache| cache.join("criu.json"));
        let circumstances = circumstances([named.as_deref(), system.as_deref(), Some(private)]);
        if let Some(found) = note.as_deref().and_then(|note| Self::from_note(note, &circumstances)) {
            return Ok(found);
        }
        let found = Self::tried(named.as_deref(), system.as_deref(), private)?;
        if let Some(note) = note {
            let probe = Note { circumstances, criu: found.clone() };
            // Without the note the checks run again next time.
            let _ = serde_json::to_vec(&probe).map(|text| replace(&note, &text));
        }
        Ok(found)
    }

    fn tried(named: Option<&Path>, system: Option<&Path>, private: &Path) -> Result<Self, CriuError> {
        if let Some(named) = named {
            return Self::at(named);
        }
        match system.map(Self::at) {
            Some(Ok(criu)) => Ok(criu),
            Some(Err(error)) if !private.exists() => Err(error),
            _ => Self::at(private),
        }
    }

    /// The CRIU that was found under the same circumstances.
    fn from_note(note: &Path, circumstances: &str) -> Option<Self> {
        let note: Note = serde_json::from_slice(&fs::read(note).ok()?).ok()?;
        (note.circumstances == circumstances).then_some(note.criu)
    }

    /// The CRIU at `path`, if it passes its check.
    fn at(path: &Path) -> Result<Self, CriuError> {
        if !path.exists() {
            return Err(CriuError::Missing { private: path.to_owned() });
        }
        let command = if path.is_dir() { through_its_loader(path) } else { vec![path.into()] };
        let rights = Capabilities::of(Path::new(&command[0]));
        let may_be = rights.is_none_or(Capabilities::are_administrators);
        let as_administrator = may_be.then(|| Self::checked(path, command.clone(), false));
        match as_administrator {
            Some(Err(CriuError::Unfit { reason: first, .. })) => {
                Self::unprivileged_at(path, command, rights).map_err(|error| match error {
                    CriuError::Unfit { path: tool_path, reason } => CriuError::Unfit {
                        path: tool_path,
                        reason: format!("{first}; with {UNPRIVILEGED_OPTION}: {reason}"),
                    },
                    other => other,
                })
            }
            Some(found) => found,
            None => Self::unprivileged_at(path, command, rights),
        }
    }

    /// A CRIU without an administrator's rights. The launcher starts it if only that has the capabilities.
    fn unprivileged_at(path: &Path, command: Vec<OsString>, rights: Option<Capabilities>) -> Result<Self, CriuError> {
        let Some(lacking) = rights.and_then(Capabilities::lacking) else { return Self::checked(path, command, true) };
        let launcher = path.with_file_name(LAUNCHER_PROGRAM);
        if path.is_dir() && Capabilities::of(&launcher).is_some_and(|rights| rights.lacking().is_none()) {
            return Self::checked(path, vec![launcher.into()], true);
        }
        Err(CriuError::Unfit { path: path.to_owned(), reason: lacking.to_string() })
    }

    /// The CRIU that `command` runs, if it passes its check.
    fn checked(path: &Path, command: Vec<OsString>, unprivileged: bool) -> Result<Self, CriuError> {
        let kernel_data = if unprivileged { None } else { KernelData::collect(&command) };
        let (version, tool_path, network_lock) = (String::new(), path.to_owned(), NetworkLock::Skip);
        let mut criu = Self { command, version, path: tool_path, unprivileged, network_lock, kernel_data };
        let _kernel_data = criu.install_kernel_data();
        let version = criu.answer(&["--version"])?;
        criu.version = version.lines().find_map(|line| line.strip_prefix("Version: ")).unwrap_or("?").to_owned();
        match criu.answer(&["check"]) {
            Err(CriuError::Unfit { reason, .. }) if is_of_ids(&reason) && criu.gives_ids() => {}
            checked => drop(checked?),
        }
        if criu.answer(&["check", "--feature", "network_lock_nftables"]).is_ok() {
            criu.network_lock = NetworkLock::Nftables;
        }
        Ok(criu)
    }

    /// Whether CRIU sets process ids by a system call, and needs no file for that.
    fn gives_ids(&self) -> bool {
        self.answer(&["check", "--feature", "clone3_set_tid"]).is_ok()
    }

    /// Tells how an administrator lets an ordinary user take checkpoints: the command and the file.
    #[must_use]
    pub fn how_to_grant(private: &Path) -> String {
        let launcher = private.with_file_name(LAUNCHER_PROGRAM);
        let file = in_path("criu").filter(|_| !launcher.is_file()).unwrap_or(launcher);
        format!("`setcap {SETCAP_TEXT} {}`", file.display())
    }

    /// The CRIU that the command `prefix` starts, among processes of other namespaces.
    #[must_use]
    pub fn through(mut self, prefix: &[OsString]) -> Self {
        self.command.splice(..0, prefix.iter().cloned());
        self
    }

    /// Saves a CRIU from collecting its findings about the kernel again, as long as the value lives.
    pub(crate) fn install_kernel_data(&self) -> Option<InstalledKernelData> {
        self.kernel_data.as_ref().and_then(KernelData::install)
    }

    /// Starts a CRIU that will dump the tree below `root`, an id in the tree's own namespace, into `folder`, which exists and is
    /// empty. CRIU collects what it needs to know about the system, which stops no process, and waits.
    ///
    /// TCP connections are kept silent during the dump if any of `processes` has one: the preparation takes the kernel a
    /// twentieth of a second.
    ///
    /// # Errors
    ///
    /// CRIU cannot be started; or other processes hold the lock on names of link_remap for too long: this waits for those that
    /// dump now.
    pub(crate) fn prepare(
        &self,
        root: u32,
        processes: &[Process],
        folder: &Path,
        stdio: &[StandardStream; 3],
        after: AfterDump,
    ) -> Result<Dumper, CriuError> {
        let is_silenced = self.network_lock == NetworkLock::Nftables && tcp::is_connected(processes);
        let lock = if is_silenced { NetworkLock::Nftables } else { NetworkLock::Skip };
        let mut remap_lock = LinkRemapLock::of_dump(processes);
        remap_lock.iter_mut().try_for_each(LinkRemapLock::wait_until_free)?;
        let terminals = terminals::foreign(processes).into_iter();
        let terminals = terminals.map(|(rdev, dev)| StandardStream::Terminal { rdev, dev });
        let external = stdio.iter().cloned().chain(terminals).filter_map(|standard| standard.external());
        let external = external.collect::<BTreeSet<String>>().into_iter().collect();
        let opens_files = stdio::are_readable() && !leases::any(processes);
        self.start_dumper(Dump { root, folder: folder.to_owned(), external, after, opens_files }, lock, remap_lock)
    }

    /// Starts a CRIU that will dump the process of a worker, which has no child processes and no files of its own. `external`
    /// lists resources that CRIU treats as external.
    ///
    /// # Errors
    ///
    /// CRIU cannot be started.
    pub(crate) fn prepare_worker(&self, root: u32, folder: &Path, external: Vec<String>) -> Result<Dumper, CriuError> {
        let opens_files = stdio::are_readable();
        let dump = Dump { root, folder: folder.to_owned(), external, after: AfterDump::Stopped, opens_files };
        self.start_dumper(dump, NetworkLock::Skip, None)
    }

    fn start_dumper(
        &self,
        dump: Dump,
        lock: NetworkLock,
        remap_lock: Option<LinkRemapLock>,
    ) -> Result<Dumper, CriuError> {
        let failed = |source| self.start(source);
        // What CRIU logs after the dump must not change the image.
        let work = Scratch::new("dump").map_err(failed)?;
        let (rpc, criu_end) = CriuRpc::pair().map_err(failed)?;
        let kernel_data_file = self.install_kernel_data();
        let output = tempfile::tempfile().map_err(failed)?;
        let mut command = self.command(&[]);
        options::dump(&mut command, &dump.folder, work.path(), (lock, dump.after), &dump.external, dump.opens_files);
        command.stdin(criu_end);
        command.stdout(output.try_clone().map_err(failed)?).stderr(output.try_clone().map_err(failed)?);
        signals::ignore(&mut command);
        attributes::start_with_private_files(&mut command);
        let child = command.spawn().map_err(failed)?;
        // If CRIU has ended already, waiting for it tells why.
        let _ = rpc.order_dump(dump.root, &dump.folder);
        let (criu, table, is_over) = (self.clone(), None, false);
        Ok(Dumper { criu, dump, lock, rpc, child, work, output, kernel_data_file, table, remap_lock, is_over })
    }

    /// Restores the tree in `folder` below a guard, and leaves all of it stopped. Log and notes go to `work`, because the image
    /// may be read-only or in use twice. Also returns the id of the tree's root.
    ///
    /// Standard input stays this process's: CRIU takes the terminal of a shell job from there. What CRIU prints is also in its
    /// log, except complaints of the loader and about its options.
    ///
    /// # Errors
    ///
    /// [`CriuError::Failed`]; then nothing remains of the tree, nor of the names that files have for this.
    pub fn restore(
        &self,
        katydid: &Path,
        folder: &Path,
        work: &Path,
        names: &[&Path],
        inherit: &[OsString],
        personality: Option<u32>,
    ) -> Result<(Guard, u32), CriuError> {
        let command = self.restore_command(folder, work, inherit);
        let _kernel_data = self.install_kernel_data();
        let start = |source| self.start(source);
        Self::make_statistics(work).map_err(start)?;
        let mut output = tempfile::tempfile().map_err(start)?;
        let (stdout, stderr) = (output.try_clone().map_err(start)?, output.try_clone().map_err(start)?);
        let guard = Guard::spawn(katydid, &command, names, |command| {
            command.stdin(Stdio::inherit()).stdout(stdout).stderr(stderr);
            if let Some(personality) = personality {
                attributes::start_with_personality(command, personality);
            }
        });
        let mut guard = guard.map_err(start)?;
        let guard_pid = guard.id();
        let signs = || signs(work, &tree::tree(guard_pid).unwrap_or_default());
        let end = wait_until_idle(|until| end_of_restore(&mut guard, work, until), PROGRESS_TIMEOUT, &signs)
            .map_err(start)?;
        let log_text = |output: &mut File| log_text(&work.join(RESTORE_LOG), output);
        let failed = |reason| CriuError::Failed { doing: "restore", reason };
        match end {
            Some(RestoreExit::OfCriu(status)) if status.success() => {}
            Some(RestoreExit::OfCriu(status)) => return Err(failure("restore", status, &log_text(&mut output), work)),
            Some(RestoreExit::OfRoot(pid)) => {
                return Err(failed(format!("process {pid} has ended while it was being restored; try again")));
            }
            None => {
                return Err(CriuError::Endless {
                    doing: "restore",
                    last: last_line(&log_text(&mut output)).to_owned(),
                });
            }
        }
        let root = root(work).map_err(failed)?;
        guard.restored();
        Ok((guard, root))
    }

    /// Builds the command that [`Criu::restore`] runs.
    #[must_use]
    pub fn restore_command(&self, folder: &Path, work: &Path, inherit: &[OsString]) -> Command {
        let mut command = self.command(&["restore"]);
        options::restore(&mut command, folder, work, &Self::note(work), inherit);
        command
    }

    /// Creates the one file that CRIU would make readable for others at a restore, since its umask is the program's.
    ///
    /// # Errors
    ///
    /// Error that the system returned.
    pub fn make_statistics(work: &Path) -> io::Result<()> {
        private::create(&work.join("stats-restore")).map(drop)
    }

    /// File in which a restore leaves the root's id.
    #[must_use]
    pub fn note(work: &Path) -> PathBuf {
        work.join("pid")
    }

    /// Why a restore that ran elsewhere failed: from its log, or from its `output` if there is no log yet.
    #[must_use]
    pub fn failure(&self, work: &Path, output: &[u8]) -> CriuError {
        let log = fs::read(work.join(RESTORE_LOG)).unwrap_or_default();
        let text = if log.is_empty() { output } else { &log };
        CriuError::Failed { doing: "restore", reason: quoted(&String::from_utf8_lossy(text)) }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let (program, first) = self.command.split_first().map_or((OsStr::new("criu"), &[][..]), |(a, b)| (a, b));
        let mut command = Command::new(program);
        command.args(first).args(self.unprivileged.then_some(UNPRIVILEGED_OPTION)).args(arguments);
        command
    }

    /// Runs CRIU with these arguments and returns its output.
    fn answer(&self, arguments: &[&str]) -> Result<String, CriuError> {
        let output = self.command(arguments).stdin(Stdio::null()).output().map_err(|source| self.start(source))?;
        let text_of = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text_of(&output.stdout), text_of(&output.stderr));
        if output.status.success() {
            return Ok(stdout);
        }
        // CRIU reports missing rights on standard output.
        let text = if stderr.contains(ERROR_MARK) || stdout.trim().is_empty() { stderr } else { in_a_line(&stdout) };
        Err(CriuError::Unfit { path: self.path.clone(), reason: quoted(&text) })
    }

    fn start(&self, source: io::Error) -> CriuError {
        CriuError::Start { path: self.path.clone(), source }
    }
}

/// Texts of CRIU's errors, and what a user can do about each; the first that matches counts.
const CRIU_REMEDIES: [(&str, &str); 19] = [
    (ADDRESS_TAKEN_ERRORS[0], "another process has the port (`ss -tlnp` shows it): end that, or wait"),
    (ADDRESS_TAKEN_ERRORS[1], "the kernel keeps a connection that has just ended: try again in a minute"),
    ("Cannot assign requested address", "an address of the job is not one of this machine: restore it where it is"),
    (IN_FLIGHT_ERROR, "a connection is not accepted yet: try again in a moment"),
    ("it left no process id", "try again"),
    (NO_SPACE, FREE_SPACE),
    ("No space left on device", FREE_SPACE),
    ("Disk quota exceeded", FREE_SPACE),
    ("Read-only file system", "that file system is mounted read-only: name another place"),
    ("Cannot allocate memory", "free memory"),
    ("Too many open files", "allow more open files (ulimit -n)"),
    ("Resource temporarily unavailable", "allow more processes (ulimit -u, or the control group's pids.max)"),
    ("Unseizable non-zombie", "another process traces it: end the debugger or strace"),
    ("increase limit", "a file without a name is larger than 1 GiB: have the program close it, or give it a name"),
    ("has bad size", "that file has changed since the checkpoint: put it back as it was"),
    ("has bad mode", "that file has changed since the checkpoint: put it back as it was"),
    ("No such file or directory", "a file of the job is gone since the checkpoint: put it back"),
    ("Operation not permitted", MISSING_RIGHTS_TEXT),
    ("Permission denied", MISSING_RIGHTS_TEXT),
];
const NO_SPACE: &str = "no free space for the image";
const FREE_SPACE: &str = "free some space there (df)";
const MISSING_RIGHTS_TEXT: &str = "it takes root, or the rights of docs/how-to/checkpoint-rights.md";

/// What a user can do about a known cause; empty for others.
fn remedy(reason: &str) -> String {
    let found = CRIU_REMEDIES.iter().find(|(log_text, _)| reason.contains(log_text));
    found.map_or_else(String::new, |(_, remedy)| format!("; {remedy}"))
}

/// Whether a signal ended a command, or the command that it ran and whose status it passes on.
fn was_killed(status: ExitStatus) -> bool {
    status.signal().is_some() || status.code().is_some_and(|code| (129..160).contains(&code))
}

/// The parameters of a dump.
#[derive(Debug, Clone)]
struct Dump {
    root: u32,
    folder: PathBuf,
    /// Resources that CRIU treats as external: `--external`.
    external: Vec<String>,
    after: AfterDump,
    /// Whether CRIU may open the files of the tree: they can be opened, and that breaks no lease.
    opens_files: bool,
}

/// A CRIU that waits to dump, and after the dump waits to let go. If it is dropped before, CRIU undoes its work, and the
/// processes run on.
#[derive(Debug)]
pub(crate) struct Dumper {
    criu: Criu,
    dump: Dump,
    lock: NetworkLock,
    rpc: CriuRpc,
    child: Child,
    /// Folder for CRIU's log, removed on drop.
    work: Scratch,
    output: File,
    kernel_data_file: Option<InstalledKernelData>,
    /// Packet filter table that keeps connections silent.
    table: Option<String>,
    /// The lock on names of link_remap, if CRIU gives files such names.
    remap_lock: Option<LinkRemapLock>,
    /// Whether CRIU holds no processes any more.
    is_over: bool,
}

impl Dumper {
    /// Dumps the tree. CRIU keeps it frozen until [`Dumper::let_go`].
    ///
    /// # Errors
    ///
    /// [`CriuError::Failed`]; then the processes run on, or are stopped, depending on how far CRIU came. Or other processes hold
    /// the lock on names of link_remap for too long.
    pub(crate) fn dump(mut self) -> Result<Self, CriuError> {
        self.wait_for("pre-dump")?;
        self.kernel_data_file = None;
        self.remap_lock.iter_mut().try_for_each(LinkRemapLock::begin)?;
        // If CRIU is gone, the next wait notices.
        let _ = self.rpc.answer(true);
        self.wait_for("post-dump")?;
        if self.lock == NetworkLock::Nftables {
            self.table = net_lock::table(&self.dump.folder);
        }
        let Self { criu, dump, .. } = &self;
        if self.lock == criu.network_lock || !tcp::is_in(&dump.folder) {
            let copied = private::copy(&self.log(), &dump.folder.join(DUMP_LOG));
            let failed = |error: io::Error| CriuError::Failed { doing: "dump", reason: error.to_string() };
            return copied.map_err(failed).map(|_| self);
        }
        // A process has connected since the check: dump once more, with the network lock.
        let (criu, dump, lock, remap_lock) = (criu.clone(), dump.clone(), criu.network_lock, self.remap_lock.take());
        drop(self);
        clear(&dump.folder).map_err(|source| criu.start(source))?;
        criu.start_dumper(dump, lock, remap_lock)?.dump()
    }

    /// Notes that the names that CRIU gave are removed. If the processes are to go on, CRIU removes these names once more before
    /// it lets go, even if they belong to others by then. It does the same when it undoes a dump, so the lock is kept then.
    pub(crate) fn on_names_removed(&mut self) {
        if self.dump.after == AfterDump::Stopped {
            self.remap_lock.iter_mut().for_each(LinkRemapLock::pause);
        }
    }

    /// Has CRIU let go of the processes: they go on, or stay stopped with their connections silent, as chosen at the start.
    ///
    /// # Errors
    ///
    /// CRIU failed to let go.
    pub(crate) fn let_go(&mut self) -> Result<(), CriuError> {
        self.is_over = true;
        let _ = self.rpc.answer(true);
        let event = self.receive()?;
        self.remap_lock = None;
        match event {
            RpcEvent::Ended { succeeded: true } => Ok(()),
            _ => Err(self.failed()),
        }
    }

    /// Ends the silence of connections. If that fails, the silence ends when this dump is restored.
    pub(crate) fn end_silence(&self) {
        if let Some(table) = &self.table {
            let _ = net_lock::end(table);
        }
    }

    /// Waits until CRIU asks about `step`, and allows all other steps.
    fn wait_for(&mut self, step: &str) -> Result<(), CriuError> {
        loop {
            match self.receive()? {
                RpcEvent::Asks(next_step) if next_step == step => return Ok(()),
                RpcEvent::Asks(_) => drop(self.rpc.answer(true)),
                RpcEvent::Ended { .. } | RpcEvent::Gone => return Err(self.failed()),
            }
        }
    }

    /// Waits for CRIU's next event, as long as CRIU makes progress.
    fn receive(&mut self) -> Result<RpcEvent, CriuError> {
        let event = wait_until_idle(|until| self.rpc.receive(until), PROGRESS_TIMEOUT, &|| self.signs());
        if let Some(event) = event.map_err(|source| self.criu.start(source))? {
            return Ok(event);
        }
        self.is_over = true;
        tree::signal(&tree::tree(self.child.id()).unwrap_or_default(), Signal::KILL);
        // A child that cannot be waited for was reaped already.
        let _ = self.child.wait();
        Err(CriuError::Endless { doing: "dump", last: last_line(&self.log_text()).to_owned() })
    }

    fn signs(&self) -> u64 {
        signs(&self.dump.folder, &tree::tree(self.child.id()).unwrap_or_default())
    }

    /// Reports the failure of a CRIU that has ended, or is about to.
    fn failed(&mut self) -> CriuError {
        self.is_over = true;
        match self.reap() {
            Some(status) => failure("dump", status, &self.log_text(), &self.dump.folder),
            None => CriuError::Endless { doing: "dump", last: last_line(&self.log_text()).to_owned() },
        }
    }

    fn log_text(&mut self) -> String {
        log_text(&self.log(), &mut self.output)
    }

    fn log(&self) -> PathBuf {
        self.work.path().join(DUMP_LOG)
    }

    /// Waits until CRIU ends by itself; `None` if it had to be killed.
    fn reap(&mut self) -> Option<ExitStatus> {
        let Self { child, dump, .. } = self;
        let pid = child.id();
        let signs = || signs(&dump.folder, &tree::tree(pid).unwrap_or_default());
        wait_with_progress(child, PROGRESS_TIMEOUT, &signs).ok().flatten()
    }
}

/// The process whose end ends a restore.
enum RestoreExit {
    /// CRIU, which has succeeded or failed.
    OfCriu(ExitStatus),
    /// The tree's root. CRIU, whose child it is not, does not notice its end, and would wait for ever.
    OfRoot(u32),
}

/// Waits until a deadline for the end of a restore.
fn end_of_restore(guard: &mut Guard, work: &Path, until: Instant) -> io::Result<Option<RestoreExit>> {
    if let Some(status) = guard.wait_until(guard.first(), Some(until))? {
        return Ok(Some(RestoreExit::OfCriu(status)));
    }
    // The process may still exist, since CRIU traces it, and the guard must not hear of its end.
    Ok(root(work).ok().filter(|pid| tree::has_ended(*pid)).map(RestoreExit::OfRoot))
}

/// The root of the tree that a restore makes, or has made.
fn root(work: &Path) -> Result<u32, String> {
    let text = fs::read_to_string(Criu::note(work)).map_err(|error| format!("it left no process id: {error}"))?;
    text.trim().parse().map_err(|_| format!("its process id is {text:?}"))
}

impl Drop for Dumper {
    fn drop(&mut self) {
        if !self.is_over {
            // If another process keeps the lock, the processes must be released all the same.
            let _ = self.remap_lock.iter_mut().try_for_each(LinkRemapLock::resume);
            let _ = self.rpc.answer(false);
        }
        self.reap();
    }
}

/// The error of a CRIU that ended with `status` and this log; `folder` is where it wrote its files.
fn failure(doing: &'static str, status: ExitStatus, log_text: &str, folder: &Path) -> CriuError {
    if was_killed(status) {
        return CriuError::Killed { doing, last: last_line(log_text).to_owned() };
    }
    // CRIU cannot report that itself: its log has no space either.
    let reason = if is_full(folder) { NO_SPACE.to_owned() } else { quoted(log_text) };
    CriuError::Failed { doing, reason }
}

/// CRIU's log, or its output if there is no log yet.
fn log_text(log: &Path, output: &mut File) -> String {
    let mut text = fs::read_to_string(log).unwrap_or_default();
    if text.is_empty() {
        // Without either, the text stays empty.
        let _ = output.rewind().and_then(|()| output.read_to_string(&mut text));
        if !text.contains(ERROR_MARK) {
            return in_a_line(&text);
        }
    }
    text
}

/// Removes the files of a folder.
fn clear(folder: &Path) -> io::Result<()> {
    fs::read_dir(folder)?.try_for_each(|entry| fs::remove_file(entry?.path()))
}

/// Whether the file system of a folder is full.
fn is_full(folder: &Path) -> bool {
    rustix::fs::statvfs(folder).is_ok_and(|stat| stat.f_bavail == 0)
}

/// What a finding depends on: the kernel and its boot, the user's rights, and the files with their times.
fn circumstances(paths: [Option<&Path>; 3]) -> String {
    let rights = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = rights
        .lines()
        .filter(|line| ["Cap", "Uid", "NoNewPrivs"].iter().any(|name| line.starts_with(name)))
        .collect::<String>();
    let changed = |path: &Path| {
        // For a folder, the program in it counts, since the folder's own time may stay.
        let inside = path.join("usr/sbin/criu");
        let stat = fs::metadata(&inside).or_else(|_| fs::metadata(path)).ok();
        // Granting capabilities to a file changes only its ctime.
        let change = |path: &Path| fs::metadata(path).ok().map(|stat| (stat.ctime(), stat.ctime_nsec()));
        let changes = (change(path), change(&path.with_file_name(LAUNCHER_PROGRAM)));
        format!("{} {:?} {changes:?}", path.display(), stat.and_then(|stat| stat.modified().ok()))
    };
    let changes: Vec<String> = paths.into_iter().flatten().map(changed).collect();
    let (uname, boot) = (uname(), fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default());
    format!(
        "{} {} {} {rights} {}",
        uname.release().to_string_lossy(),
        uname.version().to_string_lossy(),
        boot.trim(),
        changes.join(" ")
    )
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let fresh = path.with_extension(format!("{}.part", std::process::id()));
    private::write(&fresh, text).and_then(|()| fs::rename(&fresh, path))
}

/// The command that starts the program in the folder by the folder's own loader, with the path of its libraries.
fn through_its_loader(folder: &Path) -> Vec<OsString> {
    let libraries = folder.join(CRIU_LIBRARY_FOLDER);
    let loader = libraries.join("ld-linux-x86-64.so.2");
    vec![loader.into(), "--library-path".into(), libraries.into(), folder.join("usr/sbin/criu").into()]
}

/// The first program of this name in `PATH`, or in the usual `sbin` folders if `PATH` lacks them.
fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Joins the lines of a text into one, without spaces around them.
fn in_a_line(text: &str) -> String {
    let lines: Vec<&str> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).take(MAX_QUOTED_ERRORS).collect();
    lines.join(" ")
}

/// Marks an error in CRIU's log.
const ERROR_MARK: &str = "Error (";

/// The first errors of a log, without time, class and source line; if there are none, its last line.
fn quoted(log: &str) -> String {
    let errors = log.lines().filter(|line| line.contains(ERROR_MARK) && !is_harmless(line));
    let errors: Vec<&str> = errors.take(MAX_QUOTED_ERRORS).map(after_source_line).collect();
    if errors.is_empty() {
        return last_line(log).to_owned();
    }
    errors.join("; ")
}

fn last_line(log: &str) -> &str {
    log.lines().rfind(|line| !line.trim().is_empty()).map_or("it did not say why", str::trim)
}

/// Whether a check failed only because of the file by which CRIU set ids before the kernel had a system call for that. In a
/// container that file is read-only.
fn is_of_ids(reason: &str) -> bool {
    !reason.is_empty() && reason.split("; ").all(|error| error.contains("ns_last_pid"))
}

/// Whether CRIU only failed to raise a limit of its own, which it does not need.
fn is_harmless(line: &str) -> bool {
    line.contains("RLIMIT_NOFILE")
}

/// `(00.01) Error (criu/files.c:12): text` → `text`.
fn after_source_line(line: &str) -> &str {
    let text = line.split_once(ERROR_MARK).map_or(line, |(_, rest)| rest);
    text.split_once("): ").map_or(text, |(_, rest)| rest).trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_errors_of_a_log_are_quoted_without_their_places() {
        let log = "(00.0) Warn  (criu/x.c:1): no\n\
                   Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n\
                   (00.1)   12: Error (criu/files.c:1221): Unable to open fd=2 id=0x7\n\
                   (00.2) Error (criu/cr-restore.c:2331): Restoring FAILED.\n";
        assert_eq!(quoted(log), "Unable to open fd=2 id=0x7; Restoring FAILED.");
        assert_eq!(quoted("one\ntwo\n\n"), "two");
        assert_eq!(quoted(""), "it did not say why");
    }

    #[test]
    fn restore_statistics_have_mode_0600_before_criu_writes_them() {
        let work = tempfile::tempdir().unwrap();
        Criu::make_statistics(work.path()).unwrap();
        Criu::make_statistics(work.path()).unwrap();
        let stat = fs::metadata(work.path().join("stats-restore")).unwrap();
        assert_eq!((stat.mode() & 0o777, stat.len()), (0o600, 0));
    }

    #[test]
    fn read_only_id_file_alone_is_not_reported() {
        let ids = "sys/kernel/ns_last_pid sysctl is inaccessible: Read-only file system";
        assert!(is_of_ids(ids) && !is_of_ids(&format!("{ids}; no")) && !is_of_ids(""));
    }

    #[test]
    fn output_of_criu_without_a_log_is_quoted_whole() {
        let mut output = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut output, b"CRIU needs to have the X capability: \nsetcap x /criu\n\n").unwrap();
        let log_text = log_text(Path::new("/no/log"), &mut output);
        assert_eq!(quoted(&log_text), "CRIU needs to have the X capability: setcap x /criu");
    }

    #[test]
    fn a_connection_that_has_just_ended_is_waited_for_and_an_address_of_another_host_is_not() {
        let failed = |reason: &str| CriuError::Failed { doing: "restore", reason: reason.to_owned() };
        let is_of_port = |reason| failed(reason).is_of_port();
        assert!(is_of_port("Can't bind inet socket (id 3): Address already in use; Restoring FAILED."));
        assert!(is_of_port("Can't connect inet socket back: Cannot assign requested address; Restoring FAILED."));
        assert!(!is_of_port("Can't bind inet socket back: Cannot assign requested address"));
    }

    #[test]
    fn a_socket_that_criu_missed_is_looked_for_again() {
        let failed = |reason: &str| CriuError::Failed { doing: "dump", reason: reason.to_owned() };
        assert!(failed("unix: Unix socket 82238103 not found; Dump files (pid: 7) failed with -1").is_transient());
        assert!(failed("sk-inet: In-flight connection (l) for 7").is_transient());
        assert!(!failed("Can't open file srv/data on restore: No such file or directory").is_transient());
    }

    #[test]
    fn known_causes_have_remedies_and_others_quote_criu() {
        let message = |reason: &str| CriuError::Failed { doing: "restore", reason: reason.to_owned() }.to_string();
        for (reason, word) in [
            ("Can't bind inet socket (id 3): Address already in use; Restoring FAILED.", "ss -tlnp"),
            ("File home/me/log has bad size 7 (expect 9)", "put it back"),
            ("Can't open file srv/data on restore: No such file or directory", "put it back"),
            ("Unseizable non-zombie 7 found, state t, err -1/4", "debugger"),
            ("Can't write image: No space left on device", "free some space"),
            ("Can't set tid: Operation not permitted", "checkpoint-rights"),
        ] {
            assert!(
                message(reason).contains(&format!("{reason}; ")) && message(reason).contains(word),
                "{}",
                message(reason)
            );
        }
        assert_eq!(message("Restoring FAILED."), "CRIU could not restore the program: Restoring FAILED.");
    }

    #[test]
    fn a_missing_criu_is_named_with_the_remedy() {
        let error = Criu::at(Path::new("/no/such/criu")).unwrap_err().to_string();
        assert!(error.contains("/no/such/criu") && error.contains("--device-only"), "{error}");
    }

    #[test]
    fn program_other_than_criu_is_refused() {
        let error = Criu::at(Path::new("/bin/false")).unwrap_err();
        assert!(matches!(error, CriuError::Unfit { .. }), "{error}");
    }

    #[test]
    fn cached_criu_probe_is_valid_for_the_same_conditions_only() {
        let folder = tempfile::tempdir().unwrap();
        let note = folder.path().join("criu.json");
        let criu = Criu {
            command: vec!["/bin/criu".into()],
            version: "4.2.1".into(),
            path: "/bin/criu".into(),
            unprivileged: false,
            network_lock: NetworkLock::Skip,
            kernel_data: None,
        };
        let circumstances = circumstances([None, Some(folder.path()), None]);
        let probe = Note { circumstances: circumstances.clone(), criu: criu.clone() };
        replace(&note, &serde_json::to_vec(&probe).unwrap()).unwrap();
        assert_eq!(Criu::from_note(&note, &circumstances), Some(criu));
        assert_eq!(Criu::from_note(&note, "another kernel"), None);
        assert_eq!(Criu::from_note(&folder.path().join("none"), &circumstances), None);
    }

    #[test]
    fn a_folder_is_entered_through_its_own_loader() {
        let command = through_its_loader(Path::new("/k/criu"));
        assert_eq!(command[0], "/k/criu/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
        assert_eq!(command[3], "/k/criu/usr/sbin/criu");
    }
}
