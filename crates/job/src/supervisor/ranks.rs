//! MPI ranks that each begin by `katydid run` below a launcher that does not: `mpirun -n 4 katydid run ./program`.
//!
//! ```text
//! shell ── mpirun ─┬─ katydid run, which becomes the program        ┐
//!                  └─ katydid run, …                                ┘ one job, with mpirun at its root
//! process 1 ── supervisor, which the first rank has started: it runs until mpirun ends
//! ```
//!
//! The ranks are connected to each other and to their launcher, so no checkpoint of one alone could be restored. The supervisor
//! is no descendant of the launcher, since it would be in its own dumps then. It is no ancestor either: unlike a supervisor that
//! has started its job, it takes no process along when it is killed. The rule: a launcher has at most one supervisor, which is
//! ready before a rank executes its program.
//!
//! Ranks on several machines, and tasks of other launchers, are jobs of their own. A checkpoint of one could not be restored
//! beside the others, and is refused ([`LauncherTask`]).

use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::iter;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::process::stdio::StandardStream;
use crate::process::tree;
use crate::supervisor::folder;
use crate::supervisor::folder::FolderError;

/// Names of Open MPI's launchers, apart from the suffix that Debian adds after a dot.
const OPEN_MPI_LAUNCHERS: [&str; 4] = ["mpirun", "mpiexec", "orterun", "prterun"];
/// Variables in which it tells a rank the number of ranks, and of those on this machine.
const OPEN_MPI_VARIABLES: [&str; 2] = ["OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"];
/// Most ancestors of a rank among which its launcher is looked for: scripts may be between them.
const MAX_ANCESTORS: usize = 16;

/// The process that has launched all ranks of a program on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launcher {
    pid: u32,
}

/// How the programs of a job find it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobAddress {
    /// Path of the job socket.
    pub socket: PathBuf,
    /// The server of the job's programs.
    pub server: String,
}

/// A handle of a launcher, to wait for its end.
#[derive(Debug)]
pub struct LauncherEnd(OwnedFd);

/// Variables in which launchers tell a task the number of tasks: the first one that is set counts. Slurm's `SLURM_NTASKS` says no
/// more than how many tasks a batch script may start.
const RANK_COUNT_VARIABLES: [&str; 6] = [
    OPEN_MPI_VARIABLES[0],
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "JSM_NAMESPACE_SIZE",
    "FLUX_JOB_SIZE",
    "SLURM_STEP_NUM_TASKS",
];
/// Variables with the number of a task, if none of the above is set.
const RANK_NUMBER_VARIABLES: [&str; 2] = ["PMIX_RANK", "PMI_RANK"];
/// Slurm's variables for tasks of a step, and for a batch script, whose number is 0 and which is in no step.
const SLURM_VARIABLES: [&str; 4] = ["SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID"];
/// Variables of PyTorch's `torchrun`: the number of processes that it has started, and the number of this one. Scripts that take
/// its place set them too.
const TORCHRUN_VARIABLES: [&str; 2] = ["WORLD_SIZE", "RANK"];

/// Evidence that a process is one of several tasks that were started together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherTask {
    /// The environment variable that says so.
    pub variable: &'static str,
    /// Value of that variable.
    pub value: String,
}

impl fmt::Display for LauncherTask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.variable, self.value)
    }
}

/// The number in a variable.
fn number(get: &impl Fn(&str) -> Option<String>, variable: &str) -> Option<u64> {
    get(variable)?.trim().parse().ok()
}

