//! Namespaces of a job's own, for a program whose process ids, job folder or pseudo-terminals another process has.
//!
//! ```text
//! supervisor ── keeper     new namespaces for its children; the job's folder mounted where the programs look for it
//!                 └─ init  process 1: restores the program, reaps orphans, ends as the program ends
//!                     └─ program, with the ids that it had
//! ```
//!
//! [`keep`], [`init`] and [`enter`] are the bodies of three hidden commands, because each needs a process of its own. The rule:
//! the file system is the same except the folder of jobs, `/proc`, and the job's own files in `/dev/shm` and `/dev/pts`. Nothing
//! remains when init has ended.

#![expect(unsafe_code, reason = "rustix marks the making of namespaces as unsafe, for a flag that is not used here")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use katydid_scratch::private;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Signal, WaitOptions, set_parent_process_death_signal, setsid, wait};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use crate::criu::watchdog::{PROGRESS_TIMEOUT, signs, wait_with_progress};
use crate::process::shared_memory::{Journal, MadeFiles, Segment};
use crate::process::{shared_memory, terminals, tree};
use crate::system::why;

/// The step that fails if an ordinary user restores a job a second time.
const MAKE_NAMESPACES_STEP: &str = "make namespaces (which takes CAP_SYS_ADMIN; the job needs them because one of its process ids, its folder or its terminal is taken)";

/// Settings of a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNamespaces {
    /// Path at which the programs look for the job's folder.
    pub known_folder: PathBuf,
    /// Path of the job's folder.
    pub folder: PathBuf,
    /// File to which CRIU writes the program's id.
    pub note: PathBuf,
    /// A process id above all that the program needs: new ids follow it.
    pub last_id: u32,
    /// Folder of CRIU's files, with copies of the job's shared memory.
    pub files: PathBuf,
    /// File with the list of that shared memory, as JSON.
    pub shared: PathBuf,
    /// The journal of the shared memory that was made: the supervisor knows whether the job goes on.
    pub made: PathBuf,
    /// Numbers of the job's pseudo-terminals.
    pub terminals: Vec<u32>,
}

/// The step that failed, and the system's error.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing}: {}", why(source))]
pub struct NamespaceError {
    /// The step that failed.
    doing: &'static str,
    /// Error that the system returned.
    source: io::Error,
}

fn failed<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> NamespaceError {
    move |source| NamespaceError { doing, source: source.into() }
}

/// Runs the keeper: makes the namespaces, starts `init` in them, and ends when that ends.
///
/// # Errors
///
/// The namespaces cannot be made; this needs an administrator's rights.
pub fn keep(namespaces: &JobNamespaces, mut init: Command) -> Result<u8, NamespaceError> {
    die_with_parent()?;
    // SAFETY: of all flags only that for the table of descriptors is dangerous, and it is not given.
    unsafe { unshare_unsafe(UnshareFlags::NEWPID | UnshareFlags::NEWNS) }.map_err(failed(MAKE_NAMESPACES_STEP))?;
    // Its path may be hidden once the job's own file systems are mounted.
    let journal = Journal::open(&namespaces.made).map_err(failed("open the journal of the restore"))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(failed("make mounts private"))?;
    if namespaces.folder != namespaces.known_folder {
        show(&namespaces.folder, &namespaces.known_folder).map_err(failed("mount the job's folder"))?;
    }
    make_shared(namespaces, journal)?;
    if !namespaces.terminals.is_empty() {
        terminals::mount_own().map_err(failed("mount /dev/pts"))?;
    }
    let status = init.status().map_err(failed("start the namespaces' first process"))?;
    Ok(code(status))
}

/// Mounts the job's `folder` where its programs look for it, with no other job beside it. The folder that other processes see
/// there is another job's. If that were removed, a mount on it would go too.
fn show(folder: &Path, source: &Path) -> io::Result<()> {
    let job_folder = File::open(folder)?;
    let above = source.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", above, "tmpfs", flags, Some(c"mode=0700"))?;
    private::folder(source)?;
    Ok(mount_bind(format!("/proc/self/fd/{}", job_folder.as_raw_fd()), source)?)
}

/// Makes the job's shared memory anew, hidden from other processes.
fn make_shared(namespaces: &JobNamespaces, journal: Journal) -> Result<(), NamespaceError> {
    let list = fs::read(&namespaces.shared).and_then(|text| Ok(serde_json::from_slice::<Vec<Segment>>(&text)?));
    let list = list.map_err(failed("read the list of the job's shared memory"))?;
    if shared_memory::is_posix(&list) {
        mount_shared(namespaces).map_err(failed("mount /dev/shm"))?;
    }
    let made_files = shared_memory::make(&list, &namespaces.files, Some(journal)).map_err(|(_, source)| source);
    made_files.map(MadeFiles::hand_over).map_err(failed("make the job's shared memory anew"))
}

