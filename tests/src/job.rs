//! Jobs that are checkpointed, killed and restored: started with a name, and observed over their control socket.
//!
//! A checkpoint in a test happens at a counted frame, never at a time. The program pauses itself there (`KATYDID_CHECKPOINT_AT`),
//! and the test requests the checkpoint. So the same seed repeats the same run.

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

/// Tells a program the frames at which it pauses itself.
const POINTS_VARIABLE: &str = "KATYDID_CHECKPOINT_AT";
/// Tells a supervisor at which stage to fail.
const FAULT_VARIABLE: &str = "KATYDID_FAULT";
/// Exit status of `katydid run` when its program ended with a checkpoint.
pub const CHECKPOINTED_EXIT_STATUS: i32 = 75;
/// Interval between two checks of a job.
const JOB_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Folders of one test: for its jobs, and for its images. They contain nothing else, so that leftovers show.
#[derive(Debug)]
pub struct TestFolders {
    folder: TempDir,
}

impl TestFolders {
    /// Makes new folders.
    ///
    /// # Errors
    ///
    /// They cannot be created.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("katydid-job-").tempdir()?;
        fs::create_dir(folder.path().join("run"))?;
        Ok(Self { folder })
    }

    /// Returns the path of the image with this name.
    pub fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the names of the job folders that exist now.
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

/// How to start a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plan<'a> {
    /// Arguments of the program, or of `katydid restore`.
    pub arguments: &'a [&'a str],
    /// The frames at which the program pauses itself.
    pub points: &'a [u64],
    /// The stage at which its supervisor fails, and how.
    pub fault: Option<&'a str>,
    /// Further options of `katydid run`.
    pub options: &'a [&'a str],
    /// Further variables of the supervisor, which its program inherits.
    pub variables: &'a [(&'a str, &'a str)],
    /// Start of a command that runs the supervisor, such as `nice`.
    pub through: &'a [&'a str],
}