impl LauncherTask {
    /// The task of this process, by its environment; `None` if no variable names one.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        Self::of(|variable| env::var(variable).ok())
    }

    fn of(get: impl Fn(&str) -> Option<String>) -> Option<Self> {
        Self::of_launcher(&get).or_else(|| Self::of_torchrun(&get))
    }

    /// The task of a process of `torchrun`, whatever has started that.
    fn of_torchrun(get: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let [size, rank] = TORCHRUN_VARIABLES.map(|variable| number(&get, variable));
        if rank.is_none() || size < Some(2) {
            return None;
        }
        let variable = TORCHRUN_VARIABLES[0];
        Some(Self { variable, value: get(variable)? })
    }

    fn of_launcher(get: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |variable| number(&get, variable);
        let task = |variable: &'static str| Some(Self { variable, value: get(variable)? });
        let sized = RANK_COUNT_VARIABLES.into_iter().find_map(|variable| Some((variable, number(variable)?)));
        match (sized, RANK_NUMBER_VARIABLES.into_iter().find(|variable| number(variable).is_some())) {
            (Some((variable, 2..)), _) => return task(variable),
            // A size of 1 may come from a launcher further up.
            (Some(_), Some(variable)) if number(variable) > Some(0) => return task(variable),
            (Some(_), _) => return None,
            (None, Some(variable)) => return task(variable),
            (None, None) => {}
        }
        let [tasks, steps @ .., rank] = SLURM_VARIABLES;
        let is_in_step = steps.into_iter().any(|step| number(step).is_some()) || number(rank) > Some(0);
        if is_in_step && number(tasks) > Some(1) { task(tasks) } else { None }
    }
}

/// Whether this process is an MPI rank, and all ranks are on this machine.
#[must_use]
pub fn is_mpi_rank() -> bool {
    let [all, here] = OPEN_MPI_VARIABLES.map(|name| env::var(name).ok());
    all.is_some() && all == here
}

impl Launcher {
    /// The launcher of this process; `None` if the process is no rank.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        let mut above =
            iter::successors(tree::parent(std::process::id()), |pid| tree::parent(*pid)).take(MAX_ANCESTORS);
        let is_launcher =
            |pid: &u32| OPEN_MPI_LAUNCHERS.contains(&tree::name(*pid).split('.').next().unwrap_or_default());
        above.find(is_launcher).map(Self::at)
    }

    /// Whether this process descends from it; every orphan descends from process 1.
    #[must_use]
    pub fn has_this_process(self) -> bool {
        tree::tree(self.pid).is_ok_and(|tree| tree.iter().any(|process| process.pid == std::process::id()))
    }

    /// The launcher with this process id.
    #[must_use]
    pub fn at(pid: u32) -> Self {
        Self { pid }
    }

    /// Process id of the launcher.
    #[must_use]
    pub fn pid(self) -> u32 {
        self.pid
    }

    /// Name of the launcher's program.
    #[must_use]
    pub fn name(self) -> String {
        tree::name(self.pid)
    }

    /// Command line of the launcher: its name and arguments.
    #[must_use]
    pub fn command(self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Standard streams of the launcher.
    #[must_use]
    pub fn stdio(self) -> [StandardStream; 3] {
        StandardStream::of_process(self.pid)
    }

    /// Opens the launcher's standard error.
    ///
    /// # Errors
    ///
    /// The launcher is gone or has none; or it is a socket, and the system does not permit copies of other processes'
    /// descriptors.
    pub fn standard_error(self) -> io::Result<OwnedFd> {
        // Copied if possible: a file that is opened anew has another position, and a socket cannot be opened.
        let copied_fd = self.end().and_then(|end| pidfd_getfd(&end.0, 2, PidfdGetfdFlags::empty()));
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(copied_fd.or_else(|_| open(format!("/proc/{}/fd/2", self.pid), flags, Mode::empty()))?)
    }

    /// Gives this thread, and the threads that it starts, the launcher's processors: a rank may be bound to one of them.
    ///
    /// # Errors
    ///
    /// The launcher is gone, or the system refuses.
    pub fn share_processors(self) -> rustix::io::Result<()> {
        sched_setaffinity(None, &sched_getaffinity(tree::raw(self.pid))?)
    }

    /// A handle to wait for the launcher's end.
    ///
    /// # Errors
    ///
    /// The launcher is gone.
    pub fn end(self) -> rustix::io::Result<LauncherEnd> {
        let pid = tree::raw(self.pid).ok_or(Errno::SRCH)?;
        pidfd_open(pid, PidfdFlags::empty()).map(LauncherEnd)
    }

    /// Returns the job with this launcher at its root. If there is none, `start` starts its supervisor, while no other rank does.
    ///
    /// # Errors
    ///
    /// The folder of jobs cannot be used, or the error of `start`. Returns `None` if `start` has not made a job.
    pub fn job<E: From<FolderError>>(self, start: impl FnOnce() -> Result<(), E>) -> Result<Option<JobAddress>, E> {
        let jobs = folder::jobs()?;
        let system = |source| FolderError::System { path: jobs.clone(), source };
        let lock = File::open(&jobs).map_err(system)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(|error| system(error.into()))?;
        if self.job_address(&jobs)?.is_none() {
            start()?;
        }
        Ok(self.job_address(&jobs)?)
    }

    fn job_address(self, jobs: &Path) -> Result<Option<JobAddress>, FolderError> {
        let entry = folder::running()?.into_iter().find(|entry| entry.program == self.pid);
        Ok(entry.map(|entry| {
            let folder = jobs.join(entry.name);
            let servers = fs::read_to_string(folder.join("server")).unwrap_or_default();
            let server = servers.lines().next().unwrap_or_default().to_owned();
            JobAddress { socket: folder.join("shims"), server }
        }))
    }
}

