//! The standard streams of a job at its checkpoint, and what `katydid restore` gives it for them. The tests try every pair of
//! kinds, and streams of different kinds beside each other.
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
use katydid_tests::catalog::slice::Slice;
use katydid_tests::commands::katydid;
use katydid_tests::job::CHECKPOINTED_EXIT_STATUS;
use katydid_tests::paths::Paths;
use katydid_tests::script;
use katydid_tests::watch::until;
use rustix::process::Pid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::tcgetpgrp;

use crate::scenarios::Scenario;
use crate::stage::{Stage, WAY_NAMES};

/// `O_NOCTTY`.
const NO_CONTROL: i32 = 0o400;
/// Input that interrupts a program, and input that stops one.
const INTERRUPT: &str = "\x03";
const SUSPEND: &str = "\x1a";
/// Number of mixtures of different streams, and of the slices into which they are cut.
const MIXTURES: usize = ALL_KINDS.len() * ALL_KINDS.len();
const MIXTURE_SLICES: usize = 24;
const JOB: &str = "streams";
/// Runs beside a program, holding memory that takes a while to save, until the process that started it ends.
const HOLDER: &str = r#"python3 -c '
import os, sys, time
above, held = os.getppid(), os.urandom(192 << 20)
open(sys.argv[1] + ".up", "w").close()
while os.getppid() == above:
    time.sleep(0.05)
' "$1" & while ! [ -e "$1.up" ]; do sleep 0.05; done; exec "$2" reads "$1""#;

const ON_EVERY_WAY: [(&str, Scenario); 2] =
    [("a_job_of_a_terminal_is_restored", of_terminal), ("a_job_whose_input_is_a_file_reads_on", of_file)];
const ON_ONE_WAY: [(&str, Scenario); 7] = [
    ("a_job_whose_streams_are_of_different_kinds_is_restored", of_mixtures),
    ("a_job_in_the_background_of_a_shell_is_restored_there_and_reads_in_the_foreground", of_background),
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

/// The kind of a standard stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The controlling terminal, with one description for all streams on it.
    Terminal,
    /// A terminal that is not controlling: of another session, or of none.
    OtherTerminal,
    File,
    Pipe,
    /// One socket for all streams that are sockets.
    Socket,
    Null,
    Closed,
}

/// All kinds, in the order that numbers each stream's kinds.
const ALL_KINDS: [Kind; 7] =
    [Kind::Terminal, Kind::OtherTerminal, Kind::File, Kind::Pipe, Kind::Socket, Kind::Null, Kind::Closed];
/// Kinds that are tried in pairs, with all three streams of one kind.
const KINDS: [Kind; 6] = [Kind::Terminal, Kind::File, Kind::Pipe, Kind::Socket, Kind::Null, Kind::Closed];

impl Kind {
    fn is_nothing(self) -> bool {
        matches!(self, Self::Null | Self::Closed)
    }
}

/// Both ends of a pseudo-terminal, which is not a controlling terminal yet.
struct Terminal {
    master: File,
    slave: File,
    name: String,
}

impl Terminal {
    fn open() -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?.into_string()?;
        let slave = File::options().read(true).write(true).custom_flags(NO_CONTROL).open(&name)?;
        Ok(Self { master: File::from(master), slave, name })
    }
}

/// The ends of one stream of a command.
struct Channel {
    /// The command's end; `None` where the stream is closed.
    theirs: Option<OwnedFd>,
    /// The end into which the test writes input.
    input: Option<File>,
    output: Sink,
}

/// Where the output of a stream can be read.
#[derive(Clone)]
enum Sink {
    Nowhere,
    Collected(Arc<Mutex<Vec<u8>>>),
    File(PathBuf),
}

impl Sink {
    fn so_far(&self) -> Vec<u8> {
        match self {
            Self::Nowhere => Vec::new(),
            Self::Collected(text) => text.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            Self::File(path) => fs::read(path).unwrap_or_default(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Collected(one), Self::Collected(other)) if Arc::ptr_eq(one, other))
    }
}

/// A channel that streams of one kind share.
struct SharedChannel {
    kind: Kind,
    theirs: OwnedFd,
    ours: File,
    output: Sink,
}

/// Makes the streams of one command.
struct Channels<'a> {
    folder: &'a Path,
    typed: &'a str,
    shared: Vec<SharedChannel>,
    /// Name of the controlling terminal, if there is one.
    controlling: Option<String>,
    readers: Vec<JoinHandle<()>>,
}

