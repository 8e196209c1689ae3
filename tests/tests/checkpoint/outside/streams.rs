//! What the standard streams of a job are at the checkpoint, and what `katydid restore` has for them: every pair.
//!
//! | at the checkpoint | after the restore |
//! |---|---|
//! | terminal, pipe, socket | the streams of `katydid restore` |
//! | regular files | input is read on at its path and offset, output goes to the streams of `katydid restore` |
//! | `/dev/null`, closed (which the job has as `/dev/null`) | the same again |

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail, ensure};
use katydid_tests::catalog::Variant;
use katydid_tests::commands::katydid;
use katydid_tests::job::CHECKPOINTED_EXIT_STATUS;
use katydid_tests::paths::Paths;
use katydid_tests::watch::until;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::scenarios::Scenario;
use crate::stage::{Stage, WAY_NAMES};

/// `O_NOCTTY`.
const NO_CONTROL: i32 = 0o400;
/// What is typed to interrupt a program.
const INTERRUPT: &[u8] = b"\x03";
const JOB: &str = "streams";
/// Holds memory that takes a while to save, beside a program, until the process that it was started by ends.
const HOLDER: &str = r#"python3 -c '
import os, sys, time
above, held = os.getppid(), os.urandom(192 << 20)
open(sys.argv[1] + ".up", "w").close()
while os.getppid() == above:
    time.sleep(0.05)
' "$1" & while ! [ -e "$1.up" ]; do sleep 0.05; done; exec "$2" reads "$1""#;

const ON_EVERY_WAY: [(&str, Scenario); 2] =
    [("a_job_of_a_terminal_is_restored", of_terminal), ("a_job_whose_input_is_a_file_reads_on", of_file)];
const ON_ONE_WAY: [(&str, Scenario); 5] = [
    ("progress_at_a_terminal_begins_at_nothing_and_moves", shows_progress),
    ("a_job_of_pipes_is_restored", of_pipe),
    ("a_job_of_sockets_is_restored", of_socket),
    ("a_job_without_streams_is_restored", of_null),
    ("a_job_of_closed_streams_is_restored", of_closed),
];

/// The trials' names and ways.
pub(crate) fn trials() -> impl Iterator<Item = (&'static str, Scenario, &'static str)> {
    let every = ON_EVERY_WAY.iter().flat_map(|&(name, scenario)| WAY_NAMES.map(|way| (name, scenario, way)));
    every.chain(ON_ONE_WAY.iter().map(|&(name, scenario)| (name, scenario, "shm")))
}

/// What all three streams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The controlling one, with one description for all three.
    Terminal,
    File,
    Pipe,
    /// One for all three.
    Socket,
    Null,
    Closed,
}

const KINDS: [Kind; 6] = [Kind::Terminal, Kind::File, Kind::Pipe, Kind::Socket, Kind::Null, Kind::Closed];

impl Kind {
    fn is_nothing(self) -> bool {
        matches!(self, Self::Null | Self::Closed)
    }
}

/// A command that runs with such streams; killed when dropped.
struct StreamedCommand {
    child: Child,
    /// Takes what is to be read.
    input: Option<File>,
    output: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    /// Has the output.
    file: Option<PathBuf>,
}

impl StreamedCommand {
    /// Starts `command` with `typed` as what it reads first.
    fn start(command: &Command, kind: Kind, folder: &Path, typed: &str) -> Result<Self> {
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let read = |source: File| Some(collected(source, Arc::clone(&output)));
        let (mut input, mut reader, mut file) = (None, None, None);
        let child = match kind {
            Kind::Terminal => {
                let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
                grantpt(&master)?;
                unlockpt(&master)?;
                let name = ptsname(&master, Vec::new())?.into_string()?;
                let slave = File::options().read(true).write(true).custom_flags(NO_CONTROL).open(name)?;
                let mut master = File::from(master);
                master.write_all(typed.as_bytes())?;
                reader = read(master.try_clone()?);
                input = Some(master);
                let mut command = through(&["setsid", "--ctty", "--wait"], command);
                command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave).spawn()?
            }
            Kind::File => {
                let place = |name: &str| folder.join(format!("{JOB}.{name}"));
                fs::write(place("in"), typed)?;
                file = Some(place("out"));
                let (out, err) = (File::create(place("out"))?, File::create(place("err"))?);
                again(command).stdin(File::open(place("in"))?).stdout(out).stderr(err).spawn()?
            }
            Kind::Pipe => {
                let ((child_stdin, mut stdin), (out, written)) = (io::pipe()?, io::pipe()?);
                stdin.write_all(typed.as_bytes())?;
                input = Some(File::from(OwnedFd::from(stdin)));
                reader = read(File::from(OwnedFd::from(out)));
                again(command).stdin(child_stdin).stdout(written.try_clone()?).stderr(written).spawn()?
            }
            Kind::Socket => {
                let (mut socket, child_socket) = UnixStream::pair()?;
                socket.write_all(typed.as_bytes())?;
                reader = read(File::from(OwnedFd::from(socket.try_clone()?)));
                input = Some(File::from(OwnedFd::from(socket)));
                let stream = || Ok::<OwnedFd, io::Error>(child_socket.try_clone()?.into());
                again(command).stdin(stream()?).stdout(stream()?).stderr(stream()?).spawn()?
            }
            Kind::Null => again(command).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?,
            Kind::Closed => through(&["sh", "-c", "exec \"$@\" <&- >&- 2>&-", "sh"], command).spawn()?,
        };
        Ok(Self { child, input, output, reader, file })
    }

    fn so_far(&self) -> String {
        let output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.file.as_ref().and_then(|path| fs::read(path).ok()).unwrap_or_default();
        String::from_utf8_lossy(&[output.as_slice(), &file].concat()).into_owned()
    }

    /// Its exit status and all that it wrote.
    fn finish(mut self) -> Result<(Option<i32>, String)> {
        let mut status = None;
        until("it has ended", || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })
        .with_context(|| self.so_far())?;
        self.input = None;
        if let Some(reader) = self.reader.take() {
            // What it has left behind may have its streams.
            until("its output ends", || reader.is_finished())?;
        }
        Ok((status.and_then(|status| status.code()), self.so_far()))
    }
}