impl LauncherEnd {
    /// Blocks until the process has ended.
    pub fn wait(&self) {
        // Only a signal interrupts this.
        while poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The variable that shows that there are several tasks.
    fn task_variable(environment: &[(&str, &str)]) -> Option<&'static str> {
        let get =
            |name: &str| environment.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).into());
        LauncherTask::of(get).map(|task| task.variable)
    }

    #[test]
    fn one_task_of_several_is_told_by_its_launcher() {
        let step =
            [("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "0")];
        assert_eq!(task_variable(&step), Some("SLURM_STEP_NUM_TASKS"));
        assert_eq!(task_variable(&[("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "0")]), Some("SLURM_NTASKS"));
        assert_eq!(task_variable(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "3")]), Some("SLURM_NTASKS"));
        for size in RANK_COUNT_VARIABLES {
            assert_eq!(task_variable(&[(size, "2")]), Some(size));
        }
        let torchrun = [("WORLD_SIZE", "4"), ("RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(task_variable(&torchrun), Some("WORLD_SIZE"), "one process of MPI may start it");
        assert_eq!(task_variable(&[("PMIX_RANK", "0")]), Some("PMIX_RANK"));
        assert_eq!(task_variable(&[("SLURM_STEP_NUM_TASKS", "1"), ("PMI_RANK", "1")]), Some("PMI_RANK"));
    }

    #[test]
    fn batch_scripts_and_single_tasks_have_no_launcher_task() {
        assert_eq!(task_variable(&[]), None);
        assert_eq!(task_variable(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "7")]), None);
        let single = [("SLURM_NTASKS", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")];
        assert_eq!(task_variable(&single), None);
        for size in RANK_COUNT_VARIABLES {
            assert_eq!(task_variable(&[(size, "1"), ("SLURM_NTASKS", "4")]), None, "{size}");
        }
        assert_eq!(task_variable(&[("PMI_SIZE", "many")]), None);
        for torchrun in [[("WORLD_SIZE", "1"), ("RANK", "0")], [("WORLD_SIZE", "4"), ("RANK", "one")]] {
            assert_eq!(task_variable(&torchrun), None);
        }
        assert_eq!(task_variable(&[("WORLD_SIZE", "4")]), None, "a script may have it for itself");
    }

    #[test]
    fn a_launcher_is_known_by_its_process_until_its_end() {
        let mut sleep = Command::new("/bin/sleep");
        let sleep = sleep.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = sleep.spawn().unwrap();
        let launcher = Launcher::at(child.id());
        // The command counts as started when its process begins to execute the program. Only then does it get the program's name,
        // and last its arguments.
        while !launcher.command().concat().starts_with("/bin/sleep") {}
        assert_eq!(launcher.name(), "sleep");
        assert_eq!(launcher.command(), ["/bin/sleep", "1000"]);
        assert_eq!(launcher.stdio(), [const { StandardStream::Other }; 3]);
        let end = launcher.end().unwrap();
        child.kill().unwrap();
        end.wait();
        child.wait().unwrap();
        assert!(launcher.end().is_err());
    }
}