/// Mounts an empty `/dev/shm`, with only those files that CRIU needs, if they are there.
fn mount_shared(namespaces: &JobNamespaces) -> io::Result<()> {
    let needed = [Some(namespaces.files.as_path()), namespaces.note.parent()].into_iter().flatten();
    let needed: Vec<&Path> = needed.filter(|path| path.starts_with(shared_memory::SHM_FOLDER)).collect();
    let opened = needed.iter().map(File::open).collect::<io::Result<Vec<File>>>()?;
    mount("tmpfs", shared_memory::SHM_FOLDER, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=1777")?;
    for (path, file) in needed.into_iter().zip(opened) {
        private::folders(path)?;
        mount_bind(format!("/proc/self/fd/{}", file.as_raw_fd()), path)?;
    }
    Ok(())
}

/// Runs process 1: runs CRIU's `restore`, writes the id of the program to standard output, and ends as the program does.
///
/// # Errors
///
/// Nothing was restored: CRIU's log says why.
pub fn init(namespaces: &JobNamespaces, restore: &[OsString]) -> Result<u8, NamespaceError> {
    die_with_parent()?;
    // The program is in this session, and CRIU dumps no process whose session is that of a process outside.
    setsid().map_err(failed("make a session"))?;
    mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
        .map_err(failed("mount /proc"))?;
    // Otherwise CRIU or a helper of it might get an id that the program needs.
    fs::write("/proc/sys/kernel/ns_last_pid", namespaces.last_id.to_string()).map_err(failed("set ids apart"))?;
    let (program, arguments) = restore.split_first().ok_or(io::ErrorKind::InvalidInput).map_err(failed("run CRIU"))?;
    let mut command = Command::new(program);
    let filled = terminals::fill_up(&namespaces.terminals).map_err(failed("make terminals"))?;
    let spawned = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let status = spawned.and_then(|mut child| {
        let work = namespaces.note.parent().ok_or(io::ErrorKind::InvalidInput)?;
        // All processes here are CRIU's, or made by it.
        let processes = || tree::tree(std::process::id()).unwrap_or_default();
        wait_with_progress(&mut child, PROGRESS_TIMEOUT, &|| signs(work, &processes()))
    });
    if !status.map_err(failed("run CRIU"))?.is_some_and(|status| status.success()) {
        return Err(NamespaceError { doing: "restore the program", source: io::Error::other("CRIU has failed") });
    }
    drop(filled);
    let root = fs::read_to_string(&namespaces.note).map_err(failed("read the program's id"))?;
    let root: i32 = root.trim().parse().map_err(io::Error::other).map_err(failed("read the program's id"))?;
    writeln!(io::stdout(), "{root}").map_err(failed("tell the program's id"))?;
    reap_until(root)
}

/// Has the kernel kill this process when its parent ends. So the keeper ends with the supervisor, process 1 with the keeper, and
/// all processes of the namespace with process 1.
fn die_with_parent() -> Result<(), NamespaceError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed("tie the job to its supervisor"))
}

/// Reaps processes that end, as process 1 must, until the program is one of them.
fn reap_until(root: i32) -> Result<u8, NamespaceError> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == root => {
                return Ok(code(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed("wait for the program")(error)),
        }
    }
}

/// Runs a command in the namespaces that the keeper `pid` made.
///
/// # Errors
///
/// The namespaces cannot be entered, or the command cannot be started.
pub fn enter(pid: u32, command: &[OsString]) -> Result<u8, NamespaceError> {
    let open = |name: &str| File::open(format!("/proc/{pid}/ns/{name}")).map_err(failed("find the job's namespaces"));
    let (ids, mounts) = (open("pid_for_children")?, open("mnt")?);
    let to = |namespace: &File, kind| {
        move_into_link_name_space(namespace.as_fd(), Some(kind)).map_err(failed("enter the job's namespaces"))
    };
    to(&ids, LinkNameSpaceType::ProcessID)?;
    to(&mounts, LinkNameSpaceType::Mount)?;
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput).map_err(failed("run CRIU"))?;
    let status = Command::new(program).args(arguments).status().map_err(failed("run CRIU"))?;
    Ok(code(status))
}

/// The command line of a keeper: `katydid job-space …`, which starts `katydid job-init …`.
#[must_use]
pub fn keeper(katydid: &Path, namespaces: &JobNamespaces, restore: &Command) -> Command {
    let mut command = Command::new(katydid);
    command.arg("job-space").args(namespaces.arguments()).arg("--").arg(restore.get_program()).args(restore.get_args());
    command
}

/// The command prefix that runs a command in the namespaces of the keeper `pid`.
#[must_use]
pub fn entering(katydid: &Path, pid: u32) -> Vec<OsString> {
    vec![katydid.into(), "job-enter".into(), "--pid".into(), pid.to_string().into(), "--".into()]
}

impl JobNamespaces {
    /// Arguments of the hidden commands that set up or enter the namespaces.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let last_id = self.last_id.to_string();
        let pairs: [(&str, &OsStr); 7] = [
            ("--known-folder", self.known_folder.as_os_str()),
            ("--folder", self.folder.as_os_str()),
            ("--note", self.note.as_os_str()),
            ("--last-id", last_id.as_ref()),
            ("--files", self.files.as_os_str()),
            ("--shared", self.shared.as_os_str()),
            ("--made", self.made.as_os_str()),
        ];
        for (name, value) in pairs {
            arguments.push(name.into());
            arguments.push(value.into());
        }
        for number in &self.terminals {
            arguments.push(format!("--terminal={number}").into());
        }
        arguments
    }
}

/// The exit status as a shell reports it: 128 + N for signal N.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