impl Plan<'_> {
    fn settings(&self) -> Vec<(&'static str, String)> {
        let points: Vec<String> = self.points.iter().map(u64::to_string).collect();
        let points = (!points.is_empty()).then(|| (POINTS_VARIABLE, points.join(",")));
        points.into_iter().chain(self.fault.map(|fault| (FAULT_VARIABLE, fault.to_owned()))).collect()
    }

    /// Returns `command` with everything that the plan adds.
    fn complete(&self, mut command: Command, home: &TestFolders) -> Command {
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

/// A running job: `katydid run` or `katydid restore`, and its descendants.
#[derive(Debug)]
pub struct Job<'a> {
    paths: &'a Paths,
    home: &'a TestFolders,
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
        home: &'a TestFolders,
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

    /// Starts an MPI launcher whose ranks each begin with `katydid run --name NAME` ([`Job::ranks_begin`]), which makes the job.
    /// The launcher gets a new session if that of the tests comes from outside their PID namespace.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn start_launcher(
        paths: &'a Paths,
        home: &'a TestFolders,
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

    /// Writes an MPI launcher script to `folder` whose ranks begin with `katydid run`, from a script whose ranks do not.
    ///
    /// # Errors
    ///
    /// The script has another form, or a file cannot be read or written.
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

    /// Restores the job `name` from `image`: the latest checkpoint, or the one that the options select. The program pauses itself
    /// again only if the plan has points; it remembers which.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn restore(
        paths: &'a Paths,
        home: &'a TestFolders,
        way: &Way,
        name: &str,
        image: &Path,
        plan: &Plan<'_>,
    ) -> Result<Self, ProgramError> {
        let command = way.restore(paths, image, plan.arguments);
        let running = Running::start(&mut plan.complete(command, home), Stdio::null())?;
        Ok(Self { paths, home, name: name.to_owned(), running })
    }

    /// Returns the process id of the supervisor.
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Returns the program's standard output so far.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Lost`].
    pub fn output_so_far(&self) -> Result<String, ProgramError> {
        self.running.output_so_far()
    }

    /// Returns the standard error of supervisor and program so far.
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

    /// Returns the control socket's description of the job; `None` if it does not answer.
    pub fn view(&self) -> Option<Value> {
        ask(&self.control(), "GET", "/v1/job").ok()
    }

    /// Returns the path of the job's control socket.
    pub fn control(&self) -> PathBuf {
        self.home.run().join("katydid/jobs").join(&self.name).join("control")
    }

    /// Waits until a program of the job pauses itself at a point; returns false if the job ended instead.
    ///
    /// # Errors
    ///
    /// [`ProgramError::TooLong`] when it made no progress for [`WAIT_TIMEOUT`].
    pub fn holds_itself(&mut self) -> Result<bool, ProgramError> {
        self.holds_itself_within(WAIT_TIMEOUT)
    }

    /// Waits as [`Self::holds_itself`] does, for a program that may make no progress for longer between two points.
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

    /// Requests a checkpoint into `image`.
    ///
    /// # Errors
    ///
    /// [`ProgramError`] if `katydid checkpoint` does not end; the outcome shows whether it succeeded.
    pub fn checkpoint(&self, image: &Path, options: &[&str]) -> Result<Outcome, ProgramError> {
        program::run(&mut self.checkpoint_command(image, options), WAIT_TIMEOUT)
    }

    /// Returns the id by which to address the job: other tests have jobs of the same name, and it may have ended.
    fn id(&self) -> String {
        let entry = fs::read(self.home.image("run/katydid/jobs").join(&self.name).join("job.json")).unwrap_or_default();
        let entry: Value = serde_json::from_slice(&entry).unwrap_or_default();
        entry["supervisor"].as_u64().unwrap_or_else(|| self.pid().into()).to_string()
    }

    /// Returns the command of [`Job::checkpoint`].
    pub fn checkpoint_command(&self, image: &Path, options: &[&str]) -> Command {
        let mut command = katydid(self.paths, &["checkpoint", &self.id(), "--json", "-o"]);
        command.arg(image).args(options).envs([self.home.setting()]);
        command
    }

    /// Returns the command that migrates the job's sessions to the server at `to`.
    pub fn migrate_command(&self, to: &str, options: &[&str]) -> Command {
        let mut command = katydid(self.paths, &["migrate", &self.id(), "--json", "--to", to]);
        command.args(options).envs([self.home.setting()]);
        command
    }

    /// Kills every process of the job and every worker of the server at once, and waits until they are gone.
    ///
    /// # Errors
    ///
    /// [`watch::NeverCame`] if one of them stays.
    pub fn kill_everything(&self, server: &Server) -> Result<(), watch::NeverCame> {
        let sessions = server.sessions().unwrap_or_default();
        let workers = sessions.iter().filter_map(|session| u32::try_from(session.get("worker_pid")?.as_u64()?).ok());
        // The supervisor of ranks with their own launcher is not its descendant.
        let supervisor = self.view().and_then(|view| u32::try_from(view["supervisor"].as_u64()?).ok());
        // The supervisor comes last: it must learn of the others as far as it can.
        let below = watch::tree(self.pid()).into_iter().skip(1);
        let victims: Vec<u32> = below.chain(workers).chain([self.pid()]).chain(supervisor).collect();
        victims.iter().copied().for_each(watch::kill);
        watch::until("all processes that were killed are gone", || !victims.iter().any(|pid| runs(*pid)))
    }

    /// Waits for the job's end.
    ///
    /// # Errors
    ///
    /// See [`ProgramError`].
    pub fn finish(self, limit: impl Into<Limit>) -> Result<Outcome, ProgramError> {
        self.running.finish(limit)
    }
}

/// Returns whether the tests' session comes from outside their PID namespace, as under `unshare --pid`.
fn session_is_from_outside() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name: state, parent, group, session.
    stat.rsplit(") ").next().and_then(|words| words.split(' ').nth(3)) == Some("0")
}

fn has_holder(view: &Value) -> bool {
    let members = view.get("members").and_then(Value::as_array);
    // A job with a checkpoint in progress does not wait for the test.
    let busy = view.get("checkpoint").is_some_and(|checkpoint| !checkpoint.is_null());
    // The supervisor may not know yet that a program runs that is quick to come to its point.
    let is_started = view["program"] != 0;
    !busy && is_started && members.is_some_and(|members| members.iter().any(holds_itself))
}

/// Returns whether a member of a job, as described by the control socket, has its worker and pauses itself at a point. A member
/// without its worker is being handled already.
pub fn holds_itself(member: &Value) -> bool {
    member["reached"].is_u64() && member["state"] == "present"
}
