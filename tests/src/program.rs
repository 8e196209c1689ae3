//! Runs a program to its end, or to a limit: a program that hangs is a failure, never a hang of the tests.
//!
//! Output goes to files, not to pipes, so that a process that a program left behind cannot block the reader. The files have names
//! while the program runs: a checkpoint of the program finds them by name.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::{NamedTempFile, TempPath};

use crate::deadline::watched_processes::{ProcessRole, WatchedChild};
use crate::deadline::{Deadline, Limit, WaitFailure};

/// Interval between two checks of an awaited process.
const OUTPUT_POLL_INTERVAL: Duration = Duration::from_millis(3);

/// How a program ended, and its output.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the program, or the signal that ended it.
    pub status: ExitStatus,
    /// Everything that it wrote to standard output.
    pub stdout: Vec<u8>,
    /// Everything that it wrote to standard error.
    pub stderr: Vec<u8>,
    /// Time from its start to its end.
    pub took: Duration,
}

impl Outcome {
    /// Returns standard output as text, for messages.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns standard error as text, for messages.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Describes how it ended.
    pub fn ending(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown ending".to_owned(),
        }
    }
}

/// Why a program has no outcome.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// Name by which it was started.
        program: String,
        /// Error that the system returned.
        source: io::Error,
    },
    /// The wait was given up, and the program was killed with all processes of its group.
    #[error("{program} {failure}\n--- processes\n{stacks}--- stdout\n{stdout}--- stderr\n{stderr}")]
    TooLong {
        /// Name by which it was started.
        program: String,
        /// Why the wait was given up.
        failure: Box<WaitFailure>,
        /// What its processes and the test's servers were doing.
        stacks: String,
        /// Its standard output so far.
        stdout: String,
        /// Its standard error so far.
        stderr: String,
    },
    /// It ended without printing the awaited word.
    #[error("{program} ended without saying {word:?}\n--- stdout\n{stdout}--- stderr\n{stderr}")]
    Unsaid {
        /// Name by which it was started.
        program: String,
        /// The awaited word.
        word: String,
        /// Its standard output so far.
        stdout: String,
        /// Its standard error so far.
        stderr: String,
    },
    /// Waiting for it or reading its output failed.
    #[error("lost sight of {program}: {source}")]
    Lost {
        /// Name by which it was started.
        program: String,
        /// Error that the system returned.
        source: io::Error,
    },
}

/// A started program; dropping this kills it with its process group.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Both output files, if they are removed with this.
    _temporary: Vec<TempPath>,
    _known: WatchedChild,
    started: Instant,
}