impl Channels<'_> {
    /// Returns the channel of stream `number`.
    fn channel(&mut self, number: usize, kind: Kind) -> Result<Channel> {
        let nothing = |command_end| Channel { theirs: command_end, input: None, output: Sink::Nowhere };
        let path = self.folder.join(format!("{JOB}.{}", ["in", "out", "err"][number]));
        Ok(match (kind, number) {
            (Kind::Closed, _) => nothing(None),
            (Kind::Null, _) => nothing(Some(File::options().read(true).write(true).open("/dev/null")?.into())),
            (Kind::File, 0) => {
                fs::write(&path, self.typed)?;
                nothing(Some(File::open(path)?.into()))
            }
            (Kind::File, _) => {
                let file = File::create(&path)?;
                Channel { theirs: Some(file.into()), input: None, output: Sink::File(path) }
            }
            (Kind::Pipe, 0) => {
                let (reader, writer) = io::pipe()?;
                let mut writer = File::from(OwnedFd::from(writer));
                writer.write_all(self.typed.as_bytes())?;
                Channel { theirs: Some(reader.into()), input: Some(writer), output: Sink::Nowhere }
            }
            (Kind::Pipe | Kind::Socket | Kind::Terminal | Kind::OtherTerminal, _) => self.of_shared(number, kind)?,
        })
    }

    /// Returns a channel of a kind that several streams may share.
    fn of_shared(&mut self, number: usize, kind: Kind) -> Result<Channel> {
        if !self.shared.iter().any(|shared| shared.kind == kind) {
            let (command_end, test_end) = self.make(kind)?;
            let output = Arc::<Mutex<Vec<u8>>>::default();
            self.readers.push(collected(test_end.try_clone()?, Arc::clone(&output)));
            let output = Sink::Collected(output);
            self.shared.push(SharedChannel { kind, theirs: command_end, ours: test_end, output });
        }
        let shared = self.shared.iter().find(|shared| shared.kind == kind).context("no such stream")?;
        let mut input = None;
        if number == 0 {
            let mut test_end = shared.ours.try_clone()?;
            test_end.write_all(self.typed.as_bytes())?;
            input = Some(test_end);
        }
        Ok(Channel { theirs: Some(shared.theirs.try_clone()?), input, output: shared.output.clone() })
    }

    /// Returns the command's end and the test's end.
    fn make(&mut self, kind: Kind) -> Result<(OwnedFd, File)> {
        Ok(match kind {
            Kind::Pipe => {
                let (reader, writer) = io::pipe()?;
                (writer.into(), File::from(OwnedFd::from(reader)))
            }
            Kind::Socket => {
                let (test_end, command_end) = UnixStream::pair()?;
                (command_end.into(), File::from(OwnedFd::from(test_end)))
            }
            _ => {
                let Terminal { master, slave, name } = Terminal::open()?;
                if kind == Kind::Terminal {
                    self.controlling = Some(name);
                }
                (slave.into(), master)
            }
        })
    }
}

/// A running command with such streams; killed on drop.
struct StreamedCommand {
    child: Child,
    /// The end into which the test writes input.
    input: Option<File>,
    outputs: [Sink; 3],
    readers: Vec<JoinHandle<()>>,
}

impl StreamedCommand {
    /// Starts `command` with streams of these kinds; it first reads `typed`.
    fn start(command: &Command, kinds: [Kind; 3], folder: &Path, typed: &str) -> Result<Self> {
        let mut channels = Channels { folder, typed, shared: Vec::new(), controlling: None, readers: Vec::new() };
        let mut streams = Vec::new();
        for (number, kind) in kinds.into_iter().enumerate() {
            streams.push(channels.channel(number, kind)?);
        }
        let Channels { controlling, readers, shared, .. } = channels;
        drop(shared);
        // A shell that leads a session opens the terminal, which becomes the controlling one, and closes streams.
        let closed = ["<&-", ">&-", "2>&-"].into_iter().zip(&streams).filter(|(_, channel)| channel.theirs.is_none());
        let closed = closed.map(|(redirection, _)| redirection).collect::<Vec<_>>().join(" ");
        let opens = if controlling.is_some() { ": <>\"$0\"; " } else { "" };
        let script = format!("{opens}exec \"$@\" {closed}");
        let shell = ["setsid", "--wait", "sh", "-c", &script, controlling.as_deref().unwrap_or("sh")];
        let first = match &controlling {
            Some(_) => &shell[..],
            None if closed.is_empty() => &[],
            None => &shell[2..],
        };
        let mut outer = through(first, command);
        let (mut input, mut outputs) = (None, [const { Sink::Nowhere }; 3]);
        for (number, channel) in streams.into_iter().enumerate() {
            let stream = channel.theirs.map_or_else(Stdio::null, Stdio::from);
            match number {
                0 => outer.stdin(stream),
                1 => outer.stdout(stream),
                _ => outer.stderr(stream),
            };
            input = input.or(channel.input);
            outputs[number] = channel.output;
        }
        Ok(Self { child: outer.spawn()?, input, outputs, readers })
    }

