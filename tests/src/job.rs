//! Jobs that are checkpointed, killed and restored: started with a name, watched over their control socket.
//!
//! A checkpoint in a test happens at a counted frame, never at a time: the program holds itself there
//! (`KATYDID_CHECKPOINT_AT`), the test asks for the checkpoint, and the same seed gives the same run again.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::iter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::commands::{bare, katydid};
use crate::deadline::Limit;
use crate::paths::Paths;
use crate::program::{self, Outcome, ProgramError, Running};
use crate::server::{Server, ask};
use crate::watch::{self, WAIT_TIMEOUT, runs};
use crate::way::Way;

/// Tells a program the frames at which it holds itself.
const POINTS_VARIABLE: &str = "KATYDID_CHECKPOINT_AT";
/// Tells a supervisor where to fail.
const FAULT_VARIABLE: &str = "KATYDID_FAULT";
/// The status of `katydid run` when its program ended with a checkpoint.
pub const CHECKPOINTED_EXIT_STATUS: i32 = 75;
/// How often a job is looked at.
const JOB_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Folders of one test: where its jobs are found, and its images. Nothing else is in there, so that debris shows.
#[derive(Debug)]
pub struct Home {
    folder: TempDir,
}

impl Home {
    /// Fresh ones.
    ///
    /// # Errors
    ///
    /// When they cannot be made.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("katydid-job-").tempdir()?;
        fs::create_dir(folder.path().join("run"))?;
        Ok(Self { folder })
    }

    /// Path of the image with this name.
    pub fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Folders of jobs that are there now.
    pub fn jobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.run().join("katydid/jobs")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    fn run(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    fn setting(&self) -> (&'static str, OsString) {
        ("XDG_RUNTIME_DIR", self.run().into_os_string())
    }
}

/// How a job is started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan<'a> {
    /// Arguments of the program; of `katydid restore` for a restore.
    pub arguments: &'a [&'a str],
    /// The frames at which it holds itself.
    pub points: &'a [u64],
    /// The stage at which its supervisor fails, and how.
    pub fault: Option<&'a str>,
    /// Further options of `katydid run`.
    pub options: &'a [&'a str],
    /// Further variables of the supervisor, which its program inherits.
    pub variables: &'a [(&'a str, &'a str)],
    /// The beginning of a command that runs the supervisor, such as `nice`.
    pub through: &'a [&'a str],
}

impl Plan<'_> {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let points: Vec<String> = self.points.iter().map(u64::to_string).collect();
        let points = (!points.is_empty()).then(|| (POINTS_VARIABLE, points.join(",")));
        points.into_iter().chain(self.fault.map(|fault| (FAULT_VARIABLE, fault.to_owned()))).collect()
    }

    /// `command` with all that the plan adds to it.
    fn complete(&self, mut command: Command, home: &Home) -> Command {
        command.envs([home.setting()]).envs(self.settings()).envs(self.variables.iter().copied());
        let Some((first, rest)) = self.through.split_first() else { return command };
        let mut outer = Command::new(first);
        outer.args(rest).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => outer.env(name, value),
                None => outer.env_remove(name),
            };
        }
        outer
    }
}

/// A running job: `katydid run`, or `katydid restore`, and what is below it.
#[derive(Debug)]
pub struct Job<'a> {
    paths: &'a Paths,
    home: &'a Home,
    name: String,
    running: Running,
}