impl Drop for StreamedCommand {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads until no process can write any more.
fn collected(mut source: File, into: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut part = [0; 4096];
        while let Ok(length @ 1..) = source.read(&mut part) {
            into.lock().unwrap_or_else(PoisonError::into_inner).extend(&part[..length]);
        }
    })
}

fn again(command: &Command) -> Command {
    through(&[], command)
}

/// The command behind another one that runs it.
fn through(first: &[&str], command: &Command) -> Command {
    let words = first.iter().map(AsRef::as_ref).chain([command.get_program()]).chain(command.get_args());
    let words: Vec<_> = words.collect();
    let mut outer = Command::new(words[0]);
    outer.args(&words[1..]);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// A job that was checkpointed, which ended it, in the middle of its input.
struct SavedJob<'a> {
    paths: &'a Paths,
    stage: Stage,
    then: Kind,
    /// Lets the program read on.
    go: PathBuf,
}

impl<'a> SavedJob<'a> {
    fn new(paths: &'a Paths, way: &str, then: Kind) -> Result<Self> {
        let stage = Stage::new(paths, way)?;
        let go = stage.image("go");
        let mut command = stage.way.job(paths, &["--name", JOB], &paths.program("fixture", Variant::Static));
        command.arg("reads").arg(&go).env("XDG_RUNTIME_DIR", stage.image("run"));
        let typed = if then == Kind::File { "one\ntwo\nend\n" } else { "one\n" };
        let folder = stage.image("then");
        fs::create_dir(&folder)?;
        let job = StreamedCommand::start(&command, then, &folder, typed)?;
        let held = stage.image("go.held");
        until("it has read its first line", || held.exists()).with_context(|| job.so_far())?;
        let mut checkpoint = katydid(paths, &["checkpoint", JOB, "-o"]);
        checkpoint.arg(stage.image("image")).env("XDG_RUNTIME_DIR", stage.image("run"));
        let said = checkpoint.output()?;
        ensure!(said.status.success(), "no checkpoint: {}", String::from_utf8_lossy(&said.stderr));
        let (status, text) = job.finish()?;
        ensure!(status == Some(CHECKPOINTED_EXIT_STATUS), "{then:?}: {status:?}\n{text}");
        Ok(Self { paths, stage, then, go })
    }

    fn command(&self) -> Command {
        let mut command = self.stage.way.restore(self.paths, &self.stage.image("image"), &[]);
        command.env("XDG_RUNTIME_DIR", self.stage.image("run"));
        command
    }

    /// It goes on with each kind of streams.
    fn is_restored(&self) -> Result<()> {
        fs::write(&self.go, "")?;
        let folder = self.stage.image("now");
        fs::create_dir(&folder)?;
        for now in KINDS {
            let pair = || format!("{:?} at the checkpoint, {now:?} at the restore", self.then);
            let restored = StreamedCommand::start(&self.command(), now, &folder, "two\nend\n").with_context(pair)?;
            let (status, text) = restored.finish().with_context(pair)?;
            ensure!(status == Some(0), "{}: {status:?}\n{text}", pair());
            let is_silent = self.then.is_nothing() || now.is_nothing();
            let has_input = self.then == Kind::File || !now.is_nothing();
            let wanted: &[&str] = if has_input { &["read two", "read end", "done"] } else { &["end of input", "done"] };
            if !is_silent {
                in_order(&text, wanted).with_context(pair)?;
            }
        }
        self.stage.is_clean()
    }
}