    /// Returns the output of a stream, and of those that share its other end.
    fn text_of(&self, number: usize) -> String {
        String::from_utf8_lossy(&self.outputs[number].so_far()).into_owned()
    }

    /// Returns the output on standard output and error.
    fn so_far(&self) -> String {
        let is_one = self.outputs[1].is_same(&self.outputs[2]);
        if is_one { self.text_of(1) } else { self.text_of(1) + &self.text_of(2) }
    }

    /// Writes to the command's input.
    fn types(&mut self, text: &str) -> Result<()> {
        Ok(self.input.as_mut().context("it has no input")?.write_all(text.as_bytes())?)
    }

    /// Waits until the command has written `word`.
    fn says(&self, word: &str) -> Result<()> {
        until(&format!("it says {word:?}"), || self.so_far().contains(word)).with_context(|| self.so_far())
    }

    /// Returns the foreground process group of the terminal that is its input.
    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(self.input.as_ref()?).ok()
    }

    /// Waits for the end of the command and of its output, and returns the exit status.
    fn end(&mut self) -> Result<Option<i32>> {
        let mut status = None;
        until("it has ended", || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        })
        .with_context(|| self.so_far())?;
        self.input = None;
        for reader in self.readers.drain(..) {
            // Processes that it has left behind may hold its streams.
            until("its output ends", || reader.is_finished())?;
        }
        Ok(status.and_then(|status| status.code()))
    }

    /// Returns the exit status and all output.
    fn finish(mut self) -> Result<(Option<i32>, String)> {
        let status = self.end()?;
        Ok((status, self.so_far()))
    }
}

impl Drop for StreamedCommand {
    fn drop(&mut self) {
        // A command that has ended needs no kill.
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

/// Returns `command` started through the words of `first`.
pub(crate) fn through(first: &[&str], command: &Command) -> Command {
    let words = first.iter().map(AsRef::as_ref).chain([command.get_program()]).chain(command.get_args());
    let words: Vec<_> = words.collect();
    let mut outer = Command::new(words[0]);
    outer.args(&words[1..]);
    set_environment_of(command, &mut outer);
    outer
}

/// Copies the variables that `command` sets and removes to `to`.
fn set_environment_of(command: &Command, to: &mut Command) {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
}

/// A job that a checkpoint ended in the middle of its input.
struct SavedJob<'a> {
    stage: &'a Stage,
    image: PathBuf,
    then: [Kind; 3],
    /// Lets the program read on.
    go: PathBuf,
}

impl<'a> SavedJob<'a> {
    /// Runs and checkpoints a job with streams of these kinds. The names of its image and its files begin with `name`.
    fn new(stage: &'a Stage, name: &str, then: [Kind; 3]) -> Result<Self> {
        let [image, go, held] = ["image", "go", "go.held"].map(|end| stage.image(&format!("{name}.{end}")));
        let paths = &stage.paths;
        let mut command = stage.way.job(paths, &["--name", JOB], &paths.program("fixture", Variant::Static));
        command.arg("reads").arg(&go).env("XDG_RUNTIME_DIR", stage.image("run"));
        let typed = if then[0] == Kind::File { "one\ntwo\nend\n" } else { "one\n" };
        let folder = stage.image(&format!("{name}.then"));
        fs::create_dir(&folder)?;
        let job = StreamedCommand::start(&command, then, &folder, typed)?;
        until("it has read its first line", || held.exists()).with_context(|| job.so_far())?;
        is_saved(stage, &image)?;
        let (status, text) = job.finish()?;
        ensure!(status == Some(CHECKPOINTED_EXIT_STATUS), "{then:?}: {status:?}\n{text}");
        Ok(Self { stage, image, then, go })
    }

    fn command(&self) -> Command {
        let mut command = self.stage.way.restore(&self.stage.paths, &self.image, &[]);
        command.env("XDG_RUNTIME_DIR", self.stage.image("run"));
        command
    }

    /// Checks that the job goes on with each kind of streams.
    fn is_restored(&self) -> Result<()> {
        KINDS.into_iter().try_for_each(|now| self.goes_on_with([now; 3]))?;
        self.stage.is_clean()
    }