impl Running {
    /// Starts `command` as a new process group, without input unless the command sets one.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn start(command: &mut Command, stdin: Stdio) -> Result<Self, ProgramError> {
        Self::start_in_group(command.process_group(0), stdin)
    }

    /// Starts a command that makes a session, and so a group: `setsid` becomes the program only if it leads no group yet.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn start_in_group(command: &mut Command, stdin: Stdio) -> Result<Self, ProgramError> {
        let temporary = || NamedTempFile::new().map(NamedTempFile::into_temp_path).map_err(cannot_start(command));
        let both = [temporary()?, temporary()?];
        let mut running = Self::spawn(command, stdin, [&both[0], &both[1]])?;
        running._temporary = both.into();
        Ok(running)
    }

    /// Starts a command as [`Running::start`] does. Its standard output and error go to these files as they arrive, and stay
    /// there.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Start`].
    pub fn start_into(command: &mut Command, stdin: Stdio, files: [&Path; 2]) -> Result<Self, ProgramError> {
        Self::spawn(command.process_group(0), stdin, files)
    }

    fn spawn(command: &mut Command, stdin: Stdio, [stdout, stderr]: [&Path; 2]) -> Result<Self, ProgramError> {
        let failed = cannot_start(command);
        let (out, err) = (File::create(stdout).map_err(&failed)?, File::create(stderr).map_err(&failed)?);
        let child = command.stdin(stdin).stdout(out).stderr(err).spawn().map_err(&failed)?;
        let name = command.get_program().to_string_lossy().into_owned();
        let (stdout, stderr) = (stdout.to_owned(), stderr.to_owned());
        let known = WatchedChild::remember(child.id(), ProcessRole::Program);
        Ok(Self { name, child, stdout, stderr, _temporary: Vec::new(), _known: known, started: Instant::now() })
    }

    /// Returns the process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Closes its input, which must have been piped.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Kills only the process itself, not its group.
    pub fn kill(&mut self) {
        // A process that has ended needs no kill.
        let _ = self.child.kill();
    }

    /// Returns its standard output so far.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Lost`].
    pub fn output_so_far(&self) -> Result<String, ProgramError> {
        Ok(String::from_utf8_lossy(&self.contents(&self.stdout)?).into_owned())
    }

    /// Returns its standard error so far.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Lost`].
    pub fn errors_so_far(&self) -> Result<String, ProgramError> {
        Ok(String::from_utf8_lossy(&self.contents(&self.stderr)?).into_owned())
    }

    /// Waits until its output contains `word`.
    ///
    /// # Errors
    ///
    /// [`ProgramError::TooLong`] at `limit`, [`ProgramError::Unsaid`] if it ended without the word.
    pub fn wait_for(&mut self, word: &str, limit: impl Into<Limit>) -> Result<(), ProgramError> {
        let mut deadline = self.deadline(limit);
        loop {
            let has_ended = self.ended()?.is_some();
            if self.output_so_far()?.contains(word) {
                return Ok(());
            }
            if has_ended {
                let (program, word, [stdout, stderr]) = (self.name.clone(), word.to_owned(), self.texts());
                return Err(ProgramError::Unsaid { program, word, stdout, stderr });
            }
            self.wait_a_little(&mut deadline, OUTPUT_POLL_INTERVAL)?;
        }
    }

    /// Waits for its end. The limit starts now: the program may have run for long already.
    ///
    /// # Errors
    ///
    /// [`ProgramError::TooLong`]; the program is then killed.
    pub fn finish(mut self, limit: impl Into<Limit>) -> Result<Outcome, ProgramError> {
        let mut deadline = self.deadline(limit);
        loop {
            if let Some(status) = self.ended()? {
                let (stdout, stderr) = (self.contents(&self.stdout)?, self.contents(&self.stderr)?);
                return Ok(Outcome { status, stdout, stderr, took: self.started.elapsed() });
            }
            self.wait_a_little(&mut deadline, OUTPUT_POLL_INTERVAL)?;
        }
    }

    /// Returns the deadline of a wait for it.
    pub(crate) fn deadline(&self, limit: impl Into<Limit>) -> Deadline {
        Deadline::of_process(self.pid(), limit)
    }

    /// Sleeps until the next check, unless the limit is exceeded.
    pub(crate) fn wait_a_little(&self, deadline: &mut Deadline, interval: Duration) -> Result<(), ProgramError> {
        let Some(failure) = deadline.over() else {
            deadline.pause(interval);
            return Ok(());
        };
        let (program, stacks, [stdout, stderr]) = (self.name.clone(), deadline.stacks(), self.texts());
        Err(ProgramError::TooLong { program, failure: Box::new(failure), stacks, stdout, stderr })
    }

    /// Returns whether it has ended.
    ///
    /// # Errors
    ///
    /// [`ProgramError::Lost`].
    pub fn has_ended(&mut self) -> Result<bool, ProgramError> {
        Ok(self.ended()?.is_some())
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, ProgramError> {
        self.child.try_wait().map_err(|source| ProgramError::Lost { program: self.name.clone(), source })
    }

    /// Returns its standard output and error, as far as they can be read.
    fn texts(&self) -> [String; 2] {
        let text = |file: &Path| self.contents(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        [&self.stdout, &self.stderr].map(|file| text(file).unwrap_or_default())
    }

    fn contents(&self, file: &Path) -> Result<Vec<u8>, ProgramError> {
        std::fs::read(file).map_err(|source| ProgramError::Lost { program: self.name.clone(), source })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        kill_group(&self.child);
        // Reaps the process; an error means that it was reaped already.
        let _ = self.child.wait();
    }
}

/// Returns the error, for `map_err`, that the program of `command` does not start.
fn cannot_start(command: &Command) -> impl Fn(io::Error) -> ProgramError + use<> {
    let program = command.get_program().to_string_lossy().into_owned();
    move |source| ProgramError::Start { program: program.clone(), source }
}

/// Kills the rest of a child's process group; a group that is gone is fine.
fn kill_group(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Starts a program without input and waits for its end.
///
/// # Errors
///
/// See [`ProgramError`].
pub fn run(command: &mut Command, limit: impl Into<Limit>) -> Result<Outcome, ProgramError> {
    Running::start(command, Stdio::null())?.finish(limit)
}

/// Runs a program whose standard output and error go to these files as they arrive, however it ends.
///
/// # Errors
///
/// See [`ProgramError`].
pub fn run_into(command: &mut Command, limit: impl Into<Limit>, files: [&Path; 2]) -> Result<Outcome, ProgramError> {
    Running::start_into(command, Stdio::null(), files)?.finish(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_ends_tells_all_it_said() {
        let outcome =
            run(Command::new("sh").args(["-c", "echo a; echo b >&2; exit 7"]), Duration::from_secs(60)).unwrap();
        assert_eq!((outcome.status.code(), outcome.text(), outcome.errors()), (Some(7), "a\n".into(), "b\n".into()));
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_quoted_with_what_its_processes_did() {
        let mut running =
            Running::start(Command::new("sh").args(["-c", "echo first; sleep 600"]), Stdio::null()).unwrap();
        running.wait_for("first", Duration::from_secs(60)).unwrap();
        let error = running.finish(Duration::from_millis(1)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("first") && text.contains("stood still") && text.contains(": sleep 600\n"), "{text}");
    }

    #[test]
    fn output_into_files_is_there_at_once_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [out, err] = ["out", "err"].map(|name| folder.path().join(name));
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; sleep 600"]);
        let mut running = Running::start_into(&mut command, Stdio::null(), [&out, &err]).unwrap();
        running.wait_for("one", Duration::from_secs(60)).unwrap();
        assert_eq!(std::fs::read_to_string(&out).unwrap(), "one\n");
        drop(running);
        let outcome = run_into(Command::new("sh").args(["-c", "echo three"]), Duration::from_secs(60), [&out, &err]);
        assert_eq!(outcome.unwrap().text(), "three\n");
        assert_eq!([&out, &err].map(|file| std::fs::read_to_string(file).unwrap()), ["three\n", ""]);
    }

    #[test]
    fn program_that_ends_early_is_not_a_hang() {
        let mut running = Running::start(Command::new("sh").args(["-c", "echo other"]), Stdio::null()).unwrap();
        let error = running.wait_for("word", Duration::from_secs(60)).unwrap_err();
        assert!(matches!(&error, ProgramError::Unsaid { stdout, .. } if stdout == "other\n"), "{error}");
    }

    #[test]
    fn the_limit_begins_when_the_end_is_waited_for() {
        let mut running = Running::start(Command::new("sh").args(["-c", "sleep 1"]), Stdio::null()).unwrap();
        running.started -= Duration::from_secs(3600);
        assert!(running.finish(Duration::from_secs(60)).unwrap().status.success());
    }

    #[test]
    fn a_process_left_behind_does_not_keep_the_outcome_back() {
        let outcome = run(Command::new("sh").args(["-c", "sleep 600 & echo done"]), Duration::from_secs(60)).unwrap();
        assert_eq!(outcome.text(), "done\n");
    }

    #[test]
    fn output_can_be_read_while_the_program_writes_it() {
        let mut running =
            Running::start(Command::new("sh").args(["-c", "echo one; read x; echo two"]), Stdio::piped()).unwrap();
        running.wait_for("one", Duration::from_secs(60)).unwrap();
        running.close_input();
        assert_eq!(running.finish(Duration::from_secs(60)).unwrap().text(), "one\ntwo\n");
    }
}