/// The words come one behind the other; a terminal shows others between them.
fn in_order(text: &str, texts: &[&str]) -> Result<()> {
    let mut rest = text;
    for word in texts {
        let Some((_, after)) = rest.split_once(word) else { bail!("no {word:?} in order in:\n{text}") };
        rest = after;
    }
    Ok(())
}

/// Each of the three goes its own way though it was one terminal; and a job that is back at a terminal is interrupted there.
fn of_terminal(paths: &Paths, way: &str) -> Result<()> {
    let saved = SavedJob::new(paths, way, Kind::Terminal)?;
    let mut restored = StreamedCommand::start(&saved.command(), Kind::Terminal, &saved.stage.image("then"), "")?;
    until("it runs again", || restored.so_far().contains("runs again")).with_context(|| restored.so_far())?;
    restored.input.as_mut().context("no terminal")?.write_all(INTERRUPT)?;
    let (status, text) = restored.finish()?;
    ensure!(status == Some(130), "interrupted: {status:?}\n{text}");
    fs::write(&saved.go, "")?;
    let place = |name: &str| saved.stage.image(name);
    let mut apart = saved.command();
    apart.stdin(Stdio::null()).stdout(File::create(place("out"))?).stderr(File::create(place("err"))?);
    let status = apart.status()?;
    let (out, err) = (fs::read_to_string(place("out"))?, fs::read_to_string(place("err"))?);
    ensure!(status.success() && out == "end of input\ndone\n" && err == "done\n", "{status}\n{out}---\n{err}");
    fs::remove_file(&saved.go)?;
    saved.is_restored()
}

fn of_file(paths: &Paths, way: &str) -> Result<()> {
    SavedJob::new(paths, way, Kind::File)?.is_restored()
}

fn of_pipe(paths: &Paths, way: &str) -> Result<()> {
    SavedJob::new(paths, way, Kind::Pipe)?.is_restored()
}

fn of_socket(paths: &Paths, way: &str) -> Result<()> {
    SavedJob::new(paths, way, Kind::Socket)?.is_restored()
}

fn of_null(paths: &Paths, way: &str) -> Result<()> {
    SavedJob::new(paths, way, Kind::Null)?.is_restored()
}

fn of_closed(paths: &Paths, way: &str) -> Result<()> {
    SavedJob::new(paths, way, Kind::Closed)?.is_restored()
}

/// What bars of a terminal with this word say, one after the other, in percent.
fn percents(text: &str, word: &str) -> Vec<u32> {
    let bars = text.split('\r').filter(|line| line.contains(word));
    bars.filter_map(|bar| bar.split_once(" %")?.0.rsplit(' ').next()?.parse().ok()).collect()
}

/// The dump of the processes has a bar of its own, which is not at its end when it is first seen.
fn shows_progress(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (go, run) = (stage.image("go"), stage.image("run"));
    let mut command = stage.way.job(paths, &["--name", JOB], Path::new("/bin/sh"));
    let program = paths.program("fixture", Variant::Static);
    command.args(["-c", HOLDER, "sh"]).arg(&go).arg(program).env("XDG_RUNTIME_DIR", &run);
    let job = StreamedCommand::start(&command, Kind::Null, &run, "")?;
    let held = stage.image("go.held");
    until("it has read its first line", || held.exists()).with_context(|| job.so_far())?;
    let mut checkpoint = katydid(paths, &["checkpoint", JOB, "-o"]);
    checkpoint.arg(stage.image("image")).env("XDG_RUNTIME_DIR", &run);
    let (status, text) = StreamedCommand::start(&checkpoint, Kind::Terminal, &run, "")?.finish()?;
    ensure!(status == Some(0), "no checkpoint: {status:?}\n{text}");
    let dump = percents(&text, " of the processes,");
    ensure!(dump.first() == Some(&0) && dump.is_sorted(), "it begins at nothing, and only grows: {dump:?}\n{text}");
    ensure!(dump.iter().any(|percent| (1..100).contains(percent)), "it moves while CRIU writes: {dump:?}\n{text}");
    let written = percents(&text, " new,");
    ensure!(written.first().is_none_or(|percent| *percent == 0), "{written:?}\n{text}");
    ensure!(job.finish()?.0 == Some(CHECKPOINTED_EXIT_STATUS));
    let mut restore = stage.way.restore(paths, &stage.image("image"), &[]);
    restore.env("XDG_RUNTIME_DIR", &run);
    fs::write(&go, "")?;
    let (status, text) = StreamedCommand::start(&restore, Kind::Terminal, &run, "")?.finish()?;
    let restored = percents(&text, " on the GPU,");
    ensure!(status == Some(0) && restored.first() == Some(&0), "{status:?}, {restored:?}\n{text}");
    stage.is_clean()
}