    /// Checks that the job reads on, and that each output goes where the restore has it.
    fn goes_on_with(&self, now: [Kind; 3]) -> Result<()> {
        fs::write(&self.go, "")?;
        let folder = self.go.with_extension("now");
        fs::create_dir_all(&folder)?;
        let both = || format!("{:?} at the checkpoint, {now:?} at the restore", self.then);
        let mut restored = StreamedCommand::start(&self.command(), now, &folder, "two\nend\n").with_context(both)?;
        let status = restored.end().with_context(both)?;
        let [stdout, stderr] = [1, 2].map(|number| restored.text_of(number));
        ensure!(status == Some(0), "{}: {status:?}\n{stdout}---\n{stderr}", both());
        let is_heard = |number: usize| !self.then[number].is_nothing() && !now[number].is_nothing();
        let has_input = self.then[0] == Kind::File || is_heard(0);
        let expected: &[&str] = if has_input { &["read two", "read end", "done"] } else { &["end of input", "done"] };
        if is_heard(1) {
            in_order(&stdout, expected).with_context(both)?;
        }
        if is_heard(2) {
            in_order(&stderr, &["done"]).with_context(both)?;
        }
        let is_apart = !restored.outputs[1].is_same(&restored.outputs[2]);
        ensure!(!is_apart || !stderr.contains(expected[0]), "{}: standard error has\n{stderr}", both());
        Ok(())
    }
}

/// Takes a checkpoint of the job, which ends it.
fn is_saved(stage: &Stage, image: &Path) -> Result<()> {
    let mut checkpoint = katydid(&stage.paths, &["checkpoint", JOB, "-o"]);
    let output = checkpoint.arg(image).env("XDG_RUNTIME_DIR", stage.image("run")).output()?;
    ensure!(output.status.success(), "no checkpoint: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Checks that the words appear in this order; a terminal shows others between them.
fn in_order(text: &str, texts: &[&str]) -> Result<()> {
    let mut rest = text;
    for word in texts {
        let Some((_, after)) = rest.split_once(word) else { bail!("no {word:?} in order in:\n{text}") };
        rest = after;
    }
    Ok(())
}

/// After the checkpoint, each of the three streams goes its own way although they were one terminal. A job that is back at a
/// terminal can be interrupted there.
fn of_terminal(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let saved = SavedJob::new(&stage, JOB, [Kind::Terminal; 3])?;
    let mut restored = StreamedCommand::start(&saved.command(), [Kind::Terminal; 3], &stage.image("run"), "")?;
    restored.says("runs again")?;
    restored.types(INTERRUPT)?;
    let (status, text) = restored.finish()?;
    ensure!(status == Some(130), "interrupted: {status:?}\n{text}");
    saved.goes_on_with([Kind::Null, Kind::File, Kind::File])?;
    saved.is_restored()
}

/// Tries one kind at the checkpoint with each kind at the restore.
fn of_kind(paths: &Paths, way: &str, then: Kind) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    SavedJob::new(&stage, JOB, [then; 3])?.is_restored()
}

fn of_file(paths: &Paths, way: &str) -> Result<()> {
    of_kind(paths, way, Kind::File)
}

fn of_pipe(paths: &Paths, way: &str) -> Result<()> {
    of_kind(paths, way, Kind::Pipe)
}

fn of_socket(paths: &Paths, way: &str) -> Result<()> {
    of_kind(paths, way, Kind::Socket)
}

fn of_null(paths: &Paths, way: &str) -> Result<()> {
    of_kind(paths, way, Kind::Null)
}

fn of_closed(paths: &Paths, way: &str) -> Result<()> {
    of_kind(paths, way, Kind::Closed)
}

/// Returns the kinds of the three streams at a checkpoint and at its restore. Over all 49, each two streams have every pair of
/// kinds at the checkpoint and at the restore. Each stream has every kind at the restore for every kind at the checkpoint.
fn mixture(index: usize) -> [[Kind; 3]; 2] {
    let (first, step) = (index / ALL_KINDS.len(), index % ALL_KINDS.len());
    let kind = |steps: usize| ALL_KINDS[(first + steps * step) % ALL_KINDS.len()];
    [[kind(0), kind(1), kind(2)], [kind(1), kind(3), kind(5)]]
}

/// Streams of different kinds: always those of a program that writes into a file and reads from a terminal, and a slice of all
/// mixtures.
fn of_mixtures(paths: &Paths, way: &str) -> Result<()> {
    const USUAL: [Kind; 3] = [Kind::Terminal, Kind::File, Kind::File];
    let (stage, slice) = (Stage::new(paths, way)?, Slice::of_this_test());
    SavedJob::new(&stage, "usual", USUAL)?.goes_on_with(USUAL)?;
    for index in (0..MIXTURES).filter(|index| slice.chooses("mixtures", index % MIXTURE_SLICES, MIXTURE_SLICES)) {
        let [then, now] = mixture(index);
        SavedJob::new(&stage, &index.to_string(), then)?.goes_on_with(now)?;
    }
    stage.is_clean()
}

/// At an interactive shell, the job goes to the background before its checkpoint. It is restored there, and reads
/// on in the foreground.
fn of_background(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let [image, go, held, run, restore] =
        ["image", "go", "go.held", "run.sh", "restore.sh"].map(|name| stage.image(name));
    let mut job = stage.way.job(paths, &["--name", JOB], &paths.program("fixture", Variant::Static));
    write_command(&run, job.arg("reads").arg(&go))?;
    write_command(&restore, &stage.way.restore(paths, &image, &[]))?;
    let mut shell = Command::new("bash");
    set_environment_of(&job, shell.args(["--noprofile", "--norc", "--noediting", "-i"]));
    shell.env("XDG_RUNTIME_DIR", stage.image("run")).env("HISTFILE", "/dev/null");
    let mut shell = StreamedCommand::start(&shell, [Kind::Terminal; 3], &stage.image("run"), "")?;
    shell.types(&format!("{}\none\n", run.display()))?;
    until("it has read its first line", || held.exists()).with_context(|| shell.so_far())?;
    shell.types(SUSPEND)?;
    shell.says("Stopped")?;
    shell.types("bg; echo in the $((1))st background\n")?;
    shell.says("in the 1st background")?;
    is_saved(&stage, &image)?;
    shell.types("wait %1; echo left $?\n")?;
    shell.says(&format!("left {CHECKPOINTED_EXIT_STATUS}"))?;
    shell.types(&format!("{} &\n", restore.display()))?;
    shell.says("runs again")?;
    let at_the_prompt = shell.foreground();
    shell.types("fg\ntwo\nend\n")?;
    // A job that reads before it is in the foreground is suspended.
    until("the job is in the foreground", || shell.foreground() != at_the_prompt)?;
    fs::write(&go, "")?;
    shell.says("read end")?;
    shell.types("echo left $?; exit\n")?;
    let (status, text) = shell.finish()?;
    in_order(&text, &["runs again", "read two", "read end", "done", "left 0"])?;
    ensure!(status == Some(0), "{status:?}\n{text}");
    stage.is_clean()
}

/// Writes a script that becomes the command, with its environment.
fn write_command(path: &Path, command: &Command) -> Result<()> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let words: Vec<String> = words.map(|word| format!("'{}'", word.to_string_lossy())).collect();
    Ok(script::write(path, &format!("#!/bin/sh\nexec {}\n", words.join(" ")))?)
}

/// Returns the percentages in a terminal's progress bars with this word, in order.
fn percents(text: &str, word: &str) -> Vec<u32> {
    let bars = text.split('\r').filter(|line| line.contains(word));
    bars.filter_map(|bar| bar.split_once(" %")?.0.rsplit(' ').next()?.parse().ok()).collect()
}

/// The dump of the processes has a bar of its own, which first appears before its end.
fn shows_progress(paths: &Paths, way: &str) -> Result<()> {
    let stage = Stage::new(paths, way)?;
    let (go, run) = (stage.image("go"), stage.image("run"));
    let mut command = stage.way.job(paths, &["--name", JOB], Path::new("/bin/sh"));
    let program = paths.program("fixture", Variant::Static);
    command.args(["-c", HOLDER, "sh"]).arg(&go).arg(program).env("XDG_RUNTIME_DIR", &run);
    let job = StreamedCommand::start(&command, [Kind::Null; 3], &run, "")?;
    let held = stage.image("go.held");
    until("it has read its first line", || held.exists()).with_context(|| job.so_far())?;
    let mut checkpoint = katydid(paths, &["checkpoint", JOB, "-o"]);
    checkpoint.arg(stage.image("image")).env("XDG_RUNTIME_DIR", &run);
    let (status, text) = StreamedCommand::start(&checkpoint, [Kind::Terminal; 3], &run, "")?.finish()?;
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
    let (status, text) = StreamedCommand::start(&restore, [Kind::Terminal; 3], &run, "")?.finish()?;
    let restored = percents(&text, " on the GPU,");
    ensure!(status == Some(0) && restored.first() == Some(&0), "{status:?}, {restored:?}\n{text}");
    stage.is_clean()
}