impl<'a> Job<'a> {
    /// Starts `program` as the job `name`.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn start(
        paths: &'a Paths,
        home: &'a Home,
        way: &Way,
        name: &str,
        program: &Path,
        plan: &Plan<'_>,
    ) -> Result<Self, ProgramError> {
        let options: Vec<&str> = ["--name", name].iter().chain(plan.options).copied().collect();
        let mut command = way.job(paths, &options, program);
        command.args(plan.arguments);
        let running = Running::start(&mut plan.complete(command, home), Stdio::null())?;
        Ok(Self { paths, home, name: name.to_owned(), running })
    }

    /// Starts a launcher of MPI as its user would who has each rank begin by `katydid run --name NAME` ([`Job::ranks_begin`]): that
    /// makes the job. It has a session of its own where ours was made outside of our namespace of processes.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn start_launcher(
        paths: &'a Paths,
        home: &'a Home,
        name: &str,
        launcher: &Path,
        plan: &Plan<'_>,
    ) -> Result<Self, ProgramError> {
        let mut command = bare(paths, launcher);
        command.args(plan.arguments);
        let running = if plan.through.is_empty() && session_is_from_outside() {
            let plan = Plan { through: &["setsid"], ..*plan };
            Running::start_in_group(&mut plan.complete(command, home), Stdio::null())
        } else {
            Running::start(&mut plan.complete(command, home), Stdio::null())
        };
        Ok(Self { paths, home, name: name.to_owned(), running: running? })
    }

    /// A launcher of MPI that has each rank begin by `katydid run`, out of one that does not; it goes into `folder`.
    ///
    /// # Errors
    ///
    /// A script of another kind, or files that cannot be read and written.
    pub fn ranks_begin(
        paths: &Paths,
        way: &Way,
        options: &[&str],
        launcher: &Path,
        folder: &Path,
    ) -> io::Result<PathBuf> {
        let script = fs::read_to_string(launcher)?;
        // `-n`, the number of ranks, and the program of each.
        let parts = script.split_once(" -n ").and_then(|(line, rest)| Some((line, rest.split_once(' ')?)));
        let Some((line, (number, program))) = parts else { return Err(io::Error::other(script)) };
        let command = way.job(paths, options, Path::new(""));
        let words: Vec<String> = iter::once(command.get_program())
            .chain(command.get_args().filter(|word| !word.is_empty()))
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let path = folder.join("launcher");
        fs::write(&path, format!("{line} -n {number} {} {program}", words.join(" ")))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }

    /// Restores the job `name` from `image`: the latest checkpoint, or what the options say. It holds itself again only
    /// where the plan has points; which ones, the program knows.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn restore(
        paths: &'a Paths,
        home: &'a Home,
        way: &Way,
        name: &str,
        image: &Path,
        plan: &Plan<'_>,
    ) -> Result<Self, ProgramError> {
        let command = way.restore(paths, image, plan.arguments);
        let running = Running::start(&mut plan.complete(command, home), Stdio::null())?;
        Ok(Self { paths, home, name: name.to_owned(), running })
    }

    /// Process id of the supervisor.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// What the program has written to standard output so far.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Lost`].
    pub fn output_so_far(&self) -> Result<String, ProgramError> {
        self.running.output_so_far()
    }

    /// What supervisor and program have written to standard error so far.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Lost`].
    pub fn errors_so_far(&self) -> Result<String, ProgramError> {
        self.running.errors_so_far()
    }

    /// Waits until the program's output contains `word`.
    ///
    /// # Errors
    ///
    /// As [`Running::wait_for`].
    pub fn wait_for(&mut self, word: &str) -> Result<(), ProgramError> {
        self.running.wait_for(word, WAIT_TIMEOUT)
    }

    /// The control socket's view of it; none when nothing answers.
    pub fn view(&self) -> Option<Value> {
        ask(&self.control(), "GET", "/v1/job").ok()
    }

    /// Path of the job's control socket.
    pub fn control(&self) -> PathBuf {
        self.home.run().join("katydid/jobs").join(&self.name).join("control")
    }

    /// Waits until a program of the job holds itself at a point; false when the job ended instead.
    ///
    /// # Errors
    ///
    /// [`ProgramError::TooLong`] when it made no progress for [`WAIT_TIMEOUT`].
    pub fn holds_itself(&mut self) -> Result<bool, ProgramError> {
        self.holds_itself_within(WAIT_TIMEOUT)
    }

    /// Waits as [`Self::holds_itself`] does for a program that may make no progress for longer between two points.
    ///
    /// # Errors
    ///
    /// [`ProgramError::TooLong`] when it made no progress for `limit`.
    pub fn holds_itself_within(&mut self, limit: impl Into<Limit>) -> Result<bool, ProgramError> {
        let mut deadline = self.running.deadline(limit);
        loop {
            if self.view().is_some_and(|view| has_holder(&view)) {
                return Ok(true);
            }
            if self.running.has_ended()? {
                return Ok(false);
            }
            self.running.wait_a_little(&mut deadline, JOB_POLL_INTERVAL)?;
        }
    }

    /// Asks for a checkpoint into `image`.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] when `katydid checkpoint` itself does not end; whether it succeeded is in the outcome.
    pub fn checkpoint(&self, image: &Path, options: &[&str]) -> Result<Outcome, ProgramError> {
        program::run(&mut self.checkpoint_command(image, options), WAIT_TIMEOUT)
    }

    /// What the job is asked for by: other tests have jobs of its name, and it may have ended.
    fn id(&self) -> String {
        let entry = fs::read(self.home.image("run/katydid/jobs").join(&self.name).join("job.json")).unwrap_or_default();
        let entry: Value = serde_json::from_slice(&entry).unwrap_or_default();
        entry["supervisor"].as_u64().unwrap_or_else(|| self.pid().into()).to_string()
    }

    /// The command of [`Job::checkpoint`].
    pub fn checkpoint_command(&self, image: &Path, options: &[&str]) -> Command {
        let mut command = katydid(self.paths, &["checkpoint", &self.id(), "--json", "-o"]);
        command.arg(image).args(options).envs([self.home.setting()]);
        command
    }

    /// The command that has the job's sessions move to the server at `to`.
    pub fn migrate_command(&self, to: &str, options: &[&str]) -> Command {
        let mut command = katydid(self.paths, &["migrate", &self.id(), "--json", "--to", to]);
        command.args(options).envs([self.home.setting()]);
        command
    }

    /// Kills every process of the job and every worker of the server, at once, and waits until they are gone.
    ///
    /// # Errors
    ///
    /// [`watch::NeverCame`] when one stays.
    pub fn kill_everything(&self, server: &Server) -> Result<(), watch::NeverCame> {
        let sessions = server.sessions().unwrap_or_default();
        let workers = sessions.iter().filter_map(|session| u32::try_from(session.get("worker_pid")?.as_u64()?).ok());
        // That of ranks with a launcher of their own is no process below it.
        let supervisor = self.view().and_then(|view| u32::try_from(view["supervisor"].as_u64()?).ok());
        // The supervisor last: it learns of the others what it can.
        let below = watch::tree(self.pid()).into_iter().skip(1);
        let victims: Vec<u32> = below.chain(workers).chain([self.pid()]).chain(supervisor).collect();
        victims.iter().copied().for_each(watch::kill);
        watch::until("all processes that were killed are gone", || !victims.iter().any(|pid| runs(*pid)))
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// See [`ProgramError`].
    pub fn finish(self, limit: impl Into<Limit>) -> Result<Outcome, ProgramError> {
        self.running.finish(limit)
    }
}

/// Whether the tests' session was made outside of their namespace of processes, as below `unshare --pid`.
fn session_is_from_outside() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name: state, parent, group, session.
    stat.rsplit(") ").next().and_then(|words| words.split(' ').nth(3)) == Some("0")
}

fn has_holder(view: &Value) -> bool {
    let members = view.get("members").and_then(Value::as_array);
    // One that is looked after already is not waiting for us.
    let busy = view.get("checkpoint").is_some_and(|checkpoint| !checkpoint.is_null());
    !busy && members.is_some_and(|members| members.iter().any(holds_itself))
}

/// Whether a member of a job, as the control socket shows it, is with its worker and holds itself at a point. One that has
/// lost its worker there is looked after already.
pub fn holds_itself(member: &Value) -> bool {
    member["reached"].is_u64() && member["state"] == "present"
}
